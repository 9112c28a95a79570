"""Multiply with a 2:4 matrix: probe for a sparse kernel, else the masked dense product.

Does: give the right result everywhere and say which way it went. Does not: promise speed. Where
there are no sparse tensor cores, a 2:4 matrix costs as much as a dense one, and this says so.
"""

import warnings

import torch
import torch.nn.functional as F

from utils.sparsity import semi_structured

SIDE = 128  # large enough for every sparse kernel's smallest tile


def has_sparse_kernel(device, dtype=torch.float16):
    """True if torch multiplies with a 2:4 matrix on this torch.device: tried, not looked up."""
    x = torch.ones(SIDE, SIDE, dtype=dtype, device=device)
    weight = x * semi_structured.mask(x)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls the format a prototype
            sparse = torch.sparse.to_sparse_semi_structured(weight)
            return torch.equal(F.linear(x, sparse).float(), F.linear(x, weight).float())
    except (RuntimeError, NotImplementedError, ValueError, AssertionError):
        return False


def linear(x, weight):
    """(x [..., in] times the 2:4 matrix `weight` [out, in], the way taken: "sparse" or "dense").

    ValueError if `weight` is not 2:4. Fewer rows of x than a kernel's tile (batch 1, say) go the
    dense way.
    """
    if not semi_structured.is_semi_structured(weight):
        raise ValueError("the weight is not 2:4; apply semi_structured.mask first")
    rows = x.numel() // x.shape[-1]
    fits = rows % 64 == 0 and weight.shape[0] % 64 == 0 and weight.shape[1] % 64 == 0
    if fits and has_sparse_kernel(weight.device, weight.dtype):
        return F.linear(x, torch.sparse.to_sparse_semi_structured(weight)), "sparse"
    return F.linear(x, weight), "dense"
