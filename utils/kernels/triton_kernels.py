"""Triton kernels for y = x W^T with few rows x: one for each way in which weights are stored.

Each program owns BLOCK_N outputs and walks along their weights, BLOCK_K stored items at a time: it
loads them once, turns them into fp32 in registers, and multiplies them with every row of x. So a
product reads the packed weights once, whether there is one row or eight.

A row is multiplied and summed by itself, with the same operations in the same order however many
rows there are (`_add_rows`). This is why nothing here is `tl.dot`, and why blocks are not tuned
per shape: rows that are verified together equal rows computed alone, bit for bit.

But: small numbers of rows only; scales and tables are read once per weight (from cache), which is
clear rather than fast. This course has no GPU: the kernels are tested in Triton's interpreter and
compiled for several GPUs, but compiled code was never run, and no speed is claimed.
"""

import triton
import triton.language as tl

MOST_ROWS = tl.constexpr(8)


@triton.jit
def _outputs(out_features, BLOCK_N: tl.constexpr):
    """The outputs of this program [BLOCK_N, 1], in int64 for large matrices; and which exist."""
    index = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    return index.to(tl.int64)[:, None], (index < out_features)[:, None]


@triton.jit
def _items(start, count, BLOCK_K: tl.constexpr):
    """The next stored items [1, BLOCK_K], and which of them exist."""
    index = start + tl.arange(0, BLOCK_K)
    return index[None, :], (index < count)[None, :]


@triton.jit
def _add_rows(total, weight, x, k, inside, in_features, ROWS: tl.constexpr):
    """total [BLOCK_N, 8] plus the products of weight [BLOCK_N, BLOCK_K] with x[:, k], row by row.

    k: the input of each weight: [1, BLOCK_K], or [BLOCK_N, BLOCK_K] if every output has its own.
    """
    column = tl.arange(0, MOST_ROWS)[None, :]
    for m in tl.static_range(ROWS):
        inputs = tl.load(x + m * in_features + k, mask=inside, other=0.0)
        product = tl.sum(weight * inputs, axis=1)
        total += tl.where(column == m, product[:, None], 0.0)
    return total


@triton.jit
def _store(y, total, n, owned, out_features, ROWS: tl.constexpr):
    """Write the first ROWS columns of total [BLOCK_N, 8] to y [ROWS, out]."""
    column = tl.arange(0, MOST_ROWS)[None, :]
    tl.store(y + column * out_features + n, total, mask=owned & (column < ROWS))


