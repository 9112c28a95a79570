"""Calls single Numba kernels from a test: products, element-wise functions, attention.

Kernels take addresses, so that every array must stay alive (a local variable is enough) until the
call is over. What the engine's step prepares for a product is prepared here in plain NumPy.
"""

import numpy as np
import torch
from numba import njit

from utils.kernels import attention, elementwise, entries, layout
from utils.kernels.blocks import Job, at
from utils.quantization.tensor import QuantizedTensor

BLOCK = 256  # inputs for each sum of activations, see integers.py


def filled(matrix, multiple=64, dtype=np.float32):
    """Rows with zeros at the end, up to a multiple: the form of all of the engine's buffers."""
    matrix = np.atleast_2d(np.asarray(matrix))
    return np.pad(matrix, ((0, 0), (0, -matrix.shape[1] % multiple))).astype(dtype)


@njit
def _round_rows(x, whole, scale, size):
    for m in range(len(x)):
        scale[m] = elementwise.round_row(at(x[m]), at(whole[m]), size)


def rounded(x):
    """(int16 [rows, filled], fp32 [rows]) of fp32 [rows, K], by the engine's own rounding."""
    size, x = x.shape[1], filled(x)
    whole, scale = np.zeros(x.shape, np.int16), np.zeros(len(x), np.float32)
    _round_rows(x, whole, scale, size)
    return whole, scale


def block_sums(whole, inputs, group):
    """int32 [rows, blocks]: sums of the activations over the kernels' blocks."""
    starts = [
        k for g in range(0, inputs, group) for k in range(g, min(g + group, inputs), BLOCK)
    ] + [inputs]
    parts = [whole[:, a:b].sum(1, dtype=np.int32) for a, b in zip(starts, starts[1:], strict=False)]
    return np.ascontiguousarray(np.stack(parts, 1))


def product(weight, x, y=None, cuts=None):
    """weight (a Weight) times the rows of x fp32 [rows, K] -> fp32 [rows, tiles * 16].

    y: what is added to. cuts: tile numbers at which the work is split, as between threads.
    """
    packed = layout.pack(weight)
    rows, inputs = len(x), packed.inputs
    source, scale, sums = filled(x), np.zeros(rows, np.float32), np.zeros((rows, 1), np.int32)
    if packed.kind in ("int8", "int4"):
        source, scale = rounded(x)
        sums = block_sums(source, inputs, packed.group)
    out = np.full((rows, 16 * packed.tiles), np.nan, np.float32) if y is None else filled(y, 16)
    job = Job(
        weights=packed.weights.ctypes.data,
        scales=packed.scales.ctypes.data,
        zeros=packed.zeros.ctypes.data if packed.zeros.size else 0,
        inputs=inputs,
        group=packed.group,
        scale_bytes=packed.scales.itemsize,
        x=source.ctypes.data,
        x_stride=source.strides[0],
        x_scale=scale.ctypes.data,
        x_sum=sums.ctypes.data,
        x_sum_stride=sums.strides[0],
        y=out.ctypes.data,
        y_stride=out.strides[0],
        rows=rows,
        accumulate=int(y is not None),
    )
    fields = np.array(job, np.int64)
    kernel = entries.compiled(entries.ENTRIES[packed.kind]).ctypes
    edges = [0, *(cuts or []), packed.tiles]
    for first, last in zip(edges, edges[1:], strict=False):
        kernel(fields.ctypes.data, first, last)
    return out


def integers(outputs, inputs, bits, group, symmetric, scale_dtype=torch.float16, codes=None):
    """A QuantizedTensor with random (or the given) codes, scales and zero points."""
    generator = torch.Generator().manual_seed(outputs * 1000 + inputs)
    groups = 1 if group == -1 else -(-inputs // group)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if symmetric else (0, 2**bits)
    if codes is None:
        codes = torch.randint(low, high, (outputs, inputs), generator=generator)
    scale = (torch.rand(outputs, groups, generator=generator) / 64 + 1e-3).to(scale_dtype).float()
    zero = torch.randint(0, 2**bits, (outputs, groups), generator=generator)
    zero = None if symmetric else zero
    codes = codes.to(torch.int8 if symmetric else torch.uint8)
    return QuantizedTensor.from_codes(codes, scale, zero, bits, group, scale_dtype)


@njit
def _exp(x, y):
    for j in range(0, x.nbytes, 64):
        elementwise.store(elementwise.exp(elementwise.load_f32(at(x) + j)), at(y) + j)


def exp(x):
    """The kernels' e^x of fp32 [n], n a multiple of 16."""
    y = np.empty_like(x)
    _exp(x, y)
    return y


@njit
def _rms_norm(x, weight, y, size, eps):
    elementwise.rms_norm(at(x), at(weight), at(y), size, eps)


def rms_norm(x, weight, eps):
    """RMSNorm of one row fp32 [n], any n."""
    size, x, weight = len(x), filled(x)[0], filled(weight)[0]
    y = np.zeros_like(x)
    _rms_norm(x, weight, y, size, np.float32(eps))
    return y


@njit
def _swiglu(gate, up, y):
    elementwise.swiglu(at(gate), at(up), at(y), len(y))


def swiglu(gate, up):
    """silu(gate) * up of fp32 [n], n a multiple of 16."""
    y = np.empty_like(gate)
    _swiglu(gate, up, y)
    return y


@njit
def rotate(x, cos, sin, y):
    """One head rotated; fp32 arrays [head_dim]."""
    elementwise.rotate(x, cos, sin, len(x) // 2, y)


@njit
def _attend(q, keys, values, count, scores, partial, out):
    heads, size = q.shape
    blocks = (count + attention.BLOCK - 1) // attention.BLOCK
    for b in range(blocks):
        start = b * attention.BLOCK
        part = min(attention.BLOCK, count - start)
        attention.attend(
            at(q), at(keys[start // 16]), at(values[start]), part, heads, size, scores, partial[b]
        )
    for h in range(heads):
        attention.combine(partial, blocks, h, size, at(out[h]))


def attend(q, keys, values):
    """softmax(q k^T) v for q [heads, size] over keys, values [count, size], fp32.

    What lies behind `count` in the cache is filled with large numbers: it must not be seen.
    """
    (heads, size), count = q.shape, len(keys)
    length = -(-count // attention.BLOCK) * attention.BLOCK
    held_keys, held = np.full((2, length, size), 1e3, np.float32)
    held_keys[:count], held[:count] = keys, values
    tiles = np.ascontiguousarray(held_keys.reshape(-1, 16, size).transpose(0, 2, 1))
    scores = np.zeros((heads, attention.BLOCK), np.float32)
    partial = np.zeros((length // attention.BLOCK, heads, size + 16), np.float32)
    out = np.zeros((heads, size), np.float32)
    _attend(np.ascontiguousarray(q), tiles, held, count, scores, partial, out)
    return out
