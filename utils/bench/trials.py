"""Trials that the page on the engine quotes: `python -m utils.bench.trials`, a few minutes.

    empty_products   a step whose products do nothing: what a token costs beside its matrices
    many_arrays      a plain sum over many arrays and over one block of the same size
    kernels          int8 kernels with one idea more, as times of a step over the engine's own

Writes records/kernel-trials.json; with --quick a trial of the trials, under _build. All that is
compared runs in turn within a round, and ratios are taken within a round (see speed.py).
But: what would change the step itself, such as a prefetch before each barrier, isn't here.
"""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numba import njit

from utils import ledger, models
from utils.bench import protocol, speed, trial_kernels
from utils.bench.__main__ import say
from utils.bench.schema import TRIALS
from utils.device import detect
from utils.engine import Engine
from utils.kernels.vectors import add, load_f32, splat, sum_lanes
from utils.step_costs import without_products

RECORD = ledger.RECORDS / "kernel-trials.json"
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
ARRAY_BYTES = 2**19  # about a matrix of the model at 8 bits
CONTEXT = 64
WHAT = {
    "empty_products": "int4 weights, one step of one row after 64 tokens: as it is (token_ms), "
    "and with a function that does nothing for each product (fixed_ms); share: fixed over token; "
    "product_us: token over its number of products",
    "many_arrays": "a plain sum by all threads over many arrays of 512 KiB, and over one block of "
    "the same size in the same pieces; huge_pages: the system's setting for pages of 2 MiB",
    "kernels": "int8 weights, a step of 1 or 4 rows after 64 tokens: time with another kernel "
    "over time with the engine's own; ahead: prefetch within the matrix, at this distance",
}


@dataclass(frozen=True)
class Plan:
    """How much is measured. repeats: steps per round. ahead: KiB. rows: of one step."""

    rounds: int = 21
    repeats: int = 20
    megabytes: int = 200
    ahead: tuple = (1, 4, 16)
    rows: tuple = (1, 4)


QUICK = Plan(rounds=2, repeats=2, megabytes=4, ahead=(4,))


def main(arguments=None):
    """Run the trials and write their record; returns the exit status."""
    options = argparse.ArgumentParser(prog="python -m utils.bench.trials", description=__doc__)
    options.add_argument("--quick", action="store_true", help="few rounds, written under _build")
    quick = options.parse_args(arguments).quick
    loaded = models.load(device=detect("cpu"))
    record = run(loaded.model, loaded.card.name, QUICK if quick else Plan(), say)
    target = ledger.ROOT / "_build" / "evidence" / RECORD.name if quick else RECORD
    protocol.write(record, target, TRIALS)
    print(f"\nwritten: {target.relative_to(ledger.ROOT)}")
    return 0


def run(model, name, plan, progress=lambda text: None):
    """All trials with a model; returns the record (a dict, see schema.py)."""
    about = f"{name}, batch 1, the Numba back end; medians and quartiles of "
    about += f"{plan.rounds} interleaved rounds, a step being the median of {plan.repeats}"
    trials = {
        "empty_products": empty_products(model, plan, _titled(progress, "empty products")),
        "many_arrays": many_arrays(plan, _titled(progress, "many arrays")),
        "kernels": kernels(model, plan, _titled(progress, "kernels")),
    }
    trials = {key: {"what": WHAT[key]} | found for key, found in trials.items()}
    return {"protocol": about} | protocol.machine() | {"trials": trials}


def empty_products(model, plan, progress=lambda text: None):
    """Milliseconds of a step as it is and with empty products."""
    engine = _engine(model, "int4")
    timed = speed.verify_time(engine, 1, CONTEXT, plan.repeats)

    def fixed():
        with without_products(engine):
            return timed()

    results = speed.rounds({"token": timed, "fixed": fixed}, plan.rounds, progress)
    products = 7 * engine.spec.layers + 1
    return {
        "fixed_ms": _spread(results["fixed"], 1e3),
        "token_ms": _spread(results["token"], 1e3),
        "share": speed.ratio(results, "fixed", "token"),
        "product_us": _spread(results["token"], 1e6 / products),
    }


