"""GPTQ on one layer: equal to its column-by-column definition, dead columns, damping, bad input."""

import pytest
import torch
from small_gptq import layer

from utils import corpus, models
from utils.quantization import gptq, gptq_naive, rtn
from utils.quantization.hessian import collect
from utils.quantization.reordered import ReorderedTensor
from utils.sparsity import sparsegpt


@pytest.mark.parametrize("groups", gptq.GROUPS)
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize(
    "bits, group_size, symmetric", [(4, 16, False), (3, 24, True), (2, -1, False)]
)
def test_codes_equal_the_naive_reference(bits, group_size, symmetric, act_order, groups):
    for seed, block in enumerate((128, 8, 7)):
        weight, hessian = layer(seed=seed)
        options = dict(bits=bits, group_size=group_size, act_order=act_order, symmetric=symmetric)
        fast = gptq.quantize(weight, hessian, groups=groups, block=block, **options)
        codes, weights = gptq_naive.quantize_naive(weight, hessian, groups=groups, **options)
        assert torch.equal(fast.codes.double(), codes)
        assert torch.equal(fast.dequantize().double(), weights.float().double())


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(192, 576), (96, 640)])
def test_codes_equal_the_naive_reference_at_the_models_width(shape):
    weight, hessian = layer(*shape, tokens=2000)
    for act_order in (False, True):
        fast = gptq.quantize(weight, hessian.float(), 4, 64, act_order)
        codes, _ = gptq_naive.quantize_naive(weight, hessian.float(), 4, 64, act_order)
        assert int((fast.codes.double() != codes).sum()) == 0


@pytest.fixture(scope="module")
def real():
    """The linear layers of one block of the model, {short name: (weight, Hessian)}."""
    loaded = models.load(dtype=torch.float32)
    ids = corpus.sample(loaded.tokenizer, "calibration", 2048).ids
    layers = {n: m for n, m in models.linears(loaded.model).items() if "layers.15." in n}
    found = collect(loaded.model, ids, layers=layers)
    return {n.rsplit(".", 1)[-1]: (m.weight.detach(), found[n]) for n, m in layers.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name, shape, group_size, act_order, groups", [
    ("q_proj", (576, 576), 64, True, "static"),
    ("k_proj", (192, 576), 100, True, "dynamic"),
    ("v_proj", (192, 576), 100, False, "dynamic"),
    ("o_proj", (576, 576), 100, True, "static"),
    ("gate_proj", (1536, 576), 64, True, "dynamic"),
    ("up_proj", (1536, 576), 100, False, "static"),
    ("down_proj", (576, 1536), 100, True, "dynamic"),
])  # fmt: skip
def test_codes_equal_the_naive_reference_on_the_models_layers(
    real, name, shape, group_size, act_order, groups
):
    """Real weights and Hessians, every shape; groups of 100 leave 76 or 36 columns for the last."""
    weight, gram = real[name]
    assert weight.shape == shape
    fast = gptq.quantize(weight, gram, 4, group_size, act_order, groups=groups)
    codes, _ = gptq_naive.quantize_naive(weight, gram, 4, group_size, act_order, groups=groups)
    assert int((fast.codes.double() != codes).sum()) == 0


def test_the_running_inverse_is_the_inverse_of_what_is_left():
    weight, hessian = layer(width=6)
    work, inverse = weight.double(), gptq_naive.inverse_hessian(hessian, 0.01)
    full = torch.linalg.inv(inverse)
    for j in range(3):
        work, inverse = gptq_naive.fix_column(work, inverse, j, work[:, j].round())
    torch.testing.assert_close(inverse[3:, 3:], torch.linalg.inv(full[3:, 3:]))


def test_one_column_by_hand():
    """H = [[2, 1], [1, 2]]: rounding w_1 down by 0.4 moves w_2 up by 0.4 * 1/2."""
    weight = torch.tensor([[1.4, 2.3]], dtype=torch.float64)
    inverse = torch.linalg.inv(torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64))
    work, _ = gptq_naive.fix_column(weight, inverse, 0, torch.tensor([1.0]).double())
    torch.testing.assert_close(work, torch.tensor([[1.0, 2.5]], dtype=torch.float64))


def test_lower_output_error_than_rounding():
    weight, hessian = layer(out=64)
    for bits in (3, 4):
        nearest = rtn.quantize(weight, bits, 8, False)
        ours = gptq.quantize(weight, hessian, bits, 8)
        errors = [sparsegpt.output_error(weight, q.dequantize(), hessian) for q in (ours, nearest)]
        assert errors[0] < 0.6 * errors[1]
        assert (ours.dequantize() - weight).norm() > (nearest.dequantize() - weight).norm()


def test_independent_inputs_leave_nothing_to_compensate():
    weight, _ = layer()
    for act_order in (False, True):
        ours = gptq.quantize(weight, torch.arange(1.0, 41).diag(), 4, 16, act_order)
        nearest = rtn.quantize(weight, 4, 16, symmetric=False)
        assert torch.equal(ours.codes, nearest.codes) and torch.equal(ours.scale, nearest.scale)


def test_the_block_changes_no_code():
    weight, hessian = layer(width=50)
    for groups in gptq.GROUPS:
        results = [
            gptq.quantize(weight, hessian, 4, 24, groups=groups, block=b) for b in (1, 9, 64)
        ]
        assert all(torch.equal(r.codes, results[0].codes) for r in results)


