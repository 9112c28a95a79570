"""Weights of every storage form and the bound that a product with them has to keep."""

import torch

from utils.kernels.weights import KINDS, encode, wrap
from utils.quantization import rtn

FORMS = (*KINDS, "int8 zero", "int4 zero")
SHAPES = ((1, 33), (17, 1), (17, 96), (5, 100), (3, 64))
EXTREMES = ("all zero", "huge", "tiny", "outlier")


def possible(form, shape):
    return form != "sparse24" or shape[1] % 4 == 0


CASES = [(form, shape) for form in FORMS for shape in SHAPES if possible(form, shape)]


def stored(form, outputs, inputs, size=1.0):
    """A random Weight; "zero" in the form's name means with zero points, groups of 24."""
    generator = torch.Generator().manual_seed(inputs)
    return _stored(form, torch.randn(outputs, inputs, generator=generator) * size)


def extreme(form, kind):
    """A Weight [4, 64] at the edge of what the form can hold (integers have fp16 scales)."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 64, generator=generator)
    far = 1e5 if form.startswith("int") else 1e30
    if kind == "outlier":
        weight[0, -1] = 1e4
    return _stored(form, weight * {"all zero": 0.0, "huge": far, "tiny": 1 / far}.get(kind, 1.0))


def inputs_for(weight, rows=3):
    return torch.randn(rows, weight.shape[1], generator=torch.Generator().manual_seed(1))


def excess(y, weight, x):
    """Largest error in units of its bound: (K + 2) eps sum |w||x| for K products and a scale.

    A sum of K terms in any order is off by at most (K - 1) eps / 2 of the terms' absolute sum;
    the product, and a scale applied before or after, add less than 3 eps. 0 / 0 counts as 0.
    """
    w, x = weight.dequantize().double(), x.double()
    bound = (w.shape[1] + 2) * torch.finfo(torch.float32).eps * (x.abs() @ w.abs().T)
    return float(((y.double() - x @ w.T).abs() / bound.clamp(min=1e-300)).max())


def _stored(form, weight):
    if form.endswith("zero"):
        return wrap(rtn.quantize(weight, int(form[3]), 24, symmetric=False))
    return encode(weight, form)
