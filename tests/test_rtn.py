"""Round to nearest: the grid, the bound, the field's nasty inputs, ONNX as a referee."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from utils.quantization import rtn
from utils.quantization.error import mean_squared_error, sqnr_db
from utils.quantization.tensor import QuantizedTensor

SLACK = 1 + 2e-4  # fp32 rounding of w / scale: 255 steps * 2^-23, and the stored scale's 1e-4 step


def gaussian(*shape, seed=0, scale=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def steps(quantized):
    """The step of every weight, in the weight's shape."""
    return quantized._spread(quantized.scale).expand(-1, quantized.shape[-1])


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", [-1, 0, 7, 32, 64])
@pytest.mark.parametrize("bits", range(2, 9))
def test_error_is_at_most_half_a_step(bits, group_size, symmetric):
    weight = gaussian(24, 100) * torch.logspace(-3, 3, 24)[:, None]
    quantized = rtn.quantize(weight, bits, group_size, symmetric)
    error = (quantized.dequantize() - weight).abs()
    assert (error <= steps(quantized) / 2 * SLACK).all()


@pytest.mark.parametrize("symmetric", [True, False])
def test_fast_equals_naive(symmetric):
    weight = gaussian(6, 50, seed=1)
    for bits, group_size in [(4, 16), (3, -1), (8, 32)]:
        quantized = rtn.quantize(weight, bits, group_size, symmetric, scale_dtype=torch.float32)
        assert torch.equal(
            quantized.dequantize(), rtn.quantize_naive(weight, bits, group_size, symmetric)
        )
        assert torch.equal(quantized.dequantize(), quantized.dequantize_naive())


def test_dequantize_per_tensor_equals_naive():
    quantized = rtn.quantize(gaussian(3, 5), 4, 0, symmetric=False)
    assert torch.equal(quantized.dequantize(), quantized.dequantize_naive())


def test_symmetric_grid():
    weight = torch.tensor([[-0.7, 0.2, 0.31, 0.7]])
    quantized = rtn.quantize(weight, 4, -1, scale_dtype=torch.float32)
    assert quantized.scale.item() == pytest.approx(0.1)
    assert quantized.codes.tolist() == [[-7, 2, 3, 7]]
    assert quantized.zero_point is None and quantized.codes.dtype == torch.int8


def test_asymmetric_grid_with_integer_zero_point():
    weight = torch.tensor([[-0.25, 0.0, 0.5, 1.25]])
    quantized = rtn.quantize(weight, 4, -1, symmetric=False, scale_dtype=torch.float32)
    assert quantized.scale.item() == pytest.approx(0.1)
    assert quantized.zero_point.tolist() == [[2]]  # 2.5 rounds to the even 2
    assert quantized.codes.tolist() == [[0, 2, 7, 14]]  # -2.5 -> -2, 12.5 -> 12


@pytest.mark.parametrize("sign", [1, -1])
def test_asymmetric_range_always_includes_zero(sign):
    weight = sign * torch.linspace(2.0, 3.0, 16)[None]
    quantized = rtn.quantize(weight, 4, -1, symmetric=False)
    assert quantized.scale.item() == pytest.approx(3 / 15, rel=1e-3)
    assert quantized.zero_point.item() == (0 if sign > 0 else 15)


def test_zero_weights_come_back_as_zero():
    weight = gaussian(8, 64)
    weight[:, ::3] = 0
    for symmetric in (True, False):
        restored = rtn.quantize(weight, 3, 16, symmetric).dequantize()
        assert (restored[:, ::3] == 0).all()


def test_rounds_half_to_even():
    weight = torch.tensor([[7.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5]])
    assert rtn.quantize(weight, 4, -1).codes.tolist() == [[7, 0, 2, 2, 0, -2, -2]]


