"""Fit numbers into a format's range, cast, and scale back: how 8-bit and 4-bit formats are used.

    scale = absmax / max of the format         x_hat = scale * cast(x / scale)

One scale serves the whole tensor (group_size=0), a row (-1) or a group of neighbours in a row.

But: scales stay in fp32 and are not counted; for formats with their own stored scales see `rtn`,
`codebook`, `gguf` and `microscaling`.
"""

import torch

from utils.quantization import formats
from utils.quantization.size import PER_CHANNEL, PER_TENSOR


def cast(x, fmt, group_size=PER_TENSOR, generator=None):
    """x [..., n] -> fp32 of the same shape, as `fmt` with absmax scales holds it.

    group_size: numbers per scale along the last dimension (it must divide n), -1: a row, 0: all.
    Groups of zeros stay zeros. ValueError: no numbers, NaN or infinity, groups that do not fit.
    """
    if x.dim() == 0 or x.numel() == 0 or not torch.isfinite(x.float()).all():
        raise ValueError(f"scaling needs finite numbers [..., n], got shape {tuple(x.shape)}")
    width = {PER_TENSOR: x.numel(), PER_CHANNEL: x.shape[-1]}.get(group_size, group_size)
    if width < 1 or (group_size > 0 and x.shape[-1] % width):
        raise ValueError(f"group_size={group_size} does not divide rows of {x.shape[-1]}")
    groups = x.detach().float().reshape(-1, width)
    scale = groups.abs().amax(dim=1, keepdim=True) / formats.find(fmt).max
    scale = torch.where(scale > 0, scale, 1.0)
    restored = formats.cast(groups / scale, fmt, generator=generator) * scale
    return restored.reshape(x.shape)
