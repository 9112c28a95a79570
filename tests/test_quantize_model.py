"""Packed layers and whole models: numbers as the naive twin, bytes predicted = measured."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from utils import models
from utils.quantization import (
    PackedLinear,
    load_model,
    quantize_model,
    rtn,
    save_model,
)
from utils.quantization.report import resident_bytes

IDS = torch.arange(24).reshape(2, 12) * 7 % 256


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


def gpt2(**config):
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {"n_embd": 32, "n_layer": 12, "n_head": 4, "vocab_size": 256, "n_positions": 64}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GPT2LMHeadModel(GPT2Config(**(shape | config))).eval()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits, group_size", [(4, 16), (3, 7), (8, -1), (4, 0)])
def test_packed_linear_equals_its_naive_twin(bits, group_size, symmetric):
    layer = nn.Linear(50, 20)
    packed = PackedLinear(rtn.quantize(layer.weight, bits, group_size, symmetric), layer.bias)
    x = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(packed(x), packed.forward_naive(x), rtol=1e-5, atol=1e-5)


def test_hundred_by_hundred_int4_layer():
    model = nn.Sequential(nn.Linear(100, 100, bias=False))
    report = quantize_model(model, bits=4, group_size=-1)
    assert report.quantized_parameters == 10_000
    assert report.packed_bytes == 5_000 + 100 * 2  # codes, fp16 scales
    assert resident_bytes(model) == report.measured_bytes == 5_200
    assert model[0].packed.numel() == 5_000


def test_bias_stays_and_is_counted():
    model = nn.Sequential(nn.Linear(100, 100))
    report = quantize_model(model, bits=4, group_size=64)
    assert report.measured_bytes == report.predicted_bytes == 5_000 + 400 + 400


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("symmetric", [True, False])
def test_bytes_predicted_are_bytes_measured(bits, symmetric):
    for group_size in (-1, 0, 24, 32):
        model = models.tiny()
        report = quantize_model(model, "rtn", bits, group_size, symmetric)
        assert report.predicted_bytes == report.measured_bytes == resident_bytes(model)
        assert report.packed_bytes == sum(m.weight.nbytes for m in packed_layers(model))


def packed_layers(model):
    return [module for module in model.modules() if isinstance(module, PackedLinear)]


def test_in_place_by_default_and_the_report_has_the_model():
    model = models.tiny()
    report = quantize_model(model)
    assert report.model is model
    assert len(packed_layers(model)) == len(report.layers) == 14


def test_a_copy_shares_what_is_not_quantized():
    model = models.tiny()
    before = logits(model)
    report = quantize_model(model, inplace=False)
    assert torch.equal(logits(model), before) and not packed_layers(model)
    table = report.model.get_input_embeddings().weight
    assert table.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    assert len(packed_layers(report.model)) == 14


def test_simulated_equals_packed():
    model = models.tiny()
    for options in ({}, {"symmetric": False}, {"bits": 3, "group_size": 20}):
        packed = quantize_model(model, inplace=False, **options)
        simulated = quantize_model(model, inplace=False, simulate=True, **options)
        assert torch.equal(logits(packed.model), logits(simulated.model))
        assert simulated.measured_bytes == packed.measured_bytes
        assert resident_bytes(simulated.model) == resident_bytes(model)
        assert not packed_layers(simulated.model)


def test_tied_head_is_skipped_and_counted_once():
    model = models.tiny()
    before = model.get_input_embeddings().weight.clone()
    assert resident_bytes(model) == sum(p.numel() * 4 for p in model.parameters()) + buffers(model)
    report = quantize_model(model, skip=())  # even when not named
    assert report.skipped["lm_head"] == "tied to model.embed_tokens"
    assert torch.equal(model.get_input_embeddings().weight, before)
    assert model.lm_head.weight is model.get_input_embeddings().weight


def buffers(model):
    return sum(b.numel() * b.element_size() for b in model.buffers())


def test_untied_head_is_skipped_by_default_only():
    model = models.tiny(tie_word_embeddings=False)
    assert quantize_model(model, inplace=False).skipped["lm_head"] == "named in skip"
    assert "lm_head" not in quantize_model(model, skip=()).skipped
    assert isinstance(model.lm_head, PackedLinear)


def test_skip_takes_parts_of_names():
    report = quantize_model(models.tiny(), skip=("lm_head", "layers.0", "down_proj"))
    assert len(report.layers) == 6
    assert "model.layers.0.mlp.up_proj" in report.skipped
    assert "model.layers.1.mlp.down_proj" in report.skipped


def test_gpt2_conv1d_is_quantized_per_output_channel():
    model = gpt2()
    before = logits(model)
    report = quantize_model(model, bits=8, group_size=-1)
    assert len(report.layers) == 48
    scales = {n: m.scale.numel() for n, m in model.named_modules() if isinstance(m, PackedLinear)}
    assert scales["transformer.h.0.attn.c_attn"] == 3 * 32
    assert (logits(model) - before).abs().max() < 0.05 * before.abs().max()
    simulated = quantize_model(gpt2(), bits=8, group_size=-1, simulate=True)
    torch.testing.assert_close(logits(simulated.model), logits(model), rtol=1e-5, atol=1e-6)


def test_gpt2_at_its_real_width_has_2304_scales():
    model = gpt2(n_embd=768, n_layer=1)
    quantize_model(model, bits=4, group_size=-1)
    layer = model.transformer.h[0].attn.c_attn
    assert layer.scale.numel() == 2304
    assert (layer.out_features, layer.in_features) == (2304, 768)


def test_bad_weight_names_the_layer():
    model = models.tiny()
    model.model.layers[1].mlp.up_proj.weight[3, 4] = float("nan")
    with pytest.raises(ValueError, match="layer model.layers.1.mlp.up_proj: weight holds NaN"):
        quantize_model(model)


def test_unknown_method_and_nothing_to_do():
    with pytest.raises(ValueError, match="method='gtpq'"):
        quantize_model(models.tiny(), method="gtpq")
    with pytest.raises(ValueError, match="no linear layer"):
        quantize_model(nn.Sequential(nn.ReLU()))


def test_changing_the_model_dtype_leaves_the_scales_alone():
    model = models.tiny()
    quantize_model(model)
    layer = packed_layers(model)[0]
    scale = layer.scale.clone()
    model.to(torch.bfloat16)
    assert layer.scale.dtype == torch.float16 and torch.equal(layer.scale, scale)
    assert logits(model).dtype == torch.bfloat16


def test_more_bits_are_closer():
    model = models.tiny()
    before = logits(model)
    errors = [
        (logits(quantize_model(model, bits=b, inplace=False).model) - before).abs().mean()
        for b in (2, 4, 6, 8)
    ]
    assert errors == sorted(errors, reverse=True)


def buffers_not_saved(model):
    """Bytes of buffers that models compute on their own (RoPE frequencies)."""
    saved = {t.data_ptr() for t in model.state_dict().values()}
    rest = [b for b in model.buffers() if b.data_ptr() not in saved]
    return resident_bytes_of(rest)


def resident_bytes_of(tensors):
    return sum({t.data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


RELOAD = """
import sys, torch
sys.path.insert(0, sys.argv[2])
from utils import models
from utils.quantization import load_model
model = load_model(models.tiny(seed=9), sys.argv[1])
ids = torch.arange(24).reshape(2, 12) * 7 % 256
with torch.no_grad():
    print(model(ids).logits.double().sum().item())
assert model.lm_head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
"""


def test_save_strict_load_in_a_fresh_process(tmp_path, request):
    model = models.tiny()
    report = quantize_model(model, bits=3, symmetric=False)
    path = save_model(model, tmp_path / "model.safetensors")
    content = report.measured_bytes - buffers_not_saved(model)
    header = int.from_bytes(path.read_bytes()[:8], "little") + 8
    assert path.stat().st_size == content + header  # the tied head once
    run = [sys.executable, "-c", RELOAD, str(path), str(request.config.rootpath)]
    told = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert float(told) == logits(model).double().sum().item()


def test_load_refuses_another_model_and_a_damaged_file(tmp_path):
    model = models.tiny()
    quantize_model(model)
    path = save_model(model, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="does not fit this model"):
        load_model(models.tiny(num_hidden_layers=3), path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="does not match its hash"):
        load_model(models.tiny(), path)


def test_same_model_quantizes_the_same_twice():
    first, second = models.tiny(), models.tiny()
    quantize_model(first), quantize_model(second)
    pairs = zip(packed_layers(first), packed_layers(second), strict=True)
    assert all(a.weight.hash == b.weight.hash for a, b in pairs)
