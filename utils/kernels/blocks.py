"""How a kernel walks over a matrix: tiles of 16 outputs, and for each the rows in blocks of 1 to 4.

A kernel is a `tile` function: 16 outputs for M rows, M being the length of its first argument. All
kernels have one signature (`MATRIX`), so that the step calls any of them through its address.

    y[m, 16 t + i] (+)= sum over k of w[16 t + i, k] * x[m, k]        first <= t < last

Rows are cut into blocks because the accumulators of a block must fit in the registers. How they
are cut changes no result: each output of each row is one chain of additions in the order of k.
"""

from typing import NamedTuple

import llvmlite.ir as ir
import numpy as np
from numba import cfunc, njit, types
from numba.extending import intrinsic

from utils.kernels import llvm
from utils.kernels.rows import add_rows, load_rows, store_rows

inner = njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
ONE, TWO, THREE, FOUR = (0,), (0,) * 2, (0,) * 3, (0,) * 4


class Job(NamedTuple):
    """One product. Addresses and strides in bytes; strides go from one row to the next.

    weights, scales, zeros: the packed matrix (see layout.py). x: activations, fp32 or int16.
    x_scale: fp32, one a row; x_sum: int32 [rows, blocks], for zero points. y: fp32 results.
    inputs: numbers along k, filling included. group: inputs for each scale. scale_bytes: 2 or 4.
    accumulate: 1 adds to what y holds.
    """

    weights: int
    scales: int
    zeros: int
    inputs: int
    group: int
    scale_bytes: int
    x: int
    x_stride: int
    x_scale: int
    x_sum: int
    x_sum_stride: int
    y: int
    y_stride: int
    rows: int
    accumulate: int


FIELDS = len(Job._fields)
WORD = ir.IntType(64)
SIGNATURE = types.void(types.int64, types.int64, types.int64)  # address of a Job, first, last
kernel = cfunc(SIGNATURE, nogil=True, cache=True, error_model="numpy")


def inner_as(name):
    """`inner` for one of several functions that are written only once.

    Each needs a name of its own: code from Numba's disk cache is linked by name, and of two
    functions with one name (compiled in two processes) one would be called for the other.
    """

    def decorate(function):
        function.__name__ = function.__qualname__ = name
        return inner(function)

    return decorate


@inner
def at(array):
    """Address of an array's first number."""
    return np.int64(array.ctypes.data)


def over_tiles(name, tile, tile_bytes):
    """A function (address of a Job, first, last) that calls `tile` for all tiles and rows.

    name: of the storage form. tile_bytes: bytes of a tile of weights for each input.
    """

    @inner_as(f"run_{name}")
    def run(address, first, last):
        job = read(address)
        for t in range(first, last):
            w = job.weights + t * tile_bytes * job.inputs
            m = 0
            while job.rows - m >= 4:
                tile(FOUR, w, t, m, job)
                m += 4
            if job.rows - m == 3:
                tile(THREE, w, t, m, job)
            elif job.rows - m == 2:
                tile(TWO, w, t, m, job)
            elif job.rows - m == 1:
                tile(ONE, w, t, m, job)

    return run


@intrinsic
def load_int(typing, address):
    """One int64 at `address`."""
    return types.int64(types.int64), lambda _, b, sig, args: llvm.load(b, WORD, args[0])


@intrinsic
def call(typing, function, job, first, last):
    """Call the kernel at address `function`; see SIGNATURE."""

    def emit(context, b, sig, args):
        signature = ir.FunctionType(ir.VoidType(), [WORD] * 3)
        b.call(b.inttoptr(args[0], signature.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit


@inner
def read(address):
    """The Job whose fields lie at `address`, 8 bytes each."""
    return Job(
        load_int(address),
        load_int(address + 8),
        load_int(address + 16),
        load_int(address + 24),
        load_int(address + 32),
        load_int(address + 40),
        load_int(address + 48),
        load_int(address + 56),
        load_int(address + 64),
        load_int(address + 72),
        load_int(address + 80),
        load_int(address + 88),
        load_int(address + 96),
        load_int(address + 104),
        load_int(address + 112),
    )


@inner
def finish(rows, total, t, m, job):
    """Write a tile of results, or add it to what is there (the residual stream)."""
    y = job.y + 64 * t + m * job.y_stride
    if job.accumulate:
        total = add_rows(total, load_rows(rows, y, job.y_stride))
    store_rows(total, y, job.y_stride)
