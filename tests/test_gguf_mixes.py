"""What a label means: llama.cpp's rule for mixes and fall-backs, against its files and sizes."""

from types import SimpleNamespace

import numpy as np
import pytest
from small_gguf import make_model, make_tokenizer

from utils import architecture
from utils.bench import llamacpp, llamacpp_quantize
from utils.quantization import gguf_content, gguf_file, gguf_mixes


def config(name):
    return SimpleNamespace(**architecture.presets()[name]["config"])


def kinds(name, label):
    rows = gguf_mixes.plan(config(name), label)
    return {kind: count for kind, (count, _, _) in gguf_content.summary(rows).items()}


def test_a_q4_k_m_file_of_the_courses_model_is_mostly_something_else():
    found = kinds("smollm2-135m", "Q4_K_M")
    assert found == {"Q5_0": 166, "Q8_0": 15, "Q6_K": 14, "Q4_K": 16}
    rows = gguf_mixes.plan(config("smollm2-135m"), "Q4_K_M")
    assert gguf_content.bits_per_weight(rows) == pytest.approx(6.1587, abs=1e-4)
    k_quants = {row.name.split(".")[2] for row in rows if row.kind.endswith("_K")}
    assert k_quants == {"ffn_down"}


def test_at_8b_every_matrix_is_a_k_quant_and_the_bits_are_the_published_ones():
    """llama.cpp's table for Llama-3.1-8B says 4.8944 bits for Q4_K_M."""
    assert kinds("llama-3-8b", "Q4_K_M") == {"Q4_K": 193, "Q6_K": 33}
    rows = gguf_mixes.plan(config("llama-3-8b"), "Q4_K_M")
    assert gguf_content.bits_per_weight(rows) == pytest.approx(4.894, abs=1e-3)


@pytest.mark.parametrize(
    "label, gib", [("Q8_0", 7.96), ("Q6_K", 6.14), ("Q5_K_M", 5.33), ("Q4_K_M", 4.58),
                   ("Q4_K_S", 4.37), ("Q4_0", 4.34)],
)  # fmt: skip
def test_sizes_of_llama_3_8b_are_those_that_llama_cpp_lists(label, gib):
    """The list has two digits; the files hold a few MB more (norms, 128,256 tokens)."""
    total = sum(row.nbytes for row in gguf_mixes.plan(config("llama-3-8b"), label))
    assert -0.005 < gib - total / 2**30 < 0.015


def test_which_blocks_get_more_bits():
    """Of 30: the first 3, the last 4, and every third of the others."""
    chosen = [i for i in range(30) if gguf_mixes.more_bits(i, 30)]
    assert chosen == [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29]


@pytest.mark.parametrize(
    "kind, columns, written",
    [("Q4_K", 576, "Q5_0"), ("Q5_K", 576, "Q5_1"), ("Q6_K", 576, "Q8_0"), ("Q4_K", 1536, "Q4_K"),
     ("Q4_0", 576, "Q4_0"), ("Q4_K", 40, "F16"), ("Q8_0", 40, "F16")],
)  # fmt: skip
def test_fall_back(kind, columns, written):
    assert gguf_mixes.fall_back(kind, columns) == written


def test_bytes_of_a_row():
    assert gguf_mixes.row_bytes("Q4_0", 576) == 18 * 18
    assert gguf_mixes.row_bytes("Q6_K", 1536) == 6 * 210
    assert gguf_mixes.row_bytes("F16", 40) == 80
    with pytest.raises(ValueError, match="divisible by 256"):
        gguf_mixes.row_bytes("Q4_K", 576)
    with pytest.raises(ValueError, match="IQ4_XS"):
        gguf_mixes.plan(config("smollm2-135m"), "IQ4_XS")


WIDE = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=8)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """(path of an F32 file of a model whose rows hold k-quants, the model)."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    model = make_model(**WIDE)
    path = tmp_path_factory.mktemp("gguf") / "wide.gguf"
    return gguf_file.write(model, make_tokenizer(), path), model


@pytest.mark.parametrize("label", gguf_mixes.BASE)
@pytest.mark.parametrize("shape", [WIDE, WIDE | {"hidden_size": 192, "head_dim": 48}])
def test_llama_cpp_writes_the_table_that_we_predict(tmp_path, label, shape):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    model = make_model(**shape)
    path = gguf_file.write(model, make_tokenizer(), tmp_path / "f32.gguf")
    made = llamacpp_quantize.quantize(path, tmp_path / "made.gguf", label)
    written = {row.name: row for row in gguf_content.table(made) if len(row.shape) == 2}
    assert written == {row.name: row for row in gguf_mixes.plan(model.config, label)}


def test_an_importance_matrix_changes_the_codes_and_not_the_table(source, tmp_path):
    path, model = source
    plain = llamacpp_quantize.quantize(path, tmp_path / "plain.gguf", "Q4_K_M")
    linear = [row for row in gguf_content.table(plain) if row.name.startswith("blk.")]
    loud = {r.name: np.linspace(0.1, 9, r.shape[1]) for r in linear if len(r.shape) == 2}
    weighted = llamacpp_quantize.quantize(path, tmp_path / "weighted.gguf", "Q4_K_M", loud)
    assert gguf_content.table(plain) == gguf_content.table(weighted)
    assert plain.read_bytes() != weighted.read_bytes()


def test_llama_cpps_q4_0_blocks_are_ours(source, tmp_path):
    path, model = source
    made = llamacpp_quantize.quantize(path, tmp_path / "made.gguf", "Q4_0")
    entries = {e.name: e for e in gguf_file.plan(model, "Q4_0")}
    for tensor in gguf_content.gguf.GGUFReader(made).tensors:
        if tensor.tensor_type.name == "Q4_0":
            ours = gguf_file.encode(entries[tensor.name])
            assert np.array_equal(tensor.data.ravel(), ours), tensor.name


def test_what_can_not_be_quantized(source, tmp_path):
    with pytest.raises(ValueError, match="Q9_K"):
        llamacpp_quantize.quantize(source[0], tmp_path / "x.gguf", "Q9_K")
    with pytest.raises(FileNotFoundError, match="gguf_file.write"):
        llamacpp_quantize.quantize(tmp_path / "absent.gguf", tmp_path / "x.gguf", "Q4_0")


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "llama_cpp", None)
    with pytest.raises(llamacpp.Missing, match="requirements-bench.txt"):
        llamacpp_quantize.quantize(tmp_path / "a", tmp_path / "b", "Q4_0")
