"""Natural sparsity: how much of attention and MLP activations is near zero unpruned.

Does: count values below thresholds, exact zeros, and what the small ones carry; drop the smallest
activations to see what that costs. Does not: skip any work.
Attention is counted over the causal part only (j <= i): the other half is zero by the mask, not by
anything that the model learned. MLP activations are the inputs of down_proj, silu(gate) * up.
"""

from contextlib import contextmanager
from dataclasses import dataclass

import torch

from utils.sparsity import layers as layer_tools

THRESHOLDS = (1e-1, 1e-2, 1e-3, 1e-4)


@dataclass(frozen=True)
class Shares:
    """Shares between 0 and 1; rows are layers, columns thresholds.

    below: entries under the threshold.  carried: what these entries hold of the total (attention:
    probability; MLP: squared length).  zeros [layers]: entries that are exactly zero.
    entries: values counted in each layer.
    """

    thresholds: tuple
    below: torch.Tensor
    carried: torch.Tensor
    zeros: torch.Tensor
    entries: int

    def mean(self):
        """{threshold: (below, carried)} over all layers (they have equal sizes)."""
        pairs = zip(self.below.mean(0).tolist(), self.carried.mean(0).tolist(), strict=True)
        return dict(zip(self.thresholds, pairs, strict=True))


class _Counter:
    """Sums for one layer."""

    def __init__(self, thresholds):
        self.thresholds, self.entries, self.zeros, self.total = thresholds, 0, 0, 0.0
        self.below, self.carried = [0] * len(thresholds), [0.0] * len(thresholds)

    def add(self, size, weight):
        """size: values compared with the thresholds; weight: what each one carries (same shape)."""
        self.entries += size.numel()
        self.zeros += int((size == 0).sum())
        self.total += float(weight.sum())
        for i, threshold in enumerate(self.thresholds):
            small = size < threshold
            self.below[i] += int(small.sum())
            self.carried[i] += float(weight.where(small, 0).sum())


def _shares(counters, thresholds):
    below = [[n / c.entries for n in c.below] for c in counters]
    carried = [[w / c.total for w in c.carried] for c in counters]
    zeros = [c.zeros / c.entries for c in counters]
    parts = (torch.tensor(x, dtype=torch.float64) for x in (below, carried, zeros))
    return Shares(tuple(thresholds), *parts, counters[0].entries)


@contextmanager
def _eager(model):
    """Attention that returns its probabilities, while the block lasts."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@torch.no_grad()
def attention(model, ids, thresholds=THRESHOLDS, causal_only=True):
    """`Shares` of the attention probabilities of every layer; ids [n, time], no padding.

    causal_only=False also counts the masked half of each matrix, to show what that does.
    """
    kept = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device)
    kept = kept.tril() if causal_only else kept
    counters = None
    with _eager(model):
        for row in ids:
            layers = layer_tools.body(model)(row[None], output_attentions=True, use_cache=False)
            counters = counters or [_Counter(thresholds) for _ in layers.attentions]
            for counter, probabilities in zip(counters, layers.attentions, strict=True):
                values = probabilities[..., kept]
                counter.add(values, values)
    return _shares(counters, thresholds)


def _down_projections(model, ending):
    found = [m for name, m in model.named_modules() if name.endswith(ending)]
    if not found:
        raise ValueError(f"no layer's name ends in {ending!r}; pass the name of the last MLP layer")
    return found


@torch.no_grad()
def mlp(model, ids, thresholds=THRESHOLDS, ending="down_proj"):
    """`Shares` of |activation| / (largest |activation| of the same token) in every layer's MLP."""
    modules = _down_projections(model, ending)
    counters = [_Counter(thresholds) for _ in modules]

    def hook(counter):
        def count(_module, inputs):
            size = inputs[0].abs()
            counter.add(size / size.amax(-1, keepdim=True), size.square())

        return count

    handles = [
        module.register_forward_pre_hook(hook(counter))
        for module, counter in zip(modules, counters, strict=True)
    ]
    try:
        for row in ids:
            layer_tools.body(model)(row[None], use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return _shares(counters, thresholds)


@contextmanager
def drop_smallest(model, fraction, ending="down_proj"):
    """While the block lasts, zero the smallest `fraction` of every token's MLP activations."""

    def thin(_module, inputs):
        x = inputs[0]
        count = round(fraction * x.shape[-1])
        index = x.abs().topk(count, dim=-1, largest=False).indices
        return (x.scatter(-1, index, 0), *inputs[1:])

    handles = [m.register_forward_pre_hook(thin) for m in _down_projections(model, ending)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
