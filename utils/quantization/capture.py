"""What a layer's input looks like on calibration text: by channel, by position, and its range.

    mean_abs[j] = mean_t |x[t, j]|          AWQ
    absmax[j]   = max_t  |x[t, j]|          SmoothQuant
    hessian     = sum_t x_t x_t^T           the squared output error of any change of the weights
    range       = (low, high) of all values, or of all but a share at each end (static INT8)

Hooks, padding and the sharing between layers with one input (q, k, v; gate, up) are those of
utils/sparsity/statistics.py, which Wanda, SparseGPT and GPTQ use; only the sums are added here.

But: nothing is kept of the activations themselves, except by `inputs`, which is for a few layers.
"""

from dataclasses import dataclass, field

import torch

from utils import models
from utils.sparsity import statistics


@dataclass
class ActivationStatistics(statistics.InputStatistics):
    """Adds sums and maxima by channel, and for each window the ends of the range.

    ends: {percentile: [(low, high) of each window]}.
    """

    sum_abs: torch.Tensor = None
    absmax: torch.Tensor = None
    ends: dict = field(default_factory=dict)

    @property
    def mean_abs(self):
        """Mean magnitude of each input channel [in], float32."""
        return (self.sum_abs / self.tokens).float()

    def range(self, percentile=100.0):
        """(low, high): the extremes at 100, otherwise the mean of the windows' percentiles."""
        lows, highs = zip(*self.ends[percentile], strict=True)
        if percentile == 100:
            return min(lows), max(highs)
        return sum(lows) / len(lows), sum(highs) / len(highs)


class Recorder(statistics.Recorder):
    """Records ActivationStatistics; `first` positions of each window can be left out."""

    def __init__(self, layers, hessian=False, percentiles=(100.0,), skip_first=0):
        super().__init__(layers, hessian)
        self.percentiles, self.skip_first = percentiles, skip_first

    def _real_tokens(self, name, x):
        return super()._real_tokens(name, x[:, self.skip_first :] if self.skip_first else x)

    def _add(self, name, tokens):
        if name not in self.statistics:
            zeros = torch.zeros(tokens.shape[1], dtype=torch.float64)
            self.statistics[name] = ActivationStatistics(
                zeros, sum_abs=zeros.clone(), absmax=zeros.float()
            )
        super()._add(name, tokens)
        found = self.statistics[name]
        found.sum_abs += tokens.abs().sum(0).cpu().double()
        found.absmax = torch.maximum(found.absmax, tokens.abs().amax(0).cpu())
        for p in self.percentiles:
            found.ends.setdefault(p, []).append(ends(tokens, p))


def collect(model, ids, hessian=False, percentiles=(100.0,), layers=None, skip_first=0):
    """{layer name: ActivationStatistics} from ids int64 [windows, time], one window at a time.

    skip_first: so many positions at the start of each window are not looked at. ValueError names
    the layer that sees NaN, and says when nothing is left to look at.
    """
    if not 0 <= skip_first < ids.shape[-1]:
        raise ValueError(f"skip_first={skip_first} leaves nothing of windows of {ids.shape[-1]}")
    recorder = Recorder(layers or models.linears(model), hessian, percentiles, skip_first)
    for window in ids.split(1):
        with recorder.attached():
            statistics.forward(model, window)
    return recorder.statistics


def ends(x, percentile=100.0):
    """(low, high) with (100 - percentile) % of the values of x beyond each end; x of any shape.

    Order statistics, without interpolation: of 1,000 values at 99.9, one lies beyond each end.
    """
    if not 50 < percentile <= 100:
        raise ValueError(f"percentile={percentile}: the share kept at each end is in (50, 100]")
    flat = x.flatten()
    if not (len(flat) and torch.isfinite(flat).all()):
        raise ValueError("a range needs finite numbers, at least one: look at what was collected")
    beyond = int(flat.numel() * (100 - percentile) / 100 + 1e-9)
    if beyond == 0:
        return flat.min().item(), flat.max().item()
    low = flat.topk(beyond + 1, largest=False).values[-1].item()
    return low, flat.topk(beyond + 1).values[-1].item()


def inputs(model, ids, names):
    """{layer name: its input [windows * time, in]} for a few layers, all tokens in order."""
    kept = {name: [] for name in names}

    def keep(name):
        return lambda _m, args: kept[name].append(args[0].detach().flatten(0, -2))

    handles = [model.get_submodule(n).register_forward_pre_hook(keep(n)) for n in names]
    try:
        for window in ids.split(1):
            statistics.forward(model, window)
    finally:
        for handle in handles:
            handle.remove()
    return {name: torch.cat(parts) for name, parts in kept.items()}
