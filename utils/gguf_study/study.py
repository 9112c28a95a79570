"""The study of unit 09's GGUF part: block formats and llama.cpp's files on the whole model.

Does: run each point (see points.py) and write `records/09-gguf.json` once all are there.
Resumable: finished points lie under `_build/studies` and are reused while the code that makes them
is the same. `make records` runs
    python -m utils.gguf_study.study [--minutes 3] [--only block]
Needs llama-cpp-python (requirements-bench.txt) for "file" and "run"; without it those points are
not run, which is said, and no record is written.
Does not: time anything.
"""

import json
from functools import cache as once
from pathlib import Path

from utils import ledger, studies
from utils.bench import llamacpp, llamacpp_quantize
from utils.gguf_study import points, summary
from utils.quantization import gguf, gguf_content, gguf_file, gguf_kquants, rtn
from utils.sparsity import statistics

UNIT = "09-gguf"
STUDIES = ledger.ROOT / "_build" / "studies"


def code_sha256():
    """Hash of the code that measures; the model and the texts are pinned by their own hashes."""
    used = (points, gguf, gguf_content, gguf_file, gguf_kquants, rtn, statistics)
    return studies.code_sha256((*used, llamacpp, llamacpp_quantize))


def finished(path=STUDIES / f"{UNIT}.json"):
    """{point: result} of what was measured by the present code."""
    if not path.exists():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content["points"] if content["code"] == code_sha256() else {}


def possible():
    """The points that this machine can measure; says what is missing and how to get it."""
    try:
        llamacpp.library()
    except llamacpp.Missing as missing:
        print(f"points with llama.cpp are not run: {missing}")
        return tuple(p for p in summary.POINTS if not p.startswith(("file/", "run/")))
    return summary.POINTS


def main(minutes=None, only=None):
    """Run what is missing; True when the record is written."""
    path, found, todo = STUDIES / f"{UNIT}.json", finished(), possible()
    bench = once(lambda: points.Bench(STUDIES))
    code = {"code": code_sha256()}
    complete = studies.go_on(
        path, code, found, todo, lambda p: bench().run(p), minutes, only, summary.brief
    )
    if not complete or any(p not in found for p in summary.POINTS):
        return False
    entries = summary.values({point: found[point] for point in summary.POINTS})
    values = {name: ledger.Value(**entry) for name, entry in entries.items()}
    print(ledger.record(UNIT, Path(__file__), summary.PROTOCOL, values))
    return True


if __name__ == "__main__":
    studies.command(main, __doc__)
