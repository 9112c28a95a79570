"""What repeated timings can tell: percentiles with intervals, ratios with intervals, repeats.

A percentile's interval comes from order statistics, without assuming a distribution: the number of
samples below the true q-quantile is binomial, so two of the sorted samples enclose it with a known
probability. A ratio's interval is a percentile bootstrap over whole rounds (Efron 1979), so that
what both arms of a round share stays shared.
What it does not do: samples are taken as exchangeable. Drift within an arm breaks that; interleave
first (measure.compare), then come here.
"""

import math
import statistics
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """An estimate and the interval around it; `high` is None where the samples don't reach."""

    value: float
    low: float | None
    high: float | None
    level: float = 0.95

    @property
    def half_width(self):
        """Half the interval's width, relative to the value; None where an end is missing."""
        if self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2 / self.value


def percentile(values, q):
    """The q-quantile, 0 <= q <= 1: linear between order statistics (NumPy's default)."""
    if not len(values) or not 0 <= q <= 1:
        raise ValueError(f"{len(values)} values, q={q}: need a value and 0 <= q <= 1")
    if any(value != value for value in values):
        raise ValueError("a value is nan and has no rank: drop the failed samples first")
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def interval_ranks(n, q, level=0.95):
    """Ranks (from 1) of the sorted samples that enclose the true q-quantile, at least `level` sure.

    Either is None where no sample is extreme enough: P(all samples below the quantile) = q**n must
    not exceed (1 - level) / 2 for an upper end to exist.
    """
    if n < 1 or not 0 < q < 1 or not 0 < level < 1:
        raise ValueError(f"n={n}, q={q}, level={level}: need n >= 1 and q, level between 0 and 1")
    tail = (1 - level) / 2
    below = binom.cdf(np.arange(n + 1), n, q)  # P(at most k samples lie below the quantile)
    low = int(np.searchsorted(below, tail, side="right"))  # P(fewer than `low` below) <= tail
    high = int(np.searchsorted(below, 1 - tail)) + 1  # P(`high` or more below) <= tail
    return (low if low >= 1 else None), (high if high <= n else None)


def percentile_interval(values, q, level=0.95):
    """The q-quantile with its distribution-free interval."""
    low, high = interval_ranks(len(values), q, level)
    ordered = sorted(values)
    ends = (None if rank is None else ordered[rank - 1] for rank in (low, high))
    return Interval(percentile(values, q), *ends, level)


def samples_needed(q, level=0.95):
    """The smallest n for which the q-quantile has an interval with two ends: q**n and (1 - q)**n,
    the chances that all samples lie on one side of it, are at most (1 - level) / 2."""
    interval_ranks(1, q, level)  # refuses what it refuses
    tail = math.log((1 - level) / 2)
    return max(math.ceil(tail / math.log(share)) for share in (q, 1 - q))


def ratio_interval(a, b, level=0.95, resamples=RESAMPLES, seed=0, rounds=None):
    """Median over rounds of a / b with a bootstrap interval; a and b are paired by round.

    rounds: how many rounds each resample draws (default: as many as were measured). Fewer or more
    show what a run of that length would know.
    """
    if len(a) != len(b) or len(a) < 2:
        raise ValueError(f"{len(a)} and {len(b)} rounds: need two or more, the same for both arms")
    if rounds is not None and rounds < 1:
        raise ValueError(f"rounds={rounds}: draw one round or more, or None for {len(a)}")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.asarray(a, float) / np.asarray(b, float)
    if not np.isfinite(ratios).all():
        raise ValueError("a ratio isn't finite: times must be numbers, and those of b above 0")
    dice = np.random.default_rng(seed)
    drawn = dice.integers(len(ratios), size=(resamples, rounds or len(ratios)))
    medians = np.median(ratios[drawn], axis=1)
    low, high = np.quantile(medians, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(np.median(ratios)), float(low), float(high), level)


def rounds_needed(a, b, tolerance, level=0.95, most=4096, seed=0):
    """Rounds until the interval of the median ratio is ± `tolerance` (relative) or better.

    Up to the number of measured rounds by resampling them; beyond that the bootstrap only sees
    the gaps between the ratios it has, so 1 / sqrt(rounds) goes on from there. None above `most`.
    """
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance={tolerance}: give it as a share, such as 0.02 for 2 %")
    rounds = 3
    while rounds < min(len(a), most):
        if ratio_interval(a, b, level, 1000, seed, rounds).half_width <= tolerance:
            return rounds
        rounds = max(rounds + 1, int(rounds * 1.15))
    measured = ratio_interval(a, b, level, 1000, seed).half_width
    needed = math.ceil(len(a) * max(1, measured / tolerance) ** 2)
    return needed if needed <= most else None


def summary(values):
    """{min, q1, median, mean, q3, p99, max} of the samples."""
    low, middle, high, tail = (percentile(values, q) for q in (0.25, 0.5, 0.75, 0.99))
    return {
        "min": min(values),
        "q1": low,
        "median": middle,
        "mean": statistics.fmean(values),
        "q3": high,
        "p99": tail,
        "max": max(values),
    }
