"""Unit 07's study: its recipes on a tiny model; its record; one point comes out again."""

import types

import pytest
import torch

from utils import ledger, models
from utils.awq_study import points, recipes, study, summary
from utils.quantization import activation_aware, awq, capture, rtn


@pytest.fixture(scope="module", autouse=True)
def no_gradients():
    """For this module only: a switch at import would stay off for all tests of the process."""
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def bench():
    """A tiny stand-in for points.Bench; inner size divisible by the group of 64."""
    model = models.tiny(intermediate_size=128)
    ids = torch.randint(3, 250, (4, 32), generator=torch.manual_seed(0))
    about = dict(hessian=True, percentiles=recipes.PERCENTILES)
    found = capture.collect(model, ids, **about)
    made = activation_aware.search_model(model, found, 4, recipes.GROUP)
    search = {site.source: [s.ratio] for site, s in made.items()}
    return types.SimpleNamespace(
        model=model, ids=ids, statistics=found, found={"search/4": search},
        without_first=capture.collect(model, ids, skip_first=1),
    )  # fmt: skip


@pytest.mark.parametrize("recipe", [r for r in summary.INT8] + [f"{r}-4" for r in summary.LADDER])
def test_every_recipe_changes_a_copy_a_little(bench, recipe):
    before = bench.model(bench.ids).logits
    after = recipes.make(recipe, bench)(bench.ids).logits
    gap = float((after - before).norm() / before.norm())
    assert 0 < gap < 0.7
    assert torch.equal(bench.model(bench.ids).logits, before)


def test_one_percent_is_rounded_up_and_kept():
    weight = torch.randn(8, 128, generator=torch.manual_seed(0))
    kept = recipes.protect(weight, 4, torch.arange(128.0))
    plain = rtn.quantize(weight, 4, recipes.GROUP, False).dequantize()
    assert torch.equal(kept[:, 126:], weight[:, 126:])  # 1.28 columns: 2
    assert torch.equal(kept[:, :126], plain[:, :126])


def test_spread_by_hand():
    found = summary.spread([1.0, 2.0, 3.0])
    assert found["value"] == 2.0 and found["n"] == 3
    assert found["high"] - 2.0 == pytest.approx(4.3027 / 3**0.5, rel=1e-4)


def test_calibration_and_evaluation_share_no_window():
    """They come from different splits, whose documents differ (tests/test_corpus_tasks.py)."""
    source = points.Bench.calibration.func.__code__.co_consts
    assert "calibration" in source and "evaluation" not in source
    assert "evaluation" in points.Bench.evaluation.func.__code__.co_consts


@pytest.fixture(scope="module")
def record():
    return ledger.recorded(study.UNIT)


def test_record_is_complete_and_made_by_this_script(record):
    assert record["script_sha256"] == ledger.file_sha256(study.__file__)
    for point in study.POINTS:
        kind, recipe = point.split("/")
        if kind == "text":
            assert record["values"][f"kl_{summary.key(recipe)}"]["n"] == 8


def test_record_holds_the_findings(record):
    v = record["values"]
    for bits in (3, 4):
        assert v[f"gap_rtn_{bits}_search_{bits}"]["low"] > 0
        assert v[f"worse_layers_{bits}"]["value"] == 0 and v[f"layers_{bits}"]["value"] == 210
    assert v["gap_random_4_salient_4"]["low"] > 0 and v["gap_weight_4_salient_4"]["low"] > 0
    assert v["kl_tensor"]["value"] > 5 * v["kl_token"]["value"]
    assert v["gap_tensor_smooth_0_5"]["low"] > 0 and v["gap_smoothall_0_5_token"]["low"] > 0
    assert v["gap_tensor_static_100"]["low"] > 0 and v["gap_unseen_static_100"]["low"] > 0


def test_a_layer_that_got_worse_would_be_counted():
    """The record's "worse_layers" can say more than 0: one of three losses exceeds RTN's."""
    rows = {
        "m.0.input_layernorm": [0.5, 0.9, 1.1],
        "m.0.self_attn.v_proj": [0.0, 1.0],
        "m.0.post_attention_layernorm": [0.1, 0.8],
        "m.0.mlp.up_proj": [0.1, 0.7],
    }
    found = summary._search("4", rows)
    assert found["worse_layers_4"]["value"] == 1 and found["layers_4"]["value"] == 5


@pytest.mark.slow
def test_no_layer_of_the_model_is_worse_than_rtn_on_its_calibration_loss():
    """All 210 layers, with losses computed anew from the chosen scales (field case 10)."""
    made = points.Bench({})
    ids = made.calibration.ids[:1, :256]
    found, layers = capture.collect(made.model, ids, hessian=True), 0
    searched = activation_aware.search_model(
        made.model, found, 4, recipes.GROUP, ratios=(0.25, 0.5, 0.75)
    )
    for site, result in searched.items():
        for name in site.readers:
            w, h = made.model.get_submodule(name).weight, found[name].hessian
            plain = awq.output_loss(rtn.quantize(w, 4, recipes.GROUP, False).dequantize() - w, h)
            scaled = awq.output_loss(awq.scaled_rtn(w, result.scale, 4, recipes.GROUP) - w, h)
            assert scaled <= plain * (1 + 1e-6), (name, result.ratio)
            layers += 1
    assert layers == 210


@pytest.mark.slow
def test_one_point_comes_out_again(record):
    values = summary._text("token", points.Bench({}).run("text/token"))
    assert values["kl_token"]["value"] == pytest.approx(
        record["values"]["kl_token"]["value"], rel=0.05
    )
