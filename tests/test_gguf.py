"""llama.cpp's block formats: byte for byte as the `gguf` package writes and reads them."""

import numpy as np
import pytest
import torch

from utils.quantization import gguf
from utils.quantization.error import sqnr_db

reference = pytest.importorskip("gguf")
KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def kind_of(name):
    return reference.GGMLQuantizationType[name]


def samples():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 256, generator=generator)
    return {
        "gaussian": x,
        "small": x * 1e-3,
        "large": x * 1e3,
        "heavy tail": x**5,
        "positive": x.abs(),
        "integers": torch.round(x * 4),
        "ties": torch.tensor([1.0, -1.0, 0.5, -0.5]).repeat(16).reshape(1, 64),
        "zeros": torch.zeros(2, 64),
        "fp16 underflow": x * 1e-9,
        "very small": x * 1e-30,
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", samples())
def test_bytes_are_those_of_gguf(kind, name):
    x = samples()[name]
    expected = reference.quants.quantize(x.numpy(), kind_of(kind))
    ours = gguf.quantize(x, kind)
    assert np.array_equal(ours.numpy(), expected)
    decoded = reference.quants.dequantize(expected, kind_of(kind))
    assert np.array_equal(gguf.dequantize(ours, kind, x.shape).numpy(), decoded)


@pytest.mark.parametrize("kind", KINDS)
def test_any_bytes_decode_as_gguf_decodes_them(kind):
    rows = np.random.default_rng(1).integers(0, 256, (50, gguf.block_bytes(kind)), dtype=np.uint8)
    rows[:, 1] &= 0x7B  # no NaN or infinity among the fp16 steps
    rows[:, 3] &= 0x7B
    expected = reference.quants.dequantize(rows, kind_of(kind))
    ours = gguf.dequantize(torch.from_numpy(rows), kind, (50, 32))
    assert np.array_equal(ours.numpy(), expected)


@pytest.mark.parametrize(
    "kind, expected",
    [("Q8_0", 45.47), ("Q5_1", 28.42), ("Q5_0", 27.39), ("Q4_1", 22.18), ("Q4_0", 21.31)],
)
def test_signal_to_noise_on_gaussian_weights(kind, expected):
    x = torch.randn(1000, 1024, generator=torch.Generator().manual_seed(2))
    restored = gguf.dequantize(gguf.quantize(x, kind), kind, x.shape)
    assert sqnr_db(x, restored) == pytest.approx(expected, abs=0.1)


def test_bits_per_weight():
    assert [gguf.bits_per_weight(k) for k in KINDS] == [4.5, 5.0, 5.5, 6.0, 8.5]


@pytest.mark.parametrize("kind", KINDS)
def test_quantizing_a_dequantized_tensor_again_is_lossless_for_formats_with_a_minimum(kind):
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(3))
    once = gguf.dequantize(gguf.quantize(x, kind), kind, x.shape)
    twice = gguf.dequantize(gguf.quantize(once, kind), kind, x.shape)
    if kind in ("Q4_1", "Q5_1"):
        assert torch.equal(once, twice)


@pytest.mark.parametrize("kind", KINDS)
def test_tiny_blocks_stay_finite(kind):
    x = torch.full((1, 32), 1e-42)
    x[0, 3] = 0
    restored = gguf.dequantize(gguf.quantize(x, kind), kind, x.shape)
    assert torch.isfinite(restored).all() and restored.abs().max() <= 1e-41


def test_bad_input():
    with pytest.raises(ValueError, match="divisible by 32"):
        gguf.quantize(torch.ones(2, 40), "Q4_0")
    with pytest.raises(ValueError, match="NaN or infinity"):
        gguf.quantize(torch.full((1, 32), float("nan")), "Q8_0")
    with pytest.raises(ValueError, match="Q4_K"):
        gguf.quantize(torch.ones(1, 32), "Q4_K")
    with pytest.raises(ValueError, match="do not hold shape"):
        gguf.dequantize(torch.zeros(18, dtype=torch.uint8), "Q4_0", (64,))


@pytest.mark.slow
def test_the_models_own_grid_is_found_in_its_original_order_only():
    """The confound: every weight survives Q4_1 in the original order; after the shuffle few do."""
    from utils import models

    changed = {}
    for order in (True, False):
        layers = models.linears(models.load(original_order=order).model).values()
        weights = [layer.weight.float().cpu() for layer in layers]
        again = [gguf.dequantize(gguf.quantize(w, "Q4_1"), "Q4_1", w.shape) for w in weights]
        pairs = zip(weights, again, strict=True)
        changed[order] = sum(int((w != a).sum()) for w, a in pairs)
    total = sum(w.numel() for w in weights)
    assert total == 106_168_320
    assert changed[True] == 0
    assert changed[False] > 0.9 * total


@pytest.mark.parametrize("kind", KINDS)
def test_non_contiguous_input(kind):
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(4))
    for view in (x[::2], x.T, x[:, 32:]):
        assert torch.equal(gguf.quantize(view, kind), gguf.quantize(view.contiguous(), kind))


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_never_larger_than_the_block_where_fp16_steps_run_out(kind):
    """Around the smallest fp16 number a step can double; with a minimum the whole span counts."""
    x = torch.randn(2000, 32, generator=torch.Generator().manual_seed(5))
    x = x * 10 ** torch.linspace(-9, -3, 2000)[:, None]
    error = (gguf.dequantize(gguf.quantize(x, kind), kind, x.shape) - x).abs().amax(1)
    span = x.amax(1) - x.amin(1) if kind in ("Q4_1", "Q5_1") else x.abs().amax(1)
    assert (error <= span * (1 + 1e-3) + 2**-24).all()


def test_the_extreme_gets_code_zero_with_its_sign():
    """Q4_0: 2 or -2 leads; the step is -0.25 or 0.25, its own code is 0, and -7/8 of it is 15."""
    for sign in (1.0, -1.0):
        x = torch.zeros(1, 32)
        x[0, 0], x[0, 16], x[0, 1] = 2 * sign, -1.75 * sign, 0.5 * sign
        blocks = gguf.quantize(x, "Q4_0")[0]
        assert blocks[:2].view(torch.float16).item() == -0.25 * sign
        assert blocks[2].item() == 0xF0 and blocks[3].item() & 15 == 6
        assert torch.equal(gguf.dequantize(blocks, "Q4_0", x.shape), x)


def test_halves_go_away_from_zero():
    """Q8_0 with step 1: 0.5, 1.5 and 2.5 become 1, 2 and 3, not 0, 2 and 2; the package agrees."""
    x = torch.zeros(1, 32)
    x[0, :7] = torch.tensor([127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5])
    blocks = gguf.quantize(x, "Q8_0")
    assert blocks[0, 2:9].view(torch.int8).tolist() == [127, 1, 2, 3, -1, -2, -3]
    theirs = reference.quants.quantize(x.numpy(), reference.GGMLQuantizationType.Q8_0)
    assert np.array_equal(blocks.numpy(), theirs)
