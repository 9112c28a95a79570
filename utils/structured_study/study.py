"""The study of unit 12: 2:4, units removed, single channels, and training after pruning.

Does: run each point (see points.py) and write `records/12-structured-sparsity.json` once all are
there. Resumable: finished points lie under `_build/studies` and are reused while the code that
makes them is the same. `make records` runs
    python -m utils.structured_study.study [--minutes 3] [--only channels/]
Does not: time anything; `speed` does.
"""

import json
from functools import cache as once
from pathlib import Path

from utils import ledger, studies
from utils.sparsity import (
    frozen,
    gradual,
    importance,
    prune,
    recovery,
    semi_structured,
    sparsegpt,
    statistics,
    structured,
    unstructured,
)
from utils.structured_study import points, summary

UNIT = "12-structured-sparsity"
STUDIES = ledger.ROOT / "_build" / "studies"
CODE = (
    points, frozen, gradual, importance, prune, recovery, semi_structured, sparsegpt, statistics,
    structured, unstructured,
)  # fmt: skip


def code_sha256():
    """Hash of the code that measures; the model and the texts are pinned by their own hashes."""
    return studies.code_sha256(CODE)


def finished(path=STUDIES / f"{UNIT}.json"):
    """{point: result} of what was measured by the present code."""
    if not path.exists():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content["points"] if content["code"] == code_sha256() else {}


def main(minutes=None, only=None):
    """Run what is missing; True when the record is written."""
    path, found = STUDIES / f"{UNIT}.json", finished()
    bench = once(lambda: points.Bench(found))
    if not studies.go_on(
        path, {"code": code_sha256()}, found, summary.POINTS, lambda p: bench().run(p),
        minutes, only, summary.brief,
    ):  # fmt: skip
        return False
    entries = summary.values({point: found[point] for point in summary.POINTS})
    values = {name: ledger.Value(**entry) for name, entry in entries.items()}
    print(ledger.record(UNIT, Path(__file__), summary.PROTOCOL, values))
    return True


if __name__ == "__main__":
    studies.command(main, __doc__)