@pytest.mark.parametrize(
    "columns, width, block", [(50, 24, 9), (64, 16, 40), (30, 64, 7), (9, 4, 3)]
)
def test_a_group_lies_in_one_block_or_begins_one(columns, width, block):
    spans = list(gptq.blocks(columns, width, block))
    assert [j for span in spans for j in range(*span)] == list(range(columns))
    for first in range(0, columns, width):
        start, end = next(s for s in spans if s[0] <= first < s[1])
        assert start == first or min(first + width, columns) <= end


def test_largest_diagonal_first_and_ties_stay_in_order():
    hessian = torch.diag(torch.tensor([1.0, 3.0, 0.0, 3.0, 2.0]))
    assert gptq.processing_order(hessian, True).tolist() == [1, 3, 4, 0, 2]
    assert gptq.processing_order(hessian, False).tolist() == [0, 1, 2, 3, 4]


def test_scattered_groups_have_their_own_index():
    weight, hessian = layer()
    ours = gptq.quantize(weight, hessian, 4, 16, groups="dynamic")
    assert isinstance(ours, ReorderedTensor) and sorted(ours.order.tolist()) == list(range(40))
    assert torch.bincount(ours.g_idx).tolist() == [16, 16, 8]
    assert ours.g_idx[ours.order[0]] == 0 and ours.g_idx[ours.order[-1]] == 2
    scale, zero = ours.tensor.scale.float(), ours.tensor.zero_point.float()
    by_hand = (ours.codes - zero[:, ours.g_idx]) * scale[:, ours.g_idx]
    assert torch.equal(ours.dequantize(), by_hand)
    assert ours.nbytes == ours.tensor.nbytes + 40 * 4


def test_dead_columns_are_rounded_to_nearest_and_disturb_nothing():
    weight, hessian = layer()
    dead, alive = [3, 17, 39], [j for j in range(40) if j not in (3, 17, 39)]
    hessian[dead], hessian[:, dead] = 0, 0
    weight[:, dead] = 0.1  # far from the ends of their groups
    ours, nearest = gptq.quantize(weight, hessian, 4, 16), rtn.quantize(weight, 4, 16, False)
    assert torch.equal(ours.codes[:, dead], nearest.codes[:, dead])
    codes, _ = gptq_naive.quantize_naive(weight, hessian, 4, 16)
    assert torch.equal(ours.codes.double(), codes)
    twin = weight.clone()
    twin[:, dead] = -0.07
    assert torch.equal(gptq.quantize(twin, hessian, 4, 16).scale, ours.scale)
    assert torch.equal(gptq.quantize(twin, hessian, 4, 16).codes[:, alive], ours.codes[:, alive])


def test_one_calibration_token_is_enough_to_run():
    weight, _ = layer()
    x = torch.randn(40, 1, generator=torch.Generator().manual_seed(1))
    ours = gptq.quantize(weight, x @ x.T, 4, 16)
    nearest = rtn.quantize(weight, 4, 16, False)
    lost = [((q.dequantize() - weight) @ x).norm() for q in (ours, nearest)]
    assert torch.isfinite(ours.dequantize()).all() and lost[0] < 0.2 * lost[1]


def test_damping_grows_until_the_factorisation_succeeds():
    weight, hessian = layer()
    values, vectors = torch.linalg.eigh(hessian)
    values[0] = -0.05 * hessian.diagonal().mean()  # needs more than 0.01, less than 0.1
    broken = vectors @ values.diag() @ vectors.T
    ours = gptq.quantize(weight, (broken + broken.T) / 2, 4, 16)
    again = gptq.quantize(weight, (broken + broken.T) / 2, 4, 16, damping=0.1)
    assert torch.equal(ours.codes, again.codes)


def test_falls_back_to_rounding_with_a_warning():
    weight, _ = layer()
    with pytest.warns(UserWarning, match="not positive definite.*rounding to nearest"):
        ours = gptq.quantize(weight, -1e9 * torch.eye(40) + 1, 4, 16)
    assert torch.equal(ours.codes, rtn.quantize(weight, 4, 16, False).codes)


def test_no_calibration_at_all_is_rounding():
    weight, _ = layer()
    ours = gptq.quantize(weight, torch.zeros(40, 40), 4, 16)
    assert torch.equal(ours.codes, rtn.quantize(weight, 4, 16, False).codes)


def test_more_damping_comes_closer_to_rounding():
    weight, hessian = layer()
    nearest = rtn.quantize(weight, 4, 16, False).codes
    changed = [
        int((gptq.quantize(weight, hessian, 4, 16, damping=d).codes != nearest).sum())
        for d in (0.01, 1, 100, 1e5)
    ]
    assert changed == sorted(changed, reverse=True) and changed[-1] <= 2


@pytest.mark.parametrize(
    "change, words",
    [
        ({"hessian": torch.full((40, 40), float("nan"))}, "NaN or infinity: a calibration"),
        ({"hessian": torch.eye(39)}, r"needs a Hessian \[in, in\]"),
        ({"weight": torch.full((12, 40), float("inf"))}, "weight holds NaN"),
        ({"group_size": 0}, "group_size=0"),
        ({"groups": "sorted"}, "groups='sorted'"),
        ({"block": 0}, "block=0"),
    ],
)
def test_bad_input_is_named(change, words):
    weight, hessian = layer()
    with pytest.raises(ValueError, match=words):
        gptq.quantize(**({"weight": weight, "hessian": hessian} | change))
