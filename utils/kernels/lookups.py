"""Products with weights that must be looked up or put in place: 4-bit codebooks and 2:4 sparsity.

    nf4, fp4   w = scale_g * table[code]: the 16 numbers of the table lie in one vector (two with
               AVX2), and a permutation of its lanes looks up 16 codes at once
    sparse24   of each four inputs two have a weight. The weights of 16 outputs lie in the lanes;
               which of the inputs each of them needs is 2 bits, and a permutation of 8
               activations brings it there

But: on processors other than x86 both permutations are done lane by lane; correct, and slow.
"""

import numpy as np

from utils.kernels.blocks import finish, inner, over_tiles
from utils.kernels.rows import add_scaled_rows, fma_rows, permute_fma_rows, zeros_f32
from utils.kernels.vectors import (
    either_bits,
    keep_bits,
    load_f32,
    load_i32,
    pick,
    shift_right,
    splat,
)

FOUR_UP = np.int32(4)


@inner
def codebook_tile(rows, w, t, m, job):
    """Half a byte for each weight; a lane holds the codes of 8 neighbours. job.zeros: the table."""
    x, stride = job.x + m * job.x_stride, job.x_stride
    table, total = load_f32(job.zeros), zeros_f32(rows)
    groups = (job.inputs + job.group - 1) // job.group
    for g in range(groups):
        start = g * job.group
        part = zeros_f32(rows)
        for k in range(start, min(start + job.group, job.inputs), 8):
            codes = load_i32(w + 8 * k)
            for i in range(8):
                number = pick(table, keep_bits(codes, 15))
                part = fma_rows(part, number, x + 4 * (k + i), stride)
                codes = shift_right(codes, 4)
        total = add_scaled_rows(total, part, load_f32(job.scales + 64 * (t * groups + g)))
    finish(rows, total, t, m, job)


@inner
def sparse24_tile(rows, w, t, m, job):
    """4 bytes and 2 bits for each weight kept, half of them. job.scales: where they stand."""
    x, stride, total = job.x + m * job.x_stride, job.x_stride, zeros_f32(rows)
    places = job.scales + 2 * t * job.inputs
    for start in range(0, job.inputs, 32):
        place = load_i32(places + 2 * start)
        for k in range(start, start + 32, 8):
            at, v = x + 4 * k, w + 32 * k
            total = permute_fma_rows(total, load_f32(v), keep_bits(place, 3), at, stride)
            place = shift_right(place, 2)
            total = permute_fma_rows(total, load_f32(v + 64), keep_bits(place, 3), at, stride)
            upper = either_bits(shift_right(place, 2), splat(FOUR_UP))
            total = permute_fma_rows(total, load_f32(v + 128), upper, at, stride)
            upper = either_bits(shift_right(place, 4), splat(FOUR_UP))
            total = permute_fma_rows(total, load_f32(v + 192), upper, at, stride)
            place = shift_right(place, 6)
    finish(rows, total, t, m, job)


run_codebook = over_tiles("codebook", codebook_tile, 8)
run_sparse24 = over_tiles("sparse24", sparse24_tile, 32)
