"""Round to nearest (RTN): the weights alone decide the grid; no data is needed.

    symmetric     scale = absmax / (2^(b-1) - 1)            code = round(w / scale)
    asymmetric    scale = (max(w, 0) - min(w, 0)) / (2^b - 1)
                  zero_point = round(-min(w, 0) / scale)    code = round(w / scale) + zero_point

One scale serves a group of neighbours along the input dimension, a whole output channel
(`group_size=-1`) or the whole tensor (`group_size=0`). Rounding is half to even (IEEE 754, ONNX).
The symmetric codes are -(2^(b-1) - 1) ... 2^(b-1) - 1: the lowest two's complement code stays
unused, so that w and -w get opposite codes. The asymmetric range always includes 0, so that 0 is
stored exactly.

But: codes are chosen one weight at a time. Nothing here looks at activations (unit 7) or lets one
weight make up for the error of another (unit 8).
Equations: Jacob et al. 2018 (arXiv:1712.05877), section 2.1; Nagel et al. 2021 (arXiv:2106.08295).
"""

import torch

from utils.quantization.size import PER_CHANNEL, PER_TENSOR
from utils.quantization.tensor import QuantizedTensor

CLIP_CANDIDATES = tuple(1.0 - 0.04 * i for i in range(16))  # 1.00 ... 0.40 of the full range


def quantize(weight, bits=4, group_size=64, symmetric=True, clip=1.0, scale_dtype=torch.float16):
    """Quantize weight [out, in] -> QuantizedTensor; groups run along `in`.

    group_size: weights per scale; a short last group gets its own. -1: per output channel, 0: per
    tensor. clip: share of the range that the grid covers (1.0: all), or "mse": per group the
    share with the smallest squared error. scale_dtype: how scales are stored; they are computed
    in fp32, rounded to this dtype, and the codes are chosen for the stored scale. Every unclipped
    weight comes back within half a (stored) step. Raises ValueError for NaN, infinity, integer
    weights, bits outside 2 ... 8, and scales that scale_dtype cannot hold.
    """
    _check(weight, bits, group_size, clip)
    rows = weight.detach().to(torch.float32).reshape(-1, weight.shape[-1])
    groups = _split(rows, group_size)
    if clip == "mse":
        clip = _best_clip(groups, bits, symmetric, scale_dtype)
    scale, zero_point = _grid(groups, bits, symmetric, clip, scale_dtype)
    codes = _codes(groups, scale, zero_point, bits, symmetric)
    return QuantizedTensor.from_codes(
        _join(codes, rows.shape).reshape(weight.shape),
        scale[..., 0],
        None if symmetric else zero_point[..., 0],
        bits,
        group_size,
        scale_dtype,
    )


def quantize_naive(weight, bits=4, group_size=64, symmetric=True):
    """The twin for the tests: one group at a time, fp32 scales. Returns the new weights."""
    result = torch.empty_like(weight, dtype=torch.float32)
    width = weight.shape[1] if group_size == PER_CHANNEL else group_size
    for i in range(weight.shape[0]):
        for start in range(0, weight.shape[1], width):
            group = weight[i, start : start + width].float()
            if symmetric:
                low, high = -(2 ** (bits - 1)) + 1, 2 ** (bits - 1) - 1
                step, zero = group.abs().max() / high, 0
            else:
                low, high = 0, 2**bits - 1
                bottom, top = group.min().clamp(max=0), group.max().clamp(min=0)
                step = (top - bottom) / high
                zero = torch.round(-bottom / step) if step > 0 else 0
            step = step if step > 0 else torch.ones(())
            codes = (torch.round(group / step) + zero).clamp(low, high)
            result[i, start : start + width] = (codes - zero) * step
    return result


def _split(rows, group_size):
    """[out, in] -> [out, groups, group]; a short last group is filled with zeros.

    Zeros do not move a range that includes 0, and they are cut off again afterwards.
    """
    if group_size == PER_TENSOR:
        return rows.reshape(1, 1, -1)
    width = rows.shape[1] if group_size == PER_CHANNEL else group_size
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % width))
    return padded.reshape(rows.shape[0], -1, width)


