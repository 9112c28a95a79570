"""Time things fairly: synchronised, warmed up, interleaved, with medians and quartiles.

`compare` runs its candidates in turn, round after round, in an order that changes each round, so
that drift of the machine hits all alike; ratios are taken within a round. `GenerationTimer` turns
the arrival of tokens into TTFT, ITL, TPOT and tokens per second. `memory` names what it measures.
What it does not do: judge. A time without its spread says little.
"""

import statistics
import time
from dataclasses import dataclass, field

import torch

from utils import peak_memory
from utils.device import detect
from utils.timing_stats import percentile


@dataclass(frozen=True)
class Timing:
    """samples: seconds, one per round."""

    samples: tuple[float, ...]

    @property
    def median(self):
        return statistics.median(self.samples)

    @property
    def q1(self):
        return percentile(self.samples, 0.25)

    @property
    def q3(self):
        return percentile(self.samples, 0.75)

    @property
    def mean(self):
        return statistics.fmean(self.samples)

    def __str__(self):
        low, mid, high = (1e3 * x for x in (self.q1, self.median, self.q3))
        return f"{mid:.2f} ms [{low:.2f}, {high:.2f}]"


@dataclass(frozen=True)
class Ratio:
    """Median of a ratio over the rounds, with its quartiles."""

    median: float
    low: float
    high: float

    def __str__(self):
        return f"{self.median:.2f}x [{self.low:.2f}, {self.high:.2f}]"


class Timings(dict):
    """{name: Timing} of one interleaved run."""

    def ratio(self, a, b):
        """Time of `a` divided by time of `b`, paired by round: above 1, `b` is the faster one."""
        pairs = zip(self[a].samples, self[b].samples, strict=True)
        ratios = [x / y for x, y in pairs]
        return Ratio(statistics.median(ratios), percentile(ratios, 0.25), percentile(ratios, 0.75))


def compare(candidates, repeats=7, device=None, clock=time.perf_counter):
    """Time functions against each other in one interleaved run.

    candidates: {name: function without arguments}.  repeats: rounds; one more round warms up and
    is thrown away.  clock: seconds.  Returns Timings in the order of `candidates`.
    Raises ValueError without candidates or for repeats < 1.
    """
    if not candidates or repeats < 1:
        raise ValueError(f"need candidates and repeats >= 1, got {len(candidates)} and {repeats}")
    device = device or detect()
    names = list(candidates)
    samples = {name: [] for name in names}
    for name in names:
        _time(candidates[name], device, clock)
    for turn in range(repeats):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            samples[name].append(_time(candidates[name], device, clock))
    return Timings({name: Timing(tuple(samples[name])) for name in names})


def _time(function, device, clock):
    device.synchronize()
    start = clock()
    function()
    device.synchronize()
    return clock() - start


@dataclass
class GenerationTimer:
    """Times one generation. Call `start()`, then `token(n)` whenever n new ids have arrived.

    Ids are counted, never pieces of text or network chunks. Ids that arrive together (as with
    speculation) share one arrival time, so their gaps are 0 and `itl` shows the burst.
    """

    device: object = None
    clock: object = time.perf_counter
    _start: float = None
    _arrivals: list = field(default_factory=list)

    def start(self):
        self.device = self.device or detect()
        self._arrivals = []
        self.device.synchronize()
        self._start = self.clock()

    def token(self, n=1):
        if self._start is None:
            raise RuntimeError("call start() before token()")
        if n < 0:
            raise ValueError(f"n={n}: the number of new ids, 0 or more")
        self.device.synchronize()
        self._arrivals += [self.clock() - self._start] * n

    @property
    def tokens(self):
        return len(self._arrivals)

    @property
    def end_to_end(self):
        """Time until the last token, s."""
        return self._need(1)[-1]

    @property
    def ttft(self):
        """Time to first token, s."""
        return self._need(1)[0]

    @property
    def itl(self):
        """Inter-token latencies, s: tokens - 1 gaps."""
        times = self._need(1)
        return [b - a for a, b in zip(times, times[1:], strict=False)]

    @property
    def tpot(self):
        """Time per output token after the first, s: (end to end - TTFT) / (tokens - 1)."""
        times = self._need(2)
        return (times[-1] - times[0]) / (len(times) - 1)

    @property
    def decode_tokens_per_second(self):
        if self.tpot == 0:
            raise ValueError("all tokens came at once: no time between them, so no decode rate")
        return 1 / self.tpot

    @property
    def end_to_end_tokens_per_second(self):
        return self.tokens / self.end_to_end

    def _need(self, n):
        if len(self._arrivals) < n:
            raise ValueError(f"needs {n} tokens or more, got {len(self._arrivals)}")
        return self._arrivals


def memory(device=None):
    """Named memory figures in bytes; None where the figure can't be had on this device.

    peak_resident: largest resident set of this process since it started.
    peak_allocated: largest sum of live tensors on a CUDA or ROCm device.
    allocated: tensors now, on a device of its own. More names, and why: peak_memory.py.
    """
    there = peak_memory.on_device(device)
    figures = {"peak_resident": peak_memory.process()["peak_resident"]}
    return figures | {name: there[name] for name in ("peak_allocated", "allocated")}


def format_bytes(n):
    """'538.1 MB' (decimal units), or 'n/a' for None."""
    if n is None:
        return "n/a"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(n) >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} B"


def read_bandwidth(device=None, megabytes=256, repeats=7):
    """Bytes per second at which the device reads a tensor far larger than its caches (a sum)."""
    device = device or detect()
    data = torch.ones(megabytes * 250_000, device=device.torch)
    timing = compare({"sum": data.sum}, repeats, device)["sum"]
    return data.numel() * data.element_size() / min(timing.samples)
