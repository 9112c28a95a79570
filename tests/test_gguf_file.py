"""The GGUF file: what the `gguf` package reads back is the model, in llama.cpp's row order."""

import gguf
import numpy as np
import pytest
import torch
from small_gguf import TEMPLATE, VOCABULARY, make_model, make_tokenizer

from utils import fetch, models
from utils.quantization import gguf as codec
from utils.quantization import gguf_file


def written(path, kind="F32", model=None, **options):
    """(reader, the model) of a file made from a tiny model."""
    model = model or make_model()
    gguf_file.write(model, make_tokenizer(), path, kind, **options)
    return gguf.GGUFReader(path), model


def matrices(reader, model):
    """{name: (what the file holds, what the model holds)} in the model's row order."""
    heads = {"attn_q": 4, "attn_k": 2}
    held = {t.name: t for t in reader.tensors}
    pairs = {}
    for entry in gguf_file.plan(model):
        tensor = held.pop(entry.name)
        data = torch.tensor(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
        rotary = heads.get(entry.name.split(".")[-2], 0)
        pairs[entry.name] = (
            gguf_file.deinterleave(data, rotary) if rotary else data,
            entry.weight,
        )
    assert not held, f"tensors that no layer explains: {sorted(held)}"
    return pairs


def types(reader):
    return {t.name: t.tensor_type.name for t in reader.tensors}


def content(reader, key):
    return reader.fields[key].contents()


@pytest.mark.parametrize("overrides", [{}, {"tie_word_embeddings": False}])
def test_f32_holds_exactly_the_model(tmp_path, overrides):
    reader, model = written(tmp_path / "m.gguf", model=make_model(**overrides))
    pairs = matrices(reader, model)
    for name, (found, expected) in pairs.items():
        assert torch.equal(found, expected), name
    assert ("output.weight" in pairs) == bool(overrides)
    read = {id(weight) for _, weight in pairs.values()}
    assert read == {id(p) for p in model.parameters()}


def test_each_name_stands_for_its_layer(tmp_path):
    reader, model = written(tmp_path / "m.gguf")
    layer, held = model.model.layers[1], matrices(reader, model)
    expected = {
        "attn_q": layer.self_attn.q_proj,
        "attn_k": layer.self_attn.k_proj,
        "attn_v": layer.self_attn.v_proj,
        "attn_output": layer.self_attn.o_proj,
        "ffn_gate": layer.mlp.gate_proj,
        "ffn_up": layer.mlp.up_proj,
        "ffn_down": layer.mlp.down_proj,
    }
    for name, module in expected.items():
        assert torch.equal(held[f"blk.1.{name}.weight"][0], module.weight), name


def test_the_row_order_turns_one_rotation_into_the_other():
    """Attention scores agree: halves rotated (transformers) and pairs rotated (llama.cpp)."""
    heads, d, position = 2, 8, 5
    w_q, w_k = torch.randn(2, heads * d, 16, generator=torch.Generator().manual_seed(0))
    x, y = torch.randn(2, 16, generator=torch.Generator().manual_seed(1))
    angles = position * 100.0 ** (-torch.arange(d // 2) / (d // 2))

    def turn(a, b):
        return a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()

    def halves(v):
        v = v.view(heads, d)
        return torch.cat(turn(v[:, : d // 2], v[:, d // 2 :]), dim=1)

    def pairs(v):
        v = v.view(heads, d)
        return torch.stack(turn(v[:, ::2], v[:, 1::2]), dim=2).flatten(1)

    ours = halves(w_q @ x) * (w_k @ y).view(heads, d)
    rows_q, rows_k = (gguf_file.interleave(w, heads) for w in (w_q, w_k))
    theirs = pairs(rows_q @ x) * (rows_k @ y).view(heads, d)
    torch.testing.assert_close(ours.sum(1), theirs.sum(1))
    assert not torch.allclose((pairs(w_q @ x) * (w_k @ y).view(heads, d)).sum(1), ours.sum(1))
    assert torch.equal(gguf_file.deinterleave(rows_q, heads), w_q)


def test_q8_0_is_within_half_a_step(tmp_path):
    reader, model = written(tmp_path / "m.gguf", "Q8_0")
    for name, (found, expected) in matrices(reader, model).items():
        if expected.dim() == 1:
            assert torch.equal(found, expected), name
            continue
        blocks = expected.reshape(-1, codec.BLOCK)
        step = blocks.abs().amax(dim=1, keepdim=True) / 127
        error = (found.reshape(-1, codec.BLOCK) - blocks).abs()
        fp16 = 127 * step * 2**-11  # the stored step is rounded, and counts up to 127 times
        assert (error <= step / 2 + fp16).all(), name


@pytest.mark.parametrize("kind, precision", [("F16", 2**-11), ("BF16", 2**-8)])
def test_half_precision_is_rounded_once(tmp_path, kind, precision):
    reader, model = written(tmp_path / "m.gguf", kind)
    for name, (found, expected) in matrices(reader, model).items():
        assert ((found - expected).abs() <= precision * expected.abs() + 1e-7).all(), name


@pytest.mark.parametrize("kind", gguf_file.KINDS)
def test_each_kind_has_its_types_and_its_size(tmp_path, kind):
    path = tmp_path / "m.gguf"
    reader, model = written(path, kind)
    head = kind if kind in ("F32", "F16", "BF16", "Q8_0") else "Q8_0"
    found = types(reader)
    assert found["token_embd.weight"] == head
    assert found["blk.1.attn_q.weight"] == found["blk.0.ffn_down.weight"] == kind
    assert found["blk.0.attn_norm.weight"] == found["output_norm.weight"] == "F32"
    expected = gguf_file.data_bytes(model, kind)
    assert path.stat().st_size == reader.data_offset + expected
    weights = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    if kind == head and kind in codec.TYPES:
        norms = 4 * (sum(p.numel() for p in model.parameters()) - weights)
        assert expected == weights * codec.bits_per_weight(kind) / 8 + norms


def test_the_head_may_have_another_kind(tmp_path):
    reader, _ = written(tmp_path / "m.gguf", "Q4_0", head_kind="F16")
    assert types(reader)["token_embd.weight"] == "F16"


def test_metadata(tmp_path):
    reader, model = written(tmp_path / "m.gguf", "Q4_0")
    config = model.config
    expected = {
        "general.architecture": "llama",
        "general.file_type": 2,
        "general.quantization_version": 2,
        "llama.context_length": 512,
        "llama.embedding_length": 64,
        "llama.block_count": 2,
        "llama.feed_forward_length": 160,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.rope.dimension_count": 16,
        "llama.rope.freq_base": config.rope_parameters["rope_theta"],
        "llama.attention.layer_norm_rms_epsilon": pytest.approx(config.rms_norm_eps),
        "llama.vocab_size": VOCABULARY,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }
    assert {key: content(reader, key) for key in expected} == expected


def poisoned(name, value):
    model = make_model()
    model.get_parameter(name).data[0, 0] = value
    return model


def other_type():
    model = make_model()
    model.config.model_type = "opt"
    return model


STRETCHED = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
REFUSED = {
    "unknown kind": (make_model, "Q4_K", "Q4_K"),
    "width": (lambda: make_model(intermediate_size=72), "Q4_0", r"blk\.0\.ffn_down\.weight.*32"),
    "model type": (other_type, "F32", "opt"),
    "bias": (lambda: make_model(attention_bias=True), "F32", r"q_proj\.bias"),
    "positions": (lambda: make_model(rope_parameters=STRETCHED), "F32", "linear"),
    "activation": (lambda: make_model(hidden_act="gelu"), "F32", "gelu"),
    "fp16 overflow": (
        lambda: poisoned("model.layers.1.mlp.up_proj.weight", 1e6),
        "F16",
        r"blk\.1\.ffn_up\.weight",
    ),
    "NaN": (
        lambda: poisoned("model.layers.1.mlp.up_proj.weight", float("nan")),
        "Q8_0",
        r"blk\.1\.ffn_up\.weight",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_file_cannot_hold_is_named_and_nothing_is_left_behind(tmp_path, name):
    model, kind, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        gguf_file.write(model(), make_tokenizer(), tmp_path / "m.gguf", kind)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_embedded_model_comes_back_byte_for_byte(tmp_path):
    """In its original order the model is a Q4_1 file: writing it again gives the same tensors."""
    source = tmp_path / "source.gguf"
    source.write_bytes(fetch.read("model", models.GGUF))
    loaded = models.load(original_order=True)
    gguf_file.write(loaded.model, loaded.tokenizer, tmp_path / "m.gguf", "Q4_1")
    theirs, ours = gguf.GGUFReader(source), gguf.GGUFReader(tmp_path / "m.gguf")
    held = {t.name: t for t in ours.tensors}
    assert held.keys() == {t.name for t in theirs.tensors}
    for tensor in theirs.tensors:
        assert tensor.tensor_type == held[tensor.name].tensor_type, tensor.name
        assert np.array_equal(tensor.data, held[tensor.name].data), tensor.name
    about_the_release = ("general.basename", "general.finetune", "general.languages")
    about_the_release += ("general.license", "general.name", "general.organization")
    about_the_release += ("general.size_label", "GGUF.kv_count")
    for key in theirs.fields:
        if key not in about_the_release:
            assert content(ours, key) == content(theirs, key), key
