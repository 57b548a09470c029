"""Fingerprints: what they are by definition, what they see, and whatever the tensor lies in memory like."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import pytest
import torch
import xxhash
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from detsweep.fingerprints import (
    PIECE,
    Digest,
    as_int64,
    bitsum,
    collect,
    combine,
    local,
    mixed,
    raw_bits,
    select,
    sha256,
    xxh3,
)
from tests.support import group_of_one

MASK = (1 << 64) - 1
ALL_256 = (1 << 256) - 1
FLOATS = (torch.float32, torch.bfloat16)
ALL: dict[str, Callable[[Tensor], Digest]] = {"xxh3": xxh3, "mixed": mixed, "bitsum": bitsum, "sha256": sha256}


def _value(digest: Digest) -> int:
    """All bits of a digest: those of a tensor are 64."""
    return int(digest) & (MASK if isinstance(digest, Tensor) else ALL_256)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16)


def _flip(tensor: Tensor, bit: int, *places: int) -> Tensor:
    changed = tensor.clone()
    width = 8 * tensor.element_size()
    for place in places:
        _bits(changed).view(-1)[place] ^= 1 << bit if bit < width - 1 else -(1 << bit)
    return changed


def _corruptions(dtype: torch.dtype) -> dict[str, tuple[Tensor, Tensor]]:
    """Fourteen patterns of corruption as (clean, corrupted)."""
    clean = torch.linspace(-3, 5, 1024).to(dtype)
    width = 8 * clean.element_size()
    # Bit 20 of an fp32 lies in the half that a bf16 keeps.
    bit = 20 if width == 32 else 4
    zeros = clean.clone()
    zeros[[3, 700]] = 0.0
    unset = torch.nonzero(_bits(clean) & (1 << bit) == 0).flatten().tolist()
    swapped = clean.clone()
    swapped[[1, 1000]] = clean[[1000, 1]]
    pair = clean.clone()
    _bits(pair)[10] += 1
    _bits(pair)[500] -= 1
    not_a_number = clean.clone()
    not_a_number[5] = float("nan")
    rows = clean[:64].repeat(2, 1)
    ones, twos = torch.ones(1024, dtype=dtype), torch.full((1024,), 2.0, dtype=dtype)
    return {
        "swap": (clean, swapped),
        "reverse": (clean, clean.flip(0)),
        "roll": (clean, clean.roll(1)),
        "lowest bit": (clean, _flip(clean, 0, 77)),
        "sign": (clean, _flip(clean, width - 1, 77)),
        "same bit in two": (clean, _flip(clean, bit, unset[0], unset[-1])),
        "one bit in every 32nd": (clean, _flip(clean, bit, *range(0, 1024, 32))),
        "one zero negated": (zeros, _flip(zeros, width - 1, 3)),
        "two zeros negated": (zeros, _flip(zeros, width - 1, 3, 700)),
        "up and down one ulp": (clean, pair),
        "NaN payload": (not_a_number, _flip(not_a_number, 1, 5)),
        "zero padding": (clean, torch.cat([clean, torch.zeros(64, dtype=dtype)])),
        "another constant": (ones, twos),
        "same in duplicated rows": (rows, _flip(rows, bit, 5, 64 + 5)),
    }


MISSED_BY_BITSUM = {"swap", "reverse", "roll", "up and down one ulp", "zero padding"}


def _seen(fingerprint: Callable[[Tensor], Digest], dtype: torch.dtype) -> set[str]:
    return {
        name
        for name, (clean, corrupted) in _corruptions(dtype).items()
        if _value(fingerprint(clean)) != _value(fingerprint(corrupted))
    }


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("pattern", _corruptions(torch.float32))
@pytest.mark.parametrize("checksum", ["auto", "mixed", "sha256"])
def test_all_but_bitsum_see_every_corruption(checksum: str, pattern: str, dtype: torch.dtype) -> None:
    _, fingerprint = select(checksum, "cpu")
    clean, corrupted = _corruptions(dtype)[pattern]
    assert not torch.equal(clean.view(torch.uint8), corrupted.view(torch.uint8))
    assert _value(fingerprint(clean)) != _value(fingerprint(corrupted))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_bitsum_misses_permutations_and_what_cancels_out(dtype: torch.dtype) -> None:
    assert len(_corruptions(dtype)) == 14
    assert set(_corruptions(dtype)) - _seen(bitsum, dtype) == MISSED_BY_BITSUM


# --- definitions -----------------------------------------------------------------------------------------------------


def _random_bits(dtype: torch.dtype, count: int) -> Tensor:
    generator = np.random.default_rng(11)
    if dtype == torch.bool:
        return torch.from_numpy(generator.integers(0, 2, count).astype(np.bool_))
    size = torch.empty((), dtype=dtype).element_size()
    return torch.from_numpy(generator.integers(0, 256, count * size, dtype=np.uint8)).view(dtype)


def _raw(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def _bitsum_by_definition(data: bytes, width: int) -> int:
    return sum(int.from_bytes(data[at : at + width], "little", signed=True) for at in range(0, len(data), width))


def _mixed_by_definition(data: bytes) -> int:
    padded = data + bytes(-len(data) % 8)
    lanes = np.frombuffer(padded, dtype="<u8").astype(np.uint64)
    state = lanes + np.arange(1, lanes.size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state = state ^ (state >> np.uint64(31))
    return (int(state.sum(dtype=np.uint64)) + len(data) * 0xD6E8FEB86659FD93) & MASK


DTYPES = (
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bitsum_is_the_sum_of_signed_integers_of_the_same_width(dtype: torch.dtype) -> None:
    tensor = _random_bits(dtype, 999)
    expected = _bitsum_by_definition(_raw(tensor), tensor.element_size())
    assert bitsum(tensor).dtype == torch.int64
    assert _value(bitsum(tensor)) == expected & MASK


def test_bitsum_wraps_modulo_two_to_the_64() -> None:
    most = torch.full((5,), 2**63 - 1, dtype=torch.int64)
    assert int(bitsum(most)) == (5 * (2**63 - 1) + 2**63) % 2**64 - 2**63


def test_bitsum_is_negative_where_the_signed_sum_is() -> None:
    assert int(bitsum(torch.tensor([-0.0, -0.0]))) == -(2**32)
    assert int(bitsum(torch.tensor([-3, 1], dtype=torch.int8))) == -2


def test_bitsum_of_complex_numbers_counts_their_parts() -> None:
    parts = _random_bits(torch.float32, 64)
    assert int(bitsum(torch.view_as_complex(parts.view(-1, 2)))) == int(bitsum(parts))


def test_bitsum_of_narrow_lanes_beyond_one_piece_is_exact() -> None:
    tensor = _random_bits(torch.int8, PIECE + 1001)
    assert int(bitsum(tensor)) == int(tensor.numpy().astype(np.int64).sum())


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 15, 16, 63, 64, 1000, 1001])
def test_mixed_equals_its_formula_whatever_the_last_lane(length: int) -> None:
    tensor = _random_bits(torch.uint8, length)
    assert mixed(tensor).dtype == torch.int64
    assert _value(mixed(tensor)) == _mixed_by_definition(_raw(tensor))


@pytest.mark.parametrize("length", [PIECE, PIECE + 8, 2 * PIECE + 3])
def test_mixed_equals_its_formula_beyond_one_piece(length: int) -> None:
    tensor = _random_bits(torch.uint8, length)
    assert _value(mixed(tensor)) == _mixed_by_definition(_raw(tensor))


def test_mixed_of_zero_lanes_sums_the_published_outputs_of_splitmix64() -> None:
    outputs = 0xE220A8397B1DCDAF + 0x6E789E6AA1B965F4 + 0x06C45D188009454F
    lanes = torch.zeros(3, dtype=torch.int64)
    assert _value(mixed(lanes)) == (outputs + 24 * 0xD6E8FEB86659FD93) & MASK


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_xxh3_is_the_library_over_the_raw_bytes(dtype: torch.dtype) -> None:
    tensor = _random_bits(dtype, 999)
    assert xxh3(tensor) == xxhash.xxh3_64_intdigest(_raw(tensor))


def _sha256sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sha256_is_what_hashlib_says_of_the_raw_bytes(dtype: torch.dtype) -> None:
    tensor = _random_bits(dtype, 999)
    assert f"{sha256(tensor):064x}" == _sha256sum(_raw(tensor))


def test_sha256_of_published_messages_is_what_is_published() -> None:
    abc = torch.tensor(list(b"abc"), dtype=torch.uint8)
    assert f"{sha256(abc):064x}" == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert f"{sha256(torch.empty(0)):064x}" == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", [24, PIECE // 8], ids=["small", "beyond a piece"])
def test_sha256_is_of_numpys_row_major_bytes_whatever_the_strides(size: int, dtype: torch.dtype) -> None:
    tensor = _random_bits(dtype, size * 35).view(size, 35)
    # numpy has no bfloat16: its bits are read as those of an integer.
    numbers = tensor.view(torch.int32 if dtype == torch.float32 else torch.int16).numpy()
    assert f"{sha256(tensor):064x}" == _sha256sum(numbers.tobytes())
    assert f"{sha256(tensor.t()):064x}" == _sha256sum(np.ascontiguousarray(numbers.T).tobytes())
    assert f"{sha256(tensor[1::3, 2:30:4]):064x}" == _sha256sum(numbers[1::3, 2:30:4].tobytes())
    assert sha256(tensor) != sha256(tensor.t())


def test_xxh3_of_nothing_is_the_published_value() -> None:
    assert xxh3(torch.empty(0)) == 0x2D06800538D394C2


# --- bits that arithmetic does not tell apart ------------------------------------------------------------------------


@pytest.mark.parametrize("checksum", ALL)
def test_payloads_and_signs_of_nan_and_zero_are_seen(checksum: str) -> None:
    patterns = [0x7FC00000, 0x7FC00001, -0x400000, 0x7F800001, 0x00000000, -0x80000000]
    tensors = [torch.tensor([pattern], dtype=torch.int32).view(torch.float32) for pattern in patterns]
    assert len({_value(ALL[checksum](tensor)) for tensor in tensors}) == len(patterns)


@pytest.mark.parametrize("checksum", ALL)
def test_the_same_bits_give_the_same_digest_whatever_their_dtype(checksum: str) -> None:
    floats = _random_bits(torch.float32, 100)
    assert _value(ALL[checksum](floats)) == _value(ALL[checksum](floats.view(torch.int32)))


# --- shapes and strides ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_empty_tensors_have_the_digest_of_no_bytes(shape: tuple[int, ...]) -> None:
    empty = torch.empty(shape)
    assert _value(bitsum(empty)) == 0
    assert _value(mixed(empty)) == 0
    assert xxh3(empty) == xxhash.xxh3_64_intdigest(b"")


@pytest.mark.parametrize("checksum", ALL)
def test_an_empty_tensor_with_strides_is_like_any_other_empty_one(checksum: str) -> None:
    assert _value(ALL[checksum](torch.empty(3, 0, 2).transpose(0, 2))) == _value(ALL[checksum](torch.empty(0)))


@pytest.mark.parametrize("checksum", ALL)
def test_a_scalar_is_like_a_vector_of_one(checksum: str) -> None:
    scalar = torch.tensor(2.5)
    assert _value(ALL[checksum](scalar)) == _value(ALL[checksum](scalar.view(1))) != 0


@cache
def _views() -> dict[str, Tensor]:
    small = _random_bits(torch.int32, 24 * 35)
    wide = _random_bits(torch.int32, 2 * (PIECE // 4 + 100_003))
    odd = _random_bits(torch.uint8, 3 * (PIECE + 300_001))
    return {
        "transposed": small.view(24, 35).t(),
        "permuted": small.view(4, 6, 35).permute(2, 0, 1),
        "strided": small[3::7],
        "columns": small.view(24, 35)[:, 5:18],
        "expanded": small[:35].expand(8, 35),
        "expanded scalar": small[0].expand(3, 4),
        "bf16 transposed": small.view(torch.bfloat16).view(48, 35).t(),
        "large, short rows": wide.view(2, -1).t(),
        "large, rows beyond a piece": wide.view(-1, 2).t(),
        "large expanded": small[:35].expand(PIECE // 100, 35),
        "large expanded scalar": small[0].expand(PIECE // 2),
        "large, pieces that are no whole lanes": odd.view(-1, 3).t(),
    }


@pytest.mark.parametrize("view", _views())
@pytest.mark.parametrize("checksum", ALL)
def test_strides_do_not_matter(checksum: str, view: str) -> None:
    tensor = _views()[view]
    assert not tensor.is_contiguous()
    assert _value(ALL[checksum](tensor)) == _value(ALL[checksum](tensor.contiguous()))


def test_row_major_order_and_not_the_storage_is_what_counts() -> None:
    matrix = torch.arange(12, dtype=torch.int32).view(3, 4)
    assert xxh3(matrix.t()) == xxhash.xxh3_64_intdigest(matrix.numpy().T.tobytes())
    assert xxh3(matrix.t()) != xxh3(matrix)


@pytest.mark.parametrize("offset", [1, 2, 3, 5, 7, 8, 13])
@pytest.mark.parametrize("checksum", ALL)
def test_a_view_at_any_offset_has_the_digest_of_its_copy(checksum: str, offset: int) -> None:
    view = _random_bits(torch.uint8, 5000)[offset : offset + 4001]
    assert view.storage_offset() == offset
    assert _value(ALL[checksum](view)) == _value(ALL[checksum](view.clone()))


def test_mixed_reads_an_odd_view_larger_than_a_piece() -> None:
    view = _random_bits(torch.bfloat16, PIECE // 2 + 5000)[1:]
    assert view.data_ptr() % 8 != 0
    assert _value(mixed(view)) == _mixed_by_definition(_raw(view))


def test_mixed_reads_aligned_memory_whose_storage_is_not() -> None:
    memory = np.random.default_rng(5).integers(0, 256, 4096, dtype=np.uint8)
    skip = 3 - memory.ctypes.data % 8
    storage = torch.from_numpy(memory[skip % 8 :])
    view = storage[5:2000]
    assert view.data_ptr() % 8 == 0
    assert view.storage_offset() % 8 != 0
    assert _value(mixed(view)) == _mixed_by_definition(_raw(view))


@pytest.mark.parametrize("checksum", ALL)
def test_lazy_conjugation_and_negation_are_resolved(checksum: str) -> None:
    numbers = torch.complex(torch.arange(1.0, 9.0), torch.arange(11.0, 19.0))
    assert numbers.conj().is_conj()
    assert _value(ALL[checksum](numbers.conj())) == _value(ALL[checksum](numbers.conj_physical()))
    negated = numbers.conj().imag
    assert negated.is_neg()
    assert _value(ALL[checksum](negated)) == _value(ALL[checksum](-numbers.imag.clone()))


@pytest.mark.parametrize("checksum", ALL)
def test_a_fingerprint_leaves_tensor_and_autograd_alone(checksum: str) -> None:
    weight = torch.linspace(-1, 1, 8).requires_grad_()
    product = weight * 2
    before = product.detach().clone()
    digest = ALL[checksum](product)
    assert torch.equal(product, before)
    assert not isinstance(digest, Tensor) or digest.grad_fn is None
    product.sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.full((8,), 2.0))


# --- what a tensor can be --------------------------------------------------------------------------------------------


@pytest.fixture
def _group() -> Iterator[None]:
    with group_of_one():
        yield


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize("checksum", ALL)
def test_of_a_dtensor_the_own_shard_is_read(checksum: str) -> None:
    mesh = init_device_mesh("cpu", (1,))
    own = torch.arange(12.0).view(4, 3)
    for placement in (Shard(0), Replicate()):
        distributed = DTensor.from_local(own, mesh, [placement])
        assert torch.equal(local(distributed), own)
        assert _value(ALL[checksum](distributed)) == _value(ALL[checksum](own))


WITHOUT_STORAGE: dict[str, Callable[[], Tensor]] = {
    "coo": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "meta": lambda: torch.empty(3, device="meta"),
    "empty meta": lambda: torch.empty(0, device="meta"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
@pytest.mark.parametrize("kind", WITHOUT_STORAGE)
@pytest.mark.parametrize("checksum", ALL)
def test_what_has_no_dense_storage_is_refused(checksum: str, kind: str) -> None:
    with pytest.raises(TypeError, match="no dense storage"):
        ALL[checksum](WITHOUT_STORAGE[kind]())


# --- choosing and collecting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checksum", "device", "expected"),
    [
        ("auto", "cpu", "xxh3"),
        ("auto", "cuda", "mixed"),
        ("mixed", "cpu", "mixed"),
        ("bitsum", "cuda", "bitsum"),
        ("xxh3", "cpu", "xxh3"),
        ("sha256", "cpu", "sha256"),
    ],
)
def test_select_names_what_auto_stands_for(checksum: str, device: str, expected: str) -> None:
    assert select(checksum, device) == (expected, ALL[expected])


def test_select_refuses_an_unknown_name_and_lists_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="checksum=md5: valid: auto, xxh3, mixed, bitsum, sha256"):
        select("md5", "cpu")


def test_collect_keeps_the_order_of_numbers_and_tensors() -> None:
    digests: list[Digest] = [2**64 - 1, torch.tensor(-5), 0, torch.tensor(2**62), torch.tensor(7), 3]
    assert collect(digests) == [2**64 - 1, -5, 0, 2**62, 7, 3]


def test_collect_takes_numbers_alone_tensors_alone_and_nothing() -> None:
    assert collect([4, 2]) == [4, 2]
    assert collect([torch.tensor(4), torch.tensor(2)]) == [4, 2]
    assert collect([]) == []


@pytest.mark.parametrize("on_device", [(), (0,), (1, 2, 5), (0, 2, 4), range(6)], ids=str)
def test_collect_gives_each_digest_its_own_number(on_device: Sequence[int]) -> None:
    numbers = [11, -7, 2**40, 0, -(2**63), 2**63 - 1]
    digests: list[Digest] = [torch.tensor(one) if n in on_device else one for n, one in enumerate(numbers)]
    assert collect(digests) == numbers
    assert collect(digests[::-1]) == numbers[::-1]


def test_collect_reads_a_digest_as_often_as_it_is_there() -> None:
    digest = torch.tensor(5)
    assert collect([digest, 1, digest, torch.tensor(6), digest]) == [5, 1, 5, 6, 5]


def test_collect_leaves_digests_where_they_are() -> None:
    digests = [mixed(torch.arange(float(size))) for size in (3, 4)]
    before = [digest.clone() for digest in digests]
    numbers = collect(digests)
    assert all(type(number) is int for number in numbers)
    assert all(torch.equal(one, other) for one, other in zip(digests, before, strict=True))


@pytest.mark.parametrize("number", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_as_int64_keeps_all_64_bits(number: int) -> None:
    own = as_int64(number, torch.device("cpu"))
    assert own.dtype == torch.int64
    assert own.shape == ()
    assert int(own) & MASK == number
    assert torch.equal(as_int64(own, torch.device("cpu")), own)


@pytest.mark.parametrize(
    ("dtype", "bits"), [(torch.float32, 0x3FC00000), (torch.bfloat16, 0x3FC0), (torch.float16, 0x3E00)], ids=str
)
def test_raw_bits_of_a_scalar_are_its_own_pattern(dtype: torch.dtype, bits: int) -> None:
    assert int(raw_bits(torch.tensor(1.5, dtype=dtype))) == bits
    assert int(raw_bits(torch.tensor(-1.5, dtype=dtype))) == bits - (1 << (8 * dtype.itemsize - 1))


# --- several digests as one ------------------------------------------------------------------------------------------


def test_one_digest_is_combined_to_itself() -> None:
    digest = mixed(torch.arange(4.0))
    assert combine([2**64 - 1]) == 2**64 - 1
    assert combine([digest]) is digest


def test_several_digests_are_hashed_as_64_bit_numbers_in_their_order() -> None:
    expected = xxhash.xxh3_64_intdigest((5).to_bytes(8, "little") + (2**64 - 1).to_bytes(8, "little"))
    assert combine([5, 2**64 - 1]) == expected
    assert combine([2**64 - 1, 5]) != expected
    assert combine([5, 2**64 - 1, 0]) != expected
    assert combine([]) == xxhash.xxh3_64_intdigest(b"")


def test_a_signed_digest_counts_as_its_64_bits() -> None:
    assert combine([1, -1]) == combine([1, 2**64 - 1])


def test_several_sha256_become_the_sha256_of_their_bytes_in_their_order() -> None:
    contents = [b"one", b"two", b""]
    digests = [hashlib.sha256(content).digest() for content in contents]
    numbers = [int.from_bytes(digest, "big") for digest in digests]
    together = combine(numbers, strong=True)
    assert f"{together:064x}" == _sha256sum(b"".join(digests))
    assert combine(numbers[::-1], strong=True) != together
    # One that begins with zeros has its 32 bytes too.
    assert f"{combine([0, 1], strong=True):064x}" == _sha256sum(bytes(63) + b"\x01")
    assert combine(numbers[:1], strong=True) == numbers[0]


@pytest.mark.parametrize("bit", [0, 63, 64, 200, 255])
def test_every_bit_of_a_sha256_counts_where_several_are_combined(bit: int) -> None:
    one, other = sha256(torch.arange(4.0)), sha256(torch.arange(5.0))
    assert combine([one ^ (1 << bit), other], strong=True) != combine([one, other], strong=True)


def test_digests_on_a_device_are_combined_there() -> None:
    one, other = mixed(torch.arange(4.0)), mixed(torch.arange(5.0))
    together = combine([one, other])
    assert isinstance(together, Tensor)
    assert (together.dtype, together.shape) == (torch.int64, ())
    assert torch.equal(together, mixed(torch.stack([one, other])))
    assert not torch.equal(together, mixed(torch.stack([other, one])))


def test_digests_of_both_kinds_are_combined_on_the_device() -> None:
    one = mixed(torch.arange(4.0))
    together, swapped = combine([one, 2**64 - 1]), combine([2**64 - 1, one])
    assert isinstance(together, Tensor)
    assert torch.equal(together, mixed(torch.stack([one, torch.tensor(-1)])))
    assert _value(together) != _value(swapped)


def test_the_place_of_each_kind_is_part_of_what_is_combined() -> None:
    one, other = mixed(torch.arange(4.0)), mixed(torch.arange(5.0))
    numbers = [int(one), int(other), 7]
    both: list[list[Digest]] = [[one, other, 7], [one, 7, other], [7, one, other], [other, one, 7]]
    together = [_value(combine(digests)) for digests in both]
    assert len(set(together)) == len(both)
    # A number on the device is what the same number is that never was there.
    assert together[0] == _value(combine([torch.tensor(number) for number in numbers]))
    assert together[0] == _value(combine([numbers[0], other, 7])) == _value(combine([one, numbers[1], torch.tensor(7)]))


# --- what hashing leaves behind --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("view", [lambda t: t, lambda t: t[2:5], lambda t: t.t()], ids=["whole", "part", "transposed"])
def test_a_hashed_tensors_memory_can_still_be_freed(name: str, view: Callable[[Tensor], Tensor]) -> None:
    # FSDP2 frees what it gathered by resizing its storage to nothing, and needs the very same storage again.
    tensor = torch.randn(8, 8)
    digest = _value(ALL[name](view(tensor)))
    size = tensor.untyped_storage().size()
    kept = tensor.clone()
    tensor.untyped_storage().resize_(0)
    tensor.untyped_storage().resize_(size)
    tensor.copy_(kept)
    assert _value(ALL[name](view(tensor))) == digest


@pytest.mark.parametrize("name", ALL)
def test_hashing_changes_no_bit_and_no_graph(name: str) -> None:
    tensor = torch.randn(5, 3, requires_grad=True)
    before = tensor.detach().clone()
    ALL[name](tensor)
    assert torch.equal(tensor, before)
    assert tensor.grad_fn is None
    tensor.sum().backward()
    assert tensor.grad is not None
