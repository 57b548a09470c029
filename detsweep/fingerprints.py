"""Fingerprints: 64 or 256 bits for all the bits of a tensor, computed where the tensor lies.

Every fingerprint sees raw bits (NaN payloads, signed zeros) in row-major order of the elements, whatever the strides.
Shape and dtype are not part of it: they belong to the record. Peak extra memory is bounded, whatever the tensor.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence

import torch
import xxhash
from torch import Tensor
from torch.distributed.tensor import DTensor

Digest = int | Tensor
"""An integer, or a 0-d int64 tensor on the tensor's device that becomes one in `collect`.

xxh3 (64 bits) and sha256 (256 bits) are unsigned, as their specifications have it; sums are signed 64-bit integers, as
the recipe's contract has it.
"""

# Worked on at a time: bytes, and for sums elements, which torch widens to 64 bits in a temporary of eight times as many
# bytes. With the copy of a piece that is not contiguous both stay below 64 MiB.
PIECE = 4 << 20
_MASK = (1 << 64) - 1
_NOTHING = ctypes.c_char()
INTEGER_OF_WIDTH = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def local(tensor: Tensor) -> Tensor:
    """The rank's own shard of a DTensor, or the tensor itself; without autograd, conjugate and negation resolved.

    Raises TypeError for what has no dense storage to read: sparse, quantized, meta and fake tensors.
    """
    own = tensor.detach()
    if isinstance(own, DTensor):
        own = own.to_local()
    if type(own) is not Tensor or own.layout != torch.strided or own.is_quantized or own.device.type == "meta":
        kind = f"{own.layout} {type(own).__name__}"
        raise TypeError(f"cannot fingerprint a {kind} of {own.dtype} on {own.device}: no dense storage")
    return own.resolve_conj().resolve_neg()


def xxh3(tensor: Tensor) -> int:
    """XXH3 (64 bits, seed 0) of a CPU tensor's bytes, as its specification defines it; an empty tensor has b""'s."""
    own = _in_host_memory(tensor, "xxh3")
    if own.is_contiguous():
        return xxhash.xxh3_64_intdigest(_memory(own))
    digest = xxhash.xxh3_64()
    for piece in _pieces(own):
        digest.update(_memory(piece))
    return digest.intdigest()


def sha256(tensor: Tensor) -> int:
    """SHA-256 (FIPS 180-4) of a CPU tensor's bytes, read as a big-endian number: in 64 hex digits it is sha256sum's."""
    digest = hashlib.sha256()
    for piece in _pieces(_in_host_memory(tensor, "sha256")):
        digest.update(_memory(piece))
    return int.from_bytes(digest.digest(), "big")


def mixed(tensor: Tensor) -> Tensor:
    """Position-mixed sum of 64-bit lanes: order-free to compute, yet every lane knows its place.

    Lane i is mixed as splitmix64 mixes its i-th state (Steele, Lea, Flood 2014, with the lane as the seed), and the
    results are summed modulo 2^64 together with the number of bytes times 0xD6E8FEB86659FD93; the last lane is
    filled up with zero bytes.
    Integer addition is associative, so any order of threads gives the same 64 bits. Returns a 0-d int64 tensor.
    """
    own = local(tensor)
    total = torch.full((), _signed(own.numel() * own.element_size() * 0xD6E8FEB86659FD93), device=own.device)
    start = 0
    for lanes in _lanes(own):
        total += _mix(lanes, start)
        start += lanes.numel()
    return total


def bitsum(tensor: Tensor) -> Tensor:
    """The LLM determinism recipe's checksum: storage viewed as signed integers of the same width, summed in int64.

    Wraps modulo 2^64; an empty tensor gives 0; complex numbers count as their parts. It cannot see a permutation,
    nor changes that cancel out. Returns a 0-d int64 tensor.
    """
    own = local(tensor)
    if own.is_complex():
        own = torch.view_as_real(own)
    integer = INTEGER_OF_WIDTH[own.element_size()]
    total = torch.zeros((), dtype=torch.int64, device=own.device)
    for piece in _pieces(own, own.element_size() * PIECE):
        for part in piece.view(-1).view(integer).split(PIECE):
            total += part.sum(dtype=torch.int64)
    return total


def select(checksum: str, device_type: str) -> tuple[str, Callable[[Tensor], Digest]]:
    """The fingerprint that a configuration's `checksum` means on a device type, and its own name.

    `auto` is xxh3 on CPU and mixed elsewhere. Raises ValueError for an unknown name.
    """
    known: dict[str, Callable[[Tensor], Digest]] = {"xxh3": xxh3, "mixed": mixed, "bitsum": bitsum, "sha256": sha256}
    name = checksum if checksum != "auto" else "xxh3" if device_type == "cpu" else "mixed"
    if name not in known:
        raise ValueError(f"checksum={checksum}: valid: auto, {', '.join(known)}")
    return name, known[name]


def raw_bits(scalar: Tensor) -> Tensor:
    """The bits of a 0-d tensor as an integer of its own width, in a 0-d int64 tensor on its device."""
    own = local(scalar)
    return own.view(INTEGER_OF_WIDTH[own.element_size()]).to(torch.int64)


def host_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor in host memory, in row-major order: in place where they lie so, else of a copy.

    To be read at once: the memory is the tensor's, and goes with it.
    """
    own = local(tensor)
    own = own if own.is_contiguous() else own.contiguous()
    view = memoryview(_memory(own)).cast("B")
    # Of a copy nobody else keeps the memory alive.
    return view if own.data_ptr() == tensor.data_ptr() else memoryview(bytes(view))


