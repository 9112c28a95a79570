"""The study of unit 08: RTN and GPTQ on the whole model, and why GPTQ gains so little.

Does: run each point (see points.py) and write `records/08-gptq.json` once all are there.
Resumable: finished points lie under `_build/studies` and are reused while the code that makes them
is the same. `make records` runs
    python -m utils.gptq_study.study [--minutes 3] [--only text/first]
Does not: time anything, or choose the factor on evaluation text (summary.py does, on "choice").
"""

import json
from functools import cache as once
from pathlib import Path

from utils import ledger, studies
from utils.gptq_study import combined, points, recipes, summary
from utils.quantization import gptq, gptq_model, hessian, rtn
from utils.sparsity import sparsegpt, statistics

UNIT = "08-gptq"
POINTS = (*summary.POINTS, *combined.POINTS)
STUDIES = ledger.ROOT / "_build" / "studies"


def code_sha256():
    """Hash of the code that measures; the model and the texts are pinned by their own hashes."""
    used = (points, recipes, gptq, gptq_model, hessian, rtn, sparsegpt, statistics)
    return studies.code_sha256(used)


def finished(path=STUDIES / f"{UNIT}.json"):
    """{point: result} of what was measured by the present code."""
    if not path.exists():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["code"] != code_sha256():
        return {}
    same = content.get("combined") == combined.code_sha256()
    return {p: r for p, r in content["points"].items() if same or p not in combined.POINTS}


def main(minutes=None, only=None):
    """Run what is missing; True when the record is written."""
    path, found = STUDIES / f"{UNIT}.json", finished()
    bench = once(lambda: combined.Bench(STUDIES))
    codes = {"code": code_sha256(), "combined": combined.code_sha256()}
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
