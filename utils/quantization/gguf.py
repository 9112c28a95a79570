"""llama.cpp's simple block formats, byte for byte: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.

A block holds 32 weights. d is the fp16 step, m the fp16 minimum (formats ending in _1):

    Q8_0  d = absmax / 127                w_hat = d * q            [d | 32 x int8]
    Q4_0  d = (value of largest |w|) / -8    w_hat = d * (q - 8)   [d | 16 bytes]
    Q5_0  the same with -16                  w_hat = d * (q - 16)  [d | 32 high bits | 16 bytes]
    Q4_1  d = (max - min) / 15            w_hat = d * q + m        [d | m | 16 bytes]
    Q5_1  d = (max - min) / 31            w_hat = d * q + m        [d | m | 32 high bits | 16 bytes]

A byte holds weight i in its low and weight i + 16 in its high nibble. Rounding is half away from
zero.

But: codes are chosen with the step before it is rounded to fp16, as llama.cpp does; for the
k-quants see unit 9. Source: ggml-quants.c (quantize_row_q*_ref) and the `gguf` package's
quants.py.
"""

import torch

BLOCK = 32
TYPES = {  # format: (bits, has a minimum)
    "Q4_0": (4, False),
    "Q4_1": (4, True),
    "Q5_0": (5, False),
    "Q5_1": (5, True),
    "Q8_0": (8, False),
}


def block_bytes(kind):
    """Bytes of one block of 32 weights: step, minimum, codes."""
    bits, has_minimum = _type(kind)
    return 2 + 2 * has_minimum + BLOCK * bits // 8


def bits_per_weight(kind):
    """Bits per weight of a format, step and minimum included."""
    return 8 * block_bytes(kind) / BLOCK


def quantize(x, kind):
    """x [..., n], n divisible by 32 -> blocks uint8 [..., n / 32 * block_bytes].

    Raises ValueError for another n, and for NaN or infinity.
    """
    bits, has_minimum = _type(kind)
    if x.dim() == 0 or x.shape[-1] % BLOCK:
        raise ValueError(f"shape {tuple(x.shape)}: {kind} needs rows divisible by {BLOCK}")
    if not torch.isfinite(x).all():
        raise ValueError(f"{kind}: x holds NaN or infinity")
    blocks = x.detach().to(torch.float32).reshape(-1, BLOCK)
    step, minimum, codes = _encode(blocks, bits, has_minimum)
    parts = [_half_bytes(step)] + ([_half_bytes(minimum)] if has_minimum else [])
    parts += [codes.to(torch.int8).view(torch.uint8)] if bits == 8 else _nibbles(codes, bits)
    return torch.cat(parts, dim=1).reshape(*x.shape[:-1], -1)


def dequantize(blocks, kind, shape):
    """blocks of `quantize` -> fp32 of `shape`. Raises ValueError when the sizes do not fit."""
    bits, has_minimum = _type(kind)
    size = block_bytes(kind)
    if blocks.numel() * BLOCK != torch.Size(shape).numel() * size:
        raise ValueError(f"{blocks.numel()} bytes of {kind} do not hold shape {tuple(shape)}")
    rows = blocks.reshape(-1, size)
    step = _halves(rows[:, :2])
    body = rows[:, 4:] if has_minimum else rows[:, 2:]
    if bits == 8:
        values = body.contiguous().view(torch.int8).to(torch.float32)
    else:
        values = _codes(body, bits).to(torch.float32)
    if has_minimum:
        return (step * values + _halves(rows[:, 2:4])).reshape(shape)
    return (step * (values if bits == 8 else values - 2 ** (bits - 1))).reshape(shape)


def _encode(blocks, bits, has_minimum):
    """Step, minimum and codes of blocks [n, 32]."""
    if has_minimum:
        minimum = blocks.amin(dim=1, keepdim=True)
        step = (blocks.amax(dim=1, keepdim=True) - minimum) / (2**bits - 1)
        codes = torch.trunc((blocks - minimum) * _inverse(step) + 0.5)
        return step, minimum, codes.clamp(0, 2**bits - 1).to(torch.uint8)
    if bits == 8:
        step = blocks.abs().amax(dim=1, keepdim=True) / 127
        scaled = blocks * _inverse(step)
        return step, None, torch.sign(scaled) * _round_away(scaled.abs())
    largest = blocks.gather(1, blocks.abs().argmax(dim=1, keepdim=True))
    half = 2 ** (bits - 1)
    step = largest / -half
    codes = torch.trunc(blocks * _inverse(step) + (half + 0.5))
    return step, None, codes.clamp(0, 2**bits - 1).to(torch.uint8)


def _inverse(step):
    """1 / step, and 0 for blocks so small that this is not finite."""
    inverse = 1 / step
    return torch.where(torch.isfinite(inverse), inverse, 0.0)


def _round_away(magnitude):
    whole = torch.floor(magnitude)
    return whole + torch.floor(2 * (magnitude - whole))


def _nibbles(codes, bits):
    """Codes [n, 32] -> high bits (5-bit formats only), then 16 bytes of two low nibbles."""
    low = (codes[:, :16] & 15) | ((codes[:, 16:] & 15) << 4)
    if bits == 4:
        return [low]
    weights = 2 ** torch.arange(8, dtype=torch.uint8, device=codes.device)
    high = ((codes >> 4).reshape(-1, 4, 8) * weights).sum(dim=2).to(torch.uint8)
    return [high, low]


def _codes(body, bits):
    """The way back: bytes -> codes [n, 32]."""
    low = body[:, -16:]
    codes = torch.cat([low & 15, low >> 4], dim=1)
    if bits == 4:
        return codes
    shifts = torch.arange(8, dtype=torch.uint8, device=body.device)
    high = (body[:, :4, None] >> shifts) & 1
    return codes | (high.reshape(-1, BLOCK) << 4)


def _half_bytes(x):
    return x.to(torch.float16).view(torch.uint8)


def _halves(two_bytes):
    return two_bytes.contiguous().view(torch.float16).to(torch.float32)


def _type(kind):
    if kind not in TYPES:
        raise ValueError(f"kind={kind!r}: use one of {sorted(TYPES)}")
    return TYPES[kind]
