"""Fake quantization: the numbers of round to nearest, and the gradients as they are defined."""

import pytest
import torch

from utils.quantization import fake_quant, rtn
from utils.quantization.fake_quant import Grid

DICE = torch.Generator().manual_seed(0)
WEIGHT = torch.randn(6, 40, generator=DICE)
UPSTREAM = torch.randn(6, 40, generator=DICE)
CASES = [(bits, group, symmetric) for bits in (2, 3, 4, 8) for group in (16, -1, 0)
         for symmetric in (False, True)]  # fmt: skip


@pytest.mark.parametrize(("bits", "group", "symmetric"), CASES)
def test_forward_and_export_are_round_to_nearest(bits, group, symmetric):
    expected = rtn.quantize(WEIGHT, bits, group, symmetric)
    grid = Grid.over(WEIGHT, bits, group, symmetric)
    made = fake_quant.export(WEIGHT, grid)
    assert torch.equal(made.codes, expected.codes) and torch.equal(made.scale, expected.scale)
    assert symmetric or torch.equal(made.zero_point, expected.zero_point)
    assert torch.equal(fake_quant.fake_quantize(WEIGHT, grid), expected.dequantize())


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group", [16, -1, 0])
def test_values_and_gradients_equal_the_naive_twin(group, symmetric):
    wide = Grid.over(WEIGHT, 3, group, symmetric)
    # a grid that clips, with scales that fp16 holds exactly
    grid = fake_quant.learned(fake_quant.replace(wide, scale=(0.6 * wide.scale).half().float()))
    weight = WEIGHT.clone().requires_grad_()
    out = fake_quant.fake_quantize(weight, grid)
    out.backward(UPSTREAM)
    value, for_weight, for_scale = fake_quant.fake_quantize_naive(WEIGHT, grid, UPSTREAM)
    assert torch.equal(out.detach(), value)
    assert torch.equal(weight.grad, for_weight) and (for_weight == 0).any()
    torch.testing.assert_close(grid.scale.grad, for_scale, rtol=1e-4, atol=1e-4)


def test_a_group_by_hand():
    grid = Grid(torch.tensor([[0.5]]), None, 3, -1)  # codes -3 ... 3, values -1.5 ... 1.5
    grid = fake_quant.learned(grid)
    weight = torch.tensor([[0.6, -0.9, 2.0]], requires_grad=True)
    out = fake_quant.fake_quantize(weight, grid)
    assert out.tolist() == [[0.5, -1.0, 1.5]]
    out.backward(torch.tensor([[1.0, 10.0, 100.0]]))
    assert weight.grad.tolist() == [[1.0, 10.0, 0.0]]
    # round(w/s) - w/s: 1 - 1.2, -2 + 1.8; clipped: the code, 3
    assert grid.scale.grad.item() == pytest.approx(1 * -0.2 + 10 * -0.2 + 100 * 3, rel=1e-5)


def test_without_clipping_the_gradient_passes_everywhere():
    grid = Grid(torch.tensor([[0.5]]), None, 3, -1)
    weight = torch.tensor([[0.6, 2.0]], requires_grad=True)
    fake_quant.fake_quantize(weight, grid, clipped=False).sum().backward()
    assert weight.grad.tolist() == [[1.0, 1.0]]


def test_the_true_derivative_is_zero_and_the_estimate_is_not():
    grid = Grid(torch.tensor([[1.0]]), None, 4, -1)
    weight = torch.full((1, 1), 0.3, requires_grad=True)
    fake_quant.fake_quantize(weight, grid).backward()
    nudged = fake_quant.fake_quantize(weight.detach() + 1e-3, grid)
    assert nudged.item() == fake_quant.fake_quantize(weight.detach(), grid).item()
    assert weight.grad.item() == 1


def test_scales_are_used_as_stored():
    grid = fake_quant.learned(Grid(torch.tensor([[0.1]]), None, 4, -1))
    out = fake_quant.fake_quantize(torch.tensor([[0.3]]), grid)
    assert out.item() == 3 * torch.tensor(0.1).half().float().item()
    made = fake_quant.export(torch.tensor([[0.3]]), grid)
    assert made.dequantize().item() == out.item()
    out.backward()
    assert grid.scale.grad is not None


def test_learning_the_step_reduces_a_clipped_error():
    start = Grid.over(WEIGHT, 3, -1, True)
    grid = fake_quant.learned(start)
    optimizer = torch.optim.Adam([grid.scale], lr=0.01)
    errors = []
    for _ in range(60):
        loss = (fake_quant.fake_quantize(WEIGHT, grid) - WEIGHT).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        errors.append(loss.item())
    assert errors[-1] < 0.9 * errors[0]
    assert (grid.scale.detach() < start.scale).all()  # it clips the tails


def test_the_grid_of_a_tensor():
    made = rtn.quantize(WEIGHT, 4, 16, False)
    grid = Grid.of(made)
    again = fake_quant.export(made.dequantize(), grid)
    assert torch.equal(again.codes, made.codes)


def test_weights_are_moved_into_the_cells_of_other_codes():
    made = rtn.quantize(WEIGHT + 0.3 * torch.randn(6, 40, generator=DICE), 4, 16, False)
    moved = fake_quant.inside(WEIGHT, made)
    assert torch.equal(fake_quant.export(moved, Grid.of(made)).codes, made.codes)
    step = made.scale.float().repeat_interleave(16, 1)[:, :40]
    there = (WEIGHT - made.dequantize()).abs() < 0.49 * step
    assert 0.2 < there.float().mean() < 0.8 and torch.equal(moved[there], WEIGHT[there])
    assert ((moved - made.dequantize()).abs()[~there] > 0.48 * step[~there]).all()


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="it needs .6, 3."):
        fake_quant.fake_quantize(WEIGHT, Grid(torch.ones(6, 2), None, 4, 16))
    with pytest.raises(ValueError, match="lower the rate"):
        fake_quant.export(WEIGHT, Grid(-torch.ones(6, 3), None, 4, 16))
