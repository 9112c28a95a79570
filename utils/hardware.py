"""The platforms of `data/hardware.yaml`, and what bandwidth and memory allow on them.

    tokens/s of one text  <=  bandwidth / bytes read per token        (Williams et al. 2009)

Every figure carries its source or says "uncited"; everything else is computed from the figures, so
no ceiling can disagree with its bandwidth.

But: peaks of data sheets, one device, no interconnect, no cost of steps. A ceiling is what can't be
passed, not what will be reached; `utils.machine` measures what is reached on the machine at hand.
"""

import math
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path

import yaml

from utils import architecture, roofline

DATA = Path(__file__).resolve().parent / "data" / "hardware.yaml"
FIGURES = ("memory_gb", "bandwidth_gb_s", "fp16_tflops", "fp8_tflops")
USABLE = 0.95  # share of the nominal memory: driver, workspace and activations need the rest


@dataclass(frozen=True)
class Figure:
    """One number of a platform. source: an address, or None where there is none ("uncited")."""

    value: float
    source: str | None
    by: str | None = None
    note: str = ""

    def __str__(self):
        return f"{self.value:,g}" + ("" if self.source else " (uncited)")


@dataclass(frozen=True)
class Platform:
    """memory_gb in 10^9 bytes, bandwidth_gb_s, dense peaks; each a Figure, None if unpublished."""

    key: str
    name: str
    memory_gb: Figure
    bandwidth_gb_s: Figure
    fp16_tflops: Figure | None
    fp8_tflops: Figure | None

    @property
    def bandwidth(self):
        """Bytes per second."""
        return 1e9 * self.bandwidth_gb_s.value

    @property
    def uncited(self):
        """Names of the figures without a source."""
        found = {name: getattr(self, name) for name in FIGURES}
        return [name for name, figure in found.items() if figure and not figure.source]


@once
def load(path=DATA):
    """{key: Platform}. ValueError for a figure that names no source of the file."""
    content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    sources = content["sources"]
    return {key: _platform(key, entry, sources) for key, entry in content["platforms"].items()}


def _platform(key, entry, sources):
    figures = {name: _figure(f"{key}: {name}", entry[name], sources) for name in FIGURES}
    return Platform(key, entry["name"], **figures)


def _figure(where, entry, sources):
    if entry is None:
        return None
    source = entry["source"]
    if source == "uncited":
        return Figure(entry["value"], None, None, entry.get("note", ""))
    if source not in sources:
        raise ValueError(f"{where}: source {source!r} is not in `sources`; add it or say uncited")
    return Figure(
        entry["value"], sources[source]["url"], sources[source]["by"], entry.get("note", "")
    )


@dataclass(frozen=True)
class Published:
    """Tokens/s of one text that others have measured, and the ceiling of their machine for it."""

    platform: Platform
    model: str
    bits: float
    context: int
    tokens_per_second: float
    ceiling: float
    source: str

    @property
    def share(self):
        """Of the ceiling."""
        return self.tokens_per_second / self.ceiling


def published(path=DATA):
    """A list of Published, in the order of the file."""
    content, platforms = yaml.safe_load(Path(path).read_text(encoding="utf-8")), load(path)
    found = []
    for entry in content["published"]:
        platform, context = platforms[entry["platform"]], entry.get("context", 0)
        config = content["models"].get(entry["model"], entry["model"])
        top = ceiling(platform, config, entry["bits"], context)
        source = content["sources"][entry["source"]]["url"]
        row = entry["model"], entry["bits"], context, entry["tokens_per_second"], top, source
        found.append(Published(platform, *row))
    return found


def stored_bytes(config, bits_per_weight):
    """Bytes of all weights of a model. config: whatever `architecture.read` takes."""
    _check_bits(bits_per_weight)
    return architecture.read(config).total * bits_per_weight / 8


def ceiling(platform, config, bits_per_weight, context=0):
    """Tokens/s that one text can't exceed on this platform, whether or not the model fits."""
    _check_bits(bits_per_weight)
    parts = roofline.decode_bytes(config, context, bits_per_weight)
    return roofline.decode_ceiling(sum(parts.values()), platform.bandwidth)


def fits(platform, config, bits_per_weight, usable=USABLE):
    """Whether the weights alone fit into the usable share of one device's memory."""
    return stored_bytes(config, bits_per_weight) <= usable * 1e9 * platform.memory_gb.value


def balance(platform, figure="fp16_tflops"):
    """FLOP that the platform can do while it reads one byte; None where no peak is published."""
    peak = getattr(platform, figure)
    return None if peak is None else 1e12 * peak.value / platform.bandwidth


def binding_batch(platform, bits_per_weight, figure="fp16_tflops"):
    """Texts at a time from which arithmetic takes longer than reading the weights.

    Each weight of b bits takes b / 8 bytes and 2 FLOP for each text: 2 M / F = (b / 8) / B. The
    arithmetic runs at the peak named by `figure`, as for weights that are widened before use.
    """
    _check_bits(bits_per_weight)
    flop_per_byte = balance(platform, figure)
    return None if flop_per_byte is None else flop_per_byte * bits_per_weight / 16


@dataclass(frozen=True)
class Verdict:
    """A claim of tokens/s against the ceiling of one text. fits: whether the device holds it."""

    claimed: float
    ceiling: float
    fits: bool

    @property
    def possible_alone(self):
        """Whether one text alone could run at the claimed rate."""
        return self.fits and self.claimed <= self.ceiling

    @property
    def times_too_fast(self):
        """The claim over the ceiling."""
        return self.claimed / self.ceiling

    @property
    def texts(self):
        """Texts that must share a step, at the very least; None where the model doesn't fit."""
        return math.ceil(self.claimed / self.ceiling) if self.fits else None


def judge(claimed, platform, config, bits_per_weight):
    """Verdict on `claimed` tokens/s for a model stored in `bits_per_weight` on one device."""
    if not 0 < claimed < math.inf:
        raise ValueError(f"claimed={claimed}: tokens per second must be positive and finite")
    return Verdict(
        claimed,
        ceiling(platform, config, bits_per_weight),
        fits(platform, config, bits_per_weight),
    )


def _check_bits(bits_per_weight):
    if not 0 < bits_per_weight <= 64:
        raise ValueError(f"bits_per_weight={bits_per_weight}: between 0 and 64, such as 4.5")
