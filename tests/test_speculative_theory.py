"""Closed forms against literature, enumeration and synthetic drafts."""

import numpy as np
import pytest
import torch

from utils.speculative import sampling, theory
from utils.speculative.stats import Stats

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)


def test_case_32():
    assert theory.expected_tokens(0.8, 4) == pytest.approx(3.36, abs=0.005)
    assert theory.speedup(0.8, 4, 0.2) == pytest.approx(1.87, abs=0.005)
    assert theory.speedup(0.3, 4, 0.2) == pytest.approx(0.79, abs=0.005)
    assert theory.best_k(0.15, 0.2) == (0, 1.0)
    assert theory.speedup(0.8, 4, 0.2, verify_cost=2) == pytest.approx(3.3616 / 2.8)


@pytest.mark.parametrize(
    ("alpha", "k", "published"),
    [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69), (0.9, 10, 6.86)],
)
def test_speedups_of_leviathan_with_a_free_draft(alpha, k, published):
    assert theory.speedup(alpha, k, 0) == pytest.approx(published, abs=0.005)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.99])
def test_sum_equals_the_closed_form(alpha):
    assert theory.expected_tokens(alpha, 5) == pytest.approx((1 - alpha**6) / (1 - alpha))
    assert theory.expected_tokens_by_position([alpha] * 5) == pytest.approx(
        theory.expected_tokens(alpha, 5)
    )


def test_certain_drafts_give_k_plus_one():
    assert theory.expected_tokens(1.0, 5) == 6


def test_acceptance_is_one_minus_total_variation():
    laws = torch.distributions.Dirichlet(torch.ones(7).double())
    torch.manual_seed(0)
    p, q = laws.sample((50,)), laws.sample((50,))
    torch.testing.assert_close(theory.acceptance(p, q), 1 - theory.total_variation(p, q))
    assert theory.acceptance(P, Q) == pytest.approx(0.7)


def test_acceptance_equals_the_enumerated_chance_to_accept():
    def program(dice):
        draft = torch.tensor([dice.draw(Q)])
        return sampling.verify(torch.stack([P, P]), Q[None], draft, dice)[1]

    assert theory.law_of(program)[1] == pytest.approx(0.7, abs=1e-15)


def test_enumeration_visits_every_outcome_once():
    law = theory.law_of(lambda dice: (dice.draw(P), dice.coin(0.25)))
    assert len(law) == 6
    assert law[0, True] == pytest.approx(0.125) and sum(law.values()) == pytest.approx(1)


def test_enumeration_skips_what_cannot_happen():
    assert theory.law_of(lambda dice: dice.coin(0.0)) == {False: 1.0}
    assert theory.law_of(lambda dice: dice.coin(1.7)) == {True: 1.0}


def synthetic_block(alpha, k, generator):
    """A draft from q, verified against p, where sum(min(p, q)) is alpha at every position."""
    p, q = torch.tensor([alpha, 1 - alpha, 0.0]), torch.tensor([alpha, 0.0, 1 - alpha])
    dice = sampling.Dice(generator)
    draft = torch.tensor([dice.draw(q.double()) for _ in range(k)])
    return sampling.verify(p.expand(k + 1, 3), q.expand(k, 3), draft, dice)


@pytest.mark.parametrize(("alpha", "k"), [(0.8, 4), (0.5, 3), (0.9, 8)])
def test_tokens_per_forward_of_iid_drafts_within_three_standard_errors(alpha, k):
    generator, stats, lengths = torch.Generator().manual_seed(k), Stats(), []
    for _ in range(1500):
        tokens, accepted = synthetic_block(alpha, k, generator)
        stats.record(k, accepted, len(tokens))
        lengths.append(len(tokens))
    error = np.std(lengths) / len(lengths) ** 0.5
    assert abs(stats.tokens_per_forward - theory.expected_tokens(alpha, k)) < 3 * error
    examined = sum(stats.examined_at)
    assert abs(stats.alpha - alpha) < 3 * (alpha * (1 - alpha) / examined) ** 0.5


# Counting (case 31).


def test_only_emitted_tokens_are_counted():
    stats = Stats()
    stats.record(proposed=4, accepted=1, emitted=2)  # accepted, refused and corrected
    stats.record(proposed=4, accepted=4, emitted=2)  # end of text at the second draft token
    stats.record(proposed=4, accepted=4, emitted=5)  # all, and a bonus
    stats.record(proposed=0, accepted=0, emitted=1)  # nothing proposed
    assert (stats.proposed, stats.accepted, stats.emitted) == (12, 7, 10)
    assert stats.examined_at == [3, 3, 1, 1] and stats.accepted_at == [3, 2, 1, 1]
    assert stats.acceptance_by_position == [1, 2 / 3, 1, 1]
    assert stats.tokens_per_forward == 10 / 4 and stats.accepted_per_forward == 7 / 4
    assert stats.acceptance_rate == 7 / 12 and stats.alpha == 7 / 8


def test_counts_of_several_texts_add_up():
    first, second, both = Stats(), Stats(), Stats()
    for stats in (first, both):
        stats.record(proposed=2, accepted=1, emitted=2)
    for stats in (second, both):
        stats.record(proposed=4, accepted=4, emitted=5)
    first.add(second)
    assert first == both


def test_empty_statistics_do_not_divide_by_zero():
    stats = Stats()
    stats.record(proposed=0, accepted=0, emitted=1)
    assert stats.acceptance_rate == 0 and stats.alpha == 0 and stats.acceptance_by_position == []
