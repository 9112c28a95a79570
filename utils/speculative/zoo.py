"""Wrong speculative samplers that people have shipped, and a right one that looks wrong.

Does: keeps each with its mistake in the form (propose, verify) of `theory.block_program`, so that
it can be enumerated, sampled and tested like the real one.
Does not: check its input. Never use a member of this file to generate text.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from utils.speculative.sampling import Dice, residual, verify


@dataclass(frozen=True)
class Sampler:
    """How drafts are proposed and verified; `exact`: whether its output has the target's law."""

    name: str
    story: str
    exact: bool
    verify: Callable = verify
    propose: Callable = lambda law, dice: dice.draw(law)
    reseeds: bool = False


def block(draft, last):
    """A verifier's answer: draft tokens and the one token that the target adds."""
    return torch.tensor([*draft, last]), len(draft)


def rule(p, q, drafts, dice, correction=residual, bonus_row=-1):
    """The true rule with a replaceable correction law and bonus row: most mistakes are one."""
    drafts = drafts.tolist()
    for i, token in enumerate(drafts):
        if not dice.coin((p[i, token] / q[i, token]).item()):
            return block(drafts[:i], dice.draw(correction(p[i], q[i])))
    return block(drafts, dice.draw(p[bonus_row]))


def resample_from_p(p, q, drafts, dice):
    """After a rejection draws from p, which the rejection was already correcting towards."""
    return rule(p, q, drafts, dice, correction=lambda p_i, q_i: p_i)


def absolute_residual(p, q, drafts, dice):
    """Uses |p - q| where max(p - q, 0) is needed: tokens with too much mass get more."""

    def correction(p_i, q_i):
        gap = (p_i - q_i).abs()
        return gap / gap.sum()

    return rule(p, q, drafts, dice, correction)


def stale_bonus(p, q, drafts, dice):
    """Draws the bonus from the row of the last draft, not from the one after it."""
    return rule(p, q, drafts, dice, bonus_row=-2)


def argmax_verify(p, q, drafts, dice):
    """Accepts while the draft is the target's most likely token: greedy decoding, whatever T is."""
    best = p.argmax(-1).tolist()
    for i, token in enumerate(drafts.tolist()):
        if token != best[i]:
            return block(best[:i], best[i])
    return block(best[:-1], best[-1])


def skip_rejected(p, q, drafts, dice):
    """Keeps accepted drafts behind a rejected one, although they continue another text."""
    tokens = [
        token if dice.coin((p[i, token] / q[i, token]).item()) else dice.draw(residual(p[i], q[i]))
        for i, token in enumerate(drafts.tolist())
    ]
    return block(tokens, dice.draw(p[-1]))


def target_sample(p, q, drafts, dice):
    """Draws from p at each position, emits that, and goes on while it equals the draft."""
    drafts = drafts.tolist()
    for i, token in enumerate(drafts):
        own = dice.draw(p[i])
        if own != token:
            return block(drafts[:i], own)
    return block(drafts, dice.draw(p[-1]))


def argmax_propose(law, dice):
    """Drafts the most likely token and reports the soft law."""
    return int(law.argmax())


def cold_propose(law, dice, temperature=0.5):
    """Drafts at another temperature than the law that is reported."""
    cold = law ** (1 / temperature)
    return dice.draw(cold / cold.sum())


class ReseedingDice(Dice):
    """Starts the generator again before each decision: every decision sees the same number."""

    def __init__(self, seed):
        super().__init__(torch.Generator())
        self.seed = seed

    def uniform(self):
        """The first number of the seed, again."""
        self.generator.manual_seed(self.seed)
        return super().uniform()


_ALL = [
    Sampler("rejection rule", "the rule of the chapter", True),
    Sampler("target's own sample", "emit x ~ p, go on while x = draft", True, target_sample),
    Sampler(
        "argmax draft, soft q", "drafts the sure token, q is soft", False, verify, argmax_propose
    ),
    Sampler("resample from p", "corrects with p, not with the residual", False, resample_from_p),
    Sampler("absolute residual", "|p - q| in place of max(p - q, 0)", False, absolute_residual),
    Sampler("mismatched temperature", "drafts at T = 0.5, q at T = 1", False, verify, cold_propose),
    Sampler("argmax verification", "accepts the argmax alone, at T = 1", False, argmax_verify),
    Sampler("reseeded generator", "every decision sees the same number", False, reseeds=True),
    Sampler("stale bonus row", "bonus from p[K-1], not p[K]", False, stale_bonus),
    Sampler("skips the rejected", "keeps drafts behind a rejection", False, skip_rejected),
]
ZOO = {sampler.name: sampler for sampler in _ALL}


def dice_for(sampler, seed):
    """The dice of one independent trial of `sampler`."""
    if sampler.reseeds:
        return ReseedingDice(seed)
    return Dice(torch.Generator().manual_seed(seed))
