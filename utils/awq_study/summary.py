"""From the points of unit 07's study to the values of its record."""

import numpy as np
from scipy import stats

LADDER = ("rtn", "random", "weight", "salient", "fixed", "search", "clip")
INT8 = (
    "w8", "tensor", "token", "llm-6", "static-100", "static-99.99", "unseen", "smooth-0.5",
    "smoothall-0.5",
)  # fmt: skip
LIBRARIES = ("bnb-int8", "nf4", "torchao-int8", "torchao-dynamic", "torch-dynamic")
POINTS = (
    "search/4",
    *(f"text/{rung}-4" for rung in LADDER),
    *(f"text/{recipe}" for recipe in INT8),
    "restored/search-4", "restored/rtn-4",
    "text/rtn-3",
    "outliers/6",
    *(f"text/{library}" for library in LIBRARIES),
    "search/3", "text/search-3", "text/salient-3", "text/clip-3",
)  # fmt: skip
PROTOCOL = (
    "SmolLM2-135M-Instruct, fp32, head and embedding left alone; calibration 4,096 tokens in "
    "windows of 512, evaluation 2,048 tokens in 8 windows of 256 of other documents, half novel, "
    "half documentation; exponents 0, 0.1 ... 1; KL to the fp32 model in nats per token, 95 % "
    "intervals from the means of the 8 windows (Student's t; the two sources are strata, which the "
    "intervals ignore); differences are paired by window"
)


def brief(result):
    """What to print of one point while the study runs."""
    return f"KL {np.mean(result['kl']):.4f}" if "kl" in result else ""


def values(found):
    """{name: fields of ledger.Value} of all points."""
    result = {}
    for point, content in found.items():
        kind, recipe = point.split("/")
        if kind == "search":
            result |= _search(recipe, content)
        elif kind == "outliers":
            result |= {
                f"outliers_{layer}": {"value": 100 * share} for layer, share in content.items()
            }
        else:
            result |= _text(key(recipe) + ("_restored" if kind == "restored" else ""), content)
    for a, b in PAIRS:
        gap = np.array(found[f"text/{a}"]["kl"]) - np.array(found[f"text/{b}"]["kl"])
        result[f"gap_{key(a)}_{key(b)}"] = spread(gap)
    for recipe in ("rtn-4", "search-4"):
        gap = np.array(found[f"text/{recipe}"]["kl"]) - found[f"restored/{recipe}"]["kl"]
        result[f"gap_{key(recipe)}_restored"] = spread(gap)
    return result


PAIRS = (
    ("rtn-4", "search-4"), ("rtn-4", "random-4"), ("random-4", "salient-4"),
    ("weight-4", "salient-4"), ("search-4", "salient-4"), ("fixed-4", "search-4"),
    ("search-4", "clip-4"), ("rtn-3", "search-3"), ("search-3", "clip-3"), ("token", "llm-6"),
    ("rtn-4", "nf4"), ("nf4", "search-4"), ("clip-4", "salient-4"), ("rtn-4", "weight-4"),
    ("salient-3", "clip-3"), ("tensor", "smooth-0.5"), ("tensor", "smoothall-0.5"),
    ("smoothall-0.5", "token"), ("tensor", "static-100"), ("unseen", "static-100"),
)  # fmt: skip


def key(recipe):
    """ "smooth-0.5" -> "smooth_0_5": a name that the page's references can hold."""
    return recipe.replace("-", "_").replace(".", "_")


def spread(by_window):
    """Fields of ledger.Value for the mean over windows and its 95 % interval."""
    mean, n = float(np.mean(by_window)), len(by_window)
    reach = float(stats.t.ppf(0.975, n - 1) * np.std(by_window, ddof=1) / n**0.5)
    return {"value": mean, "n": n, "low": mean - reach, "high": mean + reach}


def _text(name, content):
    kl, flips = np.array(content["kl"]), 100 * (1 - np.array(content["same"]))
    return {
        f"kl_{name}": spread(kl),
        f"kl_se_{name}": {"value": float(kl.std(ddof=1) / len(kl) ** 0.5)},
        f"flips_{name}": spread(flips),
        f"ppl_{name}": {"value": float(np.exp(np.mean(content["nll"])))},
        "ppl_fp32": {"value": float(np.exp(np.mean(content["nll_reference"])))},
    }


def _search(bits, content):
    """Ratios and losses relative to RTN by kind of site."""
    result, kinds = (
        {},
        {"input": "norm_qkv", "v_proj": "value", "post": "norm_mlp", "up_proj": "up"},
    )
    for part, name in kinds.items():
        rows = [
            row for source, row in content.items() if source.rsplit(".", 1)[-1].startswith(part)
        ]
        ratios = [row[0] for row in rows]
        result[f"ratio_{name}_{bits}"] = {
            "value": float(np.median(ratios)), "low": min(ratios), "high": max(ratios)
        }  # fmt: skip
        losses = [loss for row in rows for loss in row[1:]]
        result[f"loss_{name}_{bits}"] = {
            "value": float(np.median(losses)), "low": min(losses), "high": max(losses)
        }  # fmt: skip
    everything = [loss for row in content.values() for loss in row[1:]]
    result[f"worse_layers_{bits}"] = {"value": int(sum(loss > 1 for loss in everything))}
    return result | {f"layers_{bits}": {"value": len(everything)}}