def test_scale_counts_follow_the_granularity():
    weight = gaussian(12, 100)
    sizes = {32: 12 * 4, 64: 12 * 2, -1: 12, 0: 1}
    assert {g: rtn.quantize(weight, 4, g).scale.numel() for g in sizes} == sizes


# --- inputs that software of this kind has failed on --------------------------------------------


@pytest.mark.parametrize("tiny", [0.0, 1e-9, 1e-30, 1e-45])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_tiny_groups(tiny, symmetric, dtype):
    weight = torch.cat([gaussian(2, 32), torch.full((2, 32), tiny)], dim=1)
    weight[:, 40] = 0
    for bits in (2, 4, 8):
        quantized = rtn.quantize(weight, bits, 32, symmetric, scale_dtype=dtype)
        restored = quantized.dequantize()
        assert torch.isfinite(quantized.scale).all() and torch.isfinite(restored).all()
        assert (restored[:, 40] == 0).all()
        part = slice(32, 64)
        worst = (restored - weight)[:, part].abs().max()
        assert worst <= weight[:, part].abs().max()


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_bound_holds_where_fp16_scales_have_few_digits(symmetric):
    weight = gaussian(24, 64) * torch.logspace(-9, -5, 24)[:, None]
    quantized = rtn.quantize(weight, 4, 32, symmetric)
    assert (quantized.scale > 0).all()
    error = (quantized.dequantize() - weight).abs()
    assert (error <= steps(quantized) / 2 * SLACK).all()


def test_scale_too_large_for_its_dtype():
    with pytest.raises(ValueError, match="scale_dtype=torch.float32"):
        rtn.quantize(torch.full((1, 8), 1e6), 4, -1)
    wide = rtn.quantize(torch.full((1, 8), 1e6), 4, -1, scale_dtype=torch.float32)
    assert wide.dequantize().max() == pytest.approx(1e6)


def test_bf16_weights_get_fp32_scales_per_group():
    weight = gaussian(64, 1024, scale=0.01).to(torch.bfloat16)
    quantized = rtn.quantize(weight, 8, 32)
    largest = weight.float().reshape(-1, 32).abs().amax(-1)
    assert quantized.scale.unique().numel() == largest.unique().numel() > 100
    assert sqnr_db(weight, quantized.dequantize()) >= 44.5


