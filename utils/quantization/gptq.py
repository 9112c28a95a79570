"""GPTQ: round one input column at a time and let the later columns make good the error.

Does: one layer; grids as in rtn.py; act-order; short last groups; lazy block updates (Frantar et
al. 2023, arXiv:2210.17323, algorithm 1). H = X X^T + lambda I, U the upper Cholesky factor of H^-1:
    error_j = (w_j - round_j) / U_jj             w_k <- w_k - error_j U_jk      for all k > j
The factor, the damping and what happens when it is too small are sparsegpt.py's: the same
mathematics with "round" in place of "drop". Works in float64 on the CPU, so that the order of a sum
decides no code.

Dead columns (input always zero in the calibration text) are rounded to nearest: they pass on no
error and receive none. (The authors' code sets them to zero; another text may need them.)
But: it minimizes ||(W_hat - W) X||^2 on the calibration text, a layer at a time, nothing else.
"""

import warnings

import torch

from utils.quantization import rtn
from utils.quantization.reordered import ReorderedTensor
from utils.quantization.size import PER_CHANNEL
from utils.quantization.tensor import QuantizedTensor
from utils.sparsity import sparsegpt

GROUPS = ("static", "dynamic")


def quantize(
    weight, hessian, bits=4, group_size=64, act_order=True, damping=0.01, symmetric=False,
    groups="static", block=128, clip=1.0, scale_dtype=torch.float16,
):  # fmt: skip
    """Quantize weight [out, in] with the Hessian [in, in] of its inputs -> QuantizedTensor.

    act_order: columns with the largest Hessian diagonal first. damping: share of the mean diagonal
    that is added to it; grows tenfold while the factorisation fails. groups: "static", each grid
    from the weights as given, or "dynamic", from the weights as they stand when the group's turn
    comes; dynamic with act_order gives groups of scattered columns, a ReorderedTensor. block:
    columns between two updates of the whole rest; it changes the time, not the codes.
    Warns and rounds to nearest when no damping helps. ValueError for NaN, infinity, bad shapes.
    """
    _check(weight, hessian, group_size, groups, block)
    options = dict(bits=bits, symmetric=symmetric, clip=clip, scale_dtype=scale_dtype)
    start = rtn.quantize(weight, group_size=group_size, **options)
    order = processing_order(hessian, act_order)
    try:
        factor, _ = sparsegpt.inverse_factor(hessian.cpu().double()[order][:, order], damping)
    except ValueError as error:
        warnings.warn(f"{error}: rounding to nearest instead", stacklevel=2)
        return start
    columns = weight.detach().cpu().double().t()[order].contiguous()  # [in, out]
    grid = Grid(start, order, options if groups == "dynamic" else None)
    codes = _walk(columns, factor, grid, block)
    scattered = act_order and groups == "dynamic"
    return _result(codes, grid, order, scattered, scale_dtype).to(weight.device)


def processing_order(hessian, act_order):
    """The columns in the order of their turn: as they stand, or by falling Hessian diagonal."""
    if not act_order:
        return torch.arange(len(hessian))
    return torch.argsort(hessian.diagonal().cpu(), descending=True, stable=True)


class Grid:
    """Scale and zero point [out] of the column whose turn it is, in float64."""

    def __init__(self, start, order, options=None):
        """start: the layer rounded to nearest; options: how, when grids are made anew."""
        self.bits, self.group_size = start.bits, start.group_size
        self.symmetric, self.options = start.symmetric, options
        self.width = start.shape[1] if start.group_size == PER_CHANNEL else start.group_size
        positions = order if options is None else torch.arange(len(order))
        self.group = (positions // self.width).tolist()
        self.scale = start.scale.cpu().double().t().contiguous()  # [groups, out]
        zero = torch.zeros_like(self.scale) if start.symmetric else start.zero_point.cpu().t()
        self.zero_point = zero.double().contiguous()
        top = 2 ** (start.bits - 1) - 1
        self.low, self.high = (-top, top) if start.symmetric else (0, 2**start.bits - 1)

    def codes(self, j, columns):
        """Codes [out] of column j, and the weights that they stand for."""
        if self.options and j % self.width == 0:
            self._renew(columns[j : j + self.width], j // self.width)
        scale, zero = self.scale[self.group[j]], self.zero_point[self.group[j]]
        codes = (torch.round(columns[j] / scale) + zero).clamp(self.low, self.high)
        return codes, (codes - zero) * scale

    def _renew(self, part, group):
        fresh = rtn.quantize(part.t().float(), group_size=PER_CHANNEL, **self.options)
        self.scale[group] = fresh.scale[:, 0].double()
        if not self.symmetric:
            self.zero_point[group] = fresh.zero_point[:, 0].double()


def _walk(columns, factor, grid, block):
    """Codes [in, out] of all columns in turn; `columns` is used up."""
    codes = torch.empty_like(columns)
    for start, end in blocks(len(columns), grid.width, block):
        errors = torch.empty_like(columns[start:end])
        for j in range(start, end):
            codes[j], rounded = grid.codes(j, columns)
            error = torch.div(columns[j] - rounded, factor[j, j], out=errors[j - start])
            columns[j + 1 : end].addr_(factor[j, j + 1 : end], error, alpha=-1)
        columns[end:] -= factor[start:end, end:].T @ errors
    return codes


def blocks(columns, width, block):
    """(start, end) of the lazy blocks. A group of `width` lies in one block or begins one.

    So its first column finds the whole group up to date, also where the group exceeds the block.
    """
    stretch = max(block // width, 1) * width
    for first in range(0, columns, stretch):
        last = min(first + stretch, columns)
        for start in range(first, last, block):
            yield start, min(start + block, last)


def _result(codes, grid, order, scattered, scale_dtype):
    in_turn = codes.t().to(torch.int8 if grid.symmetric else torch.uint8)
    original = in_turn if scattered else in_turn[:, torch.argsort(order)]
    zero = None if grid.symmetric else grid.zero_point.t()
    tensor = QuantizedTensor.from_codes(
        original.contiguous(), grid.scale.t(), zero, grid.bits, grid.group_size, scale_dtype
    )
    return ReorderedTensor(tensor, order) if scattered else tensor


def _check(weight, hessian, group_size, groups, block):
    if weight.dim() != 2 or tuple(hessian.shape) != (weight.shape[1],) * 2:
        raise ValueError(
            f"weight {tuple(weight.shape)} needs a Hessian [in, in], got {tuple(hessian.shape)}"
        )
    if not torch.isfinite(hessian).all():
        raise ValueError(
            "the Hessian holds NaN or infinity: a calibration activation does; find its source"
        )
    if groups not in GROUPS or block < 1:
        raise ValueError(f"groups={groups!r}, block={block}: groups is one of {GROUPS}, block > 0")
    if group_size != PER_CHANNEL and group_size < 1:
        raise ValueError(f"group_size={group_size}: use > 0, or -1 (per channel)")
