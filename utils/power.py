"""How many items a comparison of two models needs, and whether a difference is more than chance.

Two models, n items each, right or wrong. Unpaired (each model its own items) the difference has
variance (p1 q1 + p2 q2) / n. Paired (the same items) only items on which the models disagree
count: with a share `discordant` of them the variance is (discordant - difference²) / n. Sample
sizes follow from that and the normal law: equations (eq-04-unpaired) and (eq-04-paired) of the
chapter, the second one due to Connor (1987). `simulate_*` plays the same comparison with dice.
But: items are taken as independent; where they come in clusters, multiply by the design effect
(`clusters.py`).
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import integrate, stats


@dataclass(frozen=True)
class McNemar:
    """Two models on the same n items.  only_a, only_b: items that one alone got right."""

    n: int
    only_a: int
    only_b: int

    @property
    def difference(self):
        """Accuracy of b minus accuracy of a."""
        return (self.only_b - self.only_a) / self.n

    @property
    def discordant(self):
        """Share of the items on which the two models disagree."""
        return (self.only_a + self.only_b) / self.n

    @property
    def standard_error(self):
        """Of the difference, paired: sqrt((discordant - difference²) / n)."""
        return math.sqrt((self.discordant - self.difference**2) / self.n)

    @property
    def p_value(self):
        """Exact two-sided: is only_b what only_a + only_b fair coins would give?"""
        return float(_exact(np.array(self.only_a), np.array(self.only_b)))


def mcnemar(a, b):
    """Count where two models differ.  a, b: equally long sequences of right (True) and wrong."""
    a, b = (np.asarray(x).ravel() for x in (a, b))
    if a.shape != b.shape or not len(a):
        raise ValueError(f"need the same items for both, at least one: got {len(a)} and {len(b)}")
    if not np.isin([a, b], (0, 1)).all():
        raise ValueError("mcnemar takes right (1) and wrong (0); for other scores use a bootstrap")
    a, b = a.astype(bool), b.astype(bool)
    return McNemar(len(a), int((a & ~b).sum()), int((b & ~a).sum()))


def items_unpaired(p_a, p_b, alpha=0.05, power=0.8):
    """Items per model to find p_b - p_a when each model answers items of its own."""
    _check(alpha, power, 0 < p_a < 1 and 0 < p_b < 1 and p_a != p_b, f"p_a={p_a}, p_b={p_b}")
    middle = (p_a + p_b) / 2
    under_null = math.sqrt(2 * middle * (1 - middle))
    under_truth = math.sqrt(p_a * (1 - p_a) + p_b * (1 - p_b))
    return _items(under_null, under_truth, p_b - p_a, alpha, power)


def items_paired(discordant, difference, alpha=0.05, power=0.8):
    """Items to find `difference` when both models answer the same ones.

    discordant: share of items that exactly one of them gets right; at least |difference|.
    """
    good = 0 < abs(difference) <= discordant <= 1
    _check(alpha, power, good, f"discordant={discordant}, difference={difference}")
    under_truth = math.sqrt(discordant - difference**2)
    return _items(math.sqrt(discordant), under_truth, difference, alpha, power)


def detectable(n, discordant, alpha=0.05, power=0.8):
    """The smallest difference that n paired items find with the given power (bisection)."""
    if items_paired(discordant, discordant, alpha, power) > n:
        raise ValueError(f"{n} items with {discordant:.1%} discordant can't find any difference")
    low, high = 0.0, discordant
    for _ in range(60):
        middle = (low + high) / 2
        found = middle > 0 and items_paired(discordant, middle, alpha, power) <= n
        low, high = (low, middle) if found else (middle, high)
    return high


def simulate_paired(n, discordant, difference, alpha=0.05, trials=4000, seed=0, exact=False):
    """Share of `trials` in which n items find the difference (McNemar's test).

    exact=False: the test (b - a) / sqrt(a + b) against the normal law, as the formula assumes.
    exact=True: the binomial test, which is never too eager and so finds a little less.
    """
    good = n >= 1 and abs(difference) <= discordant <= 1
    _check(alpha, 0.5, good, f"n={n}, discordant={discordant}, difference={difference}")
    generator = np.random.Generator(np.random.PCG64(seed))
    only_b = (discordant + difference) / 2
    shares = [discordant - only_b, only_b, 1 - discordant]
    a, b, _ = generator.multinomial(n, shares, size=trials).T
    if exact:
        return float((_exact(a, b) <= alpha).mean())
    return float((abs(b - a) > _z(alpha) * np.sqrt(a + b)).mean())


def simulate_unpaired(n, p_a, p_b, alpha=0.05, trials=4000, seed=0):
    """The same for two models with n items of their own each (pooled z-test)."""
    good = n >= 1 and 0 <= p_a <= 1 and 0 <= p_b <= 1
    _check(alpha, 0.5, good, f"n={n}, p_a={p_a}, p_b={p_b}")
    generator = np.random.Generator(np.random.PCG64(seed))
    a, b = (generator.binomial(n, p, size=trials) / n for p in (p_a, p_b))
    middle = (a + b) / 2
    return float((abs(b - a) > _z(alpha) * np.sqrt(2 * middle * (1 - middle) / n)).mean())


def expected_best(candidates):
    """Mean of the largest of so many standard normal numbers: what luck alone gives the winner."""
    if candidates < 1:
        raise ValueError(f"candidates={candidates}: a winner needs at least one")

    def density(x):
        return x * candidates * stats.norm.pdf(x) * stats.norm.cdf(x) ** (candidates - 1)

    return integrate.quad(density, -10, 10)[0]


def _items(under_null, under_truth, difference, alpha, power):
    reach = _z(alpha) * under_null + stats.norm.ppf(power) * under_truth
    return math.ceil((reach / difference) ** 2 - 1e-9)


def _z(alpha):
    """Two-sided critical value: 1.96 for 0.05."""
    return stats.norm.ppf(1 - alpha / 2)


def _exact(a, b):
    return np.minimum(1, 2 * stats.binom.cdf(np.minimum(a, b), a + b, 0.5))


def _check(alpha, power, good, what):
    if not 0 < alpha < 1 or not 0 < power < 1:
        raise ValueError(f"alpha={alpha}, power={power}: both must lie between 0 and 1")
    if not good:
        raise ValueError(f"{what}: need shares between 0 and 1 and a difference within them")
