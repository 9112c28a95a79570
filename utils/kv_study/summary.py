"""From the points of unit 09's study of FP8 recipes and caches to the values of its record.

Names: kv_2_token_at_512_kl, …_flips; kv_A_minus_B_at_512: KL paired by window; kv_2_growth: from
the shortest to the longest context; states_KIND_at_512: median over the layers, with the lowest and
highest; fp8_NAME_kl, …_flips, …_ppl; delayed_16_kl, …_saturated. A dash becomes an underscore.
"""

import numpy as np

from utils.gptq_study import summary as base
from utils.kv_study import recipes

CONTEXTS = (512, 128, 2048)
STATES = (512,)
POINTS = (
    *(f"kv/{context}" for context in CONTEXTS),
    *(f"fp8/{name}" for name in recipes.FP8),
    *(f"delayed/{name}" for name in recipes.DELAYED),
    *(f"states/{context}" for context in STATES),
)
CACHE_PAIRS = (
    ("2-token", "2"), ("4-token", "4"), ("8-token", "8"), ("2-sinks4", "2"), ("2-sinks1", "2"),
    ("4-sinks4", "4"), ("2-token-sinks4", "2-token"), ("4-token-sinks4", "4-token"),
    ("2-token-sinks4", "2-sinks4"),
    ("keys2-token", "keys2"), ("values2-channel", "values2"), ("keys2", "values2"),
    ("2-residual0", "2"), ("2-residual96", "2"),
)  # fmt: skip
FP8_PAIRS = (
    ("static", "weights-tensor"), ("current", "static"), ("token", "current"), ("block", "token"),
    ("static-without-first", "static"), ("weights-block", "weights"),
)  # fmt: skip
DELAYED_PAIRS = (("16", "1024"), ("16-margin4", "16"), ("recent", "1024"))
PROTOCOL = (
    "SmolLM2-135M-Instruct, fp32. kv: evaluation text, 8 windows; the last 64 tokens of each are "
    "scored through a cache that holds the 128 to 2,048 tokens before them (read by the fp32 "
    "model in one piece), groups of 32, fp16 steps and minima, at least the last 32 tokens in "
    "float; all caches at 512 tokens, some at the other lengths. states: 2 bits. fp8: 210 linear "
    "layers in E4M3, head dense, KL on 2,048 evaluation tokens (the first 256 of each window of "
    "unit 08), static amaxes from 2,048 calibration tokens. delayed: a request of 64 tokens, 24 "
    "single tokens, then the 64 tokens of the next request are scored. KL to fp32 in nats per "
    "token; 95 % intervals from the means of 8 windows (Student's t), differences paired by window"
)


def brief(result):
    """What to print of one point while the study runs."""
    if "kl" in result:
        return f"KL {np.mean(result['kl']):.4f}"
    rows = {name: one["kl"] for name, one in result.items() if isinstance(one, dict)}
    return ", ".join(f"{name} {np.mean(kl):.4f}" for name, kl in rows.items())


def values(points):
    """{name: fields of ledger.Value} of the points that are there."""
    found = {}
    for point, result in points.items():
        way, what = point.split("/")
        found |= {"kv": _caches, "states": _states, "delayed": _delayed, "fp8": _fp8}[way](
            what, result
        )
    for way, pairs in (("fp8", FP8_PAIRS), ("delayed", DELAYED_PAIRS)):
        for a, b in pairs:
            if f"{way}/{a}" in points and f"{way}/{b}" in points:
                found |= _pair(way, a, b, points[f"{way}/{a}"], points[f"{way}/{b}"])
    short, long = (f"kv/{function(CONTEXTS)}" for function in (min, max))
    if short in points and long in points:
        found |= _growth(points[short], points[long])
    return found


def _growth(short, long):
    """KL behind the longest context minus KL behind the shortest, of the same tokens."""
    gaps = {n: np.subtract(long[n]["kl"], short[n]["kl"]) for n in short if n in long}
    return {f"kv_{key(n)}_growth": base._spread(gap) for n, gap in gaps.items()}


def key(name):
    """A name as part of a value's name."""
    return name.replace("-", "_")


def _caches(context, result):
    found = {}
    for name, one in result.items():
        found |= _spreads(f"kv_{key(name)}_at_{context}", one)
    for a, b in [pair for pair in CACHE_PAIRS if set(pair) <= set(result)]:
        found |= _pair("kv", a, b, result[a], result[b], f"_at_{context}")
    return found


def _states(context, result):
    return {f"states_{n}_at_{context}": base._layer_spread(v) for n, v in result.items()}


def _delayed(name, result):
    found = _spreads(f"delayed_{key(name)}", result)
    saturated = {"value": float(np.mean(result["saturated"])), "n": len(result["saturated"])}
    return found | {f"delayed_{key(name)}_saturated": saturated}


def _fp8(name, result):
    return base._text("fp8_", key(name), result, None)


def _spreads(prefix, result):
    flips = 100 * (1 - np.array(result["same"]))
    return {f"{prefix}_kl": base._spread(result["kl"]), f"{prefix}_flips": base._spread(flips)}


def _pair(way, a, b, first, second, end=""):
    gap = np.subtract(first["kl"], second["kl"])
    return {f"{way}_{key(a)}_minus_{key(b)}{end}": base._spread(gap)}
