"""Attention of one row over the key-value cache, in blocks of 256 positions.

    partial, for each block:   m = max s_t,  z = sum exp(s_t - m),  a = sum exp(s_t - m) v_t
    combined:                  M = max m,    out = sum exp(m - M) a / sum exp(m - M) z

Blocks start at fixed positions, so that the sum of a row never depends on the number of threads or
of rows (flash-decoding cuts the context for the same reason: Dao et al. 2023). The query heads that
share a key-value head are handled together, so keys and values are read once.

Keys lie as [position / 16][head_dim][16]: 16 positions in the lanes, the same walk as a product
with weights. Values lie as [position][head_dim].
"""

import numpy as np

from utils.kernels.blocks import FOUR, ONE, THREE, TWO, at, inner
from utils.kernels.elementwise import exp
from utils.kernels.rows import fma_rows, store_rows, zeros_f32
from utils.kernels.vectors import (
    add,
    div,
    fma,
    load_f32,
    max_lanes,
    maximum,
    splat,
    store,
    sub,
    sum_lanes,
)

BLOCK = 256
NOWHERE = np.float32(-1e30)
ZERO = np.float32(0)


@inner
def score_heads(rows, q, keys, count, head_dim, scores):
    """scores[head, t] = q[head] . key[t] for as many heads as `rows` has items.

    32 positions at a time: twice the chains of additions, so that none waits for itself.
    """
    for t in range(0, count, 32):
        low, high, key = zeros_f32(rows), zeros_f32(rows), keys + 4 * t * head_dim
        for d in range(0, 64 * head_dim, 64):
            x = q + d // 16
            low = fma_rows(low, load_f32(key + d), x, 4 * head_dim)
            high = fma_rows(high, load_f32(key + 64 * head_dim + d), x, 4 * head_dim)
        store_rows(low, scores + 4 * t, 4 * BLOCK)
        store_rows(high, scores + 4 * t + 64, 4 * BLOCK)


@inner
def mix_heads(rows, scores, values, count, head_dim, out, stride):
    """out[head] = sum over t of scores[head, t] * value[t]; 32 numbers of a value at a time."""
    for d in range(0, 4 * head_dim - 64, 128):
        low, high, value = zeros_f32(rows), zeros_f32(rows), values + d
        for t in range(count):
            x = scores + 4 * t
            low = fma_rows(low, load_f32(value), x, 4 * BLOCK)
            high = fma_rows(high, load_f32(value + 64), x, 4 * BLOCK)
            value += 4 * head_dim
        store_rows(low, out + d, stride)
        store_rows(high, out + d + 64, stride)
    if head_dim % 32:
        d = 4 * head_dim - 64
        total = zeros_f32(rows)
        for t in range(count):
            vector = load_f32(values + d + 4 * t * head_dim)
            total = fma_rows(total, vector, scores + 4 * t, 4 * BLOCK)
        store_rows(total, out + d, stride)


@inner
def softmax_part(scores, row, count):
    """Scores of one head -> exp(score - max) in place; returns (max, sum)."""
    filled = (count + 15) // 16 * 16
    for t in range(count, filled):
        scores[row, t] = NOWHERE
    address = at(scores) + 4 * BLOCK * row
    largest = splat(NOWHERE)
    for t in range(0, filled, 16):
        largest = maximum(load_f32(address + 4 * t), largest)
    top = max_lanes(largest)
    total = splat(ZERO)
    for t in range(0, filled, 16):
        e = exp(sub(load_f32(address + 4 * t), splat(top)))
        store(e, address + 4 * t)
        total = add(total, e)
    return top, sum_lanes(total)


@inner
def attend(q, keys, values, count, heads, head_dim, scores, partial):
    """One block for the `heads` queries at address q.

    keys, values: addresses of the block. scores [heads, BLOCK]: scratch.
    partial [heads, head_dim + 16]: the sums, then max and sum of exponentials.
    """
    address, out, stride = at(scores), at(partial), 4 * (head_dim + 16)
    for h in range(0, heads, 4):
        queries, s = q + 4 * h * head_dim, address + 4 * h * BLOCK
        o = out + h * stride
        left = heads - h
        if left >= 4:
            score_heads(FOUR, queries, keys, count, head_dim, s)
        elif left == 3:
            score_heads(THREE, queries, keys, count, head_dim, s)
        elif left == 2:
            score_heads(TWO, queries, keys, count, head_dim, s)
        else:
            score_heads(ONE, queries, keys, count, head_dim, s)
        for i in range(h, min(h + 4, heads)):
            top, total = softmax_part(scores, i, count)
            partial[i, head_dim] = top
            partial[i, head_dim + 1] = total
        if left >= 4:
            mix_heads(FOUR, s, values, count, head_dim, o, stride)
        elif left == 3:
            mix_heads(THREE, s, values, count, head_dim, o, stride)
        elif left == 2:
            mix_heads(TWO, s, values, count, head_dim, o, stride)
        else:
            mix_heads(ONE, s, values, count, head_dim, o, stride)


@inner
def combine(partials, blocks, head, head_dim, out):
    """Join the blocks of one head: partials [blocks, heads, head_dim + 16] -> address out."""
    top = NOWHERE
    for b in range(blocks):
        top = max(top, partials[b, head, head_dim])
    total = splat(ZERO)
    for b in range(blocks):
        share = exp(splat(partials[b, head, head_dim] - top))
        total = fma(share, splat(partials[b, head, head_dim + 1]), total)
    for d in range(0, 4 * head_dim, 64):
        mixed = splat(ZERO)
        for b in range(blocks):
            share = exp(splat(partials[b, head, head_dim] - top))
            mixed = fma(share, load_f32(at(partials[b, head]) + d), mixed)
        store(div(mixed, total), out + d)
