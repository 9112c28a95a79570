"""Are two greedy texts the same, and if not, was the first difference a near-tie of rounding?

Does: finds the first difference and the gap between the two tokens' logits in one fresh forward.
Does not: decide how many near-ties are acceptable, or look past the first difference: what follows
it continues another text.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Agreement:
    """place: index of the first difference, None if equal. logit_gap: between the two tokens."""

    place: int | None = None
    logit_gap: float = 0.0

    @property
    def equal(self):
        """No difference."""
        return self.place is None

    def within(self, gap):
        """Equal, or different first at a near-tie of less than `gap`."""
        return self.equal or self.logit_gap < gap


@torch.no_grad()
def compare(model, prompt, a, b):
    """Agreement of the texts `a` and `b` (lists of int) that were decoded after `prompt` (list).

    A text that ends where the other goes on differs there; its gap is infinite.
    """
    if list(a) == list(b):
        return Agreement()
    place = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))  # noqa: B905
    if place == min(len(a), len(b)):
        return Agreement(place, float("inf"))
    text = torch.tensor([[*prompt, *a[:place]]], device=model.device)
    logits = model(text, logits_to_keep=1).logits[0, -1]
    return Agreement(place, abs(float(logits[a[place]] - logits[b[place]])))
