"""Parts of an engine's step: what a product computes, what is taken out, what the roofline adds."""

import numpy as np
import pytest
import torch
from small_engine import engine

from utils import step_costs
from utils.kernels.weights import encode

SIZES = {"fp32": 4, "bf16": 2, "fp8_e4m3": 1, "int8": 1, "int4": 0.5}


@pytest.mark.parametrize("kind", step_costs.KINDS)
def test_product_multiplies_and_counts(kind):
    """All tiles are equal and x is all ones: every output is the sum of its row of weights."""
    product = step_costs.Product(kind, 48, 64, rows=3, threads=1)
    assert product.seconds(repeats=1) > 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weight = encode(torch.randn(16, 64), kind)
    expected = weight.dequantize().double().sum(1).repeat(3).expand(3, 48)
    assert torch.allclose(torch.from_numpy(product.y).double(), expected, rtol=1e-4, atol=1e-4)
    scales = 0 if kind in ("fp32", "bf16") else product.scales.nbytes
    assert product.bytes == 48 * 64 * SIZES[kind] + scales
    assert product.flops == 2 * 48 * 64 * 3
    assert product.intensity == product.flops / product.bytes


def test_threads_cover_all_tiles():
    product = step_costs.Product("fp32", 16 * 5, 32, rows=1, threads=2)
    product.y[:] = np.nan
    product.seconds(repeats=1)
    assert np.isfinite(product.y).all()


def test_product_refuses_by_name():
    with pytest.raises(ValueError, match="kind='nf4'"):
        step_costs.Product("nf4", 16, 64)
    with pytest.raises(ValueError, match="rows=0"):
        step_costs.Product("int8", 16, 64, rows=0)


def test_without_products_the_products_are_gone_and_come_back():
    made = engine(weights="int8", batch=2)
    before = made.step([5, 9, 17])[-1]
    made.step([33, 7, 2])  # other logits lie in the buffer from here on
    made.reset()
    with step_costs.without_products(made):
        made.step([5, 9, 17])
        stale = made.backend.state.logits.copy()
        made.step([41])
        assert (made.backend.state.logits == stale).all()  # nothing wrote them
    made.reset()
    assert torch.equal(made.step([5, 9, 17])[-1], before)


def test_products_come_back_after_an_error():
    made = engine()
    kernels = made.backend.model.matrices.copy()
    with pytest.raises(RuntimeError), step_costs.without_products(made):
        assert (made.backend.model.matrices != kernels).any()
        raise RuntimeError
    assert (made.backend.model.matrices == kernels).all()


def test_only_numba_steps_can_be_taken_apart():
    other = engine(backend="torch")
    with pytest.raises(ValueError, match="'torch'"), step_costs.without_products(other):
        pass


def test_decode_time_times_one_step_of_a_batch(monkeypatch):
    made = engine(batch=3)
    seen = []
    decode = made.decode
    monkeypatch.setattr(made, "decode", lambda ids: seen.append(len(ids)) or decode(ids))
    measure = step_costs.decode_time(made, 2, context=4, repeats=3)
    assert measure() > 0 and measure() > 0
    assert seen == [2] * 6
    assert [made.length(slot) for slot in range(3)] == [5, 5, 0]


def test_matrices_add_up_to_what_a_token_reads():
    for weights in ("fp32", "int4"):
        made = engine(weights=weights)
        parts = step_costs.matrices(made)
        assert sum(size for size, _ in parts.values()) == made.nbytes
        out_in = made.spec.matrices().values()
        assert sum(count for _, count in parts.values()) == sum(o * i for o, i in out_in)
    assert set(parts) == {"int4", "int8"}  # the head stays at 8 bits


def test_arithmetic_goes_four_rows_at_a_time():
    """Rates 1 and 4 GFLOP/s at 1 and 4 rows: 9 rows are two blocks of 4 and one of 1."""
    rates = {1: 1e9, 2: 2e9, 3: 3e9, 4: 4e9}
    assert step_costs.block_rate(rates, 4) == pytest.approx(4e9)
    seconds = 4 / 4e9 + 4 / 4e9 + 1 / 1e9
    assert step_costs.block_rate(rates, 9) == pytest.approx(9 / seconds)
    assert step_costs.block_rate(rates, 3) == pytest.approx(3e9)
    with pytest.raises(ValueError, match="rows=0"):
        step_costs.block_rate(rates, 0)


def test_predicted_by_hand():
    """10 GB/s; layers of 20 MB and 40 M weights, a head of 10 MB and 10 M weights."""
    parts = {"int4": (20e6, 40e6), "int8": (10e6, 10e6)}
    rates = {"int4": dict.fromkeys((1, 2, 3, 4), 40e9), "int8": dict.fromkeys((1, 2, 3, 4), 80e9)}
    one = step_costs.predicted(parts, 1, 10e9, rates)
    assert one == pytest.approx(max(2e-3, 80e6 / 40e9) + max(1e-3, 20e6 / 80e9))  # 2 + 1 ms
    eight = step_costs.predicted(parts, 8, 10e9, rates, fixed=5e-4)
    assert eight == pytest.approx(5e-4 + 640e6 / 40e9 + 160e6 / 80e9)
    apart = step_costs.predicted(parts, 1, 10e9, rates, hidden=0)
    assert apart == pytest.approx(2e-3 + 2e-3 + 1e-3 + 0.25e-3)
    assert step_costs.binding_rows(parts, 10e9, rates, range(1, 33)) == 2


def test_hidden_share_undoes_the_prediction():
    parts = {"int4": (20e6, 40e6), "int8": (10e6, 10e6)}
    rates = {kind: {1: 20e9, 2: 40e9, 3: 50e9, 4: 60e9} for kind in parts}
    for rows, hidden in ((1, 1.0), (2, 0.3), (7, 0.0), (32, -0.2)):
        seconds = step_costs.predicted(parts, rows, 9e9, rates, 4e-4, hidden)
        again = step_costs.hidden_share(seconds, parts, rows, 9e9, rates, 4e-4)
        assert again == pytest.approx(hidden)


def test_binding_rows_is_none_where_memory_always_binds():
    parts = {"fp32": (4e9, 1e9)}
    rates = {"fp32": dict.fromkeys((1, 2, 3, 4), 1e15)}
    assert step_costs.binding_rows(parts, 10e9, rates, (1, 2, 4)) is None


def test_equal_times_do_not_bind():
    """1 ms of reading and 1 ms of multiplying at 4 rows: arithmetic binds from the fifth on."""
    parts = {"fp32": (2**20, 2**18)}
    rates = {"fp32": dict.fromkeys((1, 2, 3, 4), float(2**31))}
    assert step_costs.binding_rows(parts, float(2**30), rates, range(1, 9)) == 5
