"""The study behind the page of results: forms, bytes, rows, places, the record."""

import json
from math import prod
from types import SimpleNamespace

import jsonschema
import pytest
import small_results
import torch

from utils import models
from utils.bench import protocol
from utils.gptq_study import recipes
from utils.kernels import weights
from utils.quantization import activations, codebook, full_range, gguf, microscaling, packing, rtn
from utils.quantization.model import find, weight_of
from utils.results_study import forms, points, rows, speed, study, summary
from utils.results_study.forms import FORMS
from utils.results_study.rows import BY_NAME, ROWS, Row

HERE = [name for name in FORMS if name != "nf4, library"]
BITS = {  # by hand, of a matrix [., 192]: codes, scales, zero points
    "fp32": 32, "bf16": 16, "fp16": 16,
    "int8 channel": 8 + 16 / 192, "int8 channel, fp32 scales": 8 + 32 / 192,
    "int8 g64": 8 + 16 / 64, "fp8 channel": 8 + 32 / 192,
    "int4 asym g32": 4 + 20 / 32, "int4 asym g64": 4 + 20 / 64, "int4 asym g192": 4 + 20 / 192,
    "int4 asym channel": 4 + 20 / 192, "int4 full range g32": 4 + 16 / 32,
    "int3 asym g64": 3 + 19 / 64, "int3 asym g32": 3 + 19 / 32, "int2 asym g32": 2 + 18 / 32,
    "nf4": 4 + 32 / 64 + 512 / (24 * 192), "fp4": 4 + 32 / 64 + 512 / (24 * 192),
    "nf4, library": 4 + 32 / 64, "mxfp4": 4 + 8 / 32, "nvfp4": 4 + 8 / 16 + 32 / (24 * 192),
    "Q8_0": 8.5, "Q5_1": 6, "Q5_0": 5.5, "Q4_1": 5, "Q4_0": 4.5,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def no_gradients():
    """For this module only."""
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def weight():
    made = torch.randn(24, 192, generator=torch.manual_seed(0)) / 14
    made[3] = 0.0
    made[5, 7] = 1.5
    return made


@pytest.mark.parametrize("name", FORMS)
def test_the_bytes_stored_are_those_predicted_and_those_counted_by_hand(name, weight):
    form = FORMS[name]
    stored = form.store(weight)
    counted = sum(len(p.contiguous().reshape(-1).view(torch.uint8)) for p in stored.parts.values())
    assert stored.nbytes == counted == form.predict((24, 192))
    assert 8 * counted / weight.numel() == pytest.approx(BITS[name], abs=1e-12)
    assert stored.dense.shape == weight.shape and stored.dense.dtype == torch.float32


@pytest.mark.parametrize("name", [n for n in HERE if n[0] != "Q"])
@pytest.mark.parametrize("shape", [(3, 96), (16, 40), (1, 8)])
def test_short_groups_and_single_rows_are_predicted_too(name, shape):
    values = torch.randn(shape, generator=torch.manual_seed(1))
    assert FORMS[name].store(values).nbytes == FORMS[name].predict(shape)


def test_the_numbers_are_those_of_the_codecs(weight):
    kept = {name: FORMS[name].store(weight).dense for name in HERE}
    expected = {
        "fp32": weight, "bf16": weight.bfloat16().float(), "fp16": weight.half().float(),
        "int8 channel": rtn.quantize(weight, 8, -1).dequantize(),
        "int8 channel, fp32 scales":
            rtn.quantize(weight, 8, -1, scale_dtype=torch.float32).dequantize(),
        "int8 g64": rtn.quantize(weight, 8, 64).dequantize(),
        "fp8 channel": weights.encode(weight, "fp8_e4m3").dequantize(),
        **{f"int4 asym g{g}": rtn.quantize(weight, 4, g, False).dequantize()
           for g in (32, 64, 192)},
        "int4 asym channel": rtn.quantize(weight, 4, -1, False).dequantize(),
        "int4 full range g32": full_range.quantize(weight, 4, 32).dequantize(),
        **{f"int3 asym g{g}": rtn.quantize(weight, 3, g, False).dequantize() for g in (32, 64)},
        "int2 asym g32": rtn.quantize(weight, 2, 32, False).dequantize(),
        **{kind: codebook.quantize(weight, kind, 64).dequantize() for kind in ("nf4", "fp4")},
        **{kind: microscaling.decode(microscaling.encode(weight, kind))
           for kind in ("mxfp4", "nvfp4")},
        **{kind: gguf.dequantize(gguf.quantize(weight, kind), kind, weight.shape)
           for kind in gguf.TYPES},
    }  # fmt: skip
    assert kept.keys() == expected.keys()
    assert not [name for name in kept if not torch.equal(kept[name], expected[name])]


@pytest.mark.parametrize("name", [n for n in HERE if "asym" in n])
def test_the_stored_parts_alone_give_the_numbers_back(name, weight):
    """The naive twin: codes bit by bit, one weight at a time, from nothing but the parts."""
    bits, parts = int(name[3]), FORMS[name].store(weight).parts
    groups = parts["scale"].shape[1]
    codes = packing.unpack(parts["packed"], bits, weight.numel()).reshape(weight.shape)
    assert torch.equal(packing.pack_naive(codes, bits), parts["packed"])
    zeros = packing.unpack(parts["packed_zero"], bits, 24 * groups).reshape(24, groups)
    dense = FORMS[name].store(weight).dense
    for i, j in ((0, 0), (3, 100), (5, 7), (5, 8), (23, 191)):
        at = (i, j * groups // 192)
        value = float(parts["scale"][at]) * (int(codes[i, j]) - int(zeros[at]))
        assert float(dense[i, j]) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("name", HERE)
def test_what_the_engine_reads_is_what_was_judged(name, weight):
    stored = FORMS[name].store(weight)
    if not FORMS[name].kernel:
        assert stored.kernel is None
        return
    given = stored.kernel if isinstance(stored.kernel, weights.Weight) else None
    given = given or weights.wrap(stored.kernel)
    assert torch.equal(given.dequantize(), stored.dense)


def test_the_library_has_the_same_numbers_and_one_table_less(weight):
    pytest.importorskip("bitsandbytes")
    ours, theirs = FORMS["nf4"].store(weight), forms.library_nf4(weight)
    torch.testing.assert_close(theirs.dense, ours.dense, rtol=1e-5, atol=1e-7)
    assert ours.nbytes - theirs.nbytes == 64


def test_rows_are_named_once_and_measured_once():
    assert len(BY_NAME) == len(ROWS) == len(rows.ORDER) == len(set(rows.ORDER))
    assert set(rows.ORDER) == set(BY_NAME)
    assert all(row.form in FORMS for row in ROWS)
    assert {row.form for row in ROWS} == set(FORMS)  # no form is there for nothing


def test_a_recipe_is_rehashed_with_the_code_behind_it():
    plain, kinds = study.code_sha256("round"), ("awq-4", "plain-3", "activations-token")
    hashes = {study.code_sha256(kind) for kind in kinds}
    assert len(hashes | {plain}) == 4
    assert study.code_sha256("first-64") == study.code_sha256("plain")


def test_int8_activations_are_stored_with_the_codes_that_they_multiply():
    model = models.tiny()
    form = FORMS[BY_NAME["int8 per channel, activations int8"].form]
    made = activations.int8_model(model, activations.Dynamic("token"))
    for name, layer in find(model)[0].items():
        stored = form.store(weight_of(layer)).kernel
        assert torch.equal(stored.codes, made.get_submodule(name).codes)
        assert torch.equal(stored.scale[:, 0], made.get_submodule(name).scale)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """A tiny stand-in for points.Bench, with its own methods."""
    made, folder = object.__new__(points.Bench), tmp_path_factory.mktemp("bench")
    made.model, made.folder = models.tiny(intermediate_size=192), folder
    made._kept, made._references = ("", None), {}
    ids = torch.randint(3, 250, (8, 32), generator=torch.manual_seed(0))
    made.ids = lambda kind: ids
    calibration = torch.randint(3, 250, (8, 32), generator=torch.manual_seed(1))
    hessians = recipes.Hessians(made.model, calibration, folder / "h.safetensors")
    made.__dict__ |= {"calibration": SimpleNamespace(ids=calibration), "hessians": hessians}
    return made


@pytest.mark.parametrize("row", [r for r in ROWS if "library" not in r.form], ids=lambda r: r.name)
def test_every_row_runs_and_changes_the_model_by_no_more_than_it_should(bench, row):
    before = bench.model(input_ids=bench.ids("text")).logits
    found = bench.run(row)
    assert torch.equal(bench.model(input_ids=bench.ids("text")).logits, before)
    jsonschema.validate(summary.one(row.name, found | {"code": "0" * 64}) | {"place": "front"},
                        summary.ROW)  # fmt: skip
    kl, bits = sum(found["kl"]) / 8, 8 * found["packed_bytes"] / found["layer_weights"]
    assert kl < {32: 1e-9, 16: 0.01, 8: 0.3}.get(min(int(bits // 8 * 8), 32), 8)
    assert row.form == "fp32" or kl > 0


def test_the_model_and_its_copies_are_counted_once_each(bench):
    row = BY_NAME["4 bit g64"]
    source, stored = bench.store(row)
    found = points.size(source, points.put(source, stored), row, stored, bench.folder)
    layers = {n: tuple(weight_of(m).shape) for n, m in find(source)[0].items()}
    numbers = sum(map(prod, layers.values()))
    rest = 4 * (256 * 64 + 5 * 64)  # embedding, and two norms a block and one at the end
    buffers = sum(b.nbytes for b in source.buffers())
    assert found["layer_weights"] == numbers
    assert found["weights"] == numbers + rest // 4
    assert found["memory_bytes"] == found["packed_bytes"] + rest + buffers
    assert found["disk_bytes"] == found["packed_bytes"] + rest + found["header_bytes"]


def test_a_file_is_as_large_as_its_tensors_and_gone(tmp_path, weight):
    stored = {"a": FORMS["int4 asym g64"].store(weight)}
    size, header = points.written({"norm": torch.ones(5)}, stored, tmp_path)
    assert size - header == stored["a"].nbytes + 20
    assert not list(tmp_path.iterdir())


def test_bytes_that_differ_from_the_prediction_stop_the_study(bench, monkeypatch):
    row = BY_NAME["4 bit g64"]
    source, stored = bench.store(row)
    wrong = forms.Form(None, lambda shape: FORMS["fp16"].predict(shape))
    monkeypatch.setitem(points.FORMS, row.form, wrong)
    with pytest.raises(RuntimeError, match="4 bit g64: .* bytes are stored, .* were predicted"):
        points.size(source, source, row, stored, bench.folder)


def test_awq_folds_its_scales_into_a_copy_that_is_the_same_function(bench):
    ids = bench.ids("text")
    scaled = bench.scaled(4)
    assert scaled is bench.scaled(4)
    gap = (scaled(input_ids=ids).logits - bench.model(input_ids=ids).logits).abs().max()
    assert float(gap) < 1e-3
    name = "model.layers.0.self_attn.q_proj"
    moved = scaled.get_submodule(name).weight - bench.model.get_submodule(name).weight
    assert float(moved.abs().max()) > 0


def test_windows_decide_an_interval_and_a_negative_kl_is_zero():
    row = small_results.result(BY_NAME["Q8_0"], 0.01)
    row["kl"] = [0.02, -1e-9] * 4
    found = summary.one("Q8_0", row)
    assert found["kl"]["value"] == pytest.approx(0.01)
    assert 0 < found["kl"]["low"] < 0.01 < found["kl"]["high"] < 0.02
    assert found["kl_windows"] == [0.02, 0.0] * 4
    assert found["perplexity_ratio"]["value"] == pytest.approx(2.718281828**0.01, rel=1e-6)
    assert found["flips"] == pytest.approx(0.01)


def _entry(bits, windows):
    kl = summary.interval([0.0] * len(windows), windows)
    return {"bits_layers": bits, "kl": kl, "kl_windows": windows}


def test_places_by_hand():
    found = summary.places({
        "few bits": _entry(4, [1.0] * 8),
        "many bits": _entry(8, [0.5] * 8),
        "beaten clearly": _entry(8, [0.9] * 8),
        "beaten by noise": _entry(8, [0.4, 0.7] * 4),
        "equal bits and KL": _entry(4, [1.0] * 8),
    })  # fmt: skip
    assert found == {
        "few bits": "front", "many bits": "front", "beaten clearly": "behind",
        "beaten by noise": "near", "equal bits and KL": "front",
    }  # fmt: skip


def test_a_record_holds_all_rows_in_the_order_of_the_table():
    made = small_results.record()
    assert list(made["rows"]) == [row.name for row in ROWS]
    assert made["reference"]["perplexity"] == pytest.approx(2.718281828**2)
    assert made["rows"]["LLM.int8()"]["kernel"] is False
    assert made["rows"]["fp32"]["place"] == "front"


def test_rows_of_other_code_are_measured_again(tmp_path):
    path, code = tmp_path / "results.json", study.code_sha256("round")
    kept = {"Q8_0": {"code": code}, "Q4_0": {"code": "0"}, "no such row": {"code": code}}
    assert study.finished(path) == {}
    path.write_text(json.dumps({"points": kept}))
    assert list(study.finished(path)) == ["Q8_0"]


def test_a_study_that_is_complete_keeps_the_speeds_of_the_record(tmp_path, monkeypatch):
    record = tmp_path / "results.json"
    monkeypatch.setattr(study, "RECORD", record)
    monkeypatch.setattr(study, "STUDIES", tmp_path)
    monkeypatch.setattr(study.ledger, "ROOT", tmp_path)
    monkeypatch.setattr(study, "finished", lambda: small_results.found())
    monkeypatch.setattr(study, "machine", lambda: small_results.MACHINE)
    assert study.old_speed(record) == {}
    assert study.main() and json.loads(record.read_text())["speed"] == {}
    content = json.loads(record.read_text()) | {"speed": small_results.speed()}
    record.write_text(json.dumps(content))
    assert study.main() and json.loads(record.read_text())["speed"] == small_results.speed()


class FakeContender:
    """A machine that decodes with a clock of its own."""

    bytes_per_token = 1000

    def __init__(self, speed):
        self.speed = speed


def test_speed_is_measured_once_a_form_and_everything_else_of_the_record_stays(
    tmp_path, monkeypatch
):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(small_results.record(timed=False)))
    speeds = {name: 10.0 * (i + 1) for i, name in enumerate(speed.timed_forms())}
    monkeypatch.setattr(speed, "contender", lambda model, name, n: FakeContender(speeds[name]))
    monkeypatch.setattr(speed.speed, "decode_speed", lambda one, prompt, n: lambda: one.speed)
    monkeypatch.setattr(speed.speed, "PAUSE", 0)
    monkeypatch.setattr(protocol, "chat_ids", lambda tokenizer, text: [5])
    loaded = SimpleNamespace(model=None, tokenizer=None)
    monkeypatch.setattr(speed.models, "load", lambda device: loaded)
    monkeypatch.setattr(study, "RECORD", path)
    speed.main(["--rounds", "2", "--tokens", "8"])
    before, after = small_results.record(timed=False), json.loads(path.read_text())
    assert {k: v for k, v in after.items() if k != "speed"} == {
        k: v for k, v in before.items() if k != "speed"
    }
    found = after["speed"]["forms"]
    assert list(found) == list(speeds) and found["fp32"]["ratio"]["median"] == 1
    assert found["bf16"]["ratio"]["median"] == pytest.approx(speeds["bf16"] / speeds["fp32"])
    assert "8 new tokens" in after["speed"]["protocol"]


def test_the_forms_that_are_timed_are_those_that_a_kernel_reads():
    timed = speed.timed_forms()
    assert timed[0] == speed.BASE and len(set(timed)) == len(timed)
    assert all(FORMS[name].kernel for name in timed)
    assert not [name for name in timed if name.startswith(("Q", "int3", "int2", "fp16"))]


def test_the_engine_decodes_with_the_layers_of_a_form():
    model = models.tiny(intermediate_size=192)
    one = speed.contender(model, "int4 asym g64", 1)
    layers = sum(FORMS["int4 asym g64"].predict(tuple(weight_of(m).shape))
                 for m in find(model)[0].values())  # fmt: skip
    assert one.bytes_per_token >= layers + 4 * 256 * 64
    dense = points.put(model, points.each(model, FORMS["int4 asym g64"]))
    ids = torch.tensor([5, 6, 7, 8])
    expected = dense(input_ids=ids[None]).logits[0]
    torch.testing.assert_close(one.logits(ids), expected, rtol=1e-3, atol=1e-2)


@pytest.fixture(scope="module")
def record():
    return json.loads(study.RECORD.read_text(encoding="utf-8"))


def test_the_courses_record_is_whole_and_made_by_this_code(record):
    jsonschema.validate(record, summary.SCHEMA)
    assert list(record["rows"]) == list(BY_NAME)
    old = [n for n, r in record["rows"].items() if r["code"] != study.code_sha256(
        BY_NAME[n].recipe)]  # fmt: skip
    assert not old, f"measured by other code, run python -m utils.results_study: {old}"
    assert summary.places(record["rows"]) == {n: r["place"] for n, r in record["rows"].items()}


def test_eight_bits_per_channel_meet_the_bar_and_bytes_are_as_predicted(record):
    found = record["rows"]
    assert found["int8 per channel"]["kl"]["high"] <= 0.006
    assert all(row["packed_bytes"] == row["predicted_bytes"] for row in found.values())
    assert found["int8 per channel"]["bits_layers"] == pytest.approx(8.02, abs=0.01)


def test_rows_that_are_in_the_record_of_unit_08_have_its_numbers(record):
    values = json.loads((study.RECORD.parent / "08-gptq.json").read_text("utf-8"))["values"]
    for name, key in (
        ("4 bit g64", "rtn"), ("3 bit g64", "rtn_3"), ("GPTQ 4 bit g64", "plain"),
        ("GPTQ 4 bit g64, first token × 64", "first_64"),
    ):  # fmt: skip
        if f"{key}_kl" in values:
            expected = values[f"{key}_kl"]["value"]
            assert record["rows"][name]["kl"]["value"] == pytest.approx(expected, rel=2e-3), name


@pytest.mark.slow
def test_a_point_of_the_record_comes_out_again(record, tmp_path):
    bench = points.Bench(tmp_path)
    for name in ("int8 per channel", "MXFP4"):
        expected, found = record["rows"][name], bench.run(BY_NAME[name])
        assert sum(found["kl"]) / 8 == pytest.approx(expected["kl"]["value"], rel=2e-3)
        for part in ("packed_bytes", "memory_bytes", "disk_bytes", "header_bytes"):
            assert found[part] == expected[part]


def test_a_row_has_a_form_and_a_recipe():
    assert Row("a", "float", "fp32").recipe == "round"


def test_one_round_has_no_quartiles():
    with pytest.raises(ValueError, match="rounds=1: quartiles need two or more"):
        speed.main(["--rounds", "1"])
