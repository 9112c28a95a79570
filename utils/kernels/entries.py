"""The compiled entry point of each kernel, found by the kind of weight; compiled when asked for.

Only these few functions are cached on disk by Numba (see jit.py for where): what they call is
compiled into them.
"""

from functools import cache as once

from utils.kernels import jit
from utils.kernels.blocks import kernel
from utils.kernels.floats import run_bf16, run_e4m3, run_e5m2, run_fp32
from utils.kernels.integers import run_int4, run_int8
from utils.kernels.lookups import run_codebook, run_sparse24


def _fp32(job, first, last):
    run_fp32(job, first, last)


def _bf16(job, first, last):
    run_bf16(job, first, last)


def _fp8_e4m3(job, first, last):
    run_e4m3(job, first, last)


def _fp8_e5m2(job, first, last):
    run_e5m2(job, first, last)


def _int8(job, first, last):
    run_int8(job, first, last)


def _int4(job, first, last):
    run_int4(job, first, last)


def _codebook(job, first, last):
    run_codebook(job, first, last)


def _sparse24(job, first, last):
    run_sparse24(job, first, last)


ENTRIES = {
    "fp32": _fp32, "bf16": _bf16, "fp8_e4m3": _fp8_e4m3, "fp8_e5m2": _fp8_e5m2, "int8": _int8,
    "int4": _int4, "nf4": _codebook, "fp4": _codebook, "sparse24": _sparse24,
}  # fmt: skip


@once
def compiled(function):
    with jit.cached():
        return kernel(function)


def address(kind):
    """Address of the compiled kernel for a kind of weight."""
    return compiled(ENTRIES[kind]).address


def names(kinds):
    """Names of the functions that these kinds need, for `jit.announced`."""
    return sorted({ENTRIES[kind].__name__.removeprefix("_") for kind in kinds})
