"""The study of unit 04: variants by text and by task, protocols, and ten recipes.

Does: run each point (see points.py) and write `records/04-quality.json` once all are there.
Resumable: finished points lie under `_build/studies` and are reused while the code that makes them
is the same. `make records` runs
    python -m utils.quality_study.study [--minutes 3]
Does not: time anything.
"""

import json
from functools import cache as once
from pathlib import Path

from utils import ledger, protocols, quality, scoring, studies, tasks
from utils.quality_study import points, summary, variants

UNIT = "04-quality"
TEXT = ("int8", "int6-g64", "int4-g64", "int4-g64-tuned", "tuned", "softer", "prune-30",
        "int3-g64", "int4-g32", "int4-g64-mse", "prune-10")  # fmt: skip
JUDGED = ("fp32", "int4-g64", "int8", "int3-g64", "int4-g64-tuned")
TASKS = ("entities", "cloze", "humaneval")
RECIPES = 10
POINTS = (
    *(f"protocol/{name}" for name in points.PROTOCOLS),
    *(f"task/entities/{name}" for name in JUDGED),
    *(f"text/{name}" for name in TEXT),
    "rank/entities/fp32",
    *(f"task/{task}/{name}" for name in JUDGED for task in TASKS[1:]),  # a variant is kept
    "own/int4-g64",
    "rank/entities/int4-g64",
    *(f"recipe/{number}" for number in range(RECIPES)),
)
STUDIES = ledger.ROOT / "_build" / "studies"


def code_sha256():
    """Hash of the code that measures; the model and the texts are pinned by their own hashes."""
    return studies.code_sha256((points, variants, quality, protocols, tasks, scoring))


def finished(path=STUDIES / f"{UNIT}.json"):
    """{point: result} of what was measured by the present code."""
    if not path.exists():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content["points"] if content["code"] == code_sha256() else {}


def main(minutes=None, only=None):
    """Run what is missing; True when the record is written."""
    path, found = STUDIES / f"{UNIT}.json", finished()
    bench = once(points.Bench)
    if not studies.go_on(
        path, {"code": code_sha256()}, found, POINTS, lambda p: bench().run(p), minutes, only
    ):
        return False
    values = {k: ledger.Value(**v) for k, v in summary.values(found).items()}
    print(ledger.record(UNIT, Path(__file__), summary.PROTOCOL, values))
    return True


if __name__ == "__main__":
    studies.command(main, __doc__)
