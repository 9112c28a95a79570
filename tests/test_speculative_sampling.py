"""The rejection rule and the laws that it compares: by hand, by enumeration, at the edges."""

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from utils.speculative import lawtest, sampling, theory

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)


class Scripted(sampling.Dice):
    """Dice whose uniform numbers are given."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def uniform(self):
        return self.numbers.pop(0)


def one_hot(*tokens, vocabulary=3):
    return torch.nn.functional.one_hot(torch.tensor(tokens), vocabulary).double()


# Cases 22 and 23: the law is exactly p, the residual [1, 0, 0].


def test_residual_of_case_23():
    assert sampling.residual(P, Q).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("start_q", [[0.2, 0.5, 0.3], [0.0, 0.9, 0.1], [0.5, 0.3, 0.2]])
def test_enumerated_law_is_p(k, start_q):
    p, q = theory.markov([0.5, 0.3, 0.2]), theory.markov(start_q)
    law = theory.law_of(theory.block_program(p, q, k, k + 1))
    target = theory.law_of(theory.plain_program(p, k + 1))
    assert len(target) == 3 ** (k + 1)
    assert set(law) == set(target)
    assert max(abs(law[text] - target[text]) for text in target) < 1e-15


def test_enumerated_law_where_the_target_forbids_tokens():
    p, q = theory.markov([0.6, 0.4, 0.0]), theory.markov([0.1, 0.2, 0.7])
    law = theory.law_of(theory.block_program(p, q, 2, 3))
    target = theory.law_of(theory.plain_program(p, 3))
    assert set(law) == set(target)
    assert max(abs(law[text] - target[text]) for text in target) < 1e-15


def test_enumerated_law_with_a_certain_draft():
    """Prompt lookup: q is one-hot at the token that was copied."""
    p = theory.markov([0.5, 0.3, 0.2])
    law = theory.law_of(theory.block_program(p, theory.markov([0.0, 1.0, 0.0]), 2, 3))
    target = theory.law_of(theory.plain_program(p, 3))
    assert max(abs(law[text] - target[text]) for text in target) < 1e-15


def test_k_zero_is_plain_sampling():
    tokens, accepted = sampling.verify(P[None], P[None][:0], [], Scripted(0.79))
    assert tokens.tolist() == [1] and accepted == 0


# The edges of each decision.


def test_coin_is_strict_so_that_probability_zero_never_passes():
    assert not Scripted(0.0).coin(0.0)
    assert Scripted(1 - 2**-53).coin(1.0)


def test_a_token_that_the_target_forbids_is_never_accepted():
    p = torch.stack([one_hot(0)[0], P])
    tokens, accepted = sampling.verify(p, Q[None], torch.tensor([1]), Scripted(0.0, 0.5))
    assert (tokens.tolist(), accepted) == ([0], 0)


def test_draw_never_returns_a_token_of_probability_zero():
    law = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0]).double()
    assert Scripted(0.0).draw(law) == 1
    assert Scripted(1 - 2**-53).draw(law) == 3


def test_draw_uses_half_open_intervals():
    law = torch.tensor([0.25, 0.5, 0.25]).double()
    assert [Scripted(u).draw(law) for u in (0.0, 0.25, 0.5, 0.75)] == [0, 1, 1, 2]


@pytest.mark.parametrize(("u", "accepted"), [(0.599, 1), (0.601, 0)])
def test_accepts_with_probability_p_over_q(u, accepted):
    p = torch.stack([P, P])
    tokens, n = sampling.verify(p, Q[None], torch.tensor([1]), Scripted(u, 0.0))
    assert n == accepted
    assert tokens.tolist() == ([1, 0] if accepted else [0])


def test_bonus_comes_from_the_row_after_the_last_draft():
    p = torch.stack([one_hot(1)[0], one_hot(2)[0]])
    tokens, accepted = sampling.verify(p, one_hot(1), torch.tensor([1]), Scripted(0.5, 0.5))
    assert (tokens.tolist(), accepted) == ([1, 2], 1)


def test_case_31_agreement_1_0_1_1_accepts_one():
    p = one_hot(0, 1, 2, 0, 1)
    draft = torch.tensor([0, 2, 2, 0])
    tokens, accepted = sampling.verify(p, one_hot(0, 2, 2, 0), draft)
    assert (tokens.tolist(), accepted) == ([0, 1], 1)


# Case 25: equal laws, one-hot laws, broken input.


def test_equal_laws_accept_everything_and_residual_falls_back_to_p():
    assert torch.equal(sampling.residual(P, P), P)
    p = torch.stack([P, P])
    for token in range(3):
        _, accepted = sampling.verify(p, P[None], torch.tensor([token]), Scripted(1 - 2**-53, 0.0))
        assert accepted == 1


def test_greedy_is_the_special_case_of_one_hot_laws():
    """Accepted where the argmax agrees, corrected to the argmax where not; no luck is involved."""
    p = one_hot(0, 1, 2)
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        tokens, accepted = sampling.verify(p, one_hot(0, 2), torch.tensor([0, 2]), generator)
        assert (tokens.tolist(), accepted) == ([0, 1], 1)


@pytest.mark.parametrize("bad", [float("nan"), -0.5, float("inf"), 0.7])
def test_rows_that_are_no_law_are_refused(bad):
    p = torch.stack([P, P])
    p[0, 1] = bad
    with pytest.raises(ValueError, match="p_target"):
        sampling.verify(p, Q[None], torch.tensor([1]))
    with pytest.raises(ValueError, match="q_draft"):
        sampling.verify(torch.stack([P, P]), p[:1], torch.tensor([0]))


def test_a_draft_that_q_says_is_impossible_is_refused():
    with pytest.raises(ValueError, match="position 0 has probability 0 under q_draft"):
        sampling.verify(torch.stack([P, P]), one_hot(0), torch.tensor([1]))


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"p_target \[3, V\]"):
        sampling.verify(torch.stack([P, P]), torch.stack([Q, Q]), torch.tensor([1, 1]))


def test_types_and_default_generator():
    torch.manual_seed(0)
    tokens, accepted = sampling.verify(torch.stack([P, P]).float(), Q[None], torch.tensor([1]))
    assert tokens.dtype == torch.int64 and isinstance(accepted, int)
    assert len(tokens) == accepted + 1


# Warping.


@pytest.mark.parametrize("logits", [[0.0, float("nan")], [float("inf"), 0], [-float("inf")] * 2])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_raise(logits, temperature):
    with pytest.raises(ValueError, match="logits"):
        sampling.warp(torch.tensor(logits), temperature)


def test_temperature_zero_is_one_hot_at_the_first_largest():
    law = sampling.warp(torch.tensor([[1.0, 3.0, 3.0]]), temperature=0)
    assert law.tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.7, 0, 0.9), (1.3, 5, 1.0), (0.7, 8, 0.5), (1.0, 50, 1e-6)],
)
def test_warp_equals_the_processors_of_transformers(temperature, top_k, top_p):
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(0)).double() * 3
    scores = TemperatureLogitsWarper(temperature)(None, logits) if temperature != 1 else logits
    scores = TopKLogitsWarper(top_k)(None, scores) if top_k else scores
    scores = TopPLogitsWarper(top_p)(None, scores) if top_p < 1 else scores
    law = sampling.warp(logits, temperature, top_k, top_p)
    torch.testing.assert_close(law, scores.softmax(-1), rtol=1e-12, atol=0)


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.1}])
def test_warp_settings_out_of_range(bad):
    with pytest.raises(ValueError, match="need temperature >= 0"):
        sampling.warp(P, **bad)


def test_forbidden_tokens_stay_forbidden():
    logits = torch.tensor([0.0, -float("inf"), 1.0])
    assert sampling.warp(logits, 0.5)[1] == 0


@pytest.mark.slow
def test_case_24_twenty_thousand_draws_at_07_and_top_p_09():
    """Both laws warped alike: plain sampling's law, and nothing outside the target's nucleus."""
    logits = 2 * torch.randn(2, 12, generator=torch.Generator().manual_seed(4))
    p, q = (sampling.warp(row, temperature=0.7, top_p=0.9) for row in logits)
    assert 3 <= int((p > 0).sum()) < 12 and ((q > 0) & (p == 0)).any()
    dice, rows = sampling.Dice(torch.Generator().manual_seed(0)), torch.stack([p, p])
    drawn = []
    for _ in range(20_000):
        draft = torch.tensor([dice.draw(q)])
        drawn.append(int(sampling.verify(rows, q[None], draft, dice)[0][0]))
    law = {token: float(weight) for token, weight in enumerate(p) if weight}
    assert set(drawn) <= set(law)
    assert lawtest.p_value(drawn, law) > 1e-3
