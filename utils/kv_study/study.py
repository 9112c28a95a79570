"""The study of unit 09's caches and FP8 recipes on the whole model.

Does: run each point (see points.py) and write `records/09-gguf-and-kv.json` once all are there.
Resumable: finished points lie under `_build/studies` and are reused while the code that makes them
is the same. `make records` runs
    python -m utils.kv_study.study [--minutes 3] [--only kv/512]
Does not: time anything.
"""

import json
from functools import cache as once
from pathlib import Path

from utils import ledger, studies
from utils.kv_study import points, recipes, summary
from utils.quantization import fp8_recipes, kv_cache, kv_tiles, packing

UNIT = "09-gguf-and-kv"
POINTS = summary.POINTS
STUDIES = ledger.ROOT / "_build" / "studies"


def code_sha256():
    """Hash of the code that measures; the model and the texts are pinned by their own hashes."""
    used = (points, recipes, fp8_recipes, kv_cache, kv_tiles, packing)
    return studies.code_sha256(used)


def finished(path=STUDIES / f"{UNIT}.json"):
    """{point: result} of what was measured by the present code."""
    if not path.exists():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content["points"] if content["code"] == code_sha256() else {}


def main(minutes=None, only=None):
    """Run what is missing; True when the record is written."""
    path, found = STUDIES / f"{UNIT}.json", finished()
    bench = once(lambda: points.Bench(STUDIES))
    code = {"code": code_sha256()}
    if not studies.go_on(
        path, code, found, POINTS, lambda p: bench().run(p), minutes, only, summary.brief
    ):
        return False
    entries = summary.values({point: found[point] for point in POINTS})
    values = {name: ledger.Value(**entry) for name, entry in entries.items()}
    print(ledger.record(UNIT, Path(__file__), summary.PROTOCOL, values))
    return True


if __name__ == "__main__":
    studies.command(main, __doc__)
