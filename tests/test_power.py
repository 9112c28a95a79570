"""utils.power against published numbers, enumeration and dice; utils.clusters against its twin."""

import math

import numpy as np
import pytest
from scipy import stats

from utils import clusters, power


def test_connors_formula_gives_the_published_example():
    """p01 = .45, p10 = .05, alpha .05, power .8: 23 pairs (powerandsamplesize.com, Connor 1987)."""
    assert power.items_paired(0.5, 0.4) == 23


def test_formulas_by_hand():
    """(1.95996 + 0.84162)² = 7.84888; one point at 50 %: 7.849 * 0.5 / 0.0001, nearly."""
    z = (stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) ** 2
    assert z == pytest.approx(7.84888, abs=1e-5)
    assert power.items_unpaired(0.5, 0.51) == pytest.approx(z * 0.5 / 1e-4, rel=2e-3)
    assert power.items_paired(0.1, 0.01) == pytest.approx(z * 0.1 / 1e-4, rel=2e-3)
    assert power.items_paired(0.1, -0.01) == power.items_paired(0.1, 0.01)


@pytest.mark.parametrize("discordant, difference", [(0.1, 0.03), (0.3, 0.05), (0.2, 0.04)])
def test_dice_agree_with_the_paired_formula(discordant, difference):
    n = power.items_paired(discordant, difference)
    found = power.simulate_paired(n, discordant, difference, trials=20_000)
    assert found == pytest.approx(0.8, abs=0.02)
    assert power.simulate_paired(n, discordant, 0, trials=20_000) == pytest.approx(0.05, abs=0.01)
    exact = power.simulate_paired(n, discordant, difference, trials=20_000, exact=True)
    assert found - 0.08 < exact <= found


@pytest.mark.parametrize("p_a, p_b", [(0.5, 0.55), (0.9, 0.93), (0.4, 0.3)])
def test_dice_agree_with_the_unpaired_formula(p_a, p_b):
    n = power.items_unpaired(p_a, p_b)
    assert power.simulate_unpaired(n, p_a, p_b, trials=20_000) == pytest.approx(0.8, abs=0.02)
    assert power.simulate_unpaired(n, p_a, p_a, trials=20_000) == pytest.approx(0.05, abs=0.01)


def test_detectable_turns_the_formula_around():
    for n, discordant in ((200, 0.1), (1000, 0.3)):
        smallest = power.detectable(n, discordant)
        assert power.items_paired(discordant, smallest) <= n
        assert power.items_paired(discordant, 0.999 * smallest) > n
    with pytest.raises(ValueError, match="can't find"):
        power.detectable(5, 0.1)


def test_mcnemar_by_enumeration():
    a = [True] * 6 + [False] * 4 + [True] * 10
    b = [True] * 5 + [False] + [True] * 4 + [True] * 8 + [False] * 2
    result = power.mcnemar(a, b)
    assert (result.n, result.only_a, result.only_b) == (20, 3, 4)
    assert result.difference == pytest.approx(0.05) and result.discordant == pytest.approx(0.35)
    assert result.standard_error == pytest.approx(math.sqrt((0.35 - 0.0025) / 20))
    differences = np.array(b, float) - np.array(a, float)
    assert result.standard_error == pytest.approx(differences.std() / math.sqrt(20))
    assert result.p_value == pytest.approx(stats.binomtest(4, 7).pvalue)
    assert power.McNemar(100, 9, 1).p_value == pytest.approx(stats.binomtest(1, 10).pvalue)
    assert power.McNemar(5, 0, 0).p_value == 1


def test_the_best_of_ten_is_lucky():
    assert power.expected_best(1) == pytest.approx(0, abs=1e-9)
    assert power.expected_best(2) == pytest.approx(1 / math.sqrt(math.pi))
    dice = np.random.default_rng(0).standard_normal((40_000, 10)).max(axis=1)
    assert power.expected_best(10) == pytest.approx(dice.mean(), abs=0.01)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: power.items_paired(0.1, 0.2), "difference"),
        (lambda: power.items_paired(0.1, 0), "difference"),
        (lambda: power.items_unpaired(0.5, 0.5), "p_b"),
        (lambda: power.items_unpaired(0.5, 0.6, power=1), "power"),
        (lambda: power.items_paired(0.1, 0.05, alpha=0), "alpha"),
        (lambda: power.mcnemar([True], [True, False]), "same items"),
        (lambda: power.mcnemar([], []), "same items"),
        (lambda: power.expected_best(0), "candidates"),
        (lambda: power.mcnemar([0.5, 1], [1, 0]), "bootstrap"),
        (lambda: power.simulate_paired(100, 0.1, 0.2), "difference"),
        (lambda: power.simulate_paired(0, 0.1, 0.05), "n=0"),
        (lambda: power.simulate_unpaired(0, 0.5, 0.6), "n=0"),
        (lambda: power.mcnemar([float("nan")], [1]), "bootstrap"),
        (lambda: clusters.clustered([[1.0, float("nan")], [2.0, 3.0]]), "not finite"),
        (lambda: clusters.clustered(np.zeros((0, 3))), "clusters"),
        (lambda: clusters.clustered([1.0, 2.0]), "labels"),
        (lambda: clusters.clustered([[1.0, 2.0]]), "clusters"),
        (lambda: clusters.clustered([1.0, 2.0], [0, 0]), "clusters"),
        (lambda: clusters.clustered([[1.0], [1.0]]), "equal"),
    ],
)
def test_bad_requests_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_clustered_error_equals_its_twin():
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 7, 60)
    values = generator.normal(size=60) + labels
    found = clusters.clustered(values, labels)
    assert found.error == pytest.approx(clusters.pairwise_error(values, labels.tolist()))
    assert found.n == 60 and found.clusters == 7 and found.mean == pytest.approx(values.mean())


def test_equal_clusters_need_the_errors_of_their_means_only():
    """Two windows of three tokens: means 2 and 6, so the error is |6 - 2| / 2 = 2."""
    found = clusters.clustered([[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]])
    assert found.error == pytest.approx(2) and found.mean == 4
    assert found.naive_error == pytest.approx(math.sqrt(5.6 / 6))
    assert found.design_effect == pytest.approx(4 / (5.6 / 6))
    assert found.effective_n == pytest.approx(6 / found.design_effect)


def test_design_effect_follows_the_correlation():
    """Items that share half of their variance with their cluster: 1 + 9 * 0.5."""
    generator = np.random.default_rng(2)
    shared = generator.normal(size=(4000, 1))
    values = shared + generator.normal(size=(4000, 10))
    found = clusters.clustered(values)
    assert found.design_effect == pytest.approx(5.5, rel=0.06)
    assert found.correlation == pytest.approx(0.5, abs=0.04)
    alone = clusters.clustered(generator.normal(size=(4000, 10)))
    assert alone.design_effect == pytest.approx(1, abs=0.08)
