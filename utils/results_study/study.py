"""The study behind the page of results: every method on the same text.

Does: measure each row (see rows.py, points.py) and write `records/results.json` once all are there.
Resumable: finished rows lie under `_build/studies` and are reused while the code that makes them
is the same. Then, alone on a quiet machine, the speed of each form that the engine reads:
    python -m utils.results_study [--minutes 3] [--only NVFP4]
    python -m utils.results_study.speed
Does not: choose anything on the evaluation text.
"""

import json
from functools import cache as once

from utils import ledger, studies
from utils.bench.protocol import machine, write
from utils.gptq_study import points as gptq_points
from utils.gptq_study import recipes as gptq_recipes
from utils.quantization import (
    activation_aware,
    activations,
    awq,
    capture,
    codebook,
    full_range,
    gguf,
    gptq,
    gptq_model,
    hessian,
    microscaling,
    outliers,
    rtn,
    sites,
)
from utils.results_study import forms, points, summary
from utils.results_study.rows import BY_NAME, ORDER

UNIT = "results"
RECORD = ledger.RECORDS / f"{UNIT}.json"
STUDIES = ledger.ROOT / "_build" / "studies"
ALWAYS = (forms, points, gptq_points, rtn, codebook, full_range, gguf, microscaling)
GPTQ = (gptq_recipes, gptq, gptq_model, hessian)
USED = {  # by what a recipe's name holds
    "activations": (activations, outliers),
    "awq": (activation_aware, awq, capture, sites),
    "gptq": GPTQ,
    "plain": GPTQ,
    "first": GPTQ,
}


def code_sha256(recipe):
    """Hash of the code behind a recipe; the model and the texts are pinned by their own hashes."""
    used = [module for part, modules in USED.items() if part in recipe for module in modules]
    return studies.code_sha256([*ALWAYS, *used])


def finished(path=STUDIES / f"{UNIT}.json"):
    """{row's name: result} of what was measured by the present code."""
    if not path.exists():
        return {}
    kept = json.loads(path.read_text(encoding="utf-8"))["points"]
    return {
        name: result
        for name, result in kept.items()
        if name in BY_NAME and result["code"] == code_sha256(BY_NAME[name].recipe)
    }


def measure(bench, name, code):
    """One row, and the hash of the code that measured it."""
    return bench.run(BY_NAME[name]) | {"code": code[name]}


def main(minutes=None, only=None):
    """Run what is missing; True when the record is written."""
    path, found = STUDIES / f"{UNIT}.json", finished()
    bench = once(lambda: points.Bench(STUDIES))
    code = {name: code_sha256(row.recipe) for name, row in BY_NAME.items()}  # as imported now

    def one(name):
        return measure(bench(), name, code)

    if not studies.go_on(path, {}, found, ORDER, one, minutes, only, summary.brief):
        return False
    write(summary.record(found, machine(), old_speed(RECORD)), RECORD, summary.SCHEMA)
    print(f"wrote {RECORD.relative_to(ledger.ROOT)}")
    return True


def old_speed(path):
    """The speeds of the present record: they are measured apart; {} where there are none."""
    if not path.exists():
        return {}
    return json.loads(path.read_text(encoding="utf-8")).get("speed", {})


if __name__ == "__main__":
    studies.command(main, __doc__)
