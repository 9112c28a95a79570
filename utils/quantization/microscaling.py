"""Blocks of tiny floats that share a scale: MXFP4, MXFP8 and NVFP4.

    mxfp4  mxfp8    x_hat = 2^s * element                 32 elements; s + 127 is a byte, E8M0
    nvfp4           x_hat = tensor * block * element      16 elements; block E4M3, tensor fp32

E8M0 is an exponent and nothing else, so a block's scale is a power of two. The MX standard takes

    floor   s = floor(log2(absmax)) - p_max        p_max: exponent of the element's largest number

which lets the largest numbers of a block exceed the largest element, where they are cut off.

    ceil    s = ceil(log2(absmax / max))           cuts nothing off, and is up to twice as coarse

NVFP4's block scale has three mantissa bits and little range, hence the second scale:
tensor = absmax of the tensor / (448 * 6), block = absmax of the block / 6 / tensor, rounded.

But: blocks run along the last dimension, a short last one has its own scale; scales come from the
data at hand, without calibration or search.
Sources: OCP Microscaling Formats (MX) 1.0, section 6.3; Mishra et al. 2025 (arXiv:2506.08027) for
`ceil`; NVIDIA 2025 (arXiv:2509.25149) for NVFP4.
"""

from dataclasses import dataclass

import torch

from utils.quantization.elements import Float, power_of_two
from utils.quantization.packing import pack

E4M3 = Float("e4m3", 4, 3, "fn")
E2M1 = Float("fp4", 2, 1, "finite")
ELEMENTS = {"mxfp4": (E2M1, 32), "mxfp8": (E4M3, 32), "nvfp4": (E2M1, 16)}
RULES = ("floor", "ceil")
E8M0_BIAS = 127


@dataclass(frozen=True, eq=False)
class Blocks:
    """codes uint8 [..., n], scales uint8 [..., blocks]; tensor_scale is None for the MX formats."""

    kind: str
    codes: torch.Tensor
    scales: torch.Tensor
    tensor_scale: torch.Tensor | None = None

    @property
    def packed(self):
        """The codes as stored: two 4-bit codes in a byte, low nibble first."""
        bits = ELEMENTS[self.kind][0].bits
        return pack(self.codes, bits) if bits < 8 else self.codes

    @property
    def nbytes(self):
        """Bytes of codes and scales as stored."""
        tensor = 0 if self.tensor_scale is None else self.tensor_scale.nbytes
        return self.packed.nbytes + self.scales.nbytes + tensor

    @property
    def bits_per_weight(self):
        """True bits per number, all scales included."""
        return 8 * self.nbytes / self.codes.numel()


def encode(x, kind, rule="floor"):
    """x [..., n] -> Blocks. rule: "floor" or "ceil", for the E8M0 scales of the MX formats.

    ValueError: unknown kind or rule, no numbers, NaN, infinity or more than fp32 holds.
    """
    element, size = _element(kind)
    if rule not in RULES:
        raise ValueError(f"rule={rule!r}: use one of {', '.join(RULES)}")
    if x.dim() == 0 or x.numel() == 0 or not torch.isfinite(x.float()).all():
        raise ValueError(f"{kind} needs finite numbers [..., n], got shape {tuple(x.shape)}")
    wide = x.detach().cpu().double()
    padded = torch.nn.functional.pad(wide, (0, -x.shape[-1] % size))
    blocks = padded.reshape(*x.shape[:-1], -1, size)
    largest = blocks.abs().amax(dim=-1)
    tensor_scale = None
    if kind == "nvfp4":
        tensor_scale = _tensor_scale(largest.amax())
        scales = E4M3.encode(largest / element.max / tensor_scale.double())
    else:
        scales = _e8m0(largest, element, rule)
    step = _step(scales, tensor_scale)[..., None]
    codes = element.encode(torch.where(step > 0, blocks / step, 0.0))
    codes = codes.reshape(*x.shape[:-1], -1)[..., : x.shape[-1]].to(torch.uint8)
    return Blocks(kind, codes, scales.to(torch.uint8), tensor_scale)


def decode(blocks):
    """Blocks -> fp32 [..., n]."""
    element, size = _element(blocks.kind)
    step = _step(blocks.scales.long(), blocks.tensor_scale).repeat_interleave(size, dim=-1)
    numbers = element.decode(blocks.codes).double()
    return (numbers * step[..., : blocks.codes.shape[-1]]).float()


def decode_e8m0(codes):
    """Bytes -> powers of two in float64; 255 is NaN."""
    value = power_of_two(codes.long() - E8M0_BIAS)
    return torch.where(codes.long() == 255, torch.nan, value)


def _e8m0(largest, element, rule):
    """Scale bytes of blocks whose largest magnitudes are given; blocks of zeros get 0."""
    if rule == "floor":
        top = torch.frexp(torch.tensor(element.max)).exponent.long()
        exponent = torch.frexp(largest).exponent.long() - top
    else:
        mantissa, exponent = torch.frexp(largest / element.max)
        exponent = exponent.long() - (mantissa == 0.5).long()
    exponent = torch.where(largest == 0, -E8M0_BIAS, exponent)
    return exponent.clamp(-E8M0_BIAS, E8M0_BIAS) + E8M0_BIAS


def _tensor_scale(largest):
    scale = (largest / (E4M3.max * E2M1.max)).float()
    return torch.where(scale > 0, scale, 1.0)


def _step(scales, tensor_scale):
    """What an element is multiplied by, in float64."""
    if tensor_scale is None:
        return decode_e8m0(scales)
    return E4M3.decode(scales).double() * tensor_scale.double()


def _element(kind):
    if kind not in ELEMENTS:
        raise ValueError(f"kind={kind!r}: use one of {', '.join(ELEMENTS)}")
    return ELEMENTS[kind]
