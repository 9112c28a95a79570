"""Standard errors of means whose items come in clusters: the tokens of a window, above all.

If items of one cluster resemble each other, n of them say less than n independent ones. The
clustered error adds up each cluster's residuals before it squares them (equation eq-04-cluster):
    SE = sqrt(sum over clusters of (sum of (x - mean))²) / n.
Design effect: its square over the naive error's square. For clusters of equal size m it is about
1 + (m - 1) rho, rho being the correlation of two items of one cluster.
But: it needs some ten clusters or more; with fewer it is itself a guess, and mostly too small.
"""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Clustered:
    """mean of n items in `clusters` clusters, with the error taken both ways."""

    mean: float
    naive_error: float
    error: float
    n: int
    clusters: int

    @property
    def design_effect(self):
        """How many clustered items are worth one independent item."""
        return (self.error / self.naive_error) ** 2

    @property
    def effective_n(self):
        """Independent items with the same error."""
        return self.n / self.design_effect

    @property
    def correlation(self):
        """rho in design effect = 1 + (m - 1) rho, m being the mean size of a cluster."""
        size = self.n / self.clusters
        return (self.design_effect - 1) / (size - 1) if size > 1 else math.nan


def clustered(values, labels=None):
    """The mean of `values` with its naive and its clustered error: Clustered.

    values: [clusters, items] (equal sizes), or [n] with labels [n] that name each item's cluster.
    ValueError with fewer than two clusters, for NaN or infinity, or if all values are the same.
    """
    values = np.asarray(values, dtype=np.float64)
    if labels is None and values.ndim != 2:
        raise ValueError(f"values {values.shape} need labels, or the shape [clusters, items]")
    labels = np.repeat(np.arange(len(values)), values.shape[1]) if labels is None else labels
    names, index = np.unique(np.asarray(labels), return_inverse=True)
    flat = values.ravel()
    if len(index) != len(flat) or len(names) < 2:
        raise ValueError(
            f"{len(flat)} values, {len(index)} labels, {len(names)} clusters: need >= 2"
        )
    if not np.isfinite(flat).all():
        raise ValueError(
            f"{(~np.isfinite(flat)).sum()} values are not finite: leave them out first"
        )
    residual = flat - flat.mean()
    sums = np.bincount(index, weights=residual)
    n, groups = len(flat), len(names)
    error = math.sqrt((sums**2).sum() * groups / (groups - 1)) / n
    naive = float(flat.std(ddof=1)) / math.sqrt(n)
    if not naive:
        raise ValueError("all values are equal: there is no error to compare")
    return Clustered(float(flat.mean()), naive, error, n, groups)


def pairwise_error(values, labels):
    """The twin for the tests: adds the product of residuals of every pair within a cluster."""
    mean = sum(values) / len(values)
    groups = len(set(labels))
    total = sum(
        (x - mean) * (y - mean)
        for x, label in zip(values, labels, strict=True)
        for y, other in zip(values, labels, strict=True)
        if label == other
    )
    return math.sqrt(total * groups / (groups - 1)) / len(values)
