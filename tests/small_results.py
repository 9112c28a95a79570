"""A record of results that nothing has measured: bytes from shapes, KL from a formula."""

import math

import jsonschema

from utils.results_study import rows, summary
from utils.results_study.forms import FORMS

SHAPES = ((64, 64), (192, 64), (64, 192))
MACHINE = {
    "date": "2026-11-30",
    "device": {"kind": "cpu", "name": "x", "threads": 2, "cpu_capability": "AVX2"},
    "versions": {"torch": "2"},
}


def result(row, kl, code="0" * 64):
    """What points.Bench.run gives for a row whose windows have a mean KL of `kl`."""
    packed, weights = (sum(f(s) for s in SHAPES) for f in (FORMS[row.form].predict, math.prod))
    windows = [kl * (1 + 0.1 * (-1) ** i) for i in range(8)]
    return {
        "kl": windows, "same": [1 - min(0.5, kl)] * 8, "code": code,
        "nll": [2 + w for w in windows], "nll_reference": [2.0] * 8,
        "layer_weights": weights, "weights": weights + 1000,
        "packed_bytes": packed, "predicted_bytes": packed,
        "memory_bytes": packed + 4000, "disk_bytes": packed + 4100, "header_bytes": 100,
    }  # fmt: skip


def found(kl=None):
    """{row: result}; kl: {row: KL} where it isn't 4 to the power of 2 minus the bits."""
    made, kl = {}, kl or {}
    for name, row in rows.BY_NAME.items():
        one = result(row, 0.0)
        bits = 8 * one["packed_bytes"] / one["layer_weights"]
        default = 0.0 if name == "fp32" else 4.0 ** (2 - bits)
        made[name] = result(row, kl.get(name, default))
    return made


def spread(median):
    return {"median": median, "low": 0.9 * median, "high": 1.1 * median}


def speed(forms=("fp32", "bf16", "int8 channel")):
    """As the study makes it: each form reads half of the one before and is twice as fast."""
    return {"protocol": "made up"} | MACHINE | {
        "forms": {
            name: {
                "ratio": spread(2.0**i), "tokens_per_second": spread(20 * 2.0**i),
                "bytes_per_token": 8 * 10**6 // 2**i,
            }
            for i, name in enumerate(forms)
        }
    }  # fmt: skip


def record(kl=None, timed=True):
    """A whole record of the right shape."""
    made = summary.record(found(kl), MACHINE, speed() if timed else {})
    jsonschema.validate(made, summary.SCHEMA)
    return made
