"""K-quants: any bytes decode as the `gguf` package decodes them; the plain encoder is sound."""

import numpy as np
import pytest
import torch

from utils.quantization import gguf_kquants as kquants
from utils.quantization.error import sqnr_db

reference = pytest.importorskip("gguf")
KINDS = list(kquants.SIZES)


def gaussian(seed=2, shape=(400, 1024)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def round_trip(x, kind):
    return kquants.dequantize(kquants.quantize(x, kind), kind, x.shape)


@pytest.mark.parametrize("kind", KINDS)
def test_any_bytes_decode_as_gguf_decodes_them(kind):
    size = kquants.block_bytes(kind)
    rows = np.random.default_rng(1).integers(0, 256, (60, size), dtype=np.uint8)
    for high_byte in (209,) if kind == "Q6_K" else (1, 3):
        rows[:, high_byte] &= 0x7B  # no NaN or infinity among the fp16 units
    expected = reference.quants.dequantize(rows, reference.GGMLQuantizationType[kind])
    ours = kquants.dequantize(torch.from_numpy(rows), kind, (60, 256))
    assert np.array_equal(ours.numpy(), expected)


@pytest.mark.parametrize("kind, bits", [("Q4_K", 4.5), ("Q5_K", 5.5), ("Q6_K", 6.5625)])
def test_sizes_are_those_of_gguf(kind, bits):
    block, size = reference.GGML_QUANT_SIZES[reference.GGMLQuantizationType[kind]]
    assert (block, size) == (kquants.SUPER, kquants.block_bytes(kind))
    assert kquants.bits_per_weight(kind) == bits


def test_twelve_bytes_by_hand():
    """Scale 5 is 0b10_1101 and minimum 5 is 0b01_0010: two bits above byte 1 and 5, rest in 9."""
    packed = torch.zeros(1, 12, dtype=torch.uint8)
    packed[0, 1], packed[0, 5], packed[0, 9] = 0b10_000111, 0b01_000011, 0b0010_1101
    scale, minimum = kquants.unpack_scales(packed)
    assert scale.tolist() == [[0, 7, 0, 0, 0, 45, 0, 0]]
    assert minimum.tolist() == [[0, 3, 0, 0, 0, 18, 0, 0]]


def test_packed_scales_come_back():
    generator = torch.Generator().manual_seed(0)
    both = torch.randint(0, 64, (2, 50, 8), generator=generator, dtype=torch.uint8)
    packed = kquants.pack_scales(*both)
    assert packed.shape == (50, 12)
    assert torch.equal(torch.stack(kquants.unpack_scales(packed)), both)


@pytest.mark.parametrize("kind, decibels", [("Q4_K", 21.5), ("Q5_K", 27.7), ("Q6_K", 34.0)])
def test_the_plain_encoder_is_as_good_as_its_bits(kind, decibels):
    """The ranges of Gaussian sub-blocks cost what Q4_1's cost; the second level takes little."""
    x = gaussian()
    assert decibels < sqnr_db(x, round_trip(x, kind)) < decibels + 1


@pytest.mark.parametrize("kind", KINDS)
def test_each_error_is_within_its_sub_block(kind):
    """Half a step, plus what rounding the step and the minimum to 6 or 8 bits can move."""
    x = gaussian(shape=(40, 512))
    width, levels, second = (16, 32, 128) if kind == "Q6_K" else (32, 15, 63)
    levels = 31 if kind == "Q5_K" else levels
    parts, supers = x.reshape(-1, width), x.reshape(-1, 256)
    error = (round_trip(x, kind) - x).reshape(-1, width).abs().amax(1)
    spread = parts.amax(1).clamp(min=0) - parts.amin(1).clamp(max=0)
    largest = 2 * supers.abs().amax(1).repeat_interleave(256 // width)
    assert (error <= spread / levels + 2 * largest / second).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e-30, 1e-42])
def test_zeros_and_tiny_blocks_stay_finite(kind, scale):
    x = gaussian(shape=(4, 256)) * scale
    restored = round_trip(x, kind)
    assert torch.isfinite(restored).all()
    assert restored.abs().max() <= 2 * x.abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_one_sided_sub_blocks(kind):
    """All positive or all negative weights: the range always includes zero."""
    for x in (gaussian(shape=(8, 256)).abs() + 1, -gaussian(shape=(8, 256)).abs() - 1):
        assert sqnr_db(x, round_trip(x, kind)) > 25


@pytest.mark.parametrize("kind", KINDS)
def test_non_contiguous_input(kind):
    x = gaussian(shape=(512, 512))
    for view in (x[::2], x.T, x[:, 256:]):
        expected = kquants.quantize(view.contiguous(), kind)
        assert torch.equal(kquants.quantize(view, kind), expected)


def test_bad_input():
    with pytest.raises(ValueError, match="divisible by 256"):
        kquants.quantize(torch.ones(2, 576), "Q4_K")
    with pytest.raises(ValueError, match="NaN or infinity"):
        kquants.quantize(torch.full((1, 256), float("inf")), "Q6_K")
    with pytest.raises(ValueError, match="Q3_K"):
        kquants.quantize(torch.ones(1, 256), "Q3_K")
    with pytest.raises(ValueError, match="do not hold shape"):
        kquants.dequantize(torch.zeros(144, dtype=torch.uint8), "Q4_K", (512,))
