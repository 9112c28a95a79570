"""llama.cpp's k-quants Q4_K, Q5_K and Q6_K: super-blocks of 256 weights, scales of two levels.

    Q4_K, Q5_K  8 sub-blocks of 32:   w_hat = (d * scale) * q - (dmin * minimum)
                scale, minimum: 6-bit integers, packed into 12 bytes; d, dmin: fp16
    Q6_K        16 sub-blocks of 16:  w_hat = (d * scale) * (q - 32)
                scale: int8; d: fp16

    Q4_K  [d | dmin | 12 bytes | 128 bytes of two 4-bit codes]                    144 bytes
    Q5_K  [d | dmin | 12 bytes | 32 bytes of high bits | 128 bytes of low codes]  176 bytes
    Q6_K  [128 bytes of low nibbles | 64 bytes of high pairs | 16 scales | d]     210 bytes

But: `quantize` is the plain way (ranges, no search). llama.cpp searches each sub-block's scale and
minimum for a small weighted error, so its bytes differ; decoding is byte for byte the same.
Source: ggml-common.h and ggml-quants.c (dequantize_row_q*_K), the `gguf` package's quants.py.
"""

import torch

SUPER = 256
SIZES = {"Q4_K": 144, "Q5_K": 176, "Q6_K": 210}


def block_bytes(kind):
    """Bytes of one super-block of 256 weights."""
    if kind not in SIZES:
        raise ValueError(f"kind={kind!r}: use one of {sorted(SIZES)}")
    return SIZES[kind]


def bits_per_weight(kind):
    """Bits per weight of a format, everything included."""
    return 8 * block_bytes(kind) / SUPER


def unpack_scales(packed):
    """12 bytes uint8 [n, 12] -> 6-bit scales and minima, uint8 [n, 8] each.

    Bytes 0-3 hold scales 0-3 and bytes 4-7 minima 0-3 in their low six bits. Bytes 8-11 hold the
    low nibbles of scales (low) and minima (high) 4-7, whose upper two bits lie on top of bytes 0-7.
    """
    first, second, low = packed.reshape(-1, 3, 4).unbind(1)
    scale = torch.cat([first & 63, (low & 15) | ((first >> 6) << 4)], dim=1)
    minimum = torch.cat([second & 63, (low >> 4) | ((second >> 6) << 4)], dim=1)
    return scale, minimum


def pack_scales(scale, minimum):
    """The way back: two uint8 [n, 8] below 64 -> uint8 [n, 12]."""
    first = scale[:, :4] | ((scale[:, 4:] >> 4) << 6)
    second = minimum[:, :4] | ((minimum[:, 4:] >> 4) << 6)
    low = (scale[:, 4:] & 15) | ((minimum[:, 4:] & 15) << 4)
    return torch.cat([first, second, low], dim=1)


def dequantize(blocks, kind, shape):
    """Blocks uint8 -> fp32 of `shape`. Raises ValueError when the sizes do not fit."""
    size = block_bytes(kind)
    if blocks.numel() * SUPER != torch.Size(shape).numel() * size:
        raise ValueError(f"{blocks.numel()} bytes of {kind} do not hold shape {tuple(shape)}")
    rows = blocks.reshape(-1, size)
    return (_decode_6(rows) if kind == "Q6_K" else _decode_45(rows, kind)).reshape(shape)


def quantize(x, kind):
    """x [..., n], n divisible by 256 -> blocks uint8, the plain way; ValueError otherwise."""
    block_bytes(kind)
    if x.dim() == 0 or x.shape[-1] % SUPER:
        raise ValueError(f"shape {tuple(x.shape)}: {kind} needs rows divisible by {SUPER}")
    if not torch.isfinite(x).all():
        raise ValueError(f"{kind}: x holds NaN or infinity")
    flat = x.detach().to(torch.float32).reshape(-1, SUPER)
    blocks = _encode_6(flat) if kind == "Q6_K" else _encode_45(flat, kind)
    return blocks.reshape(*x.shape[:-1], -1)


