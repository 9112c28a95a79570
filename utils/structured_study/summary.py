"""From the points of unit 12's study to the values of its record.

Names: KIND_WHAT_kl, _ppl, _flips (prune_sparsegpt_kl, channels_squared_25_kl, tune_gradual_kl, …),
_bytes for what a smaller model's matrices take; A_minus_B for paired differences of KL;
single_BLOCK_SCORE: rank correlation of a score with the true change in magnitude,
single_BLOCK_signed: of the first-order prediction with the true change, signs and all.
"""

import numpy as np
from scipy import stats

from utils.awq_study.summary import spread

RATES = ("1e-4", "3e-4", "1e-3")
SCORES = ("magnitude", "activation", "taylor", "squared")
ARMS = ("sparsegpt", "magnitude", "dense", "channels", "gradual")
SINGLE_BLOCKS = (3, 27)
POINTS = (
    *(f"prune/{method}" for method in ("magnitude", "wanda", "sparsegpt")),
    *(f"channels/{score}_25" for score in ("random", *SCORES)),
    *(f"rate/{rate}" for rate in RATES),
    *(f"blocks/{recipe}" for recipe in ("influence_1", "influence_3", "influence_6", "end_6")),
    *(f"tune/{arm}" for arm in ARMS),
    *(f"groups/{score}_1" for score in SCORES),
    *(f"single/{block}" for block in SINGLE_BLOCKS),
    *(f"channels/{score}_{share}" for share in (10, 50) for score in ("activation", "squared")),
)
DIFFERENCES = (
    ("prune/magnitude", "prune/wanda"), ("prune/wanda", "prune/sparsegpt"),
    ("channels/random_25", "channels/magnitude_25"),
    ("channels/magnitude_25", "channels/activation_25"),
    ("channels/activation_25", "channels/squared_25"),
    ("channels/taylor_25", "channels/squared_25"),
    ("tune/magnitude", "tune/gradual"), ("tune/magnitude", "tune/sparsegpt"),
    ("prune/magnitude", "tune/magnitude"), ("prune/sparsegpt", "tune/sparsegpt"),
    ("channels/squared_25", "tune/channels"), ("prune/sparsegpt", "blocks/influence_6"),
    ("tune/sparsegpt", "tune/channels"), ("blocks/end_6", "blocks/influence_6"),
)  # fmt: skip
PROTOCOL = (
    "SmolLM2-135M-Instruct, fp32, head and embedding left alone. Windows of 256 tokens, half "
    "novel, half documentation: 8 for calibration, 4 that choose the learning rate, 16 for "
    "training, 8 of other documents for evaluation (2,048 tokens). Training: one window a step, "
    "4,096 tokens, AdamW on the linear layers, betas 0.9 and 0.95, no weight decay, 4 steps of "
    "warm-up, then a linear fall, gradients clipped to 1; the rate is chosen for 2:4 by magnitude "
    "(8 steps). "
    "Gradual: cubic over the first half of the steps. KL to the untrained dense model in nats per "
    "token, 95 % intervals from the means of 8 windows (Student's t), differences by window. "
    "Single channels: 24 of a block, drawn at random, loss on 512 tokens of calibration text"
)


def brief(result):
    """What to print of one point while the study runs."""
    return f"KL {np.mean(result['kl']):.4f}" if "kl" in result else ""


def values(points):
    """{name: fields of ledger.Value} of the points that are there."""
    found = {}
    for point, result in points.items():
        single = point.startswith("single/")
        found |= (_single if single else _entry)(key(point), result)
    for a, b in DIFFERENCES:
        if a in points and b in points:
            gap = np.subtract(points[a]["kl"], points[b]["kl"])
            found[f"{key(a)}_minus_{key(b)}"] = spread(gap)
    tried = {p: r for p, r in points.items() if p.startswith("rate/")}
    if tried:
        best = min(tried, key=lambda p: sum(tried[p]["nll"]))
        found["chosen_rate"] = {"value": float(best.split("/")[1])}
    return found


def key(point):
    """ "channels/random_25" -> "channels_random_25"."""
    return point.replace("/", "_").replace("-", "")


def _entry(name, result):
    found = {
        f"{name}_kl": spread(result["kl"]),
        f"{name}_flips": spread(100 * (1 - np.array(result["same"]))),
        f"{name}_ppl": {"value": float(np.exp(np.mean(result["nll"])))},
    }
    if not name.startswith("rate_"):
        found["dense_ppl"] = {"value": float(np.exp(np.mean(result["nll_reference"])))}
    for part in ("bytes", "zeros"):
        if part in result:
            found[f"{name}_{part}"] = {"value": result[part]}
    if "gone" in result:
        found[f"{name}_first"] = {"value": min(result["gone"])}
        found[f"{name}_last"] = {"value": max(result["gone"])}
    return found


def _single(name, result):
    change = np.array(result["change"])
    found = {f"{name}_signed": _ranks(result["predicted"], change)}
    for score in SCORES:
        found[f"{name}_{score}"] = _ranks(result[score], np.abs(change))
    found[f"{name}_largest_change"] = {"value": float(np.abs(change).max())}
    found[f"{name}_median_change"] = {"value": float(np.median(np.abs(change)))}
    return found


def _ranks(a, b):
    return {"value": float(stats.spearmanr(a, b).statistic), "n": len(b)}
