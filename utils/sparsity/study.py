"""The full table of unit 11: three methods, three sparsities and 2:4, on the whole model.

Does: prune a fresh copy for each point, compare it with the dense model on 4,096 tokens, and write
`records/11-weight-sparsity.json` once all points are there. Resumable: finished points lie under
`_build/studies` and are reused while the code that makes them is the same. `make records` runs
    python -m utils.sparsity.study [--minutes 3]
Does not: time anything.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path

from scipy import stats

from utils import cache, corpus, ledger, models, quality
from utils.sparsity import prune_model, semi_structured, sparsegpt, statistics, unstructured

UNIT = "11-weight-sparsity"
METHODS = ("magnitude", "wanda", "sparsegpt")
CALIBRATION_TOKENS, EVALUATION_TOKENS = 2048, 4096
POINTS = [f"{method}_{level}" for level in (50, "24", 70, 30) for method in METHODS]
STUDIES = ledger.ROOT / "_build" / "studies"


def parse(point):
    """ "wanda_50" -> ("wanda", 0.5, None); "wanda_24" -> ("wanda", 0.5, "2:4")."""
    method, level = point.rsplit("_", 1)
    return (method, 0.5, "2:4") if level == "24" else (method, int(level) / 100, None)


class Bench:
    """The dense model, its reference on the evaluation text, and a way back to dense."""

    def __init__(self):
        loaded = models.load()
        self.model = loaded.model
        self.calibration = corpus.sample(loaded.tokenizer, "calibration", CALIBRATION_TOKENS)
        self.evaluation = corpus.sample(loaded.tokenizer, "evaluation", EVALUATION_TOKENS)
        self.reference = quality.Reference(self.model, self.evaluation.ids, batch=1)
        self.dense = {name: m.weight.clone() for name, m in models.linears(self.model).items()}

    def restore(self):
        """Dense weights again."""
        for name, module in models.linears(self.model).items():
            module.weight.copy_(self.dense[name])

    def run(self, point):
        """{name: fields of ledger.Value} of one point."""
        self.restore()
        method, sparsity, pattern = parse(point)
        report = prune_model(
            self.model, method, sparsity, pattern, self.calibration.ids.to(self.model.device)
        )
        row = quality.compare(self.reference, self.model)
        values = _values(point, row, len(self.evaluation.ids))
        return values | {f"{point}_zeros": {"value": report.zeros}}

    def protocol(self):
        """One sentence for the record."""
        return (
            "SmolLM2-135M-Instruct, fp32, 210 linear layers pruned block by block, head dense; "
            f"{self.calibration.recipe}; {self.evaluation.recipe}; damping 0.01, block 128; "
            "KL to the dense model in nats per token, 95 % intervals from window means "
            "(Student's t; the windows come from two strata, the two sources, "
            "which the intervals ignore)"
        )


def _values(point, row, windows):
    """Fields of ledger.Value; the standard errors of `row` come from the means of `windows`."""
    reach = float(stats.t.ppf(0.975, windows - 1))

    def spread(value, error):
        return {"value": value, "n": row.tokens, "low": value - reach * error,
                "high": value + reach * error}  # fmt: skip

    return {
        f"{point}_ppl": {"value": row.perplexity, "n": row.tokens},
        f"{point}_kl": spread(row.kl, row.kl_se),
        f"{point}_flips": spread(row.flips, row.top1_se),
        "dense_ppl": {"value": row.reference_perplexity, "n": row.tokens},
    }


def code_sha256():
    """Hash of this script and the pruning code; the model and the texts are pinned by their own."""
    files = [m.__file__ for m in (semi_structured, sparsegpt, statistics, unstructured)]
    parts = [ledger.file_sha256(file) for file in (__file__, *files)]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _finished(path):
    if not path.exists():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content["points"] if content["code"] == code_sha256() else {}


def main(minutes=None):
    """Run what is missing; True when the record is written."""
    path, start = STUDIES / f"{UNIT}.json", time.monotonic()
    points, bench = _finished(path), None
    for point in [p for p in POINTS if p not in points]:
        if minutes and time.monotonic() - start > 60 * minutes:
            print(f"{len(points)} of {len(POINTS)} points done; run again to go on")
            return False
        bench = bench or Bench()
        points[point] = bench.run(point)
        print(f"{point}: KL {points[point][f'{point}_kl']['value']:.3f}", flush=True)
        with cache.write_atomically(path) as scratch:
            scratch.write_text(json.dumps({"code": code_sha256(), "points": points,
                                           "protocol": bench.protocol()}), "utf-8")  # fmt: skip
    protocol = json.loads(path.read_text(encoding="utf-8"))["protocol"]
    values = {k: ledger.Value(**v) for point in points.values() for k, v in point.items()}
    print(ledger.record(UNIT, Path(__file__), protocol, values))
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, help="stop after so long; run again to go on")
    main(parser.parse_args().minutes)
