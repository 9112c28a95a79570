"""The study of unit 07: INT8 activations, the AWQ ladder, and the libraries, on the whole model.

Does: run each point (see points.py) and write `records/07-activation-aware.json` once all are
there. Resumable: finished points lie under `_build/studies` and are reused while the code that
makes them is the same. `make records` runs
    python -m utils.awq_study.study [--minutes 3] [--only text/search]
Does not: time anything.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path

from utils import cache, ledger
from utils.awq_study import libraries, points, recipes, summary
from utils.quantization import activation_aware, activations, awq, capture, outliers, sites

UNIT = "07-activation-aware"
POINTS = summary.POINTS
STUDIES = ledger.ROOT / "_build" / "studies"


def code_sha256():
    """Hash of the code that measures; the model and the texts are pinned by their own hashes."""
    used = (
        points,
        recipes,
        libraries,
        activation_aware,
        activations,
        awq,
        capture,
        outliers,
        sites,
    )
    parts = [ledger.file_sha256(module.__file__) for module in used]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


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
        bench, began = bench or points.Bench(found), time.monotonic()
        found[point] = bench.run(point)
        took = time.monotonic() - began
        print(f"{point}: {took:.0f} s {summary.brief(found[point])}", flush=True)
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
