"""The study of unit 04: variants by text and by task, protocols, and ten recipes.

Does: run each point (see points.py) and write `records/04-quality.json` once all are there.
Resumable: finished points lie under `_build/studies` and are reused while the code that makes them
is the same. `make records` runs
    python -m utils.quality_study.study [--minutes 3]
Does not: time anything.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path

from utils import cache, ledger, protocols, quality, scoring, tasks
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
    files = [m.__file__ for m in (points, variants, quality, protocols, tasks, scoring)]
    return hashlib.sha256("".join(map(ledger.file_sha256, files)).encode()).hexdigest()


def finished(path=STUDIES / f"{UNIT}.json"):
    """{point: result} of what was measured by the present code."""
    if not path.exists():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content["points"] if content["code"] == code_sha256() else {}


def main(minutes=None, only=None):
    """Run what is missing; True when the record is written."""
    path, start = STUDIES / f"{UNIT}.json", time.monotonic()
    found, bench = finished(path), None
    for point in [p for p in POINTS if p not in found and (only or "") in p]:
        if minutes and time.monotonic() - start > 60 * minutes:
            break
        bench, began = bench or points.Bench(), time.monotonic()
        found[point] = bench.run(point)
        print(f"{point}: {time.monotonic() - began:.0f} s", flush=True)
        with cache.write_atomically(path) as scratch:
            scratch.write_text(json.dumps({"code": code_sha256(), "points": found}), "utf-8")
    if missing := [p for p in POINTS if p not in found]:
        print(f"{len(POINTS) - len(missing)} of {len(POINTS)} points done; run again to go on")
        return False
    values = {k: ledger.Value(**v) for k, v in summary.values(found).items()}
    print(ledger.record(UNIT, Path(__file__), summary.PROTOCOL, values))
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, help="stop after so long; run again to go on")
    parser.add_argument("--only", help="only points whose name holds this")
    arguments = parser.parse_args()
    main(arguments.minutes, arguments.only)
