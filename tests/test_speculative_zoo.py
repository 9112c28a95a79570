"""Wrong samplers are caught, right ones pass: exact laws, stated power, 100 seeds.

Setting: p and q below as starts of two Markov toys, one draft, joint law of the first two tokens
(9 cells), N trials, alarm at p-value < 1e-3. For each wrong sampler the chance to be caught is at
least .999. A right sampler at 100 random seeds would raise one false alarm or more with chance
1 - .999^100 = 9.5 %; the seeds are fixed, so that the outcome never changes.
"""

import numpy as np
import pytest
import torch

from utils.speculative import lawtest, theory, zoo

P, Q, N, ALARM = [0.5, 0.3, 0.2], [0.1, 0.7, 0.2], 600, 1e-3
CASE_22 = theory.markov([0.5, 0.3, 0.2]), theory.markov([0.2, 0.5, 0.3])
TARGET = theory.law_of(theory.plain_program(theory.markov(P), 2))
WRONG = [name for name, sampler in zoo.ZOO.items() if not sampler.exact]
RIGHT = [name for name, sampler in zoo.ZOO.items() if sampler.exact]
ENUMERABLE = [name for name in WRONG if not zoo.ZOO[name].reseeds]


def program(name, length=2):
    sampler = zoo.ZOO[name]
    toys = theory.markov(P), theory.markov(Q)
    return theory.block_program(*toys, 1, length, sampler.verify, sampler.propose)


def samples(name, seed, n=N):
    run, sampler = program(name), zoo.ZOO[name]
    if sampler.reseeds:
        return [run(zoo.dice_for(sampler, seed * n + i)) for i in range(n)]
    dice = zoo.dice_for(sampler, seed)
    return [run(dice) for _ in range(n)]


def reseeded_law():
    """Exact law where one u decides draft, coin, correction and what follows it.

    The outcome is constant between the points where a decision turns: evaluated at midpoints.
    """

    class Fixed(zoo.Dice):
        def __init__(self, u):
            self.uniform = lambda: u

    toys = theory.markov(P), theory.markov(Q)
    run = theory.block_program(*toys, 1, 2)
    grid = np.arange(0, 1 + 1e-12, 1 / 420)  # every cumulative sum and p/q here is on this grid
    law = {}
    for left, right in zip(grid[:-1], grid[1:], strict=True):
        text = run(Fixed((left + right) / 2))
        law[text] = law.get(text, 0.0) + right - left
    return law


def law(name):
    return reseeded_law() if zoo.ZOO[name].reseeds else theory.law_of(program(name))


@pytest.mark.parametrize("name", RIGHT)
def test_right_samplers_have_exactly_the_targets_law(name):
    for k in (1, 2):
        sampler = zoo.ZOO[name]
        made = theory.block_program(*CASE_22, k, k + 1, sampler.verify, sampler.propose)
        plain = theory.plain_program(CASE_22[0], k + 1)
        assert lawtest.distance(theory.law_of(made), theory.law_of(plain)) < 1e-15


@pytest.mark.parametrize(
    ("name", "first_token"),
    [
        ("argmax draft, soft q", [0.4, 0.6, 0.0]),  # case 22: total variation .30
        ("resample from p", [0.35, 0.39, 0.26]),  # case 23
        ("absolute residual", [0.35, 0.4, 0.25]),
        ("argmax verification", [1.0, 0.0, 0.0]),
    ],
)
def test_first_token_laws_at_the_values_of_cases_22_and_23(name, first_token):
    sampler = zoo.ZOO[name]
    run = theory.block_program(*CASE_22, 1, 1, sampler.verify, sampler.propose)
    found = lawtest.as_vector(theory.law_of(run), [(0,), (1,), (2,)])
    assert found == pytest.approx(first_token)


def test_total_variation_of_case_22():
    sampler = zoo.ZOO["argmax draft, soft q"]
    run = theory.block_program(*CASE_22, 1, 1, sampler.verify, sampler.propose)
    plain = theory.law_of(theory.plain_program(CASE_22[0], 1))
    assert lawtest.distance(theory.law_of(run), plain) == pytest.approx(0.30)


def test_the_target_sample_rule_accepts_the_inner_product():
    p, q = CASE_22[0](()), CASE_22[1](())

    def accepted(verify):
        def run(dice):
            draft = torch.tensor([dice.draw(q)])
            return verify(torch.stack([p, p]), q[None], draft, dice)[1]

        return theory.law_of(run)[1]

    assert accepted(zoo.target_sample) == pytest.approx(float(p @ q)) == pytest.approx(0.31)
    assert accepted(zoo.verify) == pytest.approx(0.70)


