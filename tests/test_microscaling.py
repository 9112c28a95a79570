"""MXFP4, MXFP8 and NVFP4: against gguf and torchao, and where their scales fail."""

import gguf
import ml_dtypes
import numpy as np
import pytest
import torch
from torchao.prototype.mx_formats import mx_tensor, nvfp4_tensor
from torchao.prototype.mx_formats.config import ScaleCalculationMode

from utils.quantization import formats, microscaling
from utils.quantization.error import sqnr_db

RULES = {"floor": ScaleCalculationMode.FLOOR, "ceil": ScaleCalculationMode.RCEIL}


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sizes(*shape, seed=0):
    """Gaussian numbers whose rows differ in size by many powers of two."""
    return gaussian(*shape, seed=seed) * torch.logspace(-8, 8, shape[0], base=2)[:, None]


def test_e8m0_is_that_of_ml_dtypes():
    codes = torch.arange(256)
    theirs = codes.numpy().astype(np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    ours = microscaling.decode_e8m0(codes)
    assert torch.equal(ours[:255], torch.from_numpy(theirs)[:255]) and torch.isnan(ours[255])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind, dtype", [("mxfp8", torch.float8_e4m3fn)])
def test_mxfp8_is_that_of_torchao(kind, dtype, rule):
    x = sizes(60, 128)
    scales, codes = mx_tensor.to_mx(x, dtype, 32, RULES[rule])
    ours = microscaling.encode(x, kind, rule)
    assert torch.equal(ours.scales, scales.view(torch.uint8).reshape(60, 4))
    assert torch.equal(ours.codes, codes.view(torch.uint8).reshape(60, 128))


def test_mxfp4_scales_and_numbers_are_those_of_torchao():
    x = sizes(60, 128)
    scales, packed = mx_tensor.to_mx(x, torch.float4_e2m1fn_x2, 32, ScaleCalculationMode.FLOOR)
    ours = microscaling.encode(x, "mxfp4")
    assert torch.equal(ours.scales, scales.view(torch.uint8).reshape(60, 4))
    assert torch.equal(ours.packed, packed.view(torch.uint8).reshape(-1))


def test_mxfp4_numbers_are_those_of_gguf_up_to_ties():
    x = gaussian(40, 256)
    kind = gguf.GGMLQuantizationType.MXFP4
    theirs = gguf.quants.dequantize(gguf.quants.quantize(x.numpy(), kind), kind)
    ours = formats.cast(x, "mxfp4")
    different = ours != torch.from_numpy(theirs)
    assert different.float().mean() < 1e-3  # gguf sends ties to the smaller number


@pytest.mark.parametrize("seed", [0, 1])
def test_nvfp4_is_that_of_torchao(seed):
    x = gaussian(60, 128, seed=seed) * torch.logspace(-2, 2, 60, base=2)[:, None]
    ours = microscaling.encode(x, "nvfp4")
    scales, packed = nvfp4_tensor.nvfp4_quantize(x, per_tensor_scale=ours.tensor_scale)
    assert torch.equal(ours.scales, scales.view(torch.uint8).reshape(60, 8))
    theirs = microscaling.Blocks("nvfp4", unpacked(packed, 60), ours.scales, ours.tensor_scale)
    close = microscaling.decode(ours) - microscaling.decode(theirs)
    assert (close != 0).float().mean() < 1e-3  # torchao multiplies by a rounded reciprocal


def unpacked(packed, rows):
    packed = packed.view(torch.uint8).reshape(rows, -1)
    return torch.stack([packed & 15, packed >> 4], dim=-1).reshape(rows, -1)


@pytest.mark.parametrize("kind, expected", [("mxfp4", 18.79), ("nvfp4", 20.4)])
def test_signal_to_noise_on_gaussian_numbers(kind, expected):
    x = gaussian(2000, 256)
    assert sqnr_db(x, formats.cast(x, kind)) == pytest.approx(expected, abs=0.1)


def test_a_block_by_hand():
    block = torch.tensor([[7.0, 1.0, -0.6, 2.5] + [0.0] * 28])
    floor = microscaling.encode(block, "mxfp4")
    assert floor.scales.tolist() == [[127]]  # floor(log2 7) - 2 = 0
    assert microscaling.decode(floor)[0, :4].tolist() == [6, 1, -0.5, 2]
    ceil = microscaling.encode(block, "mxfp4", rule="ceil")
    assert ceil.scales.tolist() == [[128]]  # ceil(log2(7 / 6)) = 1
    assert microscaling.decode(ceil)[0, :4].tolist() == [8, 1, -1, 2]


@pytest.mark.parametrize("kind", ["mxfp4", "mxfp8"])
def test_ceil_never_cuts_off_and_floor_by_a_quarter_at_most(kind):
    x = sizes(60, 128)
    element = microscaling.ELEMENTS[kind][0]
    for rule, limit in (
        ("floor", 2 ** (1 + np.floor(np.log2(element.max)))),
        ("ceil", element.max),
    ):
        scales = microscaling.decode_e8m0(microscaling.encode(x, kind, rule).scales)
        reach = x.reshape(60, 4, 32).abs().amax(dim=2).double() / scales
        assert (reach <= limit).all() and (reach >= limit / 2).all()


def test_powers_of_two_are_exact_at_the_borders():
    x = torch.zeros(6, 32)
    x[:, 0] = torch.tensor([1.0, 6.0, 8.0, 2.0**-20, 6 * 2.0**60, 4.0])
    for rule in microscaling.RULES:
        blocks = microscaling.encode(x, "mxfp4", rule)
        assert torch.equal(microscaling.decode(blocks), x)
        assert blocks.scales[1].item() == 127  # 6 fits with the scale 1


@pytest.mark.parametrize("kind", microscaling.ELEMENTS)
def test_zeros_and_short_blocks(kind):
    assert torch.equal(formats.cast(torch.zeros(2, 64), kind), torch.zeros(2, 64))
    x = gaussian(3, 40)
    blocks = formats.encode(x, kind)
    size = microscaling.ELEMENTS[kind][1]
    assert blocks.codes.shape == (3, 40) and blocks.scales.shape == (3, -(-40 // size))
    assert torch.equal(formats.decode(blocks, kind)[:, :32], formats.cast(x, kind)[:, :32])
    assert torch.isfinite(formats.cast(gaussian(2, 32) * 1e-38, kind)).all()


@pytest.mark.parametrize("kind, bits", [("mxfp4", 4.25), ("mxfp8", 8.25), ("nvfp4", 4.5)])
def test_true_bits_per_weight(kind, bits):
    blocks = formats.encode(gaussian(256, 512), kind)
    tensor = 32 / blocks.codes.numel() if kind == "nvfp4" else 0
    assert blocks.bits_per_weight == bits + tensor


def test_nvfp4_loses_blocks_far_below_the_largest():
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 16] = 6 * 448, 6 * 2.0**-11
    assert formats.cast(x, "nvfp4")[0, 16] == 0
    x[0, 16] = 6 * 2.0**-9
    assert formats.cast(x, "nvfp4")[0, 16] == 6 * 2.0**-9


def test_wrong_input_is_told():
    with pytest.raises(ValueError, match="mxfp9"):
        microscaling.encode(gaussian(2, 32), "mxfp9")
    with pytest.raises(ValueError, match="rule='up'"):
        microscaling.encode(gaussian(2, 32), "mxfp4", rule="up")
    with pytest.raises(ValueError, match="finite"):
        microscaling.encode(torch.tensor([[float("nan")]]), "mxfp4")
    with pytest.raises(ValueError, match="finite"):  # finite in fp64, but not in what is stored
        microscaling.encode(torch.full((1, 16), 1e300, dtype=torch.float64), "nvfp4")
    with pytest.raises(ValueError, match="leave out"):
        formats.cast(gaussian(2, 32), "nvfp4", saturate=False)
    with pytest.raises(ValueError, match="decoded from the Blocks"):
        formats.decode(torch.zeros(2, dtype=torch.uint8), "mxfp4")
