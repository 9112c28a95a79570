"""From the points of unit 09's study of GGUF files to the values of its record.

Names: block_Q4_0_kl, rtn_4_32_sym_kl, head_Q8_0_kl, file_Q4_K_M_kl, …_flips, …_ppl, …_bits, …_mb;
file_Q4_K_M_tensors_Q5_0: tensors of that type in the file; run_Q8_0_kl, run_Q8_0_same_percent,
run_Q8_0_greedy: llama.cpp's run against our dequantized copy; A_minus_B: KL paired by window.
"""

import math

import numpy as np

from utils.gptq_study import summary as base
from utils.quantization import gguf_content

NEW_TOKENS = 32  # after each prompt of a "run" point
IMATRIX = ("Q4_0", "Q4_K_M")
RUNS = ("F32", "Q8_0", "Q4_0")
POINTS = (
    "file/Q4_K_M", "file/Q4_0", "block/Q4_0", "rtn/4-32-sym",
    *(f"file/{label}-imatrix" for label in IMATRIX),
    *(f"run/{kind}" for kind in RUNS),
    "block/Q4_1", "rtn/4-16-sym", "head/Q8_0", "block/Q5_0", "block/Q8_0", "rtn/5-32-sym",
    "head/Q4_0", "file/Q6_K",
)  # fmt: skip
DIFFERENCES = (
    ("block/Q4_0", "rtn/4-32-sym"), ("block/Q4_1", "rtn/4-16-sym"), ("block/Q5_0", "rtn/5-32-sym"),
    ("block/Q4_1", "block/Q4_0"), ("file/Q4_0", "block/Q4_0"), ("file/Q4_K_M", "block/Q5_0"),
    ("file/Q4_K_M", "file/Q4_0"), ("file/Q6_K", "block/Q8_0"), ("head/Q4_0", "head/Q8_0"),
    ("file/Q4_0-imatrix", "file/Q4_0"), ("file/Q4_K_M-imatrix", "file/Q4_K_M"),
)  # fmt: skip
PROTOCOL = (
    "SmolLM2-135M-Instruct, fp32, channels shuffled. block, rtn: 210 linear layers, head dense; "
    "head: the embedding, which is also the head, alone. "
    "file: quantized by llama.cpp from our F32 file, head included, decoded by our codecs; "
    "imatrix: mean squares of inputs over 4,096 calibration tokens. KL to fp32 in nats per token "
    "on 4,096 evaluation tokens of other documents, the text of unit 08; 95 % intervals from the "
    "means of 8 windows (Student's t), differences paired by window. run: llama.cpp on the first "
    "2 windows and 8 prompts of 64 tokens, 32 greedy tokens each, against our dequantized copy"
)


def brief(result):
    """What to print of one point while the study runs."""
    return f"KL {np.mean(result['kl']):.4f}"


def key(point):
    """A point as part of a value's name."""
    return point.replace("/", "_").replace("-", "_")


def values(points):
    """{name: fields of ledger.Value} of the points that are there."""
    found = {}
    for point, result in points.items():
        name = key(point)
        if point.startswith("run/"):
            found |= _run(name, result)
            continue
        found |= base._text("", name, result, None)
        if point.startswith("file/"):
            found |= _content(name, result)
        if "bits" in result:
            found[f"{name}_bits"] = {"value": result["bits"]}
    for a, b in DIFFERENCES:
        if a in points and b in points:
            gap = np.subtract(points[a]["kl"], points[b]["kl"])
            found[f"{key(a)}_minus_{key(b)}"] = base._spread(gap)
    return found


def _content(name, result):
    """The file's table: megabytes, bits per weight with and without the embedding, its types."""
    rows = [gguf_content.Row(n, kind, tuple(shape), b) for n, kind, shape, b in result["types"]]
    linear = [row for row in rows if row.name.startswith("blk.")]
    found = {
        "mb": sum(row.nbytes for row in rows) / 1e6,
        "bits": gguf_content.bits_per_weight(rows),
        "linear_bits": gguf_content.bits_per_weight(linear),
    }
    for kind, (tensors, _, nbytes) in gguf_content.summary(rows).items():
        found |= {f"tensors_{kind}": tensors, f"mb_{kind}": nbytes / 1e6}
    if "same_bytes" in result:
        found |= dict(zip(("same", "tensors"), result["same_bytes"], strict=True))
    return {f"{name}_{key}": {"value": value} for key, value in found.items()}


def _run(name, result):
    kl, n = float(np.mean(result["kl"])), len(result["greedy"])
    whole = sum(g == NEW_TOKENS for g in result["greedy"])
    return {
        f"{name}_kl": {"value": kl, "n": len(result["kl"])},
        f"{name}_log10_kl": {"value": math.log10(max(kl, 1e-12))},
        f"{name}_same_percent": {"value": 100 * float(np.mean(result["same"]))},
        f"{name}_largest": {"value": max(result["largest"])},
        f"{name}_greedy": {"value": float(np.mean(result["greedy"])), "n": n},
        f"{name}_greedy_whole": {"value": whole, "n": n},
    }
