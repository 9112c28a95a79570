"""Is this sampler's output distributed as it should be? A chi-square test with its power.

Does: counts outcomes, tests them against a law, and says beforehand how surely a wrong law is
caught (power, approximately) and how many draws that takes. Draws must be independent.
Does not: prove that a sampler is right: it passes or is caught. `theory.law_of` proves it, on a
small vocabulary.

Pearson 1900; power: noncentral chi-square law with n * sum((w - p)^2 / p) (Cohen 1988, chapter 7).
"""

from collections import Counter

import numpy as np
from scipy import stats

SMALLEST_EXPECTED = 5.0


def cells(*laws):
    """All outcomes of the given laws ({outcome: probability}) in one fixed order."""
    return sorted(set().union(*laws))


def as_vector(law, outcomes):
    """The law's probabilities in the order of `outcomes`, float64."""
    return np.array([law.get(outcome, 0.0) for outcome in outcomes])


def distance(law, other):
    """Total variation between two laws given as {outcome: probability}."""
    outcomes = cells(law, other)
    return float(np.abs(as_vector(law, outcomes) - as_vector(other, outcomes)).sum() / 2)


def p_value(samples, law):
    """Chi-square p-value of `samples` (a list of outcomes) under `law`; 0 if one is impossible.

    ValueError where a possible outcome is expected fewer than 5 times: draw more.
    """
    counts, n = Counter(samples), len(samples)
    outcomes = [outcome for outcome, weight in law.items() if weight > 0]
    if set(counts) - set(outcomes):
        return 0.0
    expected = n * as_vector(law, outcomes)
    if expected.min() < SMALLEST_EXPECTED:
        raise ValueError(
            f"{n} draws expect only {expected.min():.1f} of the rarest outcome; "
            f"the test needs {SMALLEST_EXPECTED:.0f}: draw more or pool outcomes"
        )
    observed = np.array([counts[outcome] for outcome in outcomes])
    return float(stats.chisquare(observed, expected).pvalue)


def power(wrong, law, n, false_alarm=1e-3):
    """Chance that n draws from `wrong` give a p-value below `false_alarm` under `law`.

    Noncentral chi-square approximation (near .999 simulated power is lower by up to about .002;
    it wants expected counts of 5, as `p_value` does); 1 minus the chance to see nothing
    impossible, if that is larger.
    """
    outcomes = cells(law, wrong)
    w, p = as_vector(wrong, outcomes), as_vector(law, outcomes)
    possible = p > 0
    effect = (((w - p) ** 2)[possible] / p[possible]).sum()
    freedom = int(possible.sum()) - 1
    critical = stats.chi2.isf(false_alarm, freedom)
    caught = stats.ncx2.sf(critical, freedom, n * effect) if effect else false_alarm
    return float(max(caught, 1 - w[possible].sum() ** n))


def sample_size(wrong, law, wanted=0.999, false_alarm=1e-3):
    """The smallest n (a multiple of 10) that `p_value` takes and whose power reaches `wanted`.

    ValueError where the laws are equal: no number of draws tells them apart.
    """
    if distance(wrong, law) < 1e-12:
        raise ValueError("the two laws are equal: no sample size tells them apart")
    n, rarest = 10, min(weight for weight in law.values() if weight > 0)
    while n * rarest < SMALLEST_EXPECTED or power(wrong, law, n, false_alarm) < wanted:
        n += 10
    return n
