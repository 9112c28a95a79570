"""The Hessians that GPTQ needs, summed over calibration text, with a weight per position.

    H = sum_t weight(t) x_t x_t^T

Hooks, padding and the sharing between layers with one input (q, k, v) are those of
utils/sparsity/statistics.py. What is added here is the weight: `Emphasis(16)` counts the first
token of every window sixteen times in the Hessians of q, k and v.

But: it does not choose the factor. Choose it on text that is neither calibration nor evaluation.
"""

from dataclasses import dataclass

from utils import models
from utils.sparsity import statistics

QKV = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True)
class Emphasis:
    """Count position 0 of each window `factor` times in the layers whose names end so."""

    factor: float
    layers: tuple = QKV

    def __post_init__(self):
        if self.factor < 0:
            raise ValueError(f"factor={self.factor}: a weight in a sum of squares is 0 or more")

    def meant(self, name):
        """Whether this layer's Hessian is weighted."""
        return name.endswith(self.layers)


class Recorder(statistics.Recorder):
    """Records x_t sqrt(weight(t)): squares and Hessians are then the weighted sums."""

    def __init__(self, layers, emphasis=None):
        super().__init__(layers, hessian=True)
        self.emphasis = emphasis

    def _real_tokens(self, name, x):
        if self.emphasis and self.emphasis.meant(name):
            weights = x.new_ones(x.shape[1])
            weights[0] = self.emphasis.factor**0.5
            x = x * weights[:, None]
        return super()._real_tokens(name, x)


def collect(model, ids, emphasis=None, attention_mask=None, layers=None, batch=8):
    """{name: H [in, in], float32} of every linear layer, from the model as it is now.

    ids int64 [windows, time]. Layers with the same input share one tensor. ValueError names the
    layer that sees NaN.
    """
    recorder = Recorder(layers or models.linears(model), emphasis)
    for start in range(0, len(ids), batch):
        part = slice(start, start + batch)
        keep = None if attention_mask is None else attention_mask[part]
        with recorder.attached(keep):
            statistics.forward(model, ids[part], keep)
    return {name: found.hessian for name, found in recorder.statistics.items()}


def emphasise(hessians, first, emphasis):
    """The same as collecting with `emphasis`, from plain Hessians and those of ids[:, :1].

    The first token of a window sees only itself, so its inputs are the same in a window of one.
    """
    return {
        name: h + (emphasis.factor - 1) * first[name] if emphasis.meant(name) else h
        for name, h in hessians.items()
    }
