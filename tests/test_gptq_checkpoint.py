"""The AutoGPTQ checkpoint format: words by hand, exact round trip, and GPTQModel's own reader."""

import importlib.util
import json

import pytest
import torch
from safetensors.torch import load_file
from small_gptq import layer

from utils import models
from utils.quantization import autogptq, gptq, gptq_checkpoint, gptq_model, rtn

IDS = torch.randint(0, 256, (4, 32), generator=torch.Generator().manual_seed(0))


def test_eight_codes_fill_a_word_first_code_lowest():
    codes = torch.tensor([[1], [2], [3], [4], [5], [6], [7], [15]])
    words = gptq_checkpoint.pack_words(codes, 4)
    assert words.shape == (1, 1) and words.dtype == torch.int32
    assert words.item() & 0xFFFFFFFF == 0xF7654321
    assert torch.equal(gptq_checkpoint.unpack_words(words, 4), codes.int())


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_words_come_back_whatever_the_sign_bit(bits):
    codes = torch.randint(0, 2**bits, (64, 5), generator=torch.Generator().manual_seed(bits))
    words = gptq_checkpoint.pack_words(codes, bits)
    assert words.shape == (64 * bits // 32, 5)
    assert torch.equal(gptq_checkpoint.unpack_words(words, bits), codes.int())


@pytest.mark.parametrize("version", gptq_checkpoint.FORMATS)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("groups", gptq.GROUPS)
@pytest.mark.parametrize("bits, group_size", [(4, 16), (8, 24), (2, -1)])
def test_a_layer_comes_back_exactly(bits, group_size, groups, symmetric, version):
    weight, hessian = layer(out=16, width=48)
    tensor = gptq.quantize(weight, hessian, bits, group_size, symmetric=symmetric, groups=groups)
    parts = gptq_checkpoint.pack_layer(tensor, version)
    back = gptq_checkpoint.unpack_layer(parts, bits, version)
    assert torch.equal(back.dequantize(), tensor.dequantize())
    assert parts["qweight"].shape == (48 * bits // 32, 16)
    assert parts["g_idx"].dtype == torch.int32 and len(parts["g_idx"]) == 48


def test_version_1_stores_zero_points_minus_one():
    tensor = rtn.quantize(torch.randn(8, 16, generator=torch.Generator().manual_seed(0)), 4, 16)
    word = gptq_checkpoint.pack_layer(tensor, "gptq")["qzeros"]
    assert word.item() & 0xFFFFFFFF == 0x77777777  # symmetric: zero point 8
    later = gptq_checkpoint.pack_layer(tensor, "gptq_v2")["qzeros"]
    assert later.item() & 0xFFFFFFFF == 0x88888888
    assert word.item() + 0x11111111 == later.item() + 2**32  # what readers add; it wraps around


def test_a_group_of_zeros_is_lifted_and_comes_back():
    weight = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    weight[2, :16] = 0
    tensor = rtn.quantize(weight, 4, 16, symmetric=False)
    assert int(tensor.zero_point[2, 0]) == 0
    back = gptq_checkpoint.unpack_layer(gptq_checkpoint.pack_layer(tensor), 4)
    assert int(back.zeros[0, 2]) == 1
    assert torch.equal(back.dequantize(), tensor.dequantize())


def test_a_zero_point_of_0_is_refused_where_no_code_is_free():
    weight = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    weight[2, :16] = weight[2, :16].abs()
    tensor = rtn.quantize(weight, 4, 16, symmetric=False)
    with pytest.raises(ValueError, match="zero point 0, which version 1 can't store.*gptq_v2"):
        gptq_checkpoint.pack_layer(tensor)
    parts = gptq_checkpoint.pack_layer(tensor, "gptq_v2")
    back = gptq_checkpoint.unpack_layer(parts, 4, "gptq_v2")
    assert torch.equal(back.dequantize(), tensor.dequantize())


def test_what_does_not_fit_is_named(tmp_path):
    tensor = rtn.quantize(torch.ones(8, 12), 4, 4)
    with pytest.raises(ValueError, match="layer a.b: 12 codes of 4 bits don't fill whole words"):
        gptq_checkpoint.save(tmp_path, {"a.b": tensor})
    with pytest.raises(ValueError, match="version='v1'"):
        gptq_checkpoint.save(tmp_path, {"a.b": tensor}, version="v1")
    with pytest.raises(ValueError, match="bits=3"):
        gptq_checkpoint.pack_words(torch.ones(32, 1), 3)


def save(folder, version="gptq", **options):
    """A tiny model, its tensors, and its checkpoint in `folder`."""
    model = models.tiny()
    made = gptq_model.tensors(model, IDS, group_size=32, **options)
    rest = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if name.removesuffix(".weight") not in made and name != "lm_head.weight"
    }
    config = model.config.to_dict() | {"architectures": ["LlamaForCausalLM"], "dtype": "float32"}
    gptq_checkpoint.save(folder, made, rest, version, config)
    return model, made


@pytest.mark.parametrize("groups", gptq.GROUPS)
def test_a_model_comes_back_exactly(tmp_path, groups):
    model, made = save(tmp_path, groups=groups)
    layers, rest, about = gptq_checkpoint.load(tmp_path)
    assert layers.keys() == made.keys()
    assert all(torch.equal(layers[n].dequantize(), made[n].dequantize()) for n in made)
    table = model.get_input_embeddings().weight
    assert torch.equal(rest["model.embed_tokens.weight"], table)
    assert (about["bits"], about["group_size"], about["checkpoint_format"]) == (4, 32, "gptq")
    assert about["static_groups"] == (groups == "static")
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config["quantization_config"] == about


def test_the_example_for_autogptq_holds_the_tied_head_and_what_to_expect(tmp_path):
    autogptq.write(tmp_path)
    layers, rest, about = gptq_checkpoint.load(tmp_path)
    assert about["checkpoint_format"] == "gptq" and len(layers) == 14
    assert torch.equal(rest["lm_head.weight"], rest["model.embed_tokens.weight"])
    expected = load_file(tmp_path / "expected.safetensors")
    assert all(torch.equal(layers[n].dequantize(), expected[n]) for n in layers)
    assert expected["logits"].shape == (*expected["ids"].shape, 256)


def save_with_tokenizer(folder, *args, **options):
    """`save`, and a tokenizer beside it: GPTQModel wants one in the folder."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = WordLevel({str(number): number for number in range(256)}, unk_token="0")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)).save_pretrained(folder)
    return save(folder, *args, **options)


def load_with_gptqmodel(folder):
    from gptqmodel import BACKEND, GPTQModel

    options = dict(device="cpu", backend=BACKEND.TORCH, dtype=torch.float16)
    return GPTQModel.load(str(folder), **options).model


needs_gptqmodel = pytest.mark.skipif(
    not importlib.util.find_spec("gptqmodel"),
    reason="gptqmodel is not installed: it is no requirement of the course",
)


@pytest.mark.slow
@needs_gptqmodel
@pytest.mark.parametrize("groups", gptq.GROUPS)
@pytest.mark.parametrize(
    "version, symmetric", [("gptq", True), ("gptq_v2", True), ("gptq_v2", False)]
)
def test_gptqmodel_loads_it_and_agrees(tmp_path, version, symmetric, groups):
    model, made = save_with_tokenizer(tmp_path, version, symmetric=symmetric, groups=groups)
    loaded = load_with_gptqmodel(tmp_path)
    for name, tensor in made.items():
        theirs = loaded.get_submodule(name).dequantize_weight().T
        assert torch.equal(theirs, tensor.dequantize(torch.float16))
    ours = gptq_model.simulate(model, made).half()
    with torch.no_grad():
        theirs, expected = (m(input_ids=IDS).logits.float() for m in (loaded, ours))
    assert (theirs - expected).abs().max() < 0.01 * expected.abs().max()  # fp16 sums


@pytest.mark.slow
@needs_gptqmodel
def test_gptqmodel_refuses_version_1_with_zero_points_of_unknown_origin(tmp_path):
    save_with_tokenizer(tmp_path, "gptq", symmetric=False)
    with pytest.raises(ValueError, match="sym=False model with format=.* only supported if"):
        load_with_gptqmodel(tmp_path)
