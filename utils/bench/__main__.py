"""`make bench`: measure, and write records/bench.json. A quarter of an hour on two idle cores.

    python -m utils.bench              everything
    python -m utils.bench --quick      few rounds and prompts, written under _build: a trial
    python -m utils.bench --again context_ms      one part of the record anew, the rest stays

Close what else runs: two threads that share their cores with others are slowed tenfold.
"""

import argparse
import json
import sys

from utils import ledger, models
from utils.bench import protocol
from utils.device import detect

QUICK = protocol.Plan(rounds=2, new_tokens=16, prompts=1, contexts=(64,), tokens=512)


def main(arguments=None):
    """Run the study and write its record; returns the exit status."""
    options = argparse.ArgumentParser(prog="python -m utils.bench", description=__doc__)
    options.add_argument("--quick", action="store_true", help="a trial, written under _build")
    options.add_argument("--again", choices=protocol.PARTS, help="measure one part anew")
    chosen = options.parse_args(arguments)
    quick = chosen.quick
    device = detect()
    if device.kind != "cpu":
        print(f"the bench compares engines on the CPU; this machine's {device.kind} stays idle")
    plan = QUICK if quick else protocol.Plan()
    loaded = models.load(device=detect("cpu"))
    if chosen.again:
        old = json.loads(protocol.RECORD.read_text(encoding="utf-8"))
        record = protocol.again(old, chosen.again, loaded, plan, say)
    else:
        record = protocol.run(loaded, plan, say)
    target = ledger.ROOT / "_build" / "evidence" / "bench.json" if quick else protocol.RECORD
    protocol.write(record, target)
    print(f"\nwritten: {target.relative_to(ledger.ROOT)}")
    for name, ratio in record["ratios"].items():
        print(f"{name:40s} {protocol.shown(ratio)}")
    return 0


def say(text):
    """Progress on one line of the error output."""
    print(f"\r{text:78s}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
