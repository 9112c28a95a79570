"""Number formats by name: cast to one, or see its codes.

    fp32 tf32 fp16 bf16                       sign, exponent, mantissa as in IEEE 754
    e4m3 e5m2  e4m3fnuz e5m2fnuz              8-bit floats: of the OCP, and with the FNUZ codes
    e2m3 e3m2 fp4 (= e2m1)                    6 and 4 bits, every code a number
    int8 int4  nf4                            two's complement; 16 levels at normal quantiles
    mxfp4 mxfp8 nvfp4                         blocks with scales of their own (`microscaling`)

Rounding is half to even (nf4: ties go to the lower level). What the format can't hold:

    saturate=True    beyond the largest number, infinity included: ± the largest number
    saturate=False   infinity where the format has one, else NaN, else ValueError
    NaN              stays NaN; ValueError where the format has none (fp6, fp4, int8, int4, nf4)

torch's `.half()` and `.bfloat16()` behave like saturate=False; casts to 8 bits differ between
libraries and releases.

But: no scale is chosen here, except inside the block formats: a weight of 0.02 is 0 in int8. Use
`scaled` for that. Nothing is packed and nothing is fast. Sources: see `elements`, `microscaling`.
"""

import math
from fractions import Fraction

import torch

from utils.quantization import codebook, microscaling
from utils.quantization.elements import Float, Integer, Table

FORMATS = {
    fmt.name: fmt
    for fmt in (
        Float("fp32", 8, 23),
        Float("tf32", 8, 10),
        Float("fp16", 5, 10),
        Float("bf16", 8, 7),
        microscaling.E4M3,
        Float("e5m2", 5, 2),
        Float("e4m3fnuz", 4, 3, "fnuz"),
        Float("e5m2fnuz", 5, 2, "fnuz"),
        Float("e2m3", 2, 3, "finite"),
        Float("e3m2", 3, 2, "finite"),
        microscaling.E2M1,
        Integer("int8", 8),
        Integer("int4", 4),
        Table("nf4", codebook.NF4),
    )
}
ALIASES = {"e2m1": "fp4", "e4m3fn": "e4m3"}
BLOCK_FORMATS = tuple(microscaling.ELEMENTS)


def find(fmt):
    """The Float, Integer or Table of a name. ValueError for an unknown one."""
    name = ALIASES.get(fmt, fmt)
    if name not in FORMATS:
        known = f"{', '.join(FORMATS)} (encode, decode and cast: {', '.join(BLOCK_FORMATS)} too)"
        raise ValueError(f"fmt={fmt!r} is no single-number format: known are {known}")
    return FORMATS[name]


def encode(x, fmt, saturate=True, generator=None):
    """x -> codes of the same shape: uint8, or int64 where a code has more than 8 bits.

    Block formats give a `microscaling.Blocks` instead; their numbers always saturate. With a
    torch.Generator rounding is stochastic: up with the probability of the fraction left over.
    ValueError: unknown format, NaN or overflow where the format can't say so (see above).
    """
    if fmt in BLOCK_FORMATS:
        if generator is not None or not saturate:
            raise ValueError(f"{fmt} saturates and rounds to nearest: leave out the options")
        return microscaling.encode(x, fmt)
    spec = find(fmt)
    codes = spec.encode(x, saturate, generator)
    return codes.to(x.device, torch.uint8 if spec.bits <= 8 else torch.int64)


def decode(codes, fmt):
    """Codes of `encode` -> fp32, on the codes' device. ValueError for codes of another format."""
    if fmt in BLOCK_FORMATS:
        if not isinstance(codes, microscaling.Blocks) or codes.kind != fmt:
            raise ValueError(f"{fmt} is decoded from the Blocks that encode(x, {fmt!r}) returns")
        return microscaling.decode(codes)
    spec = find(fmt)
    if codes.is_floating_point():
        raise ValueError(f"codes are integers, got {codes.dtype}: use .view(torch.uint8) first")
    if codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < 1 << spec.bits:
        raise ValueError(f"{fmt} has codes 0 ... {(1 << spec.bits) - 1}; decode got others")
    return spec.decode(codes).to(codes.device)


def cast(x, fmt, saturate=True, generator=None):
    """x as `fmt` would store it: encode and decode. fp32, same shape and device."""
    return decode(encode(x, fmt, saturate, generator), fmt).to(x.device)


def encode_naive(number, fmt):
    """The twin for the tests: the code of one finite number, found by looking at every code.

    Exact fractions; the nearest number wins, of two equally near ones the even code. Saturates.
    """
    spec, wanted = find(fmt), Fraction(number)
    every = spec.decode(torch.arange(1 << spec.bits)).tolist()
    codes = [code for code, value in enumerate(every) if math.isfinite(value)]

    def how_bad(code):
        wrong_sign = (code >> (spec.bits - 1)) != (number < 0)  # tells -0 from 0
        return abs(Fraction(every[code]) - wanted), code % 2, wrong_sign

    return min(codes, key=how_bad)


def bits_text(code, fmt):
    """A code's bits with its fields apart, such as "0 0110 101"."""
    spec = find(fmt)
    text = format(int(code), f"0{spec.bits}b")
    if not isinstance(spec, Float):
        return text
    return f"{text[0]} {text[1 : 1 + spec.exponent_bits]} {text[1 + spec.exponent_bits :]}".strip()


def numbers(fmt):
    """All finite numbers of a format with at most 16 bits, ascending, each once."""
    spec = find(fmt)
    if spec.bits > 16:
        raise ValueError(f"{fmt} has 2^{spec.bits} codes: too many to list")
    every = spec.decode(torch.arange(1 << spec.bits))
    return torch.unique(every[torch.isfinite(every)])
