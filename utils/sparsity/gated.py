"""Activation sparsity by a threshold: MLP channels whose gate is small are set to zero.

In an MLP  down(act(gate x) * (up x))  a channel whose |act(gate x)| is below its layer's threshold
becomes exactly zero, so its row of `up` and its column of `down` need not be read for this token
(CATS, Lee et al. 2024). The gate itself must be read to know. Does: find thresholds for a share on
calibration text, apply them, count which channels stay, and what a decoder could leave unread.
But: nothing is skipped here; `skipping.py` times a kernel that does.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from utils import models
from utils.sparsity import statistics

READ_LATER = ("up_proj", "down_proj")  # what an idle channel saves


@dataclass
class Kept:
    """Masks of what stayed: {layer: [bool [tokens, channels], …]}, one entry per forward pass."""

    masks: dict = field(default_factory=dict)

    def share(self):
        """Share of the activations that were set to zero, over all layers and tokens."""
        kept = sum(int(m.sum()) for masks in self.masks.values() for m in masks)
        return 1 - kept / sum(m.numel() for masks in self.masks.values() for m in masks)

    def idle(self, tokens):
        """Share of channels that none of `tokens` consecutive tokens needs: they share a read."""
        used = seen = 0
        for masks in self.masks.values():
            for mask in masks:
                groups = mask[: len(mask) // tokens * tokens].view(-1, tokens, mask.shape[1])
                used, seen = used + int(groups.any(1).sum()), seen + groups[:, 0].numel()
        if not seen:
            raise ValueError(f"no pass had {tokens} tokens: run longer text or ask for fewer")
        return 1 - used / seen


def gates(model):
    """{name: activation module} of every MLP that has one; ValueError if there is none."""
    found = {n: m for n, m in model.named_modules() if n.endswith("mlp.act_fn")}
    if not found:
        raise ValueError("no module ends in 'mlp.act_fn': this model's MLPs are not gated")
    return found


def calibrate(model, ids, share):
    """{layer: threshold}: the `share` quantile of |act(gate x)| on ids [n, time]."""
    if not 0 <= share < 1:
        raise ValueError(f"share={share}: need 0 <= share < 1")
    sizes = {name: [] for name in gates(model)}

    def keep(name):
        return lambda _module, _inputs, output: sizes[name].append(output.detach().abs().flatten())

    handles = [m.register_forward_hook(keep(name)) for name, m in gates(model).items()]
    try:
        statistics.forward(model, ids)
    finally:
        for handle in handles:
            handle.remove()
    return {name: _quantile(torch.cat(parts), share) for name, parts in sizes.items()}


def _quantile(values, share):
    """The threshold that exactly round(share * n) of n different values are below."""
    count = round(share * len(values))
    return float(values.kthvalue(count + 1).values) if count < len(values) else float("inf")


@contextmanager
def thresholded(model, thresholds):
    """While the block lasts, gates below their threshold are zero; gives the `Kept` so far."""
    kept = Kept()

    def cut(name):
        def hook(_module, _inputs, output):
            keep = output.abs() >= thresholds[name]
            kept.masks.setdefault(name, []).append(keep.reshape(-1, keep.shape[-1]).cpu())
            return output * keep

        return hook

    handles = [m.register_forward_hook(cut(name)) for name, m in gates(model).items()]
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()


def unread(model, idle):
    """Share of all weights that one step must read and can skip if a share `idle` is not needed.

    All linear layers count, the head too (tied or not); the embedding is one row and doesn't.
    """
    sizes = {name: m.weight.numel() for name, m in models.linears(model, skip=()).items()}
    later = sum(n for name, n in sizes.items() if name.endswith(READ_LATER))
    return idle * later / sum(sizes.values())
