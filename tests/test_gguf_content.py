"""Reading a GGUF file back: its table, its bits, and the model that it holds."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_gguf import make_model, make_tokenizer

from utils.quantization import gguf as codec
from utils.quantization import gguf_content, gguf_file, gguf_kquants
from utils.quantization.gguf_content import Row

IDS = torch.tensor([[5, 17, 200, 31, 8, 99, 250, 3]])


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def written(path, kind, model=None):
    model = model or make_model()
    return gguf_file.write(model, make_tokenizer(), path / "m.gguf", kind), model


@pytest.mark.parametrize("overrides", [{}, {"tie_word_embeddings": False}])
def test_an_f32_file_restores_the_very_model(tmp_path, overrides):
    path, model = written(tmp_path, "F32", make_model(**overrides))
    made = gguf_content.restore(path, model)
    assert torch.equal(made(input_ids=IDS).logits, model(input_ids=IDS).logits)
    held = gguf_content.weights(path, model.config)
    expected = {n: p for n, p in model.named_parameters()}
    assert held.keys() == expected.keys()
    assert all(torch.equal(held[name], expected[name]) for name in held)


def test_the_same_model_gives_the_same_file(tmp_path):
    """Field case 13, first half: written twice, byte for byte."""
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    path, _ = written(tmp_path / "a", "Q4_0")
    again, _ = written(tmp_path / "b", "Q4_0")
    assert path.read_bytes() == again.read_bytes()


@pytest.mark.slow
def test_another_process_reads_the_same_model(tmp_path):
    """Field case 13, second half: the logits of a fresh process."""
    path, model = written(tmp_path, "Q4_0")
    torch.save(gguf_content.restore(path, model)(input_ids=IDS).logits, tmp_path / "logits.pt")
    script = (
        "import sys, torch; sys.path.insert(0, 'tests'); from small_gguf import make_model\n"
        "from utils.quantization import gguf_content\n"
        f"ids, folder = torch.tensor({IDS.tolist()}), sys.argv[1]\n"
        "made = gguf_content.restore(folder + '/m.gguf', make_model(seed=7))\n"
        "with torch.no_grad(): logits = made(input_ids=ids).logits\n"
        "sys.exit(not torch.equal(logits, torch.load(folder + '/logits.pt')))\n"
    )
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.run(command, cwd=root, timeout=120).returncode == 0


@pytest.mark.parametrize("kind", gguf_file.KINDS)
def test_a_restored_model_has_the_files_weights_and_leaves_the_original(tmp_path, kind):
    path, model = written(tmp_path, kind)
    before = model.model.layers[1].mlp.up_proj.weight.clone()
    made = gguf_content.restore(path, model)
    weight = model.model.layers[1].mlp.up_proj.weight
    assert torch.equal(weight, before)
    if kind in codec.TYPES:
        expected = codec.dequantize(codec.quantize(weight, kind), kind, weight.shape)
        assert torch.equal(made.model.layers[1].mlp.up_proj.weight, expected)
    assert made.lm_head.weight is made.model.embed_tokens.weight


def test_the_table_adds_up(tmp_path):
    path, model = written(tmp_path, "Q4_0")
    rows = gguf_content.table(path)
    assert sum(row.nbytes for row in rows) <= gguf_file.data_bytes(model, "Q4_0")
    found = gguf_content.summary(rows)
    assert {kind: count for kind, (count, _, _) in found.items()} == {
        "Q4_0": 14, "Q8_0": 1, "F32": 5,
    }  # fmt: skip
    linear = [row for row in rows if row.kind == "Q4_0"]
    assert gguf_content.bits_per_weight(linear) == 4.5
    head = [row for row in rows if row.kind == "Q8_0"]
    both, n = linear + head, [sum(r.shape[0] * r.shape[1] for r in x) for x in (linear, head)]
    assert gguf_content.bits_per_weight(rows) == gguf_content.bits_per_weight(both)  # no norms
    assert gguf_content.bits_per_weight(both) == pytest.approx(
        (4.5 * n[0] + 8.5 * n[1]) / sum(n), rel=1e-12
    )


def test_the_type_with_most_bytes_comes_first():
    rows = [Row("a", "F32", (4, 4), 64), Row("b", "Q8_0", (2, 32), 68), Row("c", "F32", (1,), 4)]
    assert gguf_content.summary(rows) == {"F32": (2, 17, 68), "Q8_0": (1, 64, 68)}


def test_k_quants_are_decoded():
    x = torch.randn(3, 512, generator=torch.Generator().manual_seed(0))
    for kind in gguf_kquants.SIZES:
        blocks = gguf_kquants.quantize(x, kind)
        expected = gguf_kquants.dequantize(blocks, kind, x.shape)
        assert torch.equal(gguf_content.decode(blocks.flatten(), kind, x.shape), expected)


def test_names_and_types_that_are_not_known():
    assert gguf_content.parameter("blk.7.ffn_down.weight") == "model.layers.7.mlp.down_proj.weight"
    assert gguf_content.parameter("token_embd.weight") == "model.embed_tokens.weight"
    for name in ("blk.0.attn_q.bias", "rope_freqs.weight", "blk.x.attn_q.weight"):
        with pytest.raises(ValueError, match="not one of a Llama"):
            gguf_content.parameter(name)
    with pytest.raises(ValueError, match="IQ4_XS"):
        gguf_content.decode(torch.zeros(136, dtype=torch.uint8), "IQ4_XS", (256,))
