"""The full-range grid against llama.cpp's Q4_0 codec, and its edges."""

import pytest
import torch

from utils.quantization import full_range, gguf, rtn


def q4_0(weight):
    """(codes, scale) of llama.cpp's format, unpacked."""
    blocks = gguf.quantize(weight, "Q4_0").reshape(-1, 18)
    scale = blocks[:, :2].contiguous().view(torch.float16).reshape(len(weight), -1)
    nibbles = blocks[:, 2:]
    codes = torch.cat([nibbles & 15, nibbles >> 4], dim=1).to(torch.int8) - 8
    return codes.reshape(weight.shape), scale


def test_it_is_the_grid_of_q4_0():
    """Same scales; codes differ only where the stored scale moves a weight over a boundary."""
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    ours, (codes, scale) = full_range.quantize(weight, 4, 32), q4_0(weight)
    assert torch.equal(ours.scale, scale)
    differ = ours.codes != codes
    assert differ.float().mean() < 0.005
    assert (ours.codes - codes).abs().max() <= 1


def test_the_largest_weight_gets_the_lowest_code():
    weight = torch.tensor([[1.0, -2.0, 0.5, 4.0]])
    quantized = full_range.quantize(weight, 4, -1)
    assert quantized.codes.tolist() == [[-2, 4, -1, -8]]
    assert torch.equal(quantized.dequantize(), weight)


def test_sixteen_levels_beat_fifteen():
    weight = torch.randn(256, 512, generator=torch.Generator().manual_seed(1))
    error = {
        name: (quantized.dequantize() - weight).square().mean()
        for name, quantized in (
            ("full", full_range.quantize(weight, 4, 32)),
            ("rtn", rtn.quantize(weight, 4, 32, symmetric=True)),
        )
    }
    assert error["full"] < 0.97 * error["rtn"]


@pytest.mark.parametrize("columns, group", [(33, 32), (5, -1), (64, 64), (1, 8)])
def test_error_is_at_most_one_step(columns, group):
    """Half a step, but a whole one at the clipped end."""
    weight = torch.randn(17, columns, generator=torch.Generator().manual_seed(2))
    quantized = full_range.quantize(weight, 4, group)
    width = columns if group == -1 else group
    step = quantized.scale.float().abs().repeat_interleave(width, 1)[:, :columns]
    assert ((quantized.dequantize() - weight).abs() <= step * 1.01).all()


def test_zeros_and_bad_input():
    assert torch.equal(full_range.quantize(torch.zeros(3, 32)).dequantize(), torch.zeros(3, 32))
    with pytest.raises(ValueError, match="finite matrix"):
        full_range.quantize(torch.full((2, 32), float("nan")))
    with pytest.raises(ValueError, match="does not fit in fp16"):
        full_range.quantize(torch.full((2, 32), 1e9))
