"""One step of the whole model, by all threads of the team together: the engine's inner function.

Row m is token m of the step: it stands at `positions[m]` of text `slots[m]`, writes its key and
value there, and attends to everything before. So a prompt, one new token, several drafted tokens
and a batch of texts of different lengths are the same thing: rows.

Each product is cut by outputs (a thread owns tiles of 16), attention by row, key-value head and
block of 256 positions. Six barriers a layer separate what one thread writes from what others read.
Norms and the rounding of activations are cheap and are done by every thread for itself.
"""

from typing import NamedTuple

import numpy as np

from utils.kernels import attention
from utils.kernels.blocks import Job, at, call, inner
from utils.kernels.elementwise import rms_norm, rotate, round_row, swiglu
from utils.kernels.team import barrier, next_epoch
from utils.kernels.vectors import add, load_f32, store

# Columns of the tables of matrices
KERNEL, WEIGHTS, SCALES, ZEROS, INPUTS, GROUP, SCALE_BYTES, TILES, INTEGER, BIAS = range(10)
COLUMNS = 10
Q, K, V, O, GATE, UP, DOWN = range(7)  # noqa: E741 - the names of the field
ROWS, WANTED = range(2)


class Model(NamedTuple):
    """matrices: int64 [layers, 7, COLUMNS], head: [COLUMNS]; norms fp32; cos, sin [T, head_dim].

    keep [layers + 1]: where in `State.kept` the rows that enter this layer go; -1: nowhere.
    """

    matrices: np.ndarray
    head: np.ndarray
    keep: np.ndarray
    attention_norm: np.ndarray
    mlp_norm: np.ndarray
    final_norm: np.ndarray
    cos: np.ndarray
    sin: np.ndarray
    eps: np.float32
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    attention_scale: np.float32


class State(NamedTuple):
    """Buffers. Rows of fp32 numbers end on a multiple of 64, filled up with zeros.

    keys [slots, layers, kv_heads, T / 16, head_dim, 16], values [slots, layers, kv_heads, T,
    head_dim], kept [states, rows, hidden]. The last seven belong to one thread each: first index.
    """

    counts: np.ndarray
    slots: np.ndarray
    positions: np.ndarray
    wanted: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    x: np.ndarray
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    gate: np.ndarray
    up: np.ndarray
    act: np.ndarray
    logits: np.ndarray
    kept: np.ndarray
    partial: np.ndarray
    normed: np.ndarray
    whole: np.ndarray
    scale: np.ndarray
    sums: np.ndarray
    scores: np.ndarray
    turned: np.ndarray
    jobs: np.ndarray


@inner
def share(count, thread, threads):
    """The part of range(count) that is this thread's."""
    return count * thread // threads, count * (thread + 1) // threads


@inner
def round_rows(x, state, thread, rows, size):
    """int16 copies of rows of x, with their scales, for the integer kernels."""
    for m in range(rows):
        whole = at(state.whole[thread, m])
        state.scale[thread, m] = round_row(at(x[m]), whole, size)


@inner
def block_sums(state, thread, rows, inputs, group):
    """Sums of the int16 activations over the kernels' blocks, for weights with zero points."""
    for m in range(rows):
        k = block = 0
        while k < inputs:
            size = min(256, group - k % group, inputs - k)
            total = np.int32(0)
            for j in range(k, k + size):
                total += np.int32(state.whole[thread, m, j])
            state.sums[thread, m, block] = total
            block += 1
            k += size


@inner
def product(matrix, x, y, rows, accumulate, state, thread, threads):
    """y (+)= matrix times x, this thread's outputs. For integers x was rounded by `round_rows`."""
    source, stride = at(x), x.strides[0]
    if matrix[INTEGER]:
        source, stride = at(state.whole[thread]), state.whole.strides[1]
        if matrix[ZEROS]:
            block_sums(state, thread, rows, matrix[INPUTS], matrix[GROUP])
    job = Job(
        matrix[WEIGHTS],
        matrix[SCALES],
        matrix[ZEROS],
        matrix[INPUTS],
        matrix[GROUP],
        matrix[SCALE_BYTES],
        source,
        stride,
        at(state.scale[thread]),
        at(state.sums[thread]),
        state.sums.strides[1],
        at(y),
        y.strides[0],
        rows,
        accumulate,
    )
    place = state.jobs[thread]
    for i in range(len(job)):
        place[i] = job[i]
    first, last = share(matrix[TILES], thread, threads)
    call(matrix[KERNEL], at(place), first, last)
    if matrix[BIAS]:
        add_bias(matrix[BIAS], y, rows, first, last)


@inner
def add_bias(bias, y, rows, first, last):
    """Add the fp32 numbers at address `bias` to this thread's outputs."""
    for m in range(rows):
        row = at(y[m])
        for j in range(64 * first, 64 * last, 64):
            store(add(load_f32(row + j), load_f32(bias + j)), row + j)


@inner
def norm_rows(x, weight, model, state, thread, rows, integer):
    """RMSNorm of rows of x for this thread alone, rounded to int16 where a kernel wants that."""
    normed = state.normed[thread]
    for m in range(rows):
        source, target = at(x[m]), at(normed[m])
        rms_norm(source, at(weight), target, model.hidden, model.eps)
    if integer:
        round_rows(normed, state, thread, rows, model.hidden)
    return normed


