"""A study of many points that can be stopped and gone on with: what `utils/*/study.py` share.

    done = go_on(path, codes, found, points, measure, minutes, only)     measure what is missing
    command(main, __doc__)                                              --minutes, --only

After each point all results so far are written to `path`, beside hashes of the code that measured
them, so that nothing is lost when the run ends. But: which results are still good is for the study
to say (its `finished`), and so is what the record holds.
"""

import argparse
import hashlib
import json
import time

from utils import cache, ledger


def code_sha256(modules):
    """One hash over the files of these modules, in this order."""
    parts = [ledger.file_sha256(module.__file__) for module in modules]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def go_on(path, codes, found, points, measure, minutes=None, only=None, brief=lambda result: ""):
    """Measure the points that `found` lacks; True when none is missing.

    codes: {name: hash}, kept with the results. measure(point): a result that JSON can hold.
    minutes: start no point after so long. only: text in a point's name. brief: a result in words.
    """
    start = time.monotonic()
    for point in [p for p in points if p not in found and (only or "") in p]:
        if minutes and time.monotonic() - start > 60 * minutes:
            break
        began = time.monotonic()
        found[point] = measure(point)
        took = time.monotonic() - began
        print(f"{point}: {took:.0f} s {brief(found[point])}".rstrip(), flush=True)
        with cache.write_atomically(path) as scratch:
            scratch.write_text(json.dumps(codes | {"points": found}), "utf-8")
    missing = [p for p in points if p not in found]
    if missing:
        print(f"{len(points) - len(missing)} of {len(points)} points done; run again to go on")
    return not missing


def command(main, about):
    """Call main(minutes, only) with what the command line says."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--minutes", type=float, help="stop after so long; run again to go on")
    parser.add_argument("--only", help="only points whose name holds this")
    arguments = parser.parse_args()
    main(arguments.minutes, arguments.only)
