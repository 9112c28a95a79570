"""The study of unit 09's block formats: points on a tiny model, the record and its findings."""

from types import SimpleNamespace

import pytest
import torch
from small_gguf import make_model, make_tokenizer

from utils import ledger, quality
from utils.bench import llamacpp
from utils.gguf_study import points, study, summary
from utils.quantization import gguf as codec
from utils.quantization import gguf_content, gguf_file

IDS = torch.randint(5, 300, (3, 40), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def bench(tmp_path):
    """A bench around a tiny model, without its texts' downloads."""
    made = points.Bench.__new__(points.Bench)
    made.model, made.tokenizer, made.folder = make_model(), make_tokenizer(), tmp_path
    made._kept, made._references = ("", None), {}
    made.ids = lambda kind: IDS
    return made


def test_blocks_change_linear_layers_and_heads_the_embedding():
    model = make_model()
    in_blocks, head = points.in_blocks(model, "Q4_0"), points.with_head(model, "Q8_0")
    embedding, layer = model.model.embed_tokens.weight, model.model.layers[0].mlp.up_proj.weight
    assert torch.equal(in_blocks.lm_head.weight, embedding)
    assert not torch.equal(in_blocks.model.layers[0].mlp.up_proj.weight, layer)
    assert torch.equal(head.model.layers[0].mlp.up_proj.weight, layer)
    assert head.lm_head.weight is head.model.embed_tokens.weight
    expected = codec.dequantize(codec.quantize(embedding, "Q8_0"), "Q8_0", embedding.shape)
    assert torch.equal(head.lm_head.weight, expected)


def test_points_compare_with_fp32_and_count_bits(bench):
    exact = quality.compare(
        quality.Reference(bench.model, IDS), points.in_blocks(bench.model, "Q8_0")
    )
    block = bench.run("block/Q8_0")
    assert sum(block["kl"]) / len(block["kl"]) == pytest.approx(exact.kl, rel=1e-4)
    rtn = bench.run("rtn/4-32-sym")
    assert rtn["bits"] == pytest.approx(4.5)
    values = summary.values({"block/Q8_0": block, "rtn/4-32-sym": rtn})
    assert values["rtn_4_32_sym_bits"]["value"] == rtn["bits"]
    assert values["block_Q8_0_kl"]["low"] <= values["block_Q8_0_kl"]["value"]


def test_importance_is_the_mean_square_of_each_input(bench):
    bench.calibration = SimpleNamespace(ids=IDS)
    seen = []
    layer = bench.model.model.layers[1].mlp.down_proj
    handle = layer.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    bench.model(input_ids=IDS)
    handle.remove()
    found = bench.importance
    expected = torch.cat([x.flatten(0, 1) for x in seen]).square().mean(0)
    torch.testing.assert_close(torch.from_numpy(found["blk.1.ffn_down.weight"]), expected)
    linear = {e.name for e in gguf_file.plan(bench.model) if e.name.startswith("blk.")}
    assert found.keys() == {name for name in linear if "norm" not in name}


def test_own_bytes_are_recognised(tmp_path):
    model = make_model()
    path = gguf_file.write(model, make_tokenizer(), tmp_path / "m.gguf", "Q4_0")
    entries = gguf_file.plan(model, "Q4_0")
    assert points.same_bytes(path, entries) == [len(entries)] * 2
    others = gguf_file.plan(make_model(seed=1), "Q4_0")
    assert points.same_bytes(path, others)[0] < len(others)


def test_a_files_table_becomes_values(tmp_path):
    path = gguf_file.write(make_model(), make_tokenizer(), tmp_path / "m.gguf", "Q4_0")
    rows = gguf_content.table(path)
    text = {"kl": [0.1, 0.2], "same": [0.5] * 2, "nll": [1.0] * 2, "nll_reference": [1.0] * 2}
    types = [[r.name, r.kind, list(r.shape), r.nbytes] for r in rows]
    found = summary.values({"file/Q4_0": text | {"types": types, "same_bytes": [19, 20]}})
    assert found["file_Q4_0_linear_bits"]["value"] == 4.5
    assert found["file_Q4_0_bits"]["value"] == gguf_content.bits_per_weight(rows)
    assert found["file_Q4_0_tensors_Q4_0"]["value"] == 14
    assert found["file_Q4_0_mb"]["value"] == sum(r.nbytes for r in rows) / 1e6
    assert (found["file_Q4_0_same"]["value"], found["file_Q4_0_tensors"]["value"]) == (19, 20)


def test_without_llama_cpp_its_points_are_not_run_and_nothing_is_recorded(monkeypatch, capsys):
    def missing():
        raise llamacpp.Missing(llamacpp.REMEDY)

    monkeypatch.setattr(study.llamacpp, "library", missing)
    assert not any(p.startswith(("file/", "run/")) for p in study.possible())
    assert "requirements-bench.txt" in capsys.readouterr().out
    monkeypatch.setattr(study, "finished", lambda: dict.fromkeys(study.possible()))
    monkeypatch.setattr(study.ledger, "record", lambda *_: pytest.fail("no record without files"))
    assert not study.main()


def test_llama_cpp_runs_our_file_as_our_twin_does(bench):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    found = bench.run("run/F32")
    assert max(found["kl"]) < 1e-6 and max(found["largest"]) < 1e-2
    assert len(found["greedy"]) == len(IDS) and min(found["same"]) > 0.97


def test_a_file_of_llama_cpp_is_compared_and_listed(bench):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    found = bench.run("file/Q4_0")
    assert {kind for _, kind, _, _ in found["types"]} == {"Q4_0", "Q8_0", "F32"}
    same, total = found["same_bytes"]
    assert same == total == 20


@pytest.fixture(scope="module")
def record():
    return ledger.recorded(study.UNIT)


def test_record_is_complete_and_made_by_this_script(record):
    assert record["script_sha256"] == ledger.file_sha256(study.__file__)
    for point in summary.POINTS:
        assert f"{summary.key(point)}_kl" in record["values"], point


def test_record_holds_the_findings(record):
    values = record["values"]
    assert values["block_Q4_0_minus_rtn_4_32_sym"]["high"] < 0
    assert values["file_Q4_K_M_tensors_Q5_0"]["value"] == 166
    assert values["file_Q4_K_M_tensors_Q4_K"]["value"] == 16
    assert values["file_Q4_K_M_bits"]["value"] > 6.1
    assert values["file_Q4_0_imatrix_minus_file_Q4_0"]["high"] < 0
    assert values["file_Q4_0_same"]["value"] == values["file_Q4_0_tensors"]["value"] == 272
    assert values["run_F32_kl"]["value"] < 1e-6
    assert values["run_F32_greedy_whole"]["value"] == values["run_F32_greedy_whole"]["n"]


@pytest.mark.slow
def test_one_point_comes_out_again(record, tmp_path):
    result = points.Bench(tmp_path).run("block/Q4_0")
    expected = record["values"]["block_Q4_0_kl"]["value"]
    assert sum(result["kl"]) / len(result["kl"]) == pytest.approx(expected, rel=2e-3)
