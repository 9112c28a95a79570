"""From which batch size on does a 2:4 product beat the dense one? Measured where a kernel exists.

Does: time x W^T with W dense (zeros and all) and as torch's semi-structured tensor, interleaved,
for several batch sizes. Where `product.has_sparse_kernel` says no, it returns None and measures
nothing: there the sparse form would be a dense one with an extra step.
But: one matrix, again and again, in the caches where it fits; a decoder reads others in between.
"""

import warnings

import torch
import torch.nn.functional as F

from utils import measure
from utils.sparsity import product, semi_structured

BATCHES = (1, 8, 16, 64, 256, 1024, 4096)


def race(
    shape, batches=BATCHES, device=None, dtype=torch.float16, repeats=11,
    probe=product.has_sparse_kernel, convert=torch.sparse.to_sparse_semi_structured,
    compare=measure.compare,
):  # fmt: skip
    """{batch: measure.Ratio of dense time over sparse time}, or None without a sparse kernel.

    shape: (out, in) of the matrix. device: a `device.Device`. probe, convert, compare: for tests.
    """
    device = device or measure.detect()
    if not probe(device.torch, dtype):
        return None
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator).to(device.torch, dtype)
    weight = weight * semi_structured.mask(weight)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the format a prototype
        sparse = convert(weight)
        found = {}
        for batch in batches:
            x = torch.randn(batch, shape[1], generator=generator).to(device.torch, dtype)
            times = compare(_arms(x, weight, sparse), repeats, device)
            found[batch] = times.ratio("dense", "2:4")
    return found


def _arms(x, weight, sparse):
    return {"dense": lambda: F.linear(x, weight), "2:4": lambda: F.linear(x, sparse)}


def crossover(ratios):
    """The smallest batch from which on 2:4 is always the faster one; None if there is none."""
    batches = sorted(ratios)
    winning = [b for b in batches if all(ratios[c].median > 1 for c in batches if c >= b)]
    return min(winning, default=None)
