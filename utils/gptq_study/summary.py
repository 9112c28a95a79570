"""From the points of unit 08's study to the values of its record.

Names: RECIPE_kl, RECIPE_ppl, RECIPE_flips on the evaluation text; chat_…, choice_…, restored_…,
awq_… otherwise; RECIPE_minus_OTHER for paired differences of KL; key_RECIPE_at_8 for the error of
keys at positions 8 to 15 relative to RTN, key_RECIPE_at_0_block_12 for one block. A dash in a
recipe becomes an underscore, a dot a p.
"""

import numpy as np
from scipy import stats

FACTORS = (1, 4, 16, 64, 256)  # how often position 0 counts
BUCKETS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # the figure's bins: 0, 1, 2 to 3, 4 to 7, …
FIRST = ("rtn", "plain", "first-64")  # measured in every way
FACTORED = ("first-256", "first-16", "first-4")
ABLATIONS = ("natural", "first-0", "tokens-4096", "damping-1", "sequential-4096", "tokens-1024")
WAYS = ("text", "restored", "choice", "chat", "positions")
POINTS = (
    *(f"{way}/{recipe}" for recipe in FIRST for way in WAYS),
    *(f"{way}/{recipe}" for recipe in FACTORED for way in ("choice", "text")),
    *(f"text/{recipe}" for recipe in ABLATIONS),
    "restored/natural",
)
DIFFERENCES = (
    ("plain", "rtn"), ("natural", "plain"), ("first-0", "plain"),
    ("tokens-1024", "plain"), ("tokens-4096", "plain"), ("sequential-4096", "tokens-4096"),
    ("damping-1", "plain"), ("first-64", "first-16"), ("first-4", "first-16"),
    ("first-64", "plain"), ("first-256", "first-64"),
)  # fmt: skip
PROTOCOL = (
    "SmolLM2-135M-Instruct, fp32, 210 linear layers, asymmetric grids of 64 weights with fp16 "
    "scales, head and embedding dense. Calibration: 16,384 tokens (32 windows of 512, half novel, "
    "half documentation, seed 0); the factor of position 0 is chosen on the next 4,096 tokens of "
    "the same draw; evaluation: 4,096 tokens of other documents, chat: the next 4,096 of those in "
    "the chat format. KL to fp32 in nats per token; 95 % intervals from the means of 8 windows "
    "(Student's t), differences paired by window"
)


def name(factor):
    """The recipe that counts position 0 `factor` times."""
    return "plain" if factor == 1 else f"first-{factor}"


def brief(result):
    """What to print of one point while the study runs."""
    return f"KL {np.mean(result['kl']):.4f}" if "kl" in result else ""


def values(points):
    """{name: fields of ledger.Value} of the points that are there."""
    found = {}
    for point, result in points.items():
        way, recipe = point.split("/")
        make = _positions if way == "positions" else _text
        base = points.get(f"{way}/rtn")
        found |= make("" if way == "text" else f"{way}_", key(recipe), result, base)
    for a, b in DIFFERENCES:
        for way in ("text", "chat", "choice"):
            pair = [points.get(f"{way}/{recipe}") for recipe in (a, b)]
            if None not in pair:
                prefix = "" if way == "text" else f"{way}_"
                gap = np.subtract(*(one["kl"] for one in pair))
                found[f"{prefix}{key(a)}_minus_{key(b)}"] = _spread(gap)
    for a, b in (("awq/rtn", "text/rtn"), ("awq/tokens-4096", "awq/rtn")):
        if a in points and b in points:
            gap = np.subtract(points[a]["kl"], points[b]["kl"])
            found[f"{key(a)}_minus_{key(b)}".replace("text/", "").replace("/", "_")] = _spread(gap)
    return found | _chosen(points)


def key(recipe):
    """A recipe as part of a value's name."""
    return recipe.replace("-", "_").replace(".", "p")


def _spread(windows):
    mean, n = float(np.mean(windows)), len(windows)
    reach = float(stats.t.ppf(0.975, n - 1) * np.std(windows, ddof=1) / n**0.5)
    return {"value": mean, "n": n, "low": mean - reach, "high": mean + reach}


def _text(prefix, recipe, result, _base):
    flips = _spread(100 * (1 - np.array(result["same"])))
    error = np.std(result["kl"], ddof=1) / len(result["kl"]) ** 0.5
    return {
        f"{prefix}{recipe}_kl": _spread(result["kl"]),
        f"{prefix}{recipe}_kl_se": {"value": float(error)},
        f"{prefix}{recipe}_flips": flips,
        f"{prefix}{recipe}_ppl": {"value": float(np.exp(np.mean(result["nll"])))},
        f"{prefix}fp32_ppl": {"value": float(np.exp(np.mean(result["nll_reference"])))},
    }


def _positions(_prefix, recipe, result, base):
    """Median over the layers of error / RTN's error, and the lowest and highest layer."""
    found = {}
    for kind in result if base else ():
        ours, theirs = np.array(result[kind]), np.array(base[kind])  # [layers, positions]
        for low, high in zip(BUCKETS[:-1], BUCKETS[1:], strict=True):
            ratio = ours[:, low:high].sum(1) / theirs[:, low:high].sum(1)
            found[f"{kind}_{recipe}_at_{low}"] = _layer_spread(ratio)
        for block, ratio in enumerate(ours[:, 0] / theirs[:, 0]):
            found[f"{kind}_{recipe}_at_0_block_{block}"] = {"value": float(ratio)}
        ratio = ours[:, 1:].sum(1) / theirs[:, 1:].sum(1)
        found[f"{kind}_{recipe}_rest"] = _layer_spread(ratio)
    return found


def _layer_spread(ratio):
    low, high = float(np.min(ratio)), float(np.max(ratio))
    return {"value": float(np.median(ratio)), "n": len(ratio), "low": low, "high": high}


def _chosen(points):
    """The factor with the lowest KL on the text that chooses."""
    scores = {f: points.get(f"choice/{name(f)}") for f in FACTORS}
    scores = {f: float(np.mean(result["kl"])) for f, result in scores.items() if result}
    return {"chosen_factor": {"value": min(scores, key=scores.get)}} if scores else {}
