"""utils.timing_stats: percentiles against NumPy and scipy, intervals against their own promise."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from utils import timing_stats as stats


@pytest.mark.parametrize("q", [0, 0.01, 0.25, 0.5, 0.9, 0.99, 1])
@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_percentile_is_numpys(n, q):
    values = np.random.default_rng(n).exponential(size=n).tolist()
    assert stats.percentile(values, q) == pytest.approx(np.quantile(values, q), rel=1e-12)


def test_percentile_by_hand():
    assert stats.percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert stats.percentile(range(101), 0.99) == 99


@pytest.mark.parametrize("values, q", [([], 0.5), ([1], 1.5), ([1], -0.1)])
def test_percentile_refuses(values, q):
    with pytest.raises(ValueError, match="need a value"):
        stats.percentile(values, q)


def test_nan_has_no_rank():
    with pytest.raises(ValueError, match="nan"):
        stats.percentile([1.0, math.nan, 2.0], 0.5)


@pytest.mark.parametrize("n, q", [(20, 0.5), (100, 0.5), (1000, 0.99), (5000, 0.99), (64, 0.1)])
def test_ranks_enclose_the_quantile_as_often_as_they_say(n, q):
    """Rank l is below the quantile if l or more samples are; rank h above if h - 1 or fewer are."""
    low, high = stats.interval_ranks(n, q)
    missed_low = binom.cdf(low - 1, n, q)
    missed_high = binom.sf(high - 1, n, q)
    assert missed_low <= 0.025 and missed_high <= 0.025
    assert binom.cdf(low, n, q) > 0.025 and binom.sf(high - 2, n, q) > 0.025  # no narrower pair


def test_a_hundred_samples_have_no_upper_end_for_p99():
    low, high = stats.interval_ranks(100, 0.99)
    assert low is not None and high is None
    found = stats.percentile_interval(range(100), 0.99)
    assert found.high is None and found.half_width is None


def test_p99_needs_368_samples_for_an_interval_at_all():
    """0.99 ** n <= 0.025: n >= ln 0.025 / ln 0.99 = 367.04."""
    assert math.log(0.025) / math.log(0.99) == pytest.approx(367.04, abs=0.01)
    assert stats.samples_needed(0.99) == 368
    assert stats.samples_needed(0.5) == 6  # 0.5 ** 6 = 0.0156
    assert stats.samples_needed(0.999_999) == 3_688_878  # ln 0.025 / ln 0.999999


@pytest.mark.parametrize("q", [0.01, 0.3, 0.9, 0.99])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_samples_needed_is_the_first_with_two_ends(q, level):
    n = stats.samples_needed(q, level)
    assert None not in stats.interval_ranks(n, q, level)
    assert n == 1 or None in stats.interval_ranks(n - 1, q, level)


def test_a_thousand_samples_enclose_p99_between_ranks_983_and_997():
    assert stats.interval_ranks(1000, 0.99) == (983, 997)


@pytest.mark.parametrize("n, q, level", [(0, 0.5, 0.9), (9, 0, 0.9), (9, 1, 0.9), (9, 0.5, 1)])
def test_ranks_refuse(n, q, level):
    with pytest.raises(ValueError, match="need n >= 1"):
        stats.interval_ranks(n, q, level)


def test_percentile_intervals_hold_the_truth_on_skewed_samples():
    """95 % or more of 400 intervals; 0.915 lies 3 standard errors below."""
    dice = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        found = stats.percentile_interval(dice.exponential(size=400), 0.9)
        hits += found.low <= math.log(10) <= found.high
    assert hits / 400 > 0.915


def test_ratio_is_paired_by_round():
    """Rounds that are slow for both arms cancel; unpaired, they would widen the interval."""
    slow = np.array([1, 9, 1, 9, 5, 3, 7, 2.0])
    found = stats.ratio_interval(2 * slow, slow)
    assert (found.value, found.low, found.high) == (2, 2, 2) and found.half_width == 0


def test_ratio_interval_is_the_bootstraps():
    """Standard error of a median of Gaussians: 1.2533 sigma / sqrt(n); the ratio's sigma: 0.141."""
    dice = np.random.default_rng(0)
    found = []
    for _ in range(40):
        a, b = dice.lognormal(0, 0.1, 200), dice.lognormal(0, 0.1, 200)
        found.append(stats.ratio_interval(a, b, resamples=500).half_width)
    expected = 1.96 * 1.2533 * 0.1414 / math.sqrt(200)
    assert np.mean(found) == pytest.approx(expected, rel=0.1)
    assert stats.ratio_interval(a, b) == stats.ratio_interval(a, b)


def test_four_times_the_rounds_halve_the_interval():
    dice = np.random.default_rng(0)
    a, b = dice.lognormal(0, 0.1, 400), dice.lognormal(0, 0.1, 400)
    wide, narrow = (stats.ratio_interval(a, b, rounds=n).half_width for n in (25, 100))
    assert wide / narrow == pytest.approx(2, rel=0.15)


def test_rounds_needed():
    dice = np.random.default_rng(0)
    a, b = dice.lognormal(0, 0.1, 400), dice.lognormal(0, 0.1, 400)
    needed = stats.rounds_needed(a, b, 0.05)
    # (1.96 * 1.2533 * 0.1414 / 0.05) ** 2 = 48
    assert 30 < needed < 75
    assert stats.rounds_needed(a, b, 0.001, most=50) is None
    assert stats.rounds_needed(np.ones(5), np.ones(5), 0.01) == 3


def test_rounds_beyond_the_measured_follow_the_square_root():
    dice = np.random.default_rng(3)
    a, b = dice.lognormal(0, 0.1, 60), dice.lognormal(0, 0.1, 60)
    two, one = (stats.rounds_needed(a, b, share, most=10**6) for share in (0.02, 0.01))
    assert two > 60 and one / two == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize("a, b", [([1], [1]), ([1, 2], [1, 2, 3])])
def test_ratio_refuses(a, b):
    with pytest.raises(ValueError, match="two or more"):
        stats.ratio_interval(a, b)
    with pytest.raises(ValueError, match="rounds=0"):
        stats.ratio_interval([1, 2], [1, 2], rounds=0)
    with pytest.raises(ValueError, match="isn't finite"):
        stats.ratio_interval([1, 2], [1, 0])
    with pytest.raises(ValueError, match="0.02 for 2 %"):
        stats.rounds_needed([1, 2], [1, 2], 2)


def test_summary_of_a_skewed_sample():
    values = [1.0] * 90 + [2.0] * 9 + [100.0]
    found = stats.summary(values)
    assert list(found) == ["min", "q1", "median", "mean", "q3", "p99", "max"]
    assert found["median"] == 1 and found["mean"] == pytest.approx(2.08)
    assert found["min"] == 1 and found["max"] == 100 and found["p99"] == pytest.approx(2.98)
