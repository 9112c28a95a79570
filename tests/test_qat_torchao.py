"""torchao's fake quantization as the oracle of ours, and where the two differ."""

import pytest
import torch
from torch import nn

from utils.quantization import fake_quant, rtn
from utils.quantization.fake_quant import Grid

WEIGHT = torch.randn(24, 128, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True, scope="module")
def gradients_as_found():
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    yield
    torch.set_grad_enabled(before)


def prepared(weight, **settings):
    """A layer with this weight, prepared by torchao, groups of 64."""
    from torchao.quantization import quantize_
    from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

    model = nn.Sequential(nn.Linear(weight.shape[1], weight.shape[0], bias=False))
    model[0].weight = nn.Parameter(weight.clone())
    config = IntxFakeQuantizeConfig(torch.int4, group_size=64, **settings)
    quantize_(model, QATConfig(weight_config=config, step="prepare"))
    return model[0]


def at_edge(weight, scale):
    """Weights at 7.5 steps, where the last bit of a division decides."""
    return (weight.abs() / scale.repeat_interleave(64, 1) - 7.5).abs() < 1e-4


def test_on_their_grid_numbers_and_gradients_agree_but_for_ties():
    layer = prepared(WEIGHT)
    theirs = layer.weight_fake_quantizer(layer.weight)
    scale = layer.weight_fake_quantizer.scale.float()
    upstream = torch.randn(24, 128, generator=torch.Generator().manual_seed(1))
    theirs.backward(upstream)
    weight = WEIGHT.clone().requires_grad_()
    grid = Grid(scale, torch.full_like(scale, 8.0), 4, 64, torch.float32)  # codes -8 ... 7
    ours = fake_quant.fake_quantize(weight, grid)
    ours.backward(upstream)
    edge = at_edge(WEIGHT, scale)
    assert edge.sum() == 2 * 24  # the largest weight of every group
    torch.testing.assert_close(ours.detach()[~edge], theirs.detach()[~edge])
    torch.testing.assert_close(weight.grad[~edge], layer.weight.grad[~edge])
    assert (weight.grad[edge] == 0).any()


def test_their_step_is_fourteen_fifteenths_of_ours():
    layer = prepared(WEIGHT)
    layer.weight_fake_quantizer(layer.weight)
    ours = rtn.quantize(WEIGHT, 4, 64, True, scale_dtype=torch.float32).scale
    ratio = layer.weight_fake_quantizer.scale / ours
    torch.testing.assert_close(ratio, torch.full_like(ratio, 14 / 15))


def test_their_asymmetric_int4_loses_its_zero_point():
    """If this fails torchao has been repaired: rewrite the section of the chapter."""
    shifted = 0.1 + 0.2 * torch.rand(8, 128, generator=torch.Generator().manual_seed(2))
    layer = prepared(shifted, is_symmetric=False)
    theirs = layer.weight_fake_quantizer(layer.weight).detach()
    assert (layer.weight_fake_quantizer.zero_point == 0).all()
    assert (theirs - shifted).abs().max() > 0.15
    assert (rtn.quantize(shifted, 4, 64, False).dequantize() - shifted).abs().max() < 0.02
