"""From the points of unit 10's study to the values of its record.

Names: ARM_kl, ARM_ppl, ARM_flips of "ptq/…" and "qat/…" on the evaluation text, chat_ARM_…,
merged_adapters_…; A_minus_B and chat_A_minus_B for paired differences of KL, A_nll_minus_B of the
loss; rate_…, with first and last losses; ARM_seconds, _tokens, _trained, _changed (percent).
A point's name is its key: "ptq/first-64" is first_64, "qat/kl-3" is qat_kl_3.
"""

import numpy as np

from utils.awq_study.summary import spread
from utils.qat_study import arms


def trials(arm):
    """The points that choose the rate of an arm."""
    return tuple(f"rate/{trial}" for trial in arms.TRIALS[arm])


POINTS = (
    "ptq/rtn", "start/rtn", *trials("kl"), "qat/kl", "ptq/rtn-3", "qat/kl-3",
    "ptq/first-64", *trials("gptq"), "qat/gptq", "qat/text",
    *trials("adapters"), "qat/adapters", *trials("norms"), "qat/norms",
    "ptq/first-64-3", "qat/gptq-3",
)  # fmt: skip
DIFFERENCES = (
    ("qat_kl", "rtn"), ("qat_text", "rtn"), ("qat_text", "qat_kl"), ("qat_kl_3", "rtn_3"),
    ("qat_gptq", "first_64"), ("qat_kl", "first_64"), ("qat_gptq_3", "first_64_3"),
    ("qat_kl_3", "first_64_3"), ("qat_adapters", "rtn"), ("merged_adapters", "rtn"),
    ("merged_adapters", "qat_adapters"), ("qat_norms", "rtn"), ("qat_adapters", "qat_kl"),
)  # fmt: skip
PROTOCOL = (
    "SmolLM2-135M-Instruct, fp32, 210 linear layers, asymmetric grids of 64 weights with fp16 "
    "scales, head, embedding and norms in fp32. Training: windows of 256 tokens of the calibration "
    "text of unit 08, one window per step, each seen once, AdamW, KL to the fp32 model unless the "
    "arm says text; rates by the mean loss of the last four of eight steps, each on text not seen "
    "before. Evaluation: the 4,096 tokens of other documents of unit 08, chat: the next 4,096 in "
    "the chat format. KL to fp32 in nats per token; 95 % intervals from the means of 8 windows "
    "(Student's t), differences paired by window. Seconds: CPU time of the process, one thread"
)


def brief(result):
    """What to print of one point while the study runs."""
    words = []
    if "kl" in result:
        words.append(f"KL {np.mean(result['kl']):.4f}")
    if "losses" in result:
        late = np.mean(result["losses"][-arms.LATE :])
        words.append(f"last losses {late:.4f}, {result['tokens'] / result['seconds']:.0f} tokens/s")
    return ", ".join(words)


def values(points):
    """{name: fields of ledger.Value} of the points that are there."""
    found, judged = {}, {}
    for point, result in points.items():
        name = key(point)
        if "before" in result:
            found |= {f"{name}_{i}": {"value": x} for i, x in enumerate(result["before"])}
        if "losses" in result:
            found |= _training(name, result)
        if "kl" in result:
            judged[name] = result
        if "chat" in result:
            judged[f"chat_{name}"] = result["chat"]
        if "merged" in result:
            judged[name.replace("qat", "merged", 1)] = result["merged"]
    for name, result in judged.items():
        found |= _text(name, result)
    return found | _differences(judged)


def key(point):
    """A point as part of a value's name: "qat/kl-3" -> "qat_kl_3", "ptq/rtn" -> "rtn"."""
    name = point.removeprefix("ptq/").removeprefix("rate/")
    return name.replace("/", "_").replace("-", "_").replace(".", "p")


def _text(name, result):
    return {
        f"{name}_kl": spread(np.array(result["kl"])),
        f"{name}_flips": spread(100 * (1 - np.array(result["same"]))),
        f"{name}_nll": spread(np.array(result["nll"])),
        f"{name}_ppl": {"value": float(np.exp(np.mean(result["nll"])))},
        f"{'chat_' if name.startswith('chat_') else ''}fp32_ppl": {
            "value": float(np.exp(np.mean(result["nll_reference"])))
        },
        f"{name}_nll_minus_fp32": spread(np.subtract(result["nll"], result["nll_reference"])),
    }


def _training(name, result):
    losses = result["losses"]
    found = {
        f"{name}_loss_first": {"value": losses[0]},
        f"{name}_loss_late": {"value": float(np.mean(losses[-arms.LATE :]))},
        f"{name}_seconds": {"value": result["seconds"], "unit": "s"},
        f"{name}_tokens": {"value": result["tokens"]},
        f"{name}_rate": {"value": result["rate"]},
        f"{name}_trained": {"value": result["trained"]},
    }
    found |= {f"{name}_loss_{step}": {"value": loss} for step, loss in enumerate(losses)}
    if result["flipped"] is not None:
        found[f"{name}_changed"] = {"value": 100 * result["flipped"], "unit": "%"}
    return found


def _differences(judged):
    found = {}
    for a, b in DIFFERENCES:
        for way in ("", "chat_"):
            one, other = judged.get(way + a), judged.get(way + b)
            if one and other:
                found[f"{way}{a}_minus_{b}"] = spread(np.subtract(one["kl"], other["kl"]))
                gap = np.subtract(one["nll"], other["nll"])
                found[f"{way}{a}_nll_minus_{b}"] = spread(gap)
    return found
