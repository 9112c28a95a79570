"""FP8 (E4M3) for a linear layer: where the activations' scale comes from.

    x_hat = cast(x * s) / s          s = 448 / amax: the largest magnitude lands on E4M3's largest

    weight-only   no activation is cast
    Static        amax from calibration, fixed
    Delayed       amax from the last steps, as Transformer Engine's DelayedScaling: the cast of this
                  step uses what earlier steps saw; s = (448 / amax) / 2^margin
    Current       amax of this tensor (two passes over it)
    Token         amax of each token
    Block         amax of each 1 x 128 piece of a token; weights in 128 x 128 blocks (DeepSeek-V3)

All casts saturate. Micikevicius et al. 2022 (arXiv:2209.05433) proposed the formats.

But: the product is computed in fp32 from numbers that E4M3 can hold; nothing runs faster here, and
a tensor core's narrower accumulator is not imitated. Gradients (E5M2 there) are not treated.
"""

from collections import deque
from dataclasses import dataclass

import torch
from torch import nn

from utils.quantization.activations import require_finite
from utils.quantization.model import find, share, weight_of

E4M3_MAX = 448.0
BLOCK = 128


def cast(x, scale):
    """x * scale in E4M3, saturating, and back: fp32. scale: a number or a tensor to broadcast."""
    codes = (x.float() * scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return codes.float() / scale


def scale_of(amax):
    """448 / amax, as fp32; 1 where amax is 0 or so small that the quotient overflows."""
    scale = E4M3_MAX / torch.as_tensor(amax, dtype=torch.float32)
    return torch.where(torch.isfinite(scale), scale, 1.0)


@dataclass(frozen=True)
class Static:
    """One scale, from the largest magnitude seen in calibration."""

    amax: float

    def __post_init__(self):
        if not 0 < self.amax < float("inf"):
            raise ValueError(f"amax={self.amax}: calibrate with text that reaches this layer")

    def __call__(self, x):
        """x as the layer sees it."""
        return cast(require_finite(x), scale_of(self.amax))


class Current:
    """One scale per tensor, from the tensor itself."""

    def __call__(self, x):
        """x as the layer sees it."""
        x = require_finite(x)
        return cast(x, scale_of(x.abs().amax()))


class Token:
    """One scale per token, from the token itself."""

    def __call__(self, x):
        """x [..., in] as the layer sees it."""
        x = require_finite(x)
        return cast(x, scale_of(x.abs().amax(dim=-1, keepdim=True)))


@dataclass(frozen=True)
class Block:
    """One scale per piece of `width` neighbouring channels of a token; the last may be short."""

    width: int = BLOCK

    def __call__(self, x):
        """x [..., in] as the layer sees it."""
        parts = require_finite(x).split(self.width, dim=-1)
        scales = [scale_of(part.abs().amax(dim=-1, keepdim=True)) for part in parts]
        return torch.cat([cast(p, s) for p, s in zip(parts, scales, strict=True)], dim=-1)


class Delayed:
    """Transformer Engine's DelayedScaling for one tensor: cast first, look afterwards.

    length: amaxes remembered (amax_history_len). margin: powers of 2 kept free above amax.
    algorithm: "max" of the history, or "most_recent". Starts at scale 1. `saturated` counts values
    that were clipped, `steps` the calls.
    """

    def __init__(self, length=1024, margin=0, algorithm="max"):
        if length < 1 or algorithm not in ("max", "most_recent"):
            raise ValueError(
                f'length={length}, algorithm={algorithm!r}: need 1 or more, "max" or "most_recent"'
            )
        self.history, self.margin, self.algorithm = deque(maxlen=length), margin, algorithm
        self.scale, self.saturated, self.steps = 1.0, 0, 0

    def __call__(self, x):
        """x with the scale of earlier steps; then this step's amax enters the history."""
        x = require_finite(x)
        amax = x.abs().amax().item()
        result = cast(x, self.scale)
        self.saturated += int((x.abs() * self.scale > E4M3_MAX).sum())
        self.history.append(amax)
        self._update()
        self.steps += 1
        return result

    def _update(self):
        amax = max(self.history) if self.algorithm == "max" else self.history[-1]
        if amax > 0:  # otherwise the old scale stays
            self.scale = E4M3_MAX / amax / 2**self.margin


def weight(w, per="channel"):
    """w [out, in] in E4M3 and back; a scale per "tensor", output "channel", or 128 x 128 "block".

    Blocks at the right and lower edge may be smaller.
    """
    w = require_finite(w.detach())
    if per == "tensor":
        return cast(w, scale_of(w.abs().amax()))
    if per == "channel":
        return cast(w, scale_of(w.abs().amax(dim=1, keepdim=True)))
    if per != "block":
        raise ValueError(f'per={per!r}: use "tensor", "channel" or "block"')
    bands = [
        torch.cat([cast(b, scale_of(b.abs().amax())) for b in band.split(BLOCK, dim=1)], dim=1)
        for band in w.split(BLOCK, dim=0)
    ]
    return torch.cat(bands, dim=0)


def scales(rows, columns, per):
    """How many scales `weight` needs."""
    tiles = -(-rows // BLOCK) * -(-columns // BLOCK)
    return {"tensor": 1, "channel": rows, "block": tiles}[per]


class FP8Linear(nn.Module):
    """A linear layer with E4M3 weights, and activations as `activation` makes them (or None)."""

    def __init__(self, w, bias=None, per="channel", activation=None):
        super().__init__()
        self.register_buffer("weight", weight(w, per))
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self.activation = activation

    def forward(self, x):
        """x [..., in] -> [..., out] in x's dtype."""
        seen = x.float() if self.activation is None else self.activation(x)
        return nn.functional.linear(seen, self.weight, self.bias).to(x.dtype)


def fp8_model(model, activation=None, per="channel", skip=("lm_head",)):
    """A copy of the model with FP8Linear layers; the rest is shared with the original.

    activation: None for weight-only, or a function of the layer's name that makes a recipe object
    (each layer needs its own Delayed).
    """
    copy = share(model)
    for name, layer in find(copy, skip)[0].items():
        made = None if activation is None else activation(name)
        copy.set_submodule(name, FP8Linear(weight_of(layer), layer.bias, per, made))
    return copy
