"""Prune while training: a sparsity that rises by a cubic, and the masks that follow it.

Zhu and Gupta 2017 (arXiv 1710.01878): from step 0 to `steps`, every so many steps,
    s(t) = s_f + (s_i - s_f) (1 - t / steps)^3,
fast at first, while there is much to choose from, and slowly at the end. Weights that are zero stay
zero. With pattern "2:4" the candidates are those that the 2:4 mask would drop now, so the end is an
exact 2:4 mask. Does not: train (`recovery`); the masks are by magnitude only.
"""

import torch

from utils import models
from utils.sparsity import frozen, semi_structured, unstructured
from utils.sparsity.layers import matrix

PATTERNS = (None, "2:4")


def level(step, steps, final=0.5, initial=0.0):
    """The sparsity after `step` of `steps` steps; `final` from then on."""
    if steps < 1 or not 0 <= initial <= final <= 1:
        raise ValueError(f"steps={steps}, {initial} to {final}: need steps >= 1 and rising shares")
    left = 1 - min(max(step, 0), steps) / steps
    return final + (initial - final) * left**3


def keep_mask(weight, sparsity, pattern=None):
    """bool [out, in], True where a weight stays: exactly round(sparsity * n) smallest go.

    pattern "2:4": only weights that a 2:4 mask drops are candidates; sparsity at most 0.5.
    """
    if pattern not in PATTERNS:
        raise ValueError(f"unknown pattern {pattern!r}; one of {PATTERNS}")
    if pattern and sparsity > 0.5:
        raise ValueError(f"sparsity={sparsity}: 2:4 drops half of the weights at most")
    size = unstructured.score(weight)
    if pattern:
        size = size.masked_fill(semi_structured.mask(weight), float("inf"))
    drop = unstructured.zero_count(sparsity, weight.numel())
    return unstructured.keep_largest(size.reshape(1, -1), drop).reshape(weight.shape)


class Schedule:
    """After `advance(step)` all linear layers of a model hold the zeros of that step's level."""

    def __init__(self, model, optimizer, steps, every=1, pattern="2:4", final=0.5):
        self.model, self.optimizer, self.steps, self.every = model, optimizer, steps, every
        self.pattern, self.final, self._held = pattern, final, None

    @torch.no_grad()
    def advance(self, step):
        """Raise the level if `step` is a multiple of `every` and not beyond the end."""
        if step % self.every and step != self.steps or step > self.steps:
            return
        share = level(step, self.steps, self.final)
        for module in models.linears(self.model).values():
            weight = matrix(module)
            weight.masked_fill_(~keep_mask(weight, share, self.pattern), 0)
        self.release()
        self._held = frozen.FrozenZeros(self.model, self.optimizer)

    def release(self):
        """Stop holding the zeros."""
        if self._held:
            self._held.remove()
            self._held = None
