"""From measured rows to records/results.json: estimates with intervals, and the Pareto front.

The unit is the window. KL and the ratio of perplexities, exp(mean of nll - nll of fp32), have 95 %
intervals from a bootstrap over windows, both models on the same windows.

A row is on the front if no row with as few bits or fewer has a smaller KL. Two rows are told apart
if the bootstrap interval of their paired difference leaves out zero: a row that is off the front
but not told apart from any row that beats it is "near".

But: the bootstrap of few windows is narrow: with n = 8 its standard error is sqrt(7/8) of the usual
one, and Student's t (2.36 standard errors instead of 1.96) would make intervals 1.29 times as wide.
"""

import numpy as np

from utils import quality
from utils.results_study.forms import FORMS
from utils.results_study.rows import BY_NAME

PROTOCOL = (
    "SmolLM2-135M-Instruct, 210 linear layers in the form named, embedding (which is also the "
    "head) and norms fp32; evaluation: 4,096 held-out tokens in 8 windows of 512, half novel, half "
    "documentation, those of unit 08; reference: the fp32 model on the same windows; KL in nats "
    "per token; AWQ: 4,096, GPTQ: 16,384 calibration tokens of other documents (4,096 after AWQ); "
    "95 % intervals: bootstrap over windows, paired"
)
SPEED_PROTOCOL = (
    "the engine, batch 1, greedy, {tokens} new tokens after a chat prompt, time after the first "
    "token; one interleaved run of {rounds} rounds, medians and quartiles, ratios to fp32 within a "
    "round; layers in the form named, embedding and head fp32"
)
NUMBER = {"type": "number"}
COUNT = {"type": "integer", "minimum": 1}
TEXT = {"type": "string", "minLength": 1}


def exactly(**properties):
    """A JSON schema: these properties, all of them, no others."""
    shape = {"type": "object", "required": list(properties), "additionalProperties": False}
    return shape | {"properties": properties}


INTERVAL = exactly(value=NUMBER, low=NUMBER, high=NUMBER)
SPREAD = exactly(median=NUMBER, low=NUMBER, high=NUMBER)
DEVICE = {"type": "object", "required": ["kind", "name", "threads", "cpu_capability"]}
VERSIONS = {"type": "object", "additionalProperties": TEXT}
ROW = exactly(
    family=TEXT,
    form=TEXT,
    kernel={"type": "boolean"},
    code={"type": "string", "pattern": "^[0-9a-f]{64}$"},
    bits_layers=NUMBER,
    bits_model=NUMBER,
    packed_bytes=COUNT,
    predicted_bytes=COUNT,
    memory_bytes=COUNT,
    disk_bytes=COUNT,
    header_bytes=COUNT,
    kl=INTERVAL,
    kl_windows={"type": "array", "items": NUMBER, "minItems": 8},
    perplexity=NUMBER,
    perplexity_ratio=INTERVAL,
    flips=NUMBER,
    place={"enum": ["front", "near", "behind"]},
)
SPEED_ROW = exactly(ratio=SPREAD, tokens_per_second=SPREAD, bytes_per_token=COUNT)
SPEED = exactly(
    protocol=TEXT, date=TEXT, device=DEVICE, versions=VERSIONS,
    forms={"type": "object", "minProperties": 2, "additionalProperties": SPEED_ROW},
)  # fmt: skip
SCHEMA = exactly(
    protocol={"type": "string", "minLength": 20},
    date={"type": "string", "format": "date"},
    device=DEVICE,
    versions=VERSIONS,
    reference=exactly(perplexity=NUMBER, tokens=COUNT, windows=COUNT),
    rows={"type": "object", "minProperties": 2, "additionalProperties": ROW},
    speed={"anyOf": [SPEED, {"type": "object", "maxProperties": 0}]},
)


def brief(result):
    """What to print of one row while the study runs."""
    return f"KL {np.mean(result['kl']):.5f}, {result['packed_bytes'] / 1e6:.1f} MB of layers"


def record(found, machine, speed):
    """The record of all rows; machine: date, device, versions."""
    rows = {name: one(name, found[name]) for name in BY_NAME}
    for name, place in places(rows).items():
        rows[name]["place"] = place
    any_row = found[next(iter(BY_NAME))]
    windows = len(any_row["kl"])
    reference = {
        "perplexity": float(np.exp(np.mean(any_row["nll_reference"]))),
        "tokens": 512 * windows,
        "windows": windows,
    }
    return {"protocol": PROTOCOL} | machine | {"reference": reference, "rows": rows, "speed": speed}


def one(name, result):
    """The entry of a row, without its place."""
    row, kl = BY_NAME[name], [max(0.0, x) for x in result["kl"]]
    loss = interval(result["nll_reference"], result["nll"])
    return {
        "family": row.family,
        "form": row.form,
        "kernel": FORMS[row.form].kernel and row.family != "activations",
        "code": result["code"],
        "bits_layers": 8 * result["packed_bytes"] / result["layer_weights"],
        "bits_model": 8 * result["memory_bytes"] / result["weights"],
        **{key: result[key] for key in ROW["required"] if key.endswith("_bytes")},
        "kl": interval(np.zeros(len(kl)), kl),
        "kl_windows": kl,
        "perplexity": float(np.exp(np.mean(result["nll"]))),
        "perplexity_ratio": {key: float(np.exp(x)) for key, x in loss.items()},
        "flips": float(1 - np.mean(result["same"])),
    }


def interval(a, b):
    """{value, low, high} of the mean of b - a over windows."""
    found = quality.paired_bootstrap(a, b)
    return {"value": found.mean, "low": found.low, "high": found.high}


def places(rows):
    """{name: "front", "near" or "behind"} by bits of the layers and KL."""
    return {name: _place(name, rows) for name in rows}


def _place(name, rows):
    ours = rows[name]
    ahead = [other for key, other in rows.items() if key != name and beats(other, ours)]
    if not ahead:
        return "front"
    return "behind" if any(told_apart(other, ours) for other in ahead) else "near"


def beats(a, b):
    """a has no more bits and no more KL than b, and less of one of the two."""
    bits, kl = (a["bits_layers"], b["bits_layers"]), (a["kl"]["value"], b["kl"]["value"])
    return bits[0] <= bits[1] and kl[0] <= kl[1] and (bits[0] < bits[1] or kl[0] < kl[1])


def told_apart(a, b):
    """The 95 % interval of the paired difference of KL, b - a, lies above zero."""
    return interval(a["kl_windows"], b["kl_windows"])["low"] > 0
