"""INT8 activations times INT8 weights: scales found while running (dynamic) or before (static).

    weights    one scale per output channel, symmetric (rtn.quantize with group_size=-1)
    dynamic    scale = absmax / 127 of each token (or of all tokens at once), no calibration
    static     one scale and zero point from calibration: code = round(x / scale) + zero_point,
               clamped to -128 ... 127
    product    y[t, o] = scale_x scale_w[o] (sum_j c_x c_w - zero_point sum_j c_w)

The sum over codes is exact integer arithmetic. Jacob et al. 2018 (arXiv:1712.05877), section 2.

But: the forward pass runs on whatever `torch._int_mm` is on this machine, and makes no promise
about speed. Outlier columns are the subject of outliers.py.
"""

from dataclasses import dataclass

import torch
from torch import nn

from utils.quantization import rtn
from utils.quantization.model import find, share, weight_of

LARGEST = 127


def dynamic(x, per="token"):
    """x [..., in] -> (codes int8, scale [..., 1]); per "token" or "tensor" (scale of one entry).

    Tokens of zeros get scale 1. ValueError for NaN or infinity, no channels, another `per`.
    """
    if per not in ("token", "tensor"):
        raise ValueError(f'per={per!r}: use "token" or "tensor"')
    x = require_finite(x)
    absmax = x.abs().amax(dim=-1, keepdim=True) if per == "token" else x.abs().amax()
    scale = absmax / LARGEST
    scale = torch.where(scale > 0, scale, 1.0)  # also where the division underflows
    return torch.round(x / scale).to(torch.int8), scale


def static_grid(low, high):
    """(scale, zero_point) of the int8 grid over [low, high], 0 included."""
    low, high = float(low), float(high)
    if low > high:
        raise ValueError(f"range [{low}, {high}]: the ends are exchanged, low comes first")
    low, high = min(low, 0.0), max(high, 0.0)
    if not high - low < float("inf"):
        raise ValueError(f"range [{low}, {high}] is not finite: look at the calibration text")
    scale = (high - low) / 255 or 1.0
    return scale, max(-128, min(127, round(-128 - low / scale)))


def static(x, scale, zero_point):
    """Codes int8 of x on a fixed grid; what lies outside saturates."""
    if not (scale > 0 and -128 <= zero_point <= 127):
        raise ValueError(f"scale {scale}, zero point {zero_point}: take both from static_grid")
    return (torch.round(require_finite(x) / scale) + zero_point).clamp(-128, 127).to(torch.int8)


def integer_product(x_codes, w_codes):
    """int32 [n, out] = x_codes int8 [n, in] times w_codes int8 [out, in], exact."""
    if x_codes.is_cuda and (len(x_codes) <= 16 or x_codes.shape[1] % 8 or len(w_codes) % 8):
        return (x_codes.double() @ w_codes.double().T).to(torch.int32)  # shapes it refuses
    return torch._int_mm(x_codes.contiguous(), w_codes.contiguous().T)


def integer_product_naive(x_codes, w_codes):
    """The twin for the tests: 64-bit sums, one output at a time."""
    columns = [(x_codes.long() * row.long()).sum(dim=1) for row in w_codes]
    return torch.stack(columns, dim=1)


@dataclass(frozen=True)
class Dynamic:
    """Activation scales found while running."""

    per: str = "token"

    def product(self, x, codes, scale):
        """x [n, in], weight codes int8 [out, in] and scale [out] -> y [n, out] without bias."""
        x_codes, x_scale = dynamic(x, self.per)
        return integer_product(x_codes, codes).float() * x_scale * scale


@dataclass(frozen=True)
class Static:
    """A fixed activation grid, from calibration."""

    scale: float
    zero_point: int

    @classmethod
    def over(cls, low, high):
        """The grid over [low, high]."""
        return cls(*static_grid(low, high))

    def product(self, x, codes, scale):
        """As Dynamic.product; the zero point is taken out again after the integer sum."""
        sums = integer_product(static(x, self.scale, self.zero_point), codes)
        correction = self.zero_point * codes.sum(dim=1, dtype=torch.int32)
        return (sums - correction).float() * self.scale * scale


class Int8Linear(nn.Module):
    """A linear layer with int8 weights [out, in], and int8 activations as `activation` makes them.

    activation: an object with product(x [n, in], codes, scale) -> [n, out]: Dynamic, Static,
    outliers.Decomposed.
    """

    def __init__(self, weight, bias=None, activation=None):
        super().__init__()
        quantized = rtn.quantize(weight, 8, -1, True, scale_dtype=torch.float32)
        self.register_buffer("codes", quantized.codes)
        self.register_buffer("scale", quantized.scale[:, 0])
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self.activation = activation or Dynamic()

    def forward(self, x):
        """x [..., in] -> [..., out] in x's dtype."""
        outputs, inputs = self.codes.shape
        if x.shape[-1] != inputs:
            raise ValueError(f"inputs of shape {tuple(x.shape)} for a layer with {inputs} inputs")
        y = self.activation.product(x.reshape(-1, inputs), self.codes, self.scale)
        y = y if self.bias is None else y + self.bias
        return y.to(x.dtype).reshape(*x.shape[:-1], outputs)


def int8_model(model, activation, skip=("lm_head",)):
    """A copy of the model with Int8Linear layers; the rest is shared with the original.

    activation: one object for all layers, or a function of the layer's name.
    """
    copy = share(model)
    for name, layer in find(copy, skip)[0].items():
        chosen = activation(name) if callable(activation) else activation
        copy.set_submodule(name, Int8Linear(weight_of(layer), layer.bias, chosen))
    return copy


def require_finite(x):
    """x as float32. ValueError for NaN, infinity, or no channels."""
    x = x.float()
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"activations of shape {tuple(x.shape)}: expected [..., channels]")
    if not torch.isfinite(x).all():
        raise ValueError("activations hold NaN or infinity: find the layer that made them")
    return x
