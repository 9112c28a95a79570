"""Products with float weights: fp32, bf16 and fp8. The reading of memory bounds all three.

Layout of one tile: for each k (or 2 or 4 neighbouring k, which share a lane of 32 bits) 16 lanes,
one for each output. x[k] goes to all lanes; no sum ever runs across lanes.

    bf16   the upper 16 bits of an fp32 number: shifting (or masking) gives the number back
    fp8    sign, exponent and mantissa are moved to their place in fp32; a multiplication by a
           power of two then corrects the exponent, for subnormals too (NaN codes must not occur)

But: fp8 goes through arithmetic. A table of 256 numbers would need 16 loads for each vector.
"""

import numpy as np

from utils.kernels.blocks import finish, inner, inner_as, over_tiles
from utils.kernels.rows import fma_rows, multiply_rows, zeros_f32
from utils.kernels.vectors import (
    as_f32,
    either_bits,
    keep_bits,
    load_f32,
    load_i32,
    mul,
    shift_left,
    shift_right,
    splat,
)

E4M3_CORRECTION = np.float32(2.0**120)  # exponent bias 127 of fp32 less 7
E5M2_CORRECTION = np.float32(2.0**112)  # exponent bias 127 of fp32 less 15


@inner
def fp32_tile(rows, w, t, m, job):
    """4 bytes for each weight, one fused multiply-add for 16 weights."""
    x = job.x + m * job.x_stride
    total = zeros_f32(rows)
    for k in range(job.inputs):
        total = fma_rows(total, load_f32(w + 64 * k), x + 4 * k, job.x_stride)
    finish(rows, total, t, m, job)


@inner
def bf16_tile(rows, w, t, m, job):
    """2 bytes for each weight; each lane holds the weights of k and k + 1."""
    x = job.x + m * job.x_stride
    total = zeros_f32(rows)
    for k in range(0, job.inputs, 2):
        pair = load_i32(w + 32 * k)
        total = fma_rows(total, as_f32(shift_left(pair, 16)), x + 4 * k, job.x_stride)
        total = fma_rows(total, as_f32(keep_bits(pair, -65536)), x + 4 * k + 4, job.x_stride)
    finish(rows, total, t, m, job)


@inner
def e4m3(top):
    """fp32 from sign, 4 exponent and 3 mantissa bits at the top of each lane."""
    sign, rest = keep_bits(top, -(2**31)), keep_bits(shift_right(top, 4), 0x07F00000)
    return mul(as_f32(either_bits(sign, rest)), splat(E4M3_CORRECTION))


@inner
def e5m2(top):
    """fp32 from sign, 5 exponent and 2 mantissa bits at the top of each lane."""
    sign, rest = keep_bits(top, -(2**31)), keep_bits(shift_right(top, 3), 0x0FE00000)
    return mul(as_f32(either_bits(sign, rest)), splat(E5M2_CORRECTION))


def fp8(name, number):
    """The tile function for one way to read 8 bits."""

    @inner_as(f"tile_{name}")
    def tile(rows, w, t, m, job):
        x, stride = job.x + m * job.x_stride, job.x_stride
        total = zeros_f32(rows)
        for k in range(0, job.inputs, 4):
            four, at = load_i32(w + 16 * k), x + 4 * k
            total = fma_rows(total, number(shift_left(four, 24)), at, stride)
            total = fma_rows(total, number(shift_left(four, 16)), at + 4, stride)
            total = fma_rows(total, number(shift_left(four, 8)), at + 8, stride)
            total = fma_rows(total, number(four), at + 12, stride)
        total = multiply_rows(total, load_f32(job.scales + 64 * t))
        finish(rows, total, t, m, job)

    return tile


run_fp32 = over_tiles("fp32", fp32_tile, 64)
run_bf16 = over_tiles("bf16", bf16_tile, 32)
run_e4m3 = over_tiles("e4m3", fp8("e4m3", e4m3), 16)
run_e5m2 = over_tiles("e5m2", fp8("e5m2", e5m2), 16)