@triton.jit
def _dequantized(code, scale, zero, n, k, mask, groups, GROUP: tl.constexpr):
    """(code - zero) * scale, with the scale and the zero point of each weight's group."""
    at = n * groups + k // GROUP
    number = code.to(tl.float32)
    if zero is not None:
        number -= tl.load(zero + at, mask=mask, other=0).to(tl.float32)
    return number * tl.load(scale + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def floats(
    y, x, values, out_features, in_features,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """values [out, in]: fp32 or bf16."""
    n, owned = _outputs(out_features, BLOCK_N)
    total = tl.zeros((BLOCK_N, MOST_ROWS), tl.float32)
    for start in range(0, in_features, BLOCK_K):
        k, inside = _items(start, in_features, BLOCK_K)
        weight = tl.load(values + n * in_features + k, mask=owned & inside, other=0.0)
        total = _add_rows(total, weight.to(tl.float32), x, k, inside, in_features, ROWS)
    _store(y, total, n, owned, out_features, ROWS)


@triton.jit
def float8(
    y, x, codes, scale, table, out_features, in_features,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """codes uint8 [out, in] into table [256]; scale [out, 1], applied to the sum."""
    n, owned = _outputs(out_features, BLOCK_N)
    total = tl.zeros((BLOCK_N, MOST_ROWS), tl.float32)
    for start in range(0, in_features, BLOCK_K):
        k, inside = _items(start, in_features, BLOCK_K)
        code = tl.load(codes + n * in_features + k, mask=owned & inside, other=0)
        weight = tl.load(table + code.to(tl.int32))
        total = _add_rows(total, weight, x, k, inside, in_features, ROWS)
    total *= tl.load(scale + n, mask=owned, other=0.0)
    _store(y, total, n, owned, out_features, ROWS)


@triton.jit
def int8(
    y, x, codes, scale, zero, out_features, in_features, groups, GROUP: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """codes [out, in]: int8, or uint8 with zero points; scale and zero [out, groups]."""
    n, owned = _outputs(out_features, BLOCK_N)
    total = tl.zeros((BLOCK_N, MOST_ROWS), tl.float32)
    for start in range(0, in_features, BLOCK_K):
        k, inside = _items(start, in_features, BLOCK_K)
        mask = owned & inside
        code = tl.load(codes + n * in_features + k, mask=mask, other=0)
        weight = _dequantized(code, scale, zero, n, k, mask, groups, GROUP)
        total = _add_rows(total, weight, x, k, inside, in_features, ROWS)
    _store(y, total, n, owned, out_features, ROWS)


@triton.jit
def _nibbles(
    y, x, nibbles, scale, zero, table, out_features, in_features, groups, GROUP: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The walk along 4-bit codes, two in a byte: into `table`, or signed, or with zero points."""
    n, owned = _outputs(out_features, BLOCK_N)
    total = tl.zeros((BLOCK_N, MOST_ROWS), tl.float32)
    width = (in_features + 1) // 2
    for start in range(0, width, BLOCK_K):
        byte, there = _items(start, width, BLOCK_K)
        pair = tl.load(nibbles + n * width + byte, mask=owned & there, other=0).to(tl.int32)
        for half in tl.static_range(2):
            k = 2 * byte + half
            inside = k < in_features
            number = _number((pair >> (4 * half)) & 15, zero, table)
            weight = _dequantized(number, scale, zero, n, k, owned & inside, groups, GROUP)
            total = _add_rows(total, weight, x, k, inside, in_features, ROWS)
    _store(y, total, n, owned, out_features, ROWS)


@triton.jit
def _number(code, zero, table):
    """What a 4-bit code stands for before its zero point and scale."""
    if table is not None:
        return tl.load(table + code)
    elif zero is None:
        return (code ^ 8) - 8
    else:
        return code


@triton.jit
def int4(
    y, x, nibbles, scale, zero, out_features, in_features, groups, GROUP: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """nibbles uint8 [out, ceil(in/2)]: signed codes, or unsigned ones with zero points."""
    _nibbles(
        y, x, nibbles, scale, zero, None, out_features, in_features, groups, GROUP,
        ROWS, BLOCK_N, BLOCK_K,
    )  # fmt: skip


@triton.jit
def codebook(
    y, x, nibbles, scale, table, out_features, in_features, groups, GROUP: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """nibbles uint8 [out, ceil(in/2)]: codes into table [16]; scale [out, groups]."""
    _nibbles(
        y, x, nibbles, scale, None, table, out_features, in_features, groups, GROUP,
        ROWS, BLOCK_N, BLOCK_K,
    )  # fmt: skip


@triton.jit
def sparse24(
    y, x, values, metadata, out_features, in_features,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """values [out, in/2] fp32; metadata uint8 [out, ceil(in/8)], two bits for each value."""
    n, owned = _outputs(out_features, BLOCK_N)
    total = tl.zeros((BLOCK_N, MOST_ROWS), tl.float32)
    kept, width = in_features // 2, (in_features + 7) // 8
    for start in range(0, kept, BLOCK_K):
        item, inside = _items(start, kept, BLOCK_K)
        mask = owned & inside
        weight = tl.load(values + n * kept + item, mask=mask, other=0.0)
        byte = tl.load(metadata + n * width + item // 4, mask=mask, other=0).to(tl.int32)
        position = (byte >> (2 * (item % 4))) & 3
        k = 4 * (item // 2) + position
        total = _add_rows(total, weight, x, k, mask, in_features, ROWS)
    _store(y, total, n, owned, out_features, ROWS)
