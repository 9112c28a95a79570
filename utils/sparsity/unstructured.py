"""Unstructured masks: which single weights to drop, by magnitude or by Wanda's score.

Does: exactly k zeros, a fixed rule for ties, one naive twin. Does not: compensate for what it drops
(`sparsegpt`), save a byte or a millisecond (`storage` counts the bytes).

Magnitude: score |W|, ranked over the whole matrix.
Wanda (Sun et al. 2024, arXiv 2306.11695, eq. 1): score |W[i, j]| * ||x_j||_2, ranked within each
output row.
Tie rule: of equal scores, the one that comes first (row-major order) is dropped first.
"""

import torch

METHODS = ("magnitude", "wanda")


def zero_count(sparsity, n):
    """Weights to drop of `n`: `round(sparsity * n)`, half to even as in torch.nn.utils.prune."""
    if not 0.0 <= sparsity <= 1.0:
        raise ValueError(
            f"sparsity is a fraction between 0 and 1, not {sparsity}; 0.5 drops half the weights"
        )
    return round(sparsity * n)


def score(weight, method="magnitude", input_norm=None):
    """Importance of each weight.

    weight [out, in]; input_norm [in] is the L2 norm of each input feature on calibration text
    (`statistics.collect`), needed by "wanda" alone. Returns [out, in], at least fp32.
    ValueError for an unknown method, a missing or ill-shaped norm, NaN or infinity.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; one of {', '.join(METHODS)}")
    magnitude = weight.detach().abs().to(torch.promote_types(weight.dtype, torch.float32))
    if method == "wanda":
        magnitude = magnitude * _checked_norm(weight, input_norm).to(magnitude)
    if not torch.isfinite(magnitude).all():
        raise ValueError("the weights or input norms hold NaN or infinity; find their source first")
    return magnitude


def _checked_norm(weight, input_norm):
    if input_norm is None:
        raise ValueError("wanda needs input_norm [in]; collect it with statistics.collect")
    if input_norm.shape != weight.shape[-1:]:
        raise ValueError(
            f"input_norm {tuple(input_norm.shape)} does not fit weight {tuple(weight.shape)}"
        )
    return input_norm


def keep_largest(scores, drop):
    """True where a score stays: in each row of `scores` [rows, n] the `drop` smallest go.

    Fast form of `keep_largest_naive`: everything below the drop-th smallest value goes, and of the
    scores equal to it the first ones, until the count is exact.
    """
    if drop == 0:
        return torch.ones_like(scores, dtype=torch.bool)
    threshold = scores.kthvalue(drop, dim=1, keepdim=True).values
    below, equal = scores < threshold, scores == threshold
    missing = drop - below.sum(1, keepdim=True)
    return ~(below | (equal & (equal.cumsum(1) <= missing)))


def keep_largest_naive(scores, drop):
    """The definition that `keep_largest` must equal: a stable sort, then the first `drop` go."""
    keep = torch.ones_like(scores, dtype=torch.bool)
    order = scores.argsort(dim=1, stable=True)[:, :drop]
    return keep.scatter(1, order, False)


def mask(weight, sparsity, method="magnitude", input_norm=None, ranker=keep_largest):
    """Boolean mask, True where a weight is kept.

    weight of any shape for "magnitude", [out, in] for "wanda"; sparsity is the fraction to drop.
    Drops exactly `zero_count(sparsity, weight.numel())` weights (magnitude) or
    `zero_count(sparsity, in)` in every row (Wanda). The same input gives the same mask every time.
    """
    if method == "wanda" and weight.dim() != 2:
        raise ValueError(
            f"wanda ranks the rows of a matrix [out, in], not a tensor {tuple(weight.shape)}"
        )
    scores = score(weight, method, input_norm)
    rows = scores if method == "wanda" else scores.reshape(1, -1)
    return ranker(rows, zero_count(sparsity, rows.shape[1])).reshape(weight.shape)
