"""Unit 09's study of caches and FP8 recipes: on a tiny model; its record and findings."""

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from utils import ledger, models
from utils.kv_study import points, recipes, study, summary
from utils.quantization import fp8_recipes, kv_cache

CONTEXT = 96


@pytest.fixture(scope="module", autouse=True)
def no_gradients():
    """For this module only: a switch at import would stay off for all tests of the process."""
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def bench():
    """A bench around a tiny model and random ids, without its texts' downloads."""
    made = points.Bench.__new__(points.Bench)
    made.model, made._references = models.tiny(head_dim=32), {}
    length = CONTEXT + points.TARGET
    made.windows = torch.randint(3, 250, (2, length), generator=torch.manual_seed(0))
    made.ids = lambda kind: made.windows[:, :64]
    made._calibrate = lambda skip: recipes.largest(made.model, made.windows[:, :64], skip)
    return made


def test_every_cache_is_scored_on_the_same_tokens_and_8_bits_win(bench):
    found = bench.run(f"kv/{CONTEXT}")
    assert set(found) == set(recipes.CACHES)
    assert all(len(one["kl"]) == len(one["same"]) == 2 for one in found.values())
    mean = {name: np.mean(one["kl"]) for name, one in found.items()}
    assert mean["2"] > mean["4"] > mean["8"] >= 0
    values = summary.values({f"kv/{CONTEXT}": found})
    assert values["kv_2_at_96_kl"]["value"] == pytest.approx(mean["2"])
    gap = values["kv_2_token_minus_2_at_96"]["value"]
    assert gap == pytest.approx(mean["2-token"] - mean["2"])


def test_scored_through_a_cache_equals_reading_the_whole_text(bench):
    """The reference of "kv": log-probabilities of the target after the context, nothing packed."""
    row = bench.windows[0]
    states, target = bench._prompt(row, 80)
    assert len(target) == points.TARGET and states[0][0].shape[2] == 80
    logits = bench.model(input_ids=row[None, -(80 + points.TARGET) :]).logits[0, 80:]
    got = points.read(bench.model, target, kv_cache.fill(DynamicCache(), states))
    torch.testing.assert_close(got, logits.log_softmax(-1), rtol=1e-3, atol=1e-4)


def test_kl_and_first_choices_by_hand():
    p = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
    q = torch.tensor([[0.25, 0.75], [0.9, 0.1]]).log()
    found = {"kl": [], "same": []}
    points.add(found, p, q)
    assert found["kl"][0] == pytest.approx(0.5 * np.log(4 / 3) / 2, abs=1e-6)
    assert found["same"] == [0.5]  # a tie counts as the first token


def test_position_0_is_seen_in_norm_and_range():
    x = torch.ones(1, 2, 64, 32) + torch.randn(1, 2, 64, 32, generator=torch.manual_seed(1)) / 50
    x[:, :, 0] *= 8
    found = points.state_errors([(x, torch.flip(x, [2]))])
    assert found["first_norm_keys"][0] == pytest.approx(8, rel=0.1)
    assert found["first_range_keys"][0] > 20 and found["first_range_values"][0] < 1.1
    assert found["keys_token"][0] < found["keys_channel"][0]


@pytest.mark.parametrize("name", recipes.FP8)
def test_every_fp8_recipe_changes_a_copy_a_little(bench, name):
    before = bench.model(bench.windows[:, :64]).logits
    found = bench.run(f"fp8/{name}")
    assert 0 < np.mean(found["kl"]) < 2
    assert torch.equal(bench.model(bench.windows[:, :64]).logits, before)


def test_delayed_serves_one_request_and_scores_the_next(bench):
    found = bench.run("delayed/16")
    assert len(found["kl"]) == len(found["saturated"]) == 2 and min(found["kl"]) > 0
    model = fp8_recipes.fp8_model(bench.model, lambda _n: fp8_recipes.Delayed(16), "tensor")
    points.serve(model, bench.windows[0, :8], bench.windows[0, 8:12])
    layers = [m for m in model.modules() if isinstance(m, fp8_recipes.FP8Linear)]
    assert {layer.activation.steps for layer in layers} == {5}  # the prompt and four tokens
    assert points.clipped(model) == sum(layer.activation.saturated for layer in layers)


@pytest.fixture(scope="module")
def record():
    return ledger.recorded(study.UNIT)


def test_record_is_complete_and_made_by_this_script(record):
    assert record["script_sha256"] == ledger.file_sha256(study.__file__)
    values = record["values"]
    for context in summary.CONTEXTS:
        for name in recipes.caches(context):
            assert values[f"kv_{summary.key(name)}_at_{context}_kl"]["n"] == 8
    for way, names in (("fp8", recipes.FP8), ("delayed", recipes.DELAYED)):
        for name in names:
            assert values[f"{way}_{summary.key(name)}_kl"]["n"] == 8


def test_record_holds_the_findings(record):
    v = record["values"]
    assert v["kv_8_at_2048_kl"]["high"] < 1e-4 and v["kv_4_at_2048_kl"]["high"] < 0.01
    assert v["kv_keys2_token_minus_keys2_at_512"]["low"] > 0
    assert v["kv_values2_channel_minus_values2_at_512"]["low"] > 0  # against their energy:
    assert v["states_values_channel_at_512"]["value"] < v["states_values_token_at_512"]["value"]
    assert v["kv_2_sinks1_minus_2_at_512"]["high"] < 0
    assert v["kv_2_residual96_minus_2_at_512"]["high"] < 0 < v["kv_2_sinks4_growth"]["low"]
    assert v["fp8_static_without_first_minus_static"]["low"] > 1
    assert v["fp8_block_minus_token"]["high"] < 0
    assert v["delayed_16_minus_1024"]["low"] > 1 > v["delayed_1024_kl"]["high"]


@pytest.mark.slow
def test_one_point_comes_out_again(record, tmp_path, monkeypatch):
    monkeypatch.setattr(recipes, "caches", lambda _context: {"2": recipes.CACHES["2"]})
    result = points.Bench(tmp_path).run("kv/128")["2"]
    assert np.mean(result["kl"]) == pytest.approx(
        record["values"]["kv_2_at_128_kl"]["value"], rel=0.02
    )
