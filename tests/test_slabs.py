"""Matrices are encoded and packed some rows at a time: the bytes must be those of one piece."""

import numpy as np
import pytest
import torch
from small_kernels import integers

from utils.kernels import layout, weights
from utils.kernels.weights import KINDS, encode, rows, slabs_of, stack, wrap
from utils.quantization.packing import pack, row_bytes

SHAPE = (85, 96)  # five slabs of 16 rows and one of five
STEP = 16


def matrix():
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))


def small(monkeypatch):
    monkeypatch.setattr(weights, "SLAB", STEP * SHAPE[1])


def same(a, b):
    assert (a.kind, a.shape, a.group_size) == (b.kind, b.shape, b.group_size)
    assert a.parts.keys() == b.parts.keys()
    for name, part in a.parts.items():
        assert torch.equal(part.view(torch.uint8), b.parts[name].view(torch.uint8)), name


@pytest.mark.parametrize("kind", KINDS)
def test_slabs_give_the_bytes_of_the_whole(kind, monkeypatch):
    whole = encode(matrix(), kind)
    packed = layout.pack(whole)
    small(monkeypatch)
    assert len(slabs_of(SHAPE)) == 6
    same(encode(matrix(), kind), whole)
    again = layout.pack(whole)
    for name in layout.PARTS:
        assert np.array_equal(getattr(packed, name), getattr(again, name)), name
    assert (packed.outputs, packed.inputs, packed.group) == (
        again.outputs,
        again.inputs,
        again.group,
    )


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [96, 33])
def test_rows_and_stack_of_integers_with_zero_points(bits, columns, monkeypatch):
    whole = wrap(integers(37, columns, bits, -1, symmetric=False))
    parts = [rows(whole, 0, 16), rows(whole, 16, 32), rows(whole, 32, 37)]
    for part, start in zip(parts, (0, 16, 32), strict=True):
        assert torch.equal(part.dequantize(), whole.dequantize()[start : start + part.shape[0]])
    same(stack(parts), whole)
    packed = layout.pack(whole)
    monkeypatch.setattr(weights, "SLAB", STEP * columns)
    assert np.array_equal(layout.pack(whole).zeros, packed.zeros)


def test_slabs_cover_all_rows_and_hold_sixteen_at_least():
    for shape in ((1, 5), (16, 10**7), (100, 3), (49152, 576)):
        spans = slabs_of(shape)
        assert [start for start, _ in spans][1:] == [end for _, end in spans][:-1]
        assert (spans[0][0], spans[-1][1]) == (0, shape[0])
        assert all(start % 16 == 0 for start, _ in spans)
        assert all(
            (end - start) * shape[1] <= max(weights.SLAB, 16 * shape[1]) for start, end in spans
        )


def test_a_cut_inside_a_byte_is_refused():
    codes = pack(torch.arange(9) % 8, 4)
    assert row_bytes(codes, 12, 2, 3).tolist() == [0x76, 0x00]
    with pytest.raises(ValueError, match="row 1 starts inside a byte"):
        row_bytes(codes, 12, 1, 3)


def test_a_bad_number_in_a_late_slab_is_found(monkeypatch):
    small(monkeypatch)
    broken = matrix()
    broken[-1, -1] = float("nan")
    for kind in ("fp32", "bf16", "int8", "nf4"):
        with pytest.raises(ValueError, match="NaN"):
            encode(broken, kind)
    with pytest.raises(ValueError, match="holds nothing"):
        encode(torch.empty(0, 8), "int8")