@pytest.mark.parametrize("name", WRONG)
def test_power_at_this_n_is_at_least_999_in_1000(name):
    assert lawtest.power(law(name), TARGET, N, ALARM) >= 0.999


@pytest.mark.parametrize("name", WRONG)
def test_power_formula_against_simulation(name):
    """Counts drawn from the wrong law: at least .997 of 4,000 are caught (3 s.e. below .999)."""
    wrong = law(name)
    outcomes = lawtest.cells(wrong, TARGET)
    rng = np.random.default_rng(0)
    counts = rng.multinomial(N, lawtest.as_vector(wrong, outcomes), size=4000)
    expected = N * lawtest.as_vector(TARGET, outcomes)
    critical = lawtest.stats.chi2.isf(ALARM, len(outcomes) - 1)
    caught = ((counts - expected) ** 2 / expected).sum(1) > critical
    assert caught.mean() >= 0.999 - 3 * (0.999 * 0.001 / 4000) ** 0.5


def test_power_formula_where_it_is_not_near_one():
    """At a tenth of N the simulated and the computed chance to catch agree within .06."""
    wrong, n = law("resample from p"), N // 10
    outcomes = lawtest.cells(wrong, TARGET)
    rng = np.random.default_rng(0)
    counts = rng.multinomial(n, lawtest.as_vector(wrong, outcomes), size=20_000)
    expected = n * lawtest.as_vector(TARGET, outcomes)
    statistic = ((counts - expected) ** 2 / expected).sum(1)
    caught = (statistic > lawtest.stats.chi2.isf(0.05, len(outcomes) - 1)).mean()
    assert abs(caught - lawtest.power(wrong, TARGET, n, false_alarm=0.05)) < 0.06


@pytest.mark.parametrize("name", WRONG)
def test_wrong_samplers_are_caught(name):
    assert lawtest.p_value(samples(name, seed=1), TARGET) < ALARM


@pytest.mark.parametrize("name", [name for name in ENUMERABLE if name != "argmax verification"])
def test_each_mistake_fits_its_own_law(name):
    """What is sampled is what was enumerated, so the test tells one mistake from another."""
    run, dice = program(name, length=1), zoo.dice_for(zoo.ZOO[name], 2)
    assert lawtest.p_value([run(dice) for _ in range(N)], theory.law_of(run)) > ALARM


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_right_samplers_pass_at_100_seeds(name):
    values = [lawtest.p_value(samples(name, seed), TARGET) for seed in range(100)]
    assert min(values) > ALARM
    assert lawtest.stats.kstest(values, "uniform").pvalue > ALARM


# The test of laws itself.


def test_false_alarms_come_as_often_as_stated():
    rng = np.random.default_rng(0)
    outcomes = sorted(TARGET)
    weights = lawtest.as_vector(TARGET, outcomes)
    counts = rng.multinomial(N, weights, size=20_000)
    statistic = ((counts - N * weights) ** 2 / (N * weights)).sum(1)
    alarms = (statistic > lawtest.stats.chi2.isf(0.01, 8)).mean()
    assert abs(alarms - 0.01) < 3 * (0.01 * 0.99 / 20_000) ** 0.5


def test_an_impossible_outcome_gives_p_value_zero():
    assert lawtest.p_value([0] * 50 + [1] * 50 + [2], {0: 0.5, 1: 0.5}) == 0.0


def test_too_few_draws_are_refused():
    with pytest.raises(ValueError, match="draw more"):
        lawtest.p_value([0] * 10, {0: 0.9, 1: 0.1})


def test_sample_size_is_the_first_with_that_power():
    wrong = law("resample from p")
    n = lawtest.sample_size(wrong, TARGET)
    assert lawtest.power(wrong, TARGET, n) >= 0.999 > lawtest.power(wrong, TARGET, n - 10)
    assert n <= N


def test_sample_size_is_large_enough_for_the_test_itself():
    """Power is reached early for a crude mistake; the rarest text is still expected 5 times."""
    wrong = law("argmax verification")
    n = lawtest.sample_size(wrong, TARGET)
    assert n * min(TARGET.values()) >= 5 > (n - 10) * min(TARGET.values())
    assert lawtest.p_value(samples("argmax verification", 0, n), TARGET) < ALARM
    with pytest.raises(ValueError, match="equal"):
        lawtest.sample_size(TARGET, dict(TARGET))
