"""Products with int8 and int4 weights: integer arithmetic inside a block, fp32 between blocks.

    y = sum over groups g of scale_g * x_scale * sum over k in g of (code_k - zero_g) * x_k

x is rounded to int16 once for each row of activations (16 bits: far finer than the weights).
Pairs of int16 are multiplied and added to int32, 16 outputs at once. Integer sums are exact, so
their order does not matter; the fp32 sum over blocks runs in the order of k.

    int8   a lane pair holds the codes of k and k + 1; blocks of at most 256 inputs, because
           255 * 32767 * 256 < 2^31
    int4   a 16-bit lane holds four codes, for k, k + 2, k + 4, k + 6; shifting left and right
           again moves one of them into place and extends its sign

Zero points cost one product for each block: sum (code - zero) x = sum code x - zero sum x.
"""

from utils.kernels.blocks import finish, inner, inner_as, over_tiles
from utils.kernels.rows import (
    add_scaled_rows,
    dot_pairs_rows,
    scale_rows,
    subtract_rows,
    zeros_f32,
    zeros_i32,
)
from utils.kernels.vectors import (
    load_f16,
    load_f32,
    load_i8,
    load_i16,
    load_small,
    shift_left,
    shift_right,
)

BLOCK = 256


@inner
def load_scale(job, row):
    """The fp32 scales of 16 outputs: vector `row` of the table of scales."""
    if job.scale_bytes == 2:
        return load_f16(job.scales + 32 * row)
    return load_f32(job.scales + 64 * row)


@inner
def int8_dot(rows, w, x, inputs, stride):
    """For each row the sum of code * x over `inputs` numbers, in int32."""
    dot = zeros_i32(rows)
    for k in range(0, inputs, 2):
        dot = dot_pairs_rows(dot, load_i8(w + 16 * k), x + 2 * k, stride)
    return dot


@inner
def int4_dot(rows, w, x, inputs, stride):
    """The same for codes of 4 bits."""
    dot = zeros_i32(rows)
    for k in range(0, inputs, 8):
        codes = load_i16(w + 8 * k)
        at = x + 2 * k
        dot = dot_pairs_rows(dot, shift_right(shift_left(codes, 12), 12), at, stride)
        dot = dot_pairs_rows(dot, shift_right(shift_left(codes, 8), 12), at + 4, stride)
        dot = dot_pairs_rows(dot, shift_right(shift_left(codes, 4), 12), at + 8, stride)
        dot = dot_pairs_rows(dot, shift_right(codes, 12), at + 12, stride)
    return dot


def blocks(name, block_dot, tile_bytes):
    """The tile function: 16 outputs, block by block; the scale changes with the group."""

    @inner_as(f"tile_{name}")
    def tile(rows, w, t, m, job):
        x = job.x + m * job.x_stride
        groups, total = (job.inputs + job.group - 1) // job.group, zeros_f32(rows)
        sums = job.x_sum + m * job.x_sum_stride
        k = 0
        while k < job.inputs:
            row = t * groups + k // job.group
            size = min(BLOCK, job.group - k % job.group, job.inputs - k)
            dot = block_dot(rows, w + tile_bytes * k, x + 2 * k, size, job.x_stride)
            if job.zeros:
                dot = subtract_rows(dot, load_small(job.zeros + 16 * row), sums, job.x_sum_stride)
                sums += 4
            total = add_scaled_rows(total, dot, load_scale(job, row))
            k += size
        finish(rows, scale_rows(total, job.x_scale + 4 * m, 4), t, m, job)

    return tile


run_int8 = over_tiles("int8", blocks("int8", int8_dot, 16), 16)
run_int4 = over_tiles("int4", blocks("int4", int4_dot, 8), 8)
