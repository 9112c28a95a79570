"""The study of unit 08: recipes as written, texts apart, the record and its findings."""

import pytest
import torch

from utils import ledger, models
from utils.gptq_study import combined, points, recipes, study, summary
from utils.quantization import gptq_model, hessian

IDS = torch.randint(0, 256, (4, 32), generator=torch.Generator().manual_seed(0))


def test_recipes_are_read_as_written():
    plain = recipes.parse("plain")
    assert (plain["bits"], plain["act_order"], plain["groups"]) == (4, True, "static")
    assert (plain["tokens"], plain["factor"], plain["damping"]) == (16384, 1.0, 0.01)
    assert recipes.parse("first-16-3")["bits"] == 3 and recipes.parse("first-16-3")["factor"] == 16
    assert recipes.parse("damping-0.1")["damping"] == 0.1
    assert recipes.parse("sequential-4096")["tokens"] == 4096
    assert recipes.parse("natural-dynamic") == plain | {"act_order": False, "groups": "dynamic"}


def test_kept_hessians_serve_the_layers_that_share_them(tmp_path):
    model = models.tiny()
    fresh = recipes.Hessians(model, IDS, tmp_path / "h.safetensors").plain()
    again = recipes.Hessians(model, IDS, tmp_path / "h.safetensors").plain()
    expected = hessian.collect(model, IDS)
    assert fresh.keys() == again.keys() == expected.keys()
    assert all(torch.equal(again[name], expected[name]) for name in expected)


def test_the_factor_reaches_q_k_v_only(tmp_path):
    made = recipes.Hessians(models.tiny(), IDS, tmp_path / "h.safetensors")
    plain, first = made.plain(), made.first(16)
    changed = {
        name.rsplit(".", 1)[-1] for name in plain if not torch.equal(plain[name], first[name])
    }
    assert changed == {"q_proj", "k_proj", "v_proj"}


def test_restored_keys_and_values_are_exact_at_position_0_alone():
    model, seen = models.tiny(), {}
    candidate = gptq_model.simulate(model, gptq_model.tensors(model, IDS, bits=3, group_size=16))
    name = "model.layers.1.self_attn.k_proj"
    with points.restored(model, candidate), torch.no_grad():
        layer = candidate.get_submodule(name)
        handle = layer.register_forward_hook(lambda _m, _i, output: seen.update(k=output))
        candidate(input_ids=IDS)
        handle.remove()
    exact = {}
    handle = model.get_submodule(name).register_forward_hook(lambda _m, _i, o: exact.update(k=o))
    with torch.no_grad():
        model(input_ids=IDS)
    handle.remove()
    torch.testing.assert_close(seen["k"][:, 0], exact["k"][:, 0])
    assert not torch.allclose(seen["k"][:, 1:], exact["k"][:, 1:], rtol=1e-2)
    with torch.no_grad():  # the hooks are gone
        before = candidate(input_ids=IDS).logits
    assert torch.equal(before, candidate(input_ids=IDS).logits)


def test_bins_cover_every_position_once():
    assert summary.BUCKETS[0] == 0 and summary.BUCKETS[-1] == points.WINDOW
    assert list(summary.BUCKETS) == sorted(set(summary.BUCKETS))


def test_ratios_by_position_and_paired_differences():
    windows = {"same": [0.5] * 8, "nll": [1.0] * 8, "nll_reference": [0.9] * 8}
    text = {"kl": [0.1 * (1 + i % 2) for i in range(8)], **windows}
    half = {"kl": [x / 2 for x in text["kl"]], **windows}
    rtn = {"key": [[2.0] * 512] * 3, "value": [[1.0] * 512] * 3}
    ours = {"key": [[8.0] + [1.0] * 511] * 3, "value": [[1.0] * 512] * 3}
    found = summary.values({
        "text/rtn": text, "text/plain": half, "choice/plain": text, "choice/first-4": half,
        "positions/rtn": rtn, "positions/plain": ours,
    })  # fmt: skip
    assert found["key_plain_at_0"]["value"] == 4 and found["key_plain_rest"]["value"] == 0.5
    assert found["key_plain_at_0_block_2"]["value"] == 4
    assert found["plain_minus_rtn"]["value"] == pytest.approx(-0.075)
    assert found["chosen_factor"]["value"] == 4
    assert found["plain_flips"]["value"] == 50


@pytest.fixture(scope="module")
def record():
    return ledger.recorded(study.UNIT)


def test_record_is_complete_and_made_by_this_script(record):
    assert record["script_sha256"] == ledger.file_sha256(study.__file__)
    for point in study.POINTS:
        way, recipe = point.split("/")
        prefix, name = "" if way == "text" else f"{way}_", summary.key(recipe)
        names = [f"key_{name}_at_0"] if way == "positions" else [f"{prefix}{name}_kl"]
        assert all(n in record["values"] for n in names), point


def test_record_holds_the_findings(record):
    values = record["values"]
    assert values["plain_minus_rtn"]["high"] < 0
    assert values["first_64_minus_plain"]["high"] < 0
    assert values["chat_first_64_minus_plain"]["high"] < 0
    assert values["first_0_minus_plain"]["low"] > 0
    assert values["restored_plain_kl"]["high"] < values["plain_kl"]["low"]
    worse = [b for b in range(30) if values[f"key_plain_at_0_block_{b}"]["value"] > 1]
    assert worse == list(range(worse[0], worse[-1] + 1)) and len(worse) > 10
    assert values["key_plain_rest"]["high"] < 0.5


def test_the_factor_was_chosen_on_its_own_text(record):
    values = record["values"]
    scores = {
        f: values[f"choice_{summary.key(summary.name(f))}_kl"]["value"] for f in summary.FACTORS
    }
    assert values["chosen_factor"]["value"] == min(scores, key=scores.get)


@pytest.mark.slow
def test_texts_do_not_overlap_and_one_point_comes_out_again(record, tmp_path):
    bench = combined.Bench(tmp_path)
    seen = bench.calibration.ids[: recipes.TOKENS // points.WINDOW]
    rows = {tuple(row.tolist()) for row in seen}
    assert len(rows) == len(seen) == 32
    for kind in ("choice", "text"):
        ids = bench.ids(kind)
        assert len(ids) == 8 and not rows & {tuple(row.tolist()) for row in ids}
    assert bench.ids("chat").shape == (8, points.WINDOW)
    assert bench.ids("chat")[:, 0].tolist() == [1] * 8  # <|im_start|>
    result = summary.values({"text/rtn": bench.run("text/rtn")})
    expected = record["values"]["rtn_kl"]["value"]
    assert result["rtn_kl"]["value"] == pytest.approx(expected, rel=2e-3)
