"""Keys or values as packed tiles: `group` tokens with all their channels, in 1 to 8 bits.

    code = round((x - low) / step)         x_hat = low + code * step
    low = min of the group in fp16         step = (max - low) / (2^b - 1) in fp16

    "channel"  a group is `group` tokens of one channel (KIVI's choice for keys)
    "token"    a group is `group` channels of one token (KIVI's choice for values)

As in KIVI (Liu et al. 2024, arXiv:2402.02750) the minimum is free: 0 need not be on the grid, so a
channel that sits at 15 ± 1 gets a fine step. Where a group is constant, step is 0.

But: a tile is complete or not there; the tokens that do not fill one are the cache's business.
"""

from dataclasses import dataclass

import torch

from utils.quantization.packing import pack, unpack


@dataclass
class Tiles:
    """Packed tokens: tiles of `group` tokens. codes uint8 [batch, heads, tiles, bytes];
    step, low fp16 [batch, heads, tiles, lines, groups]."""

    codes: torch.Tensor
    step: torch.Tensor
    low: torch.Tensor

    @property
    def nbytes(self):
        return self.codes.nbytes + self.step.nbytes + self.low.nbytes

    def joined(self, other):
        """These tiles, then the other ones."""
        pairs = zip(self.parts(), other.parts(), strict=True)
        return Tiles(*(torch.cat(pair, dim=2) for pair in pairs))

    def parts(self):
        return self.codes, self.step, self.low


def encode(x, bits, axis, group):
    """x [batch, heads, tokens, dim] -> Tiles; tokens a multiple of `group`, and so is dim.

    ValueError for NaN, infinity, and ranges that fp16 cannot hold.
    """
    batch, heads, tokens, dim = x.shape
    if tokens % group or dim % group:
        raise ValueError(f"{tokens} tokens of {dim} channels: both are multiples of group={group}")
    lines = _lines(x.float(), axis, group)
    low = lines.amin(dim=-1, keepdim=True).half()
    step = ((lines.amax(dim=-1, keepdim=True) - low.float()) / (2**bits - 1)).half()
    if not (torch.isfinite(low).all() and torch.isfinite(step).all()):
        raise ValueError("keys or values are not finite in fp16: find the layer that made them")
    width = torch.where(step > 0, step.float(), 1.0)
    codes = ((lines - low.float()) / width).round().clamp(0, 2**bits - 1).to(torch.uint8)
    tiles = tokens // group
    packed = pack(codes, bits).view(batch, heads, tiles, group * dim * bits // 8)
    return Tiles(packed, step[..., 0], low[..., 0])


def decode(tiles, bits, axis, group, dim, dtype=torch.float32):
    """Tiles -> [batch, heads, tokens, dim]."""
    batch, heads, count, _ = tiles.codes.shape
    codes = unpack(tiles.codes, bits, batch * heads * count * group * dim)
    shape = (*tiles.step.shape, group)
    lines = tiles.low[..., None].float() + codes.view(shape).float() * tiles.step[..., None].float()
    x = lines.flatten(-2)  # [batch, heads, tiles, lines, numbers]
    x = x.transpose(-1, -2) if axis == "channel" else x
    return x.reshape(batch, heads, count * group, dim).to(dtype)


def _lines(x, axis, group):
    """[batch, heads, tiles, lines, groups, group]: the last axis shares a step."""
    tiles = x.unflatten(2, (-1, group))
    tiles = tiles.transpose(-1, -2) if axis == "channel" else tiles
    return tiles.unflatten(-1, (-1, group))


def restore_naive(x, bits, axis, group):
    """The twin for the tests: x through the grid, one group at a time, nothing packed."""
    result = x.clone().float()
    batch, heads, tokens, dim = x.shape
    for b, h in torch.cartesian_prod(torch.arange(batch), torch.arange(heads)).tolist():
        rows = result[b, h].T if axis == "channel" else result[b, h]
        for row in rows:  # views: writing changes `result`
            for start in range(0, len(row), group):
                part = row[start : start + group]
                low = part.min().half().float()
                step = ((part.max() - low) / (2**bits - 1)).half().float()
                code = torch.round((part - low) / (step if step > 0 else 1.0))
                row[start : start + group] = low + code.clamp(0, 2**bits - 1) * step
    return result
