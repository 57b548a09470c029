"""What a fault does to the bits of one tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from detsweep.fingerprints import INTEGER_OF_WIDTH
from detsweep.injections import Injection

STRIDE = 32
# Kinds that need a value which tensors seldom have: it is planted in every run, and only its bits are changed.
PLANTED = ("zero_sign", "nan_payload")


def corrupted(tensor: Tensor, injection: Injection, *, strikes: bool = True, stale: Tensor | None = None) -> Tensor:
    """A copy with a fault in it; gradients flow through it unchanged. See `corrupt`."""
    changed = tensor.clone(memory_format=torch.contiguous_format)
    corrupt(changed, injection, strikes=strikes, stale=stale)
    return changed


def corrupt(tensor: Tensor, injection: Injection, *, strikes: bool = True, stale: Tensor | None = None) -> bool:
    """Put a fault into a contiguous tensor in place; whether there was anything to change.

    With `strikes` false only plant what the fault will change in another run. `stale` is what a stale tensor holds.
    """
    flat = tensor.detach().view(-1)
    if flat.numel() == 0:
        return False
    width = flat.element_size()
    bits = flat.view(INTEGER_OF_WIDTH[width])
    place = injection.element % flat.numel()
    if injection.kind == "stale_tensor" and (stale is None or stale.shape != tensor.shape):
        return False
    if injection.kind == "swap":
        return _swap(bits, place)
    if injection.kind == "ulp_pair" and flat.numel() == 1:
        return False
    _write(flat, bits, place, injection, strikes=strikes, stale=stale)
    return True


def _write(
    flat: Tensor, bits: Tensor, place: int, injection: Injection, *, strikes: bool, stale: Tensor | None
) -> None:
    mask = _mask(injection.bit, bits.element_size())
    match injection.kind:
        case "bit_flip" | "collective_flip":
            bits[place] ^= mask
        case "stride_flip":
            bits[place % STRIDE :: STRIDE] ^= mask
        case "ulp_pair":
            bits[place] += 1
            bits[(place + 1) % bits.numel()] -= 1
        case "zero_sign":
            flat[place] = -0.0 if strikes else 0.0
        case "nan_payload":
            flat[place] = torch.nan
            bits[place] |= int(strikes)
        case "stale_tensor":
            assert stale is not None
            flat.copy_(stale.reshape(-1))
        case "zeroed_shard":
            flat.zero_()
        case "param_drift":
            bits[place] += 1
        case kind:
            raise AssertionError(f"{kind} does not corrupt a tensor")


def _swap(bits: Tensor, place: int) -> bool:
    """Exchange an element with the next one, round the end, that has other bits."""
    others = (bits.roll(-place) != bits[place]).nonzero().view(-1)
    if others.numel() == 0:
        return False
    partner = (int(others[0]) + place) % bits.numel()
    bits[[place, partner]] = bits[[partner, place]]
    return True


def _mask(bit: int, width: int) -> int:
    """One bit of a signed integer of `width` bytes; a bit that it does not have counts from the lowest again."""
    bit %= 8 * width
    return 1 << bit if bit < 8 * width - 1 else -(1 << bit)
