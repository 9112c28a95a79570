"""The study of unit 10: what training recovers after rounding, and what it costs.

Does: run each point (see points.py) and write `records/10-qat.json` once all are there.
Resumable: finished points lie under `_build/studies`, training in between in checkpoints there;
both are reused while the code that makes them is the same. `make records` runs
    python -m utils.qat_study.study [--minutes 3] [--only ptq/rtn]
Does not: choose anything on evaluation text (rates are chosen by the loss on training text that the
student has not seen yet), or time anything but the process's own CPU seconds.
"""

import json
from functools import cache as once
from pathlib import Path

from utils import ledger, studies
from utils.gptq_study import points as gptq_points
from utils.gptq_study import recipes
from utils.qat_study import arms, points, summary
from utils.quantization import adapters, distillation, fake_quant, gptq, gptq_model, qat, rtn

UNIT = "10-qat"
STUDIES = ledger.ROOT / "_build" / "studies"
POINTS = summary.POINTS


def code_sha256():
    """Hash of the code that measures; the model and the texts are pinned by their own hashes."""
    own = (points, arms, adapters, distillation, fake_quant, qat)
    return studies.code_sha256((*own, gptq_points, recipes, gptq, gptq_model, rtn))


def finished(path=STUDIES / f"{UNIT}.json"):
    """{point: result} of what was measured by the present code."""
    if not path.exists():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content["points"] if content["code"] == code_sha256() else {}


def main(minutes=None, only=None):
    """Run what is missing; True when the record is written."""
    path, found = STUDIES / f"{UNIT}.json", finished()
    bench = once(lambda: points.Bench(STUDIES, found))
    codes = {"code": code_sha256()}
    if not studies.go_on(
        path, codes, found, POINTS, lambda p: bench().run(p), minutes, only, summary.brief
    ):
        return False
    entries = summary.values({point: found[point] for point in POINTS})
    values = {name: ledger.Value(**entry) for name, entry in entries.items()}
    print(ledger.record(UNIT, Path(__file__), summary.PROTOCOL, values))
    return True


if __name__ == "__main__":
    studies.command(main, __doc__)