def collect(digests: Sequence[Digest]) -> list[int]:
    """All digests as Python integers, with one transfer from each device on which any still lie."""
    on_device: dict[torch.device, list[Tensor]] = {}
    for digest in digests:
        if isinstance(digest, Tensor):
            on_device.setdefault(digest.device, []).append(digest)
    values = {device: iter(torch.stack(own).tolist()) for device, own in on_device.items()}
    return [next(values[digest.device]) if isinstance(digest, Tensor) else digest for digest in digests]


def combine(digests: Sequence[Digest], *, strong: bool = False) -> Digest:
    """One digest of several, in their order; of one it is itself. Those on a device are combined there.

    `strong`: they are sha256's, and so is what they become: the SHA-256 of their 32 bytes each, one after the other.
    """
    if len(digests) == 1:
        return digests[0]
    if strong:
        listed = b"".join(int(digest).to_bytes(32, "big") for digest in digests)
        return int.from_bytes(hashlib.sha256(listed).digest(), "big")
    devices = {digest.device for digest in digests if isinstance(digest, Tensor)}
    if devices:
        # To the accelerator, where one is among them: from there it would stop the device.
        device = max(devices, key=lambda one: one.type != "cpu")
        return mixed(torch.stack([as_int64(digest, device) for digest in digests]))
    return xxhash.xxh3_64_intdigest(struct.pack(f"<{len(digests)}Q", *(int(d) & _MASK for d in digests)))


def as_int64(digest: Digest, device: torch.device) -> Tensor:
    """A digest as a 0-d int64 tensor on a device, modulo 2^64: of a sha256 the last 16 hex digits."""
    return digest.to(device) if isinstance(digest, Tensor) else torch.tensor(_signed(digest), device=device)


def _in_host_memory(tensor: Tensor, checksum: str) -> Tensor:
    own = local(tensor)
    if own.device.type != "cpu":
        raise TypeError(f"{checksum} reads host memory, the tensor is on {own.device}")
    return own


def _memory(contiguous: Tensor) -> ctypes.Array[ctypes.c_char]:
    """A CPU tensor's bytes in place, to be read while the tensor lives."""
    # Not by numpy(): that forbids for good to resize the storage, which is how FSDP2 frees what it gathered.
    size = contiguous.numel() * contiguous.element_size()
    return (ctypes.c_char * size).from_address(contiguous.data_ptr() if size else ctypes.addressof(_NOTHING))


def _bytes(contiguous: Tensor) -> Tensor:
    # Not view(-1): of a single element it keeps a stride that may be anything, which no view of bytes can have.
    return contiguous.as_strided((contiguous.numel(),), (1,)).view(torch.uint8)


def _pieces(tensor: Tensor, limit: int = PIECE, buffer: Tensor | None = None) -> Iterator[Tensor]:
    """Contiguous parts that follow each other in row-major order; a copy lasts until the next part is asked for.

    All copies share one buffer of at most `limit` bytes: allocated one by one, they scatter over the heap, which then
    grows to many times their size.
    """
    if tensor.numel() == 0:
        return
    if tensor.is_contiguous():
        yield tensor
        return
    if buffer is None:
        size = min(tensor.numel(), limit // tensor.element_size())
        buffer = torch.empty(size, dtype=tensor.dtype, device=tensor.device)
    row = tensor[0].numel()
    if row > buffer.numel():
        for part in tensor.unbind(0):
            yield from _pieces(part, limit, buffer)
    else:
        for part in tensor.split(buffer.numel() // row):
            yield buffer[: part.numel()].view(part.shape).copy_(part)


def _lanes(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor's bytes as int64 lanes, at most PIECE bytes at a time; all parts but the last are whole lanes."""
    if tensor.is_contiguous() and tensor.data_ptr() % 8 == 0 and tensor.numel():
        flat = _bytes(tensor)
        whole = flat.numel() // 8 * 8
        if flat.storage_offset() % 8 == 0:
            yield from flat[:whole].view(torch.int64).split(PIECE // 8)
            flat = flat[whole:]
        yield from _staged([flat], tensor.device)
    else:
        yield from _staged((_bytes(piece) for piece in _pieces(tensor)), tensor.device)


def _staged(parts: Iterator[Tensor] | Sequence[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Bytes of any alignment, gathered into one aligned buffer; what it yields lasts until the next is asked for."""
    buffer: Tensor | None = None
    filled = 0
    for part in parts:
        for chunk in part.split(PIECE):
            offset = 0
            while offset < chunk.numel():
                if buffer is None:
                    buffer = torch.empty(PIECE, dtype=torch.uint8, device=device)
                taken = min(chunk.numel() - offset, PIECE - filled)
                buffer[filled : filled + taken] = chunk[offset : offset + taken]
                filled, offset = filled + taken, offset + taken
                if filled == PIECE:
                    yield buffer.view(torch.int64)
                    filled = 0
    if buffer is not None and filled:
        whole = (filled + 7) // 8 * 8
        buffer[filled:whole] = 0
        yield buffer[:whole].view(torch.int64)


def _mix(lanes: Tensor, start: int) -> Tensor:
    position = torch.arange(start + 1, start + 1 + lanes.numel(), device=lanes.device)
    state = position.mul_(_signed(0x9E3779B97F4A7C15)).add_(lanes)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, None)):
        # torch shifts int64 arithmetically; the mask makes it the logical shift that the formula means.
        state.bitwise_xor_((state >> shift).bitwise_and_((1 << (64 - shift)) - 1))
        if factor is not None:
            state.mul_(_signed(factor))
    return state.sum()


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value
