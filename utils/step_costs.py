"""What a step of the engine is made of: its products one by one, and the rest of it.

    Product(kind, outputs, inputs, rows)      one product by the engine's own kernel
    decode_time(engine, batch)                a whole step
    without_products(engine)                  the same step with all products taken out: fixed cost
    predicted(parts, rows, ...)               a step from its bytes and its multiply-adds

The roofline (Williams et al. 2009) lets reading and multiplying pass side by side, so that the
longer of the two counts; the plain sum is the other end. `hidden` says where between them.

But: Numba's back end only. In the step the products leave cold caches to everything else; with the
products taken out the caches stay warm, so the fixed cost measured here is a little too small.
"""

import contextlib
import statistics
import time

import numpy as np
import torch

from utils.kernels import blocks, entries, layout, step
from utils.kernels.blocks import call
from utils.kernels.weights import encode
from utils.machine import compiled, seconds_per_pass, threads_here

KINDS = ("fp32", "bf16", "fp8_e4m3", "int8", "int4")
BLOCK = 4  # rows that a kernel multiplies at once
FILL = 64  # rows of activations end on a multiple of so many numbers


def _again(kernel, job, first, last, times):
    for _ in range(times):
        call(kernel, job, first, last)


def _nothing(job, first, last):
    pass


class Product:
    """One matrix as the engine packs it, multiplied by `rows` rows of activations.

    kind: "fp32", "bf16", "fp8_e4m3", "int8", "int4". The weights are one random tile, repeated: the
    time of a product doesn't depend on them. `bytes` are those of the packed matrix alone.
    """

    def __init__(self, kind, outputs, inputs, rows=1, threads=None):
        if kind not in KINDS:
            raise ValueError(f"kind={kind!r}: one of {', '.join(KINDS)}")
        if outputs < 16 or inputs < 8 or rows < 1:
            raise ValueError(f"outputs={outputs}, inputs={inputs}, rows={rows}: 16, 8, 1 or more")
        self.rows, self.threads, self.tiles = rows, threads or threads_here(), outputs // 16
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            tile = layout.pack(encode(torch.randn(16, inputs), kind))
        self.weights = np.tile(tile.weights, self.tiles)
        self.scales = np.tile(tile.scales, self.tiles)
        self.bytes = self.weights.nbytes + self.scales.nbytes
        self.flops = 2 * 16 * self.tiles * inputs * rows
        dtype = np.int16 if kind in ("int8", "int4") else np.float32
        self.x = np.ones((rows, -(-tile.inputs // FILL) * FILL), dtype)
        self.x_scale = np.ones(rows, np.float32)
        self.y = np.zeros((rows, 16 * self.tiles), np.float32)
        self.kernel, self.job = entries.address(kind), self._job(tile)

    @property
    def intensity(self):
        """FLOP for each byte of the packed matrix."""
        return self.flops / self.bytes

    def _job(self, tile):
        """The fields of blocks.Job, 8 bytes each; what they point to is kept by this object."""
        at = [a.ctypes.data for a in (self.weights, self.scales, self.x, self.x_scale, self.y)]
        weights, scales, x, x_scale, y = at
        sizes = tile.inputs, tile.group, tile.scales.itemsize
        rest = 0, 0, y, self.y.strides[0], self.rows, 0
        job = blocks.Job(weights, scales, 0, *sizes, x, self.x.strides[0], x_scale, *rest)
        return np.array(job, np.int64)

    def seconds(self, repeats=3):
        """Best seconds of one product, by all threads."""
        edges = [self.tiles * t // self.threads for t in range(self.threads + 1)]
        cuts = zip(edges, edges[1:], strict=False)
        shares = [(self.kernel, self.job.ctypes.data, a, b) for a, b in cuts]
        return seconds_per_pass(compiled(_again), shares, repeats)


def decode_time(engine, batch, context=16, repeats=3):
    """A function that measures the seconds of one step of `batch` texts of `context` tokens."""

    def once_more():
        samples = []
        for _ in range(repeats):
            for slot in range(batch):
                _hold(engine, slot, context)
            start = time.perf_counter()
            engine.decode([5] * batch)
            samples.append(time.perf_counter() - start)
        return statistics.median(samples)

    return once_more


def _hold(engine, slot, context):
    held = min(context, engine.length(slot))
    engine.crop(held, slot)
    if held < context:
        engine.step([5] * (context - held), slot=slot, rows=1)


@contextlib.contextmanager
def without_products(engine):
    """Inside the block the engine's products do nothing: a step's time is its fixed cost.

    What it computes is meaningless then: use `engine.reset()` afterwards. ValueError for an engine
    of another back end than Numba's.
    """
    if engine.backend_name != "numba":
        raise ValueError(
            f"back end {engine.backend_name!r}: only Numba's products can be taken out"
        )
    empty = entries.compiled(_nothing).address
    tables = engine.backend.model.matrices, engine.backend.model.head
    kept = [table[..., step.KERNEL].copy() for table in tables]
    try:
        for table in tables:
            table[..., step.KERNEL] = empty
        yield engine
    finally:
        for table, kernels in zip(tables, kept, strict=True):
            table[..., step.KERNEL] = kernels


def matrices(engine):
    """{kind: (bytes, weights)} of an engine's matrices, the tied embedding counted once."""
    found = {}
    for packed in engine.backend.packed.values():
        size, count = found.get(packed.kind, (0, 0))
        found[packed.kind] = size + packed.nbytes, count + packed.outputs * packed.inputs
    return found


def block_rate(rates, rows):
    """FLOP/s of a kernel at `rows` rows, which it does in blocks of 4 and a rest.

    rates: {1: FLOP/s, 2: ..., 3: ..., 4: ...}, each measured on a matrix that stays in cache.
    """
    if rows < 1:
        raise ValueError(f"rows={rows}: need 1 or more")
    rest = rows % BLOCK
    seconds = (rows - rest) / rates[BLOCK] + (rest / rates[rest] if rest else 0)
    return rows / seconds


def times(parts, rows, read_bandwidth, rates):
    """[(seconds of reading, seconds of multiplying)] for each kind of matrix, one after the other.

    parts: as `matrices` returns them. rates: {kind: {rows: FLOP/s}}, see `block_rate`.
    """
    return [
        (size / read_bandwidth, 2 * rows * count / block_rate(rates[kind], rows))
        for kind, (size, count) in parts.items()
    ]


def predicted(parts, rows, read_bandwidth, rates, fixed=0.0, hidden=1.0):
    """Seconds of a step: for each kind of matrix the longer of two times, and `fixed`.

    hidden: the share of the shorter time that passes beside the longer one. 1 is the roofline, 0
    the plain sum. The other arguments are those of `times`.
    """
    pairs = times(parts, rows, read_bandwidth, rates)
    return fixed + sum(max(pair) + (1 - hidden) * min(pair) for pair in pairs)


def hidden_share(seconds, parts, rows, read_bandwidth, rates, fixed=0.0):
    """The `hidden` with which `predicted` gives `seconds`; below 0 where even the sum is less."""
    pairs = times(parts, rows, read_bandwidth, rates)
    longer, shorter = sum(map(max, pairs)), sum(map(min, pairs))
    return 1 - (seconds - fixed - longer) / shorter


def binding_rows(parts, read_bandwidth, rates, candidates):
    """The first of `candidates` rows at which multiplying takes longer than reading; or None."""
    for rows in candidates:
        pairs = times(parts, rows, read_bandwidth, rates)
        if sum(multiplying for _, multiplying in pairs) > sum(reading for reading, _ in pairs):
            return rows
    return None
