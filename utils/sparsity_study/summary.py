"""From the points of unit 11's study to the values of its record.

Names: METHOD_LEVEL_kl, _ppl, _flips, _zeros for "prune"; KIND_WHAT_… for the other kinds (see
points.py); gate_50_idle_4 for channels that none of 4 tokens needs, gate_50_unread_4 for the share
of all weights that they save; A_minus_B for paired differences of KL; sum_of_blocks for the KLs
of the blocks, added.
"""

import numpy as np

from utils.awq_study.summary import spread

METHODS = ("magnitude", "wanda", "sparsegpt")
LEVELS = (10, 20, 30, 50, 70, 90, "24")
KINDS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
BLOCKS = 30
GATES = (25, 50, 70, 90)
PRUNE = (
    *(f"{method}_{level}" for level in LEVELS for method in METHODS),
    "wanda_40", "wanda_60",  # what "spread" mixes
)  # fmt: skip
POINTS = (
    *(f"prune/{recipe}" for recipe in PRUNE),
    *(f"only/block_{n}" for n in range(BLOCKS)),
    *(f"only/{kind}" for kind in KINDS),
    "spread/even", "spread/sensitive",
    "bits/int8", "bits/int4", "bits/int3",
    "both/wanda_50_int8", "both/wanda_50_int4", "both/sparsegpt_50_int4", "both/sparsegpt_24_int4",
    "after/int4_wanda_50",
    *(f"gate/{share}" for share in GATES),
    "gate/relu",
)  # fmt: skip
DIFFERENCES = (
    ("prune/wanda_50", "prune/sparsegpt_50"), ("prune/wanda_30", "prune/sparsegpt_30"),
    ("prune/wanda_70", "prune/sparsegpt_70"), ("prune/wanda_24", "prune/sparsegpt_24"),
    ("spread/sensitive", "spread/even"),
    ("both/sparsegpt_50_int4", "bits/int3"), ("both/sparsegpt_24_int4", "bits/int3"),
    ("after/int4_wanda_50", "both/wanda_50_int4"),
)  # fmt: skip
PROTOCOL = (
    "SmolLM2-135M-Instruct, fp32, 210 linear layers, head dense. Calibration: 2,048 tokens "
    "(4 windows of 512, half novel, half documentation, seed 0); single blocks and kinds are "
    "judged on the next 2,048 tokens of that draw, everything else on 4,096 tokens of other "
    "documents. Damping 0.01, block 128; rounding: RTN, int8 per channel, int4 and int3 in "
    "asymmetric groups of 64. KL to the dense model in nats per token; 95 % intervals from the "
    "means of 8 windows (4 for single blocks; Student's t), differences paired by window"
)


def brief(result):
    """What to print of one point while the study runs."""
    return f"KL {np.mean(result['kl']):.4f}"


def values(points):
    """{name: fields of ledger.Value} of the points that are there."""
    found = {}
    for point, result in points.items():
        found |= _entry(key(point), result)
    for a, b in DIFFERENCES:
        if a in points and b in points:
            gap = np.subtract(points[a]["kl"], points[b]["kl"])
            found[f"{key(a)}_minus_{key(b)}"] = spread(gap)
    blocks = [np.mean(r["kl"]) for p, r in points.items() if p.startswith("only/block_")]
    return found | {"sum_of_blocks_kl": {"value": float(sum(blocks)), "n": len(blocks)}}


def key(point):
    """ "prune/wanda_50" -> "wanda_50"; "gate/50" -> "gate_50"."""
    return point.removeprefix("prune/").replace("/", "_")


def _entry(name, result):
    found = {
        f"{name}_kl": spread(result["kl"]),
        f"{name}_flips": spread(100 * (1 - np.array(result["same"]))),
        f"{name}_ppl": {"value": float(np.exp(np.mean(result["nll"])))},
    }
    if not name.startswith("only_"):
        found["dense_ppl"] = {"value": float(np.exp(np.mean(result["nll_reference"])))}
    for part in ("zeros", "zeros_before"):
        if part in result:
            found[f"{name}_{part}"] = {"value": result[part]}
    if "share" in result:
        found[f"{name}_share"] = {"value": 100 * result["share"]}
    for part in ("idle", "unread"):
        for tokens, share in result.get(part, {}).items():
            found[f"{name}_{part}_{tokens}"] = {"value": 100 * share}
    return found