@inner
def rotate_rows(layer, model, state, thread, threads, rows):
    """Rotate queries and keys to their positions; keys and values go into the cache."""
    half, size = model.head_dim // 2, model.head_dim
    first, last = share(rows * (model.heads + model.kv_heads), thread, threads)
    for item in range(first, last):
        m, head = item // (model.heads + model.kv_heads), item % (model.heads + model.kv_heads)
        p, slot = state.positions[m], state.slots[m]
        cos, sin, turned = model.cos[p], model.sin[p], state.turned[thread]
        if head < model.heads:
            row = state.q[m, head * size : (head + 1) * size]
            rotate(row, cos, sin, half, turned)
            for j in range(size):
                row[j] = turned[j] * model.attention_scale
        else:
            g = head - model.heads
            rotate(state.k[m, g * size : (g + 1) * size], cos, sin, half, turned)
            keys = state.keys[slot, layer, g, p // 16]
            for j in range(size):
                keys[j, p % 16] = turned[j]
                state.values[slot, layer, g, p, j] = state.v[m, g * size + j]


@inner
def attend_rows(layer, model, state, thread, threads, rows):
    """Partial attention: items are (row, key-value head, block), each done by one thread."""
    group, size = model.heads // model.kv_heads, model.head_dim
    total = 0
    for m in range(rows):
        total += (state.positions[m] // attention.BLOCK + 1) * model.kv_heads
    first, last = share(total, thread, threads)
    item = 0
    for m in range(rows):
        p, slot = state.positions[m], state.slots[m]
        for g in range(model.kv_heads):
            for b in range(p // attention.BLOCK + 1):
                if first <= item < last:
                    start = b * attention.BLOCK
                    attention.attend(
                        at(state.q[m, g * group * size :]),
                        at(state.keys[slot, layer, g, start // 16]),
                        at(state.values[slot, layer, g, start]),
                        min(attention.BLOCK, p + 1 - start),
                        group,
                        size,
                        state.scores[thread],
                        state.partial[m, g, b],
                    )
                item += 1


@inner
def mixed_rows(model, state, thread, rows, integer):
    """Attention's output rows [rows, heads * head_dim], joined from the blocks."""
    group, size = model.heads // model.kv_heads, model.head_dim
    mixed = state.normed[thread]
    for m in range(rows):
        blocks = state.positions[m] // attention.BLOCK + 1
        for h in range(model.heads):
            out = at(mixed[m]) + 4 * h * size
            attention.combine(state.partial[m, h // group], blocks, h % group, size, out)
    if integer:
        round_rows(mixed, state, thread, rows, model.heads * size)
    return mixed


@inner
def mlp_act(state, rows, first, last):
    """SwiGLU of this thread's own outputs of gate and up."""
    for m in range(rows):
        gate, up, act = at(state.gate[m]), at(state.up[m]), at(state.act[m])
        start = 64 * first
        swiglu(gate + start, up + start, act + start, 16 * (last - first))


@inner
def keep_rows(layer, model, state, thread, threads, rows):
    """Copy the rows that enter `layer` (the last: the final norm) where somebody asked for them."""
    place = model.keep[layer]
    if place >= 0:
        first, last = share(rows, thread, threads)
        for m in range(first, last):
            for j in range(model.hidden):
                state.kept[place, m, j] = state.x[m, j]


@inner
def forward(team, thread, threads, model, state):
    """The whole step; on return the logits of the wanted rows are there (after the barrier)."""
    rows, wanted = state.counts[ROWS], state.counts[WANTED]
    for layer in range(model.matrices.shape[0]):
        w = model.matrices[layer]
        barrier(team, thread, threads)
        keep_rows(layer, model, state, thread, threads, rows)
        whole = w[Q, INTEGER] or w[K, INTEGER] or w[V, INTEGER]
        x = norm_rows(state.x, model.attention_norm[layer], model, state, thread, rows, whole)
        product(w[Q], x, state.q, rows, 0, state, thread, threads)
        product(w[K], x, state.k, rows, 0, state, thread, threads)
        product(w[V], x, state.v, rows, 0, state, thread, threads)
        barrier(team, thread, threads)
        rotate_rows(layer, model, state, thread, threads, rows)
        barrier(team, thread, threads)
        attend_rows(layer, model, state, thread, threads, rows)
        barrier(team, thread, threads)
        x = mixed_rows(model, state, thread, rows, w[O, INTEGER])
        product(w[O], x, state.x, rows, 1, state, thread, threads)
        barrier(team, thread, threads)
        whole = w[GATE, INTEGER] or w[UP, INTEGER]
        x = norm_rows(state.x, model.mlp_norm[layer], model, state, thread, rows, whole)
        product(w[GATE], x, state.gate, rows, 0, state, thread, threads)
        product(w[UP], x, state.up, rows, 0, state, thread, threads)
        first, last = share(w[GATE, TILES], thread, threads)
        mlp_act(state, rows, first, last)
        barrier(team, thread, threads)
        if w[DOWN, INTEGER]:
            round_rows(state.act, state, thread, rows, model.intermediate)
        product(w[DOWN], state.act, state.x, rows, 1, state, thread, threads)
    barrier(team, thread, threads)
    keep_rows(model.matrices.shape[0], model, state, thread, threads, rows)
    head_rows(model, state, thread, threads, wanted)
    barrier(team, thread, threads)


@inner
def head_rows(model, state, thread, threads, wanted):
    """Final norm and head for the wanted rows."""
    normed = state.normed[thread]
    for i in range(wanted):
        source, target = at(state.x[state.wanted[i]]), at(normed[i])
        rms_norm(source, at(model.final_norm), target, model.hidden, model.eps)
    if model.head[INTEGER]:
        round_rows(normed, state, thread, wanted, model.hidden)
    product(model.head, normed, state.logits, wanted, 0, state, thread, threads)


def work(team, thread, threads, model, state):
    """Thread 0 does one step; the others serve steps until none has come for a moment."""
    while thread == 0 or next_epoch(team, thread):
        forward(team, thread, threads, model, state)
        if thread == 0:
            break
