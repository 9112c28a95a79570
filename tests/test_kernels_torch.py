"""The torch back end: products with every storage form, and single rows of them."""

import pytest
import torch
from kernel_cases import CASES, EXTREMES, FORMS, excess, extreme, inputs_for, stored

from utils.kernels import rowwise, torch_linear
from utils.kernels.torch_linear import TorchLinear
from utils.quantization.packing import pack, pack_naive


@pytest.mark.parametrize("form, shape", CASES)
def test_product(form, shape):
    weight = stored(form, *shape)
    x = inputs_for(weight)
    y = TorchLinear(weight)(x)
    assert y.shape == (3, shape[0]) and y.dtype == torch.float32
    assert excess(y, weight, x) <= 1


@pytest.mark.parametrize("kind", EXTREMES)
@pytest.mark.parametrize("form", FORMS)
def test_product_with_extreme_weights(form, kind):
    weight = extreme(form, kind)
    x = inputs_for(weight)
    assert excess(TorchLinear(weight)(x), weight, x) <= 1


def test_a_wrong_weight_exceeds_the_bound():
    weight, other = stored("int4", 4, 64), stored("int4", 4, 64, size=1.01)
    x = inputs_for(weight)
    assert excess(TorchLinear(other)(x), weight, x) > 1


def test_no_rows():
    assert TorchLinear(stored("int4", 5, 32))(torch.empty(0, 32)).shape == (0, 5)


@pytest.mark.parametrize("form, shape", CASES)
def test_rows_are_those_of_the_dense_matrix(form, shape):
    weight = stored(form, *shape)
    ids = torch.tensor([shape[0] - 1, 0, shape[0] - 1])
    assert torch.equal(rowwise.rows(weight, ids), weight.dequantize()[ids])
    assert torch.equal(rowwise.by_rows(weight).dense(), weight.dequantize())


@pytest.mark.parametrize("columns", [1, 2, 7, 8, 33])
def test_rows_start_on_a_byte(columns):
    codes = torch.randint(0, 16, (5, columns), generator=torch.Generator().manual_seed(0))
    expected = torch.stack([pack_naive(row, 4) for row in codes])
    assert torch.equal(rowwise.nibble_rows(pack(codes, 4), 5, columns), expected)


def test_packed_at_rest_and_unpacked_in_blocks(monkeypatch):
    weight = stored("int4", 50, 64)
    linear, x = TorchLinear(weight), inputs_for(weight)
    assert linear.nbytes == weight.nbytes == 50 * 64 // 2 + 50 * 2 * 2
    unpacked = []
    dense = rowwise.Rowwise.dense
    monkeypatch.setattr(
        rowwise.Rowwise, "dense", lambda self: unpacked.append(len(self)) or dense(self)
    )
    monkeypatch.setitem(torch_linear.BLOCK_BYTES, "cpu", 20 * 64 * 4)
    assert excess(linear(x), weight, x) <= 1
    assert unpacked == [20, 20, 10]