@pytest.mark.parametrize("columns, group_size", [(288, 256), (4304, 64), (10, 4), (7, 64)])
def test_short_last_group_has_its_own_scale(columns, group_size):
    weight = gaussian(3, columns)
    start = (columns - 1) // group_size * group_size
    weight[:, start:] *= 100
    quantized = rtn.quantize(weight, 4, group_size)
    alone = rtn.quantize(weight[:, start:].contiguous(), 4, -1)
    assert quantized.scale.shape == (3, -(-columns // group_size))
    assert torch.equal(quantized.dequantize()[:, start:], alone.dequantize())


@pytest.mark.parametrize(
    "values", [[0.8315, 0.4567, 0.4362, 0.2019], [-0.8, -0.3, 0.0, 0.7], [0.1, 0.1, 0.1, 0.1]]
)
def test_quantizing_twice_changes_nothing(values):
    once = rtn.quantize(torch.tensor(values), 4, 4)
    twice = rtn.quantize(once.dequantize(), 4, 4)
    assert once.hash == twice.hash
    error = (once.dequantize() - torch.tensor(values)).abs()
    assert (error <= once.scale.float().item() / 2 * SLACK).all()


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_symmetric_is_idempotent_on_random_weights(bits):
    once = rtn.quantize(gaussian(64, 256, seed=3), bits, 32)
    assert rtn.quantize(once.dequantize(), bits, 32).hash == once.hash


def test_asymmetric_is_idempotent_where_the_codes_use_the_whole_range():
    once = rtn.quantize(gaussian(64, 256, seed=4), 4, 32, symmetric=False)
    twice = rtn.quantize(once.dequantize(), 4, 32, symmetric=False)
    codes = once.codes.reshape(64, 8, 32)
    full = (codes.amax(-1) == 15) & (codes.amin(-1) == 0)
    changed = (once.dequantize() != twice.dequantize()).reshape(64, 8, 32).any(-1)
    assert full.float().mean() > 0.98
    assert not changed[full].any()


def test_views_quantize_like_their_copies():
    weight = gaussian(32, 48)
    for view in (weight[::2], weight.T, weight[3:17, 5:29], weight[:, ::3]):
        assert not view.is_contiguous()
        for symmetric in (True, False):
            direct = rtn.quantize(view, 4, 8, symmetric)
            assert direct.hash == rtn.quantize(view.contiguous(), 4, 8, symmetric).hash


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_refuses_nan_and_infinity(bad):
    weight = gaussian(4, 8)
    weight[1, 2] = bad
    with pytest.raises(ValueError, match=r"NaN or infinity \(1 values\)"):
        rtn.quantize(weight)


@pytest.mark.parametrize(
    "options, names",
    [
        ({"bits": 1}, "bits=1"),
        ({"bits": 9}, "bits=9"),
        ({"group_size": -2}, "group_size=-2"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"clip": 1.5}, "clip=1.5"),
    ],
)
def test_refuses_bad_options(options, names):
    with pytest.raises(ValueError, match=names):
        rtn.quantize(gaussian(4, 8), **options)


@pytest.mark.parametrize("bad", [torch.ones(3, 3).int(), torch.tensor(1.0), torch.empty(0, 4)])
def test_refuses_what_is_not_a_weight(bad):
    with pytest.raises(ValueError, match="floating-point"):
        rtn.quantize(bad)


# --- clipping -----------------------------------------------------------------------------------


def test_clip_saturates():
    weight = torch.tensor([[-7.0, 1.0, 2.0, 7.0]])
    quantized = rtn.quantize(weight, 4, -1, clip=0.5)
    assert quantized.codes.tolist() == [[-7, 2, 4, 7]]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_clip_search_never_has_more_squared_error(bits, symmetric):
    weight = gaussian(32, 128, seed=5)
    plain = rtn.quantize(weight, bits, 32, symmetric).dequantize()
    searched = rtn.quantize(weight, bits, 32, symmetric, clip="mse").dequantize()
    assert mean_squared_error(weight, searched) <= mean_squared_error(weight, plain)


def test_clip_search_pays_at_two_bits():
    weight = gaussian(64, 256, seed=6)
    plain = sqnr_db(weight, rtn.quantize(weight, 2, 64).dequantize())
    searched = sqnr_db(weight, rtn.quantize(weight, 2, 64, clip="mse").dequantize())
    assert searched > plain + 3


# --- referees -----------------------------------------------------------------------------------


def onnx_round_trip(weight, quantized):
    """Codes and restored weights by ONNX' blocked QuantizeLinear and DequantizeLinear."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    kinds = {(4, True): "INT4", (4, False): "UINT4", (8, True): "INT8", (8, False): "UINT8"}
    kind = getattr(TensorProto, kinds[quantized.bits, quantized.symmetric])
    block = {"axis": 1, "block_size": quantized.group_size}
    zeros = quantized.zero_point
    zeros = torch.zeros(quantized.scale.shape) if zeros is None else zeros
    shape = list(zeros.shape)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **block),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **block),
        helper.make_node("Cast", ["q"], ["codes"], to=TensorProto.INT32),
    ]
    constant = helper.make_tensor("z", kind, shape, zeros.flatten().int().tolist())
    graph = helper.make_graph(
        nodes,
        "qdq",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, list(weight.shape)),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, shape),
        ],
        [
            helper.make_tensor_value_info("codes", TensorProto.INT32, list(weight.shape)),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, list(weight.shape)),
        ],
        [constant],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    onnx.checker.check_model(model)
    feed = {"x": weight.numpy(), "s": quantized.scale.float().numpy()}
    return ReferenceEvaluator(model).run(None, feed)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_agrees_with_onnx(bits, symmetric):
    weight = gaussian(8, 96, seed=7)
    quantized = rtn.quantize(weight, bits, 32, symmetric)
    codes, restored = onnx_round_trip(weight, quantized)
    assert np.array_equal(codes, quantized.codes.int().numpy())
    assert np.array_equal(restored, quantized.dequantize().numpy())


def test_uniform_weights_follow_the_six_decibel_rule():
    uniform = torch.rand(200, 1000, generator=torch.Generator().manual_seed(8)) * 2 - 1
    for bits in (4, 6, 8):
        found = sqnr_db(uniform, rtn.quantize(uniform, bits, 0, symmetric=False).dequantize())
        assert found == pytest.approx(20 * np.log10(2**bits - 1), abs=0.1)


# --- storage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits, group_size, expected", [(4, 32, 4.5), (8, 32, 8.5), (3, 64, 3.25)])
def test_bits_per_weight_is_true(bits, group_size, expected):
    quantized = rtn.quantize(gaussian(16, 128), bits, group_size)
    assert quantized.bits_per_weight == expected
    assert quantized.nbytes == 16 * 128 * expected / 8
    asymmetric = rtn.quantize(gaussian(16, 128), bits, group_size, symmetric=False)
    assert asymmetric.bits_per_weight == expected + bits / group_size


def test_save_and_load_in_a_fresh_process(tmp_path):
    for symmetric in (True, False):
        quantized = rtn.quantize(gaussian(10, 33), 3, 16, symmetric)
        path = quantized.save(tmp_path / "w.safetensors")
        code = (
            "import sys; from utils.quantization.tensor import QuantizedTensor as Q; "
            "q = Q.load(sys.argv[1]); print(q.hash, float(q.dequantize().double().sum()))"
        )
        run = [sys.executable, "-c", code, str(path)]
        told = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
        assert told == [quantized.hash, str(float(quantized.dequantize().double().sum()))]
        assert sorted(p.name for p in tmp_path.iterdir()) == ["w.safetensors"]


def test_load_is_strict(tmp_path):
    path = rtn.quantize(gaussian(10, 32), 4, 16).save(tmp_path / "w.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="does not match its hash"):
        QuantizedTensor.load(path)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="not a complete safetensors file"):
        QuantizedTensor.load(path)


def test_a_file_holds_the_packed_bytes(tmp_path):
    quantized = rtn.quantize(gaussian(64, 256), 4, 64)
    size = quantized.save(tmp_path / "w.safetensors").stat().st_size
    assert quantized.nbytes < size < quantized.nbytes + 600  # the header


def test_quantizing_is_deterministic():
    weight = gaussian(16, 64)
    assert rtn.quantize(weight).hash == rtn.quantize(weight.clone()).hash
    assert rtn.quantize(weight).hash != rtn.quantize(weight, bits=5).hash


def test_from_codes_checks_shapes():
    with pytest.raises(ValueError, match="scale has shape"):
        QuantizedTensor.from_codes(torch.zeros(4, 8).int(), torch.ones(4, 1), None, 4, 4)


def test_from_codes_refuses_a_scale_that_storing_would_change():
    codes = torch.ones(2, 4, dtype=torch.int8)
    with pytest.raises(ValueError, match="not exact in torch.float16"):
        QuantizedTensor.from_codes(codes, torch.full((2, 1), 0.1), None, 4, -1)
    wide = QuantizedTensor.from_codes(
        codes, torch.full((2, 1), 0.1), None, 4, -1, scale_dtype=torch.float32
    )
    assert torch.equal(wide.dequantize(), torch.full((2, 4), 0.1))


def test_sqnr_of_zeros_is_refused():
    with pytest.raises(ValueError, match="all zeros"):
        sqnr_db(torch.zeros(3), torch.zeros(3))
