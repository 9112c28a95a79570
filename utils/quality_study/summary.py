"""From the study's lists to the values of its record: means, intervals, paired differences.

Intervals are 95 %. Means over text: Student's t over windows. Differences and ratios: paired
bootstrap over windows or items. Accuracies: Wilson's interval. Shares are given in percent.
"""

import numpy as np
from scipy import stats

from utils import power

PROTOCOL = (
    "SmolLM2-135M-Instruct, fp32 as reference, one thread or more; text: 32 windows of 256 tokens "
    "without BOS, half from Botchan chapters 7-11, half from the Django documentation (odd pages), "
    "first token of a window not scored; norms tuned on 16 windows of the calibration split; "
    "200 entity, 120 cloze, 40 HumanEval items, greedy match with teacher forcing; 100 entity "
    "items ranked; protocols on the first 4,096 tokens of Botchan 7-11; 16 texts of 160 tokens "
    "drawn from fp32; ten random 4-bit recipes on 16 windows. 95 % intervals: t over windows, "
    "paired bootstrap over windows or items, Wilson for accuracies"
)
RESAMPLES, SPLITS = 4000, 2000


def values(found):
    """{name: fields of ledger.Value} of all points."""
    result = {}
    for point, data in found.items():
        kind, *rest = point.split("/")
        key = "_".join(rest).replace("-", "_")
        if kind == "text":
            result |= _text(key, data)
        elif kind == "own":
            result |= {f"own_{k}": v for k, v in _text(key, data).items() if "fp32" not in k}
        elif kind == "protocol":
            result[f"protocol_{key}"] = {"value": data["ppl"], "n": data["tokens"]}
        elif kind == "rank":
            result |= _accuracy(f"ranked_{key}", np.array(data["correct"]))
    for task in ("entities", "cloze", "humaneval"):
        start = f"task/{task}/"
        mine = {p.removeprefix(start): d for p, d in found.items() if p.startswith(start)}
        result |= _task(task, mine)
    recipes = [found[p]["nll"] for p in sorted(found) if p.startswith("recipe/")]
    return result | _recipes(np.array(recipes))


def _text(key, data):
    column = {k: np.array(v) for k, v in data.items() if isinstance(v, list)}
    n, change = data["tokens"], column["change"]
    ratio = [np.exp(x) for x in _bootstrap(change)]
    middle, _, rare, largest = column["kl_quantiles"]
    result = {
        f"{key}_ppl": {"value": float(np.exp(column["nll"].mean())), "n": n},
        "fp32_ppl": {"value": float(np.exp(column["nll_reference"].mean())), "n": n},
        f"{key}_ppl_ratio": _fields(*ratio, n),
        f"{key}_change": _fields(*_t_interval(change), n),
        f"{key}_kl": _fields(*_t_interval(column["kl"]), n),
        f"{key}_signed": _fields(*_t_interval(change - column["kl"]), n),
        f"{key}_flips": _fields(*(100 * np.array(_t_interval(column["flip"]))), n),
        f"{key}_kl_median": {"value": float(middle)},
        f"{key}_kl_p99": {"value": float(rare)},
        f"{key}_kl_largest": {"value": float(largest)},
        f"{key}_worse": {"value": 100 * data["change_positive"], "n": n},
    }
    for name in ("kl", "flip", "nll", "change"):
        if f"{name}_naive_error" in data:
            error, naive = _error(column[name]), data[f"{name}_naive_error"]
            result[f"{key}_{name}_design"] = {"value": float((error / naive) ** 2), "n": n}
            result[f"{key}_{name}_se"] = {"value": float(error), "n": n}
    return result


def _task(task, by_variant):
    reference = {k: np.array(v) for k, v in by_variant["fp32"].items()}
    result = {}
    for variant, data in by_variant.items():
        key = f"{task}_{variant}".replace("-", "_")
        right, nll = np.array(data["correct"]), np.array(data["nll"])
        result |= _accuracy(key, right)
        result[f"{key}_nll"] = {"value": float(nll.mean()), "n": len(nll)}
        if variant == "fp32":
            continue
        pair = power.mcnemar(reference["correct"], right)
        result[f"{key}_difference"] = _fields(
            *(100 * np.array(_bootstrap(right - reference["correct"]))), pair.n
        )
        result[f"{key}_discordant"] = {"value": 100 * pair.discordant, "n": pair.n}
        result[f"{key}_lost"] = {"value": pair.only_a, "n": pair.n}
        result[f"{key}_won"] = {"value": pair.only_b, "n": pair.n}
        result[f"{key}_p_value"] = {"value": pair.p_value, "n": pair.n}
        result[f"{key}_nll_change"] = _fields(*_bootstrap(nll - reference["nll"]), len(nll))
        if reference["correct"].any():
            kept = _bootstrap_ratio(right, reference["correct"])
            result[f"{key}_kept"] = _fields(*(100 * np.array(kept)), pair.n)
    return result


def _accuracy(key, right):
    interval = stats.binomtest(int(right.sum()), len(right)).proportion_ci(method="wilson")
    percent = 100 * np.array([right.mean(), interval.low, interval.high])
    error = 100 * float(np.sqrt(right.mean() * (1 - right.mean()) / len(right)))
    return {f"{key}_accuracy": _fields(*percent, len(right)), f"{key}_se": {"value": error}}


def _recipes(nll):
    """Pick the best recipe on half of the windows, look at it on the other half; many splits."""
    dice, (count, windows) = np.random.Generator(np.random.PCG64(0)), nll.shape
    chosen, fresh = [], []
    for _ in range(SPLITS):
        order = dice.permutation(windows)
        here, there = (nll[:, part].mean(axis=1) for part in np.split(order, 2))
        best = here.argmin()
        chosen.append(here.mean() - here[best])
        fresh.append(there.mean() - there[best])
    first, second = (nll[:, part].mean(axis=1) for part in np.split(np.arange(windows), 2))
    best = first.argmin()
    return {
        "recipes_gain_chosen": {"value": float(np.mean(chosen)), "n": SPLITS},
        "recipes_gain_fresh": {"value": float(np.mean(fresh)), "n": SPLITS},
        "recipes_spread": {"value": float(nll.mean(axis=1).std(ddof=1)), "n": count},
        "recipes_best": {"value": int(best)},
        "recipes_rank_on_fresh": {"value": int((second < second[best]).sum()) + 1, "n": count},
    }


def _error(windows):
    return windows.std(ddof=1) / np.sqrt(len(windows))


def _t_interval(windows):
    """(mean, low, high) of the windows' means."""
    reach = stats.t.ppf(0.975, len(windows) - 1) * _error(windows)
    return windows.mean(), windows.mean() - reach, windows.mean() + reach


def _bootstrap(values):
    """(mean, low, high) of independent items."""
    means = values[_picks(len(values))].mean(axis=1)
    return values.mean(), *np.quantile(means, [0.025, 0.975])


def _bootstrap_ratio(top, bottom):
    picks = _picks(len(top))
    ratios = top[picks].mean(axis=1) / np.maximum(bottom[picks].mean(axis=1), 1e-9)
    return top.mean() / bottom.mean(), *np.quantile(ratios, [0.025, 0.975])


def _picks(n):
    dice = np.random.Generator(np.random.PCG64(0))
    return dice.integers(n, size=(RESAMPLES, n))


def _fields(value, low, high, n):
    value = float(value)
    return {"value": value, "low": min(float(low), value), "high": max(float(high), value), "n": n}
