"""The rejection rule of speculative sampling, and the laws that it compares.

Does: turns logits into the law that is sampled (`warp`), draws from a law with one uniform number
per decision, and verifies a block of drafted tokens (`verify`). Everything is done on the CPU in
float64, because the proof needs p - q and p / q to be what they say.
Does not: run a model, keep a cache, or know who drafted. One sequence at a time.

Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2.
"""

import math

import torch


class Dice:
    """The two random decisions that speculative sampling makes, each from one uniform number.

    `theory.law_of` passes an object with the same two methods that walks through every outcome,
    so that the code below can be run and also be enumerated.
    """

    def __init__(self, generator=None):
        self.generator = generator

    def uniform(self):
        """One number in [0, 1), with 53 random bits."""
        return torch.rand((), generator=self.generator, dtype=torch.float64).item()

    def coin(self, probability):
        """True with `probability`; a probability of 0 is never True, one of 1 or more always."""
        return self.uniform() < probability

    def draw(self, law):
        """A token id from `law` [V]: the first whose cumulative probability exceeds u."""
        cumulative = law.cumsum(0)
        u = self.uniform() * cumulative[-1]
        return int(torch.searchsorted(cumulative, u, right=True))


def as_dice(generator):
    """A torch.Generator (or None: torch's default one) as dice; dice are returned as they are."""
    return generator if hasattr(generator, "coin") else Dice(generator)


def warp(logits, temperature=1.0, top_k=0, top_p=1.0):
    """Logits [..., V] to the probabilities that are sampled, float64 on the CPU.

    Order as in transformers: temperature, then the `top_k` largest logits (0: all; ties stay), then
    the smallest set of tokens whose probability reaches `top_p`. `temperature=0` is one-hot at the
    largest logit. Use the same settings for target and draft. -inf is a forbidden token; NaN or
    +inf raises ValueError.
    """
    if temperature < 0 or top_k < 0 or not 0 < top_p <= 1:
        raise ValueError(
            f"temperature={temperature}, top_k={top_k}, top_p={top_p}: "
            "need temperature >= 0, top_k >= 0 and 0 < top_p <= 1"
        )
    logits = logits.detach().to("cpu", torch.float64)
    largest = logits.amax(-1)
    if not torch.isfinite(largest).all():
        raise ValueError("logits hold NaN, +inf or a row of -inf: the model's output is broken")
    if temperature == 0:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    logits = logits / temperature
    if 0 < top_k < logits.shape[-1]:
        kth = logits.topk(top_k).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -math.inf)
    law = logits.softmax(-1)
    return law if top_p == 1 else _nucleus(law, top_p)


def _nucleus(law, top_p):
    """The smallest set of tokens with mass >= top_p, scaled up to mass 1."""
    ordered, index = law.sort(dim=-1, descending=True, stable=True)
    mass_before = ordered.cumsum(-1) - ordered
    kept = torch.where(mass_before < top_p, ordered, 0.0)
    kept = torch.zeros_like(law).scatter_(-1, index, kept)
    return kept / kept.sum(-1, keepdim=True)


def residual(p_target, q_draft):
    """What a rejected position is drawn from: max(p - q, 0) scaled to mass 1; both laws [V].

    Where p == q nothing is left (and nothing is ever rejected): the answer is then p itself.
    """
    excess = (p_target - q_draft).clamp(min=0)
    mass = excess.sum()
    return excess / mass if mass > 0 else p_target


def verify(p_target, q_draft, draft_tokens, generator=None):
    """Accept a prefix of the draft and add one token, so that the output has exactly the law p.

    p_target [K+1, V]: the target's law at each drafted position and at the one after the last.
    q_draft [K, V]: the law that each draft token was really drawn from. draft_tokens: int64 [K].
    generator: a CPU torch.Generator, or dice. Returns (tokens int64 [n_accepted + 1], n_accepted):
    the accepted tokens and one from the residual (after a rejection) or from p_target[K] (bonus).
    """
    p, q, drafts = _checked(p_target, q_draft, draft_tokens)
    dice = as_dice(generator)
    for i, token in enumerate(drafts):
        if not dice.coin((p[i, token] / q[i, token]).item()):
            correction = dice.draw(residual(p[i], q[i]))
            return torch.tensor([*drafts[:i], correction]), i
    bonus = dice.draw(p[-1])
    return torch.tensor([*drafts, bonus]), len(drafts)


def _checked(p_target, q_draft, draft_tokens):
    """Both laws in float64 on the CPU with rows of mass 1, the draft as a list; or ValueError."""
    p, q = _law(p_target, "p_target"), _law(q_draft, "q_draft")
    drafts = torch.as_tensor(draft_tokens).tolist()
    k, vocabulary = len(drafts), p.shape[-1]
    if p.shape != (k + 1, vocabulary) or q.shape != (k, vocabulary):
        raise ValueError(
            f"{k} draft tokens need p_target [{k + 1}, V] and q_draft [{k}, V]; "
            f"got {list(p.shape)} and {list(q.shape)}"
        )
    for i, token in enumerate(drafts):
        if not 0 <= token < vocabulary or q[i, token] == 0:
            raise ValueError(
                f"draft token {token} at position {i} has probability 0 under q_draft: "
                "pass the law that the token was drawn from"
            )
    return p, q, drafts


def _law(rows, name):
    """Rows of probabilities as float64 on the CPU, each scaled to mass exactly 1."""
    rows = torch.as_tensor(rows).detach().to("cpu", torch.float64)
    mass = rows.sum(-1, keepdim=True)
    sound = (rows >= 0).all() and ((mass - 1).abs() <= 1e-3).all()  # False for NaN
    if not sound:
        raise ValueError(f"{name}: each row must be a probability law, without NaN, of mass 1")
    return rows / mass