def _decode_45(rows, kind):
    scale, minimum = unpack_scales(rows[:, 4:16])
    step = (_halves(rows[:, :2]) * scale)[..., None]
    offset = (_halves(rows[:, 2:4]) * minimum)[..., None]
    low = rows[:, -128:].reshape(-1, 4, 1, 32)
    codes = torch.cat([low & 15, low >> 4], dim=2).reshape(-1, 8, 32)
    if kind == "Q5_K":
        shifts = torch.arange(8, dtype=torch.uint8, device=rows.device)[:, None]
        codes = codes | (((rows[:, None, 16:48] >> shifts) & 1) << 4)
    return step * codes - offset


def _encode_45(flat, kind):
    top = 15 if kind == "Q4_K" else 31
    parts = flat.reshape(-1, 8, 32)
    lowest = -parts.amin(dim=2).clamp(max=0)  # the minimum is subtracted: zero is in the range
    wanted = (parts.amax(dim=2) + lowest).clamp(min=0) / top
    d, scale = _second_level(wanted, 63)
    dmin, minimum = _second_level(lowest, 63)
    step, offset = (d * scale)[..., None], (dmin * minimum)[..., None]
    codes = torch.round((parts + offset) * _inverse(step)).clamp(0, top).to(torch.uint8)
    pairs = codes.reshape(-1, 4, 2, 32)
    low = ((pairs[:, :, 0] & 15) | ((pairs[:, :, 1] & 15) << 4)).reshape(-1, 128)
    head = [_bytes(d), _bytes(dmin), pack_scales(scale.to(torch.uint8), minimum.to(torch.uint8))]
    if kind == "Q5_K":
        weights = 2 ** torch.arange(8, dtype=torch.uint8, device=flat.device)[:, None]
        head.append(((codes >> 4) * weights).sum(dim=1).to(torch.uint8))
    return torch.cat([*head, low], dim=1)


def _decode_6(rows):
    low, high = rows[:, :128].reshape(-1, 2, 1, 64), rows[:, 128:192].reshape(-1, 2, 1, 32)
    low = torch.cat([low & 15, low >> 4], dim=2).reshape(-1, 8, 32)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=rows.device)[:, None]
    codes = low | (((high >> shifts) & 3) << 4).reshape(-1, 8, 32)
    scale = rows[:, 192:208].contiguous().view(torch.int8)
    step = (_halves(rows[:, 208:]) * scale)[..., None]
    return step * (codes.reshape(-1, 16, 16).to(torch.float32) - 32)


def _encode_6(flat):
    parts = flat.reshape(-1, 16, 16)
    largest = parts.gather(2, parts.abs().argmax(dim=2, keepdim=True))[..., 0]
    wanted = largest / -32  # may be negative: the largest magnitude gets code -32
    extreme = wanted.gather(1, wanted.abs().argmax(dim=1, keepdim=True))
    d = _as_stored(extreme / -128)
    scale = torch.round(wanted * _inverse(d)).clamp(-128, 127)
    codes = torch.round(parts * _inverse(d * scale)[..., None]).clamp(-32, 31) + 32
    codes = codes.to(torch.uint8).reshape(-1, 2, 4, 32)
    nibbles = codes.reshape(-1, 2, 2, 64)
    low = (nibbles[:, :, 0] & 15) | ((nibbles[:, :, 1] & 15) << 4)
    weights = 4 ** torch.arange(4, dtype=torch.uint8, device=flat.device)[:, None]
    high = ((codes >> 4) * weights).sum(dim=2).to(torch.uint8)
    scales = scale.to(torch.int8).view(torch.uint8)
    return torch.cat([low.reshape(-1, 128), high.reshape(-1, 64), scales, _bytes(d)], dim=1)


def _second_level(wanted, top):
    """Steps [n, 8] >= 0 -> an fp16 unit [n, 1] (as fp32) and whole multiples up to `top`."""
    unit = _as_stored(wanted.amax(dim=1, keepdim=True) / top)
    return unit, torch.round(wanted * _inverse(unit)).clamp(0, top)


def _inverse(step):
    """1 / step, and 0 where that is not finite."""
    inverse = 1 / step
    return torch.where(torch.isfinite(inverse), inverse, 0.0)


def _as_stored(x):
    return x.to(torch.float16).to(torch.float32)


def _bytes(x):
    return x.to(torch.float16).view(torch.uint8)


def _halves(two_bytes):
    return two_bytes.contiguous().view(torch.float16).to(torch.float32)
