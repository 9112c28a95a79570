"""Fake quantization: weights rounded in the forward pass, a made-up gradient on the way back.

    w_hat = s * (clamp(round(w / s) + z, low, high) - z)              forward: what rtn.py computes
    dL/dw = dL/dw_hat  inside the range, 0 outside                    clipped straight-through
    dw_hat/ds = round(w / s) - w / s  inside, (low or high) - z outside       learned step size

The true derivative of round is 0 almost everywhere; the straight-through estimator (Bengio et al.
2013, arXiv:1308.3432) puts 1 in its place. The gradient for s is that of LSQ (Esser et al. 2020,
arXiv:1902.08153, equation 3), where round(w / s) inside the derivative gets the same treatment.
The result of `fake_quantize` is bit for bit what `export(...).dequantize()` returns.

But: activations are not quantized, zero points are not learned, and nothing gets smaller or faster.
"""

from dataclasses import dataclass, replace

import torch

from utils.quantization import rtn
from utils.quantization.size import PER_TENSOR, grid_shape
from utils.quantization.tensor import QuantizedTensor


@dataclass(frozen=True)
class Grid:
    """scale [out, groups] in fp32 (a Parameter when learned); zero_point alike, None: symmetric."""

    scale: torch.Tensor
    zero_point: torch.Tensor | None
    bits: int
    group_size: int
    scale_dtype: torch.dtype = torch.float16

    @property
    def codes(self):
        """Lowest and highest code."""
        top = 2 ** (self.bits - 1) - 1
        return (-top, top) if self.zero_point is None else (0, 2**self.bits - 1)

    @classmethod
    def over(cls, weight, bits=4, group_size=64, symmetric=False, scale_dtype=torch.float16):
        """The grid that round to nearest gives this weight: from its smallest to its largest."""
        groups = rtn._split(weight.detach().float(), group_size)
        scale, zero = rtn._grid(groups, bits, symmetric, 1.0, scale_dtype)
        return cls(
            scale[..., 0], None if symmetric else zero[..., 0], bits, group_size, scale_dtype
        )

    @classmethod
    def of(cls, tensor):
        """The grid of a QuantizedTensor, wherever that came from (RTN, AWQ, GPTQ)."""
        zero = None if tensor.symmetric else tensor.zero_point.float()
        scale = tensor.scale
        return cls(scale.float(), zero, tensor.bits, tensor.group_size, scale.dtype)

    def limits(self):
        """Lowest and highest whole number round(w / s) that is not clipped, [out, groups, 1]."""
        low, high = self.codes
        zero = torch.zeros_like(self.scale) if self.zero_point is None else self.zero_point
        return (low - zero.detach())[..., None], (high - zero.detach())[..., None]


class _FakeQuantize(torch.autograd.Function):
    """Forward: exact rounding. Backward: clipped straight-through, and LSQ's gradient for s."""

    @staticmethod
    def forward(ctx, groups, scale, low, high):
        ctx.save_for_backward(groups, scale, low, high)
        return torch.div(groups, scale).round_().clamp_(low, high).mul_(scale)

    @staticmethod
    def backward(ctx, gradient):
        groups, scale, low, high = ctx.saved_tensors
        steps = groups / scale
        whole = steps.round()
        inside = (whole >= low) & (whole <= high)
        for_weight = gradient * inside
        if not ctx.needs_input_grad[1]:
            return for_weight, None, None, None
        slope = torch.where(inside, whole - steps, whole.clamp(low, high))
        return for_weight, (gradient * slope).sum(-1, keepdim=True), None, None


class _Stored(torch.autograd.Function):
    """The scale as it will be stored (fp16), with the gradient passed straight through."""

    @staticmethod
    def forward(ctx, scale, dtype):
        return scale.to(dtype).float()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class _Plain(torch.autograd.Function):
    """A grid that spans the weights clips nothing: the gradient is passed on unchanged."""

    @staticmethod
    def forward(ctx, groups, scale, low, high):
        return torch.div(groups, scale).round_().clamp_(low, high).mul_(scale)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None, None, None


def fake_quantize(weight, grid, clipped=True):
    """weight [out, in] on the grid, differentiable by weight and by grid.scale; same shape.

    clipped=False passes the gradient on where the grid clips, too (the plain estimator).
    ValueError when the grid does not fit the weight.
    """
    _check(weight, grid)
    groups = rtn._split(weight, grid.group_size)
    scale = _Stored.apply(grid.scale, grid.scale_dtype)[..., None]
    function = _FakeQuantize if clipped else _Plain
    return rtn._join(function.apply(groups, scale, *grid.limits()), weight.shape)


def export(weight, grid):
    """The QuantizedTensor that fake_quantize promised: the same codes on the same grid."""
    _check(weight, grid)
    scale = grid.scale.detach().to(grid.scale_dtype).float()
    if not (scale > 0).all():
        raise ValueError(f"a learned scale fell to {float(scale.min()):.3g}: lower the rate")
    groups = rtn._split(weight.detach().float(), grid.group_size)
    whole = torch.round(groups / scale[..., None]).clamp_(*grid.limits())
    zero = grid.zero_point
    codes = whole.to(torch.int8) if zero is None else (whole + zero[..., None]).to(torch.uint8)
    codes = rtn._join(codes, weight.shape)
    return QuantizedTensor.from_codes(
        codes, scale, zero, grid.bits, grid.group_size, grid.scale_dtype
    )


def fake_quantize_naive(weight, grid, upstream):
    """The twin for the tests, one weight at a time: (w_hat, dL/dw, dL/ds) for dL/dw_hat."""
    low, high = grid.codes
    value, for_weight = torch.zeros_like(weight), torch.zeros_like(weight)
    for_scale = torch.zeros_like(grid.scale)
    width = weight.shape[1] if grid.group_size < 1 else grid.group_size
    for i in range(weight.shape[0]):
        for j in range(weight.shape[1]):
            at = (0, 0) if grid.group_size == PER_TENSOR else (i, j // width)
            s = float(grid.scale.detach()[at])
            z = 0 if grid.zero_point is None else int(grid.zero_point[at])
            steps = float(weight[i, j]) / s
            whole = round(steps)  # Python rounds half to even, as torch does
            code = min(max(whole + z, low), high)
            value[i, j] = s * (code - z)
            inside = code == whole + z
            for_weight[i, j] = float(upstream[i, j]) if inside else 0.0
            slope = whole - steps if inside else code - z
            for_scale[at] += float(upstream[i, j]) * slope
    return value, for_weight, for_scale


def inside(weight, tensor, share=0.49):
    """weight, moved as little as possible so that it rounds to the codes of `tensor`.

    Most weights already lie in the cell of their code; the others go `share` of a step from its
    middle, just inside the edge, where a small update can change the code.
    """
    middle = rtn._split(tensor.dequantize(), tensor.group_size)
    groups = rtn._split(weight.detach().float(), tensor.group_size)
    reach = share * tensor.scale.float()[..., None]
    return rtn._join(groups.clamp(middle - reach, middle + reach), weight.shape)


def learned(grid):
    """The grid with a step size that is trained."""
    return replace(grid, scale=torch.nn.Parameter(grid.scale.detach().clone()))


def _check(weight, grid):
    expected = grid_shape(tuple(weight.shape), grid.group_size)
    if tuple(grid.scale.shape) != expected:
        raise ValueError(
            f"a grid of {tuple(grid.scale.shape)} scales for a weight {tuple(weight.shape)} in "
            f"groups of {grid.group_size}: it needs {expected}; make it with Grid.over(weight)"
        )
