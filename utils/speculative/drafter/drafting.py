"""The head as a Drafter: what `decode.generate` and an Engine's `generate` ask for a draft.

Does: reads what the target's last call left behind (`target.states`, an Engine's or a Watched
model's), brings the head up to the end of the text, and proposes a chain of tokens. At a
temperature each token is drawn from the head's warped law, which is kept as q, so that the
rejection rule stays exact; ids that the head doesn't know have q = 0.
Does not: propose before the target has run once, or see forwards that it was not asked about: call
`propose` after each of them, as generate does.

EAGLE-3 (Li et al. 2025); the rule is Leviathan et al. 2023, algorithm 1.
"""

import torch

from utils.device import one_torch_thread
from utils.speculative.cached import common_prefix
from utils.speculative.drafter.chain import Chain, EngineChain
from utils.speculative.drafter.target import unit
from utils.speculative.drafting import Draft
from utils.speculative.lookup import Adaptive, Index


class HeadDrafter:
    """head: a trained Head. target: an Engine(states=head.layers) or a Watched(model, head.layers).

    weights: None for plain torch; "fp32", "int8", … to run the head's layer in an Engine.
    least: the chain ends before a token whose chance to be accepted, with all before it, is below
    this by the head's own account. That account is a fair one (EAGLE-2, Li et al. 2024), and when
    to stop may depend on what was drawn so far: the law stays exact.
    """

    def __init__(self, head, target, weights=None, longest=1024, threads=None, least=0.0):
        kept = getattr(target, "_keeps", None) or getattr(target, "layers", None)
        if tuple(kept or ()) != tuple(head.layers):
            raise ValueError(
                f"the target keeps the states after layers {kept}, the head reads {head.layers}: "
                f"make it with Engine(model, states={tuple(head.layers)}) or watch.Watched"
            )
        self.head, self.target, self.least = head, target, least
        if weights is None:
            self.chain = Chain(head, longest)
        else:
            self.chain = EngineChain(head, longest, weights, threads)
        self.reset()

    @property
    def vocabulary(self):
        """Number of token ids of the target that the head was made for."""
        return self.head.vocabulary

    def reset(self):
        """Forget the last text."""
        self.ids, self.last = [], None

    @torch.no_grad()
    def observe(self, ids):
        """Take in the target's states for `ids`; False where the target has not seen them."""
        held, states = self.target.texts[0], self.target.states
        end = min(common_prefix(held, ids), len(ids) - 1)
        if end == 0 or not len(states):
            return False
        first, known = len(held) - len(states), self.ids == ids[: end + 1]
        start = end if known else max(0, min(common_prefix(self.ids, ids), end) - 1)
        if start < first and not known:
            raise ValueError(
                f"the states of positions {start} to {first - 1} are gone: call propose after "
                "each of the target's forwards"
            )
        if end > start:
            rows = unit(states[start - first : end - first], self.head.eps)
            z = self.head.first(torch.tensor(ids[start + 1 : end + 1]), rows)
            self.last = self.chain.extend(z, start)
            self.ids = list(ids[: end + 1])
        return end == len(ids) - 1

    @torch.no_grad()
    def propose(self, ids, k, warp, dice):
        """A chain of at most `k` tokens, each with the law that it was drawn from."""
        with one_torch_thread():
            return self._chain(ids, k, warp, dice)

    def _chain(self, ids, k, warp, dice):
        draft = Draft([], [])
        if not self.observe(ids) or k < 1:
            return draft
        (own, scores), chance = self.last, 1.0
        for i in range(k):
            chance *= float(scores.softmax(-1).max()) if self.least else 1.0
            if chance < self.least:
                break
            law = warp(self._whole(scores))
            draft.tokens.append(dice.draw(law))
            draft.laws.append(law)
            if i < k - 1:
                z = self.head.again(torch.tensor(draft.tokens[-1:]), own[None])
                own, scores = self.chain.extend(z, len(ids) - 1 + i)
        return draft

    def _whole(self, scores):
        """Logits over the target's vocabulary: -inf outside the draft ids."""
        whole = torch.full((self.head.vocabulary,), float("-inf"))
        whole[self.head.draft_ids] = scores
        return whole


class Copies:
    """Prompt lookup that offers copies only where they pay: n-grams of `shortest` tokens or more.

    How many tokens is for lookup.Adaptive to say, which learns from what became of the last offer.
    """

    def __init__(self, shortest=2, longest=3, most=8):
        self.shortest, self.most, self.index = shortest, most, Index(longest)
        self.reset()

    def reset(self):
        """Forget the text, and what was learnt on it."""
        self.index.reset()
        self.adaptive, self.last = Adaptive(), None

    def offer(self, ids, room):
        """At most `room` tokens that followed the end of `ids` before; none where that is rare."""
        if self.index.text != ids[: len(self.index.text)]:
            self.reset()
        if self.last:
            tokens, size, place = self.last
            accepted = common_prefix(tokens, ids[place:])
            self.adaptive.learn(size, len(tokens), accepted)
        self.index.extend(ids[len(self.index.text) :])
        tokens, size = self.index.propose(min(room, self.most))
        tokens = tokens[: self.adaptive.length(size, len(tokens))] if size >= self.shortest else []
        self.last = (tokens, size, len(ids)) if tokens else None
        return tokens


class LookupFirst:
    """Prompt lookup where the text repeats itself, the head everywhere else.

    A copied token costs nothing to propose and is right more often than the head's. The lookup
    throws no dice: its q is one-hot. k of the head's chain: `drafted`.
    """

    def __init__(self, drafter, copies=None, drafted=3):
        self.drafter, self.copies, self.drafted = drafter, copies or Copies(), drafted

    @property
    def vocabulary(self):
        """That of the head."""
        return self.drafter.vocabulary

    def reset(self):
        """Forget the last text."""
        self.copies.reset()
        self.drafter.reset()

    def propose(self, ids, k, warp, dice):
        """Copied tokens, or else a chain."""
        tokens = self.copies.offer(ids, k)
        if not tokens:
            return self.drafter.propose(ids, min(k, self.drafted), warp, dice)
        with one_torch_thread():
            self.drafter.observe(ids)
        return Draft(tokens)
