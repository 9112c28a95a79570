"""Kernels that were tried and are not in the engine: int8 with one idea more each.

    two_chains     two sums for each output, so that no addition waits for the one before
    ahead          software prefetch: asks for the cache line some KiB further on in the matrix

Integer sums are exact, so these must give the bits of the engine's own kernel. `swapped` puts one
into an engine's tables; the engine's own files know nothing of it.
But: these are not kept on disk. Each process that asks for one compiles it, some seconds.
"""

import contextlib
from functools import cache as once

import llvmlite.ir as ir
from numba import cfunc, types
from numba.extending import intrinsic

from utils.kernels import llvm
from utils.kernels.blocks import SIGNATURE, inner, inner_as, over_tiles
from utils.kernels.integers import blocks
from utils.kernels.rows import dot_pairs_rows, each, zeros_i32
from utils.kernels.step import KERNEL
from utils.kernels.vectors import load_i8
from utils.step_costs import without_products


@intrinsic
def prefetch(typing, address):
    """Ask for the cache line at `address`; nothing happens where there is no memory."""

    def emit(context, b, sig, args):
        where = b.inttoptr(args[0], llvm.POINTER)
        read, keep, data = llvm.INT(0), llvm.INT(3), llvm.INT(1)
        llvm.call(b, "llvm.prefetch.p0", ir.VoidType(), where, read, keep, data)
        return context.get_dummy_value()

    return types.void(types.int64), emit


@intrinsic
def add_whole_rows(typing, tile, other):
    """tile[m] + other[m] in int32 for each row."""

    def emit(_, b, sig, args):
        return each(b, args[0], lambda m, old: b.add(old, b.extract_value(args[1], m)))

    return tile(tile, other), emit


@inner
def two_chains_dot(rows, w, x, inputs, stride):
    """For each row the sum of code * x over `inputs` numbers, an even count, in two chains."""
    one, two = zeros_i32(rows), zeros_i32(rows)
    for k in range(0, inputs - 2, 4):
        one = dot_pairs_rows(one, load_i8(w + 16 * k), x + 2 * k, stride)
        two = dot_pairs_rows(two, load_i8(w + 16 * k + 32), x + 2 * k + 4, stride)
    if inputs % 4:
        one = dot_pairs_rows(one, load_i8(w + 16 * inputs - 32), x + 2 * inputs - 4, stride)
    return add_whole_rows(one, two)


def ahead_dot(kib):
    """The same in one chain, with one prefetch for each cache line of weights, `kib` KiB ahead."""
    distance = 1024 * kib

    @inner_as(f"ahead_{kib}_dot")
    def dot(rows, w, x, inputs, stride):
        total = zeros_i32(rows)
        for k in range(0, inputs - 2, 4):
            prefetch(w + 16 * k + distance)
            total = dot_pairs_rows(total, load_i8(w + 16 * k), x + 2 * k, stride)
            total = dot_pairs_rows(total, load_i8(w + 16 * k + 32), x + 2 * k + 4, stride)
        if inputs % 4:
            total = dot_pairs_rows(total, load_i8(w + 16 * inputs - 32), x + 2 * inputs - 4, stride)
        return total

    return dot


@once
def two_chains():
    """int8 with two chains of additions for each output."""
    return _compiled("two_chains", two_chains_dot)


@once
def ahead(kib):
    """int8 that prefetches its own matrix."""
    return _compiled(f"ahead_{kib}", ahead_dot(kib))


def _compiled(name, dot):
    run = over_tiles(name, blocks(name, dot, 16), 16)

    @cfunc(SIGNATURE, nogil=True, error_model="numpy")
    def kernel(job, first, last):
        run(job, first, last)

    return kernel


@contextlib.contextmanager
def swapped(engine, kernel):
    """Inside this block all products of an engine (Numba back end) are done by `kernel`."""
    with without_products(engine):
        engine.backend.model.matrices[..., KERNEL] = kernel.address
        engine.backend.model.head[KERNEL] = kernel.address
        yield engine
