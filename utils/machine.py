"""What this machine can do: bytes per second by size, FLOP per second by shape.

    bandwidth("read" | "copy" | "triad", megabytes)   loops compiled by Numba, one slice a thread
    gemm(n), gemv(n)                                  torch's products

Bytes are counted as STREAM counts them (McCalpin 1995): those that the program names. A store to a
line that no cache holds reads the line first, so by traffic copy moves 3/2 and triad 4/3 of that.

But: the loops run on the CPU; on other devices `bandwidth` uses torch's operators. Times are the
best of a few: what the machine can do, not what it does on average. See `step_costs.py` for the
engine's own kernels.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache as once
from pathlib import Path

import numpy as np
import torch
from numba import njit

from utils import measure
from utils.device import detect
from utils.kernels import jit

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
COUNTED = {"read": 1, "copy": 2, "triad": 3}  # arrays that a kernel names
SHORTEST = 0.01  # seconds of one timing, so that starting the threads doesn't count


def threads_here():
    """Threads that the engine would use: as many as torch, within the container's quota."""
    return min(detect("cpu").threads, torch.get_num_threads())


def caches(folder=CACHES):
    """{level: bytes} of the data caches that one core sees; {} where the system doesn't tell."""
    found = {}
    for index in sorted(folder.glob("index*")):
        kind, level, size = [(index / n).read_text().strip() for n in ("type", "level", "size")]
        if kind != "Instruction":
            found[int(level)] = int(size.rstrip("K")) * 1024
    return found


def _read(x, y, z, times):
    for _ in range(times):
        total = 0
        for i in range(x.size):
            total += x[i]
        y[0] += total  # so that no pass can be left out


def _copy(x, y, z, times):
    for _ in range(times):
        for i in range(x.size):
            y[i] = x[i]


def _triad(x, y, z, times):
    for _ in range(times):
        for i in range(x.size):
            y[i] = x[i] + 3 * z[i]


@once
def compiled(function):
    with jit.cached():
        return njit(nogil=True, cache=True, error_model="numpy")(function)


@once
def _pool(threads, process):
    return ThreadPoolExecutor(threads)


def seconds_per_pass(function, shares, repeats=3):
    """Best seconds of one pass of `function(*share, times)`, each share in a thread of its own."""
    pool, times = _pool(len(shares), os.getpid()), 1

    def run():
        start = time.perf_counter()
        for job in [pool.submit(function, *share, times) for share in shares]:
            job.result()
        return time.perf_counter() - start

    run()  # warms up, and compiles
    while (found := run()) < SHORTEST:
        times *= 2 if found > SHORTEST / 4 else 8
    return min(found, *(run() for _ in range(repeats))) / times


class Loop:
    """A loop over arrays of `megabytes` in all, cut into one slice for each thread (CPU).

    kernel: "read", "copy" or "triad". `bytes` of a pass as STREAM counts. ValueError for another
    kernel, no megabytes or no threads.
    """

    def __init__(self, kernel, megabytes, threads=None):
        arrays, threads = _arrays_of(kernel), threads_here() if threads is None else threads
        if megabytes <= 0 or threads < 1:
            raise ValueError(f"megabytes={megabytes}, threads={threads}: both must be positive")
        size = max(8, int(1e6 * megabytes) // (8 * arrays * threads))
        lengths = [size if i < arrays else 8 for i in range(3)]
        self.shares = [[np.ones(n, np.int64) for n in lengths] for _ in range(threads)]
        self.bytes = 8 * arrays * size * threads
        self.function = compiled({"read": _read, "copy": _copy, "triad": _triad}[kernel])

    def rate(self, repeats=3):
        """Bytes per second, best of a few."""
        return self.bytes / seconds_per_pass(self.function, self.shares, repeats)


def bandwidth(kernel, megabytes, threads=None, repeats=3, device=None):
    """Bytes per second of "read", "copy" or "triad" over arrays of `megabytes` in all."""
    if (device or detect("cpu")).kind != "cpu":
        return _bandwidth_of_torch(kernel, megabytes, repeats, device)
    return Loop(kernel, megabytes, threads).rate(repeats)


def _arrays_of(kernel):
    if kernel not in COUNTED:
        raise ValueError(f"kernel={kernel!r}: one of {', '.join(COUNTED)}")
    return COUNTED[kernel]


def _bandwidth_of_torch(kernel, megabytes, repeats, device):
    arrays = _arrays_of(kernel)
    x, y, z = torch.ones(3, int(1e6 * megabytes) // (4 * arrays), device=device.torch)
    work = {
        "read": x.sum,
        "copy": lambda: y.copy_(x),
        "triad": lambda: torch.add(x, z, alpha=3, out=y),
    }[kernel]
    timing = measure.compare({kernel: work}, repeats, device)[kernel]
    return arrays * x.nbytes / min(timing.samples)


def gemm(n, dtype=torch.float32, device=None, repeats=5):
    """FLOP/s of torch's product of two n x n matrices: 2 n^3 operations."""
    passes, device = _passes(2e8, n, 3), device or detect()
    a, b = torch.ones(2, n, n, dtype=dtype, device=device.torch)
    return 2 * n**3 / _best(lambda: a @ b, passes, device, repeats)


def gemv(n, dtype=torch.float32, device=None, repeats=5):
    """Bytes/s at which torch's product of an n x n matrix and a vector reads the matrix."""
    passes, device = _passes(2e7, n, 2), device or detect()
    a, b = (torch.ones(*shape, dtype=dtype, device=device.torch) for shape in ((n, n), (n,)))
    return a.nbytes / _best(lambda: a @ b, passes, device, repeats)


def _passes(flops, n, power):
    """Passes of one timing, about `flops` operations in all; ValueError for no matrix."""
    if n < 1:
        raise ValueError(f"n={n}: a matrix has 1 row or more")
    return max(1, int(flops / n**power))


def _best(work, passes, device, repeats):
    def run():
        for _ in range(passes):
            work()

    return min(measure.compare({"work": run}, repeats, device)["work"].samples) / passes