def _join(groups, shape):
    """The way back: [out, groups, group] -> [out, in], without the filling."""
    return groups.reshape(groups.shape[0], -1)[:, : shape.numel() // groups.shape[0]].reshape(shape)


def _grid(groups, bits, symmetric, clip, scale_dtype):
    """Scale and zero point [out, groups, 1], in fp32, with the value of the stored scale."""
    if symmetric:
        span, levels = groups.abs().amax(dim=-1, keepdim=True) * clip, 2 ** (bits - 1) - 1
        return _stored(span, levels, 0.5, scale_dtype), None
    low = groups.amin(dim=-1, keepdim=True).clamp(max=0) * clip
    high = groups.amax(dim=-1, keepdim=True).clamp(min=0) * clip
    scale = _stored(high - low, 2**bits - 1, 1e-4, scale_dtype)
    return scale, torch.round(-low / scale)


def _stored(span, levels, slack, scale_dtype):
    """span / levels, rounded to scale_dtype; all-zero groups get 1.

    Rounded to nearest, except where the codes would then miss the end of the range by more than
    `slack` steps (tiny scales, where fp16 has few digits left): there the next larger number is
    taken.
    """
    stored = (span / levels).to(scale_dtype)
    short = stored.float() * (levels + slack) < span
    stored = torch.where(short, _next_up(stored), stored)
    if not torch.isfinite(stored).all():
        raise ValueError(
            f"a scale of {float(span.max()) / levels:.3g} does not fit in {scale_dtype}: "
            "pass scale_dtype=torch.float32"
        )
    return torch.where(span > 0, stored.float(), 1.0)


def _next_up(positive):
    """The next larger number of the same floating-point dtype, for numbers >= 0."""
    whole = torch.int32 if positive.element_size() == 4 else torch.int16
    return (positive.view(whole) + 1).view(positive.dtype)


def _codes(groups, scale, zero_point, bits, symmetric):
    whole = torch.round(groups / scale)
    if symmetric:
        return whole.clamp(-(2 ** (bits - 1)) + 1, 2 ** (bits - 1) - 1).to(torch.int8)
    return (whole + zero_point).clamp(0, 2**bits - 1).to(torch.uint8)


def _best_clip(groups, bits, symmetric, scale_dtype):
    """The candidate share with the smallest squared error, for each group: [out, groups, 1]."""
    best = torch.ones_like(groups[..., :1])
    least = torch.full_like(best, float("inf"))
    for share in CLIP_CANDIDATES:
        scale, zero_point = _grid(groups, bits, symmetric, share, scale_dtype)
        codes = _codes(groups, scale, zero_point, bits, symmetric).float()
        approximation = (codes if symmetric else codes - zero_point) * scale
        error = (groups - approximation).square().sum(dim=-1, keepdim=True)
        best = torch.where(error < least, share, best)
        least = torch.minimum(error, least)
    return best


def _check(weight, bits, group_size, clip):
    if not weight.dtype.is_floating_point or weight.dim() == 0 or weight.numel() == 0:
        raise ValueError(
            f"weight is {weight.dtype} of shape {tuple(weight.shape)}: pass a floating-point "
            "tensor of one or more dimensions that is not empty"
        )
    if not torch.isfinite(weight).all():
        bad = int((~torch.isfinite(weight)).sum())
        raise ValueError(f"weight holds NaN or infinity ({bad} values): repair the checkpoint")
    if bits not in range(2, 9):
        raise ValueError(f"bits={bits}: round to nearest is defined here for 2 to 8 bits")
    if group_size < PER_CHANNEL:
        raise ValueError(f"group_size={group_size}: use > 0, -1 (per channel) or 0 (per tensor)")
    if clip != "mse" and not 0 < clip <= 1:
        raise ValueError(f'clip={clip}: use a share in (0, 1] or "mse"')