def many_arrays(plan, progress=lambda text: None):
    """GB/s of a sum over many arrays and over one block."""
    count = max(1, plan.megabytes * 1_000_000 // ARRAY_BYTES)
    many = [np.ones(ARRAY_BYTES // 4, np.float32) for _ in range(count)]
    one = np.ones(count * ARRAY_BYTES // 4, np.float32)
    pieces = {
        "many": [array.ctypes.data for array in many],
        "one": list(range(one.ctypes.data, one.ctypes.data + one.nbytes, ARRAY_BYTES)),
    }
    workers = torch.get_num_threads()
    with ThreadPoolExecutor(workers) as pool:
        parts = {name: np.array_split(addresses, workers) for name, addresses in pieces.items()}
        candidates = {name: _reading(pool, part) for name, part in parts.items()}
        results = speed.rounds(candidates, plan.rounds, progress)
    found = {f"{name}_gb_s": _spread(rates, 1e-9) for name, rates in results.items()}
    return found | {
        "one_vs_many": speed.ratio(results, "one", "many"),
        "huge_pages": HUGE_PAGES.read_text().strip() if HUGE_PAGES.exists() else "unknown",
    }


def _reading(pool, parts):
    """A function that measures bytes per second of a sum; parts: addresses for each thread."""
    size = ARRAY_BYTES * sum(len(part) for part in parts)

    def once():
        start = time.perf_counter()
        list(pool.map(total, parts))
        return size / (time.perf_counter() - start)

    return once


@njit(nogil=True)
def total(addresses):
    """The sum of the fp32 numbers in the pieces of ARRAY_BYTES at these addresses."""
    a = b = c = d = splat(np.float32(0))
    for address in addresses:
        for at in range(address, address + ARRAY_BYTES, 256):
            a = add(a, load_f32(at))
            b = add(b, load_f32(at + 64))
            c = add(c, load_f32(at + 128))
            d = add(d, load_f32(at + 192))
    return sum_lanes(add(add(a, b), add(c, d)))


def kernels(model, plan, progress=lambda text: None):
    """{kernel: {rows: time over the engine's own}}. RuntimeError if one gives other bits."""
    engine = _engine(model, "int8")
    tried = {"two chains": trial_kernels.two_chains()}
    tried |= {f"ahead {kib} KiB": trial_kernels.ahead(kib) for kib in plan.ahead}
    ratios = {name: {} for name in tried}
    for name, kernel in tried.items():
        _check(engine, name, kernel)
    for rows in plan.rows:
        own = speed.verify_time(engine, rows, CONTEXT, plan.repeats)
        candidates = {"own": own} | {n: _with(engine, k, own) for n, k in tried.items()}
        results = speed.rounds(candidates, plan.rounds, progress)
        for name in tried:
            ratios[name][str(rows)] = speed.ratio(results, name, "own")
    return {"time_ratio": ratios}


def _with(engine, kernel, timed):
    def once():
        with trial_kernels.swapped(engine, kernel):
            return timed()

    return once


def _check(engine, name, kernel):
    """A trial kernel must do the engine's work, bit for bit."""
    ids = list(range(3, 10))
    engine.reset()
    own = engine.step(ids)
    engine.step(ids[::-1])  # so that no buffer holds what is looked for
    engine.reset()
    with trial_kernels.swapped(engine, kernel):
        same = torch.equal(engine.step(ids), own)
    engine.reset()
    if not same:
        raise RuntimeError(f"the trial kernel {name!r} gives other logits than the engine's own")


def _engine(model, kind):
    return Engine(model, kind, max_tokens=256, backend="numba", device=detect("cpu"))


def _titled(progress, title):
    return lambda text: progress(f"{title}, {text}")


def _spread(values, factor):
    return speed.spread([factor * value for value in values])


if __name__ == "__main__":
    sys.exit(main())
