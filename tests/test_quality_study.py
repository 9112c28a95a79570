"""The study of unit 04: its variants and sums on a tiny model, its record, and one point again."""

import math

import numpy as np
import pytest
import torch

from utils import ledger, models, quality
from utils.quality_study import points, study, summary, variants


@pytest.fixture(scope="module")
def tiny():
    return models.tiny()


@pytest.fixture(scope="module")
def ids():
    return torch.randint(0, 256, (8, 24), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ["int8", "int4-g64-mse", "prune-30", "recipe-1", "int4-g64-tuned"])
def test_variants_differ_and_leave_the_reference_alone(tiny, ids, name):
    before = models.weights_sha256(tiny)
    changed = variants.make(name, tiny, ids)
    assert models.weights_sha256(tiny) == before
    assert quality.kl_divergence(tiny, changed, ids).mean > 0
    again = variants.make(name, tiny, ids)
    assert torch.equal(changed(ids).logits, again(ids).logits)


def test_softer_changes_no_first_choice(tiny, ids):
    row = quality.compare(quality.Reference(tiny, ids), variants.make("softer", tiny, ids))
    assert row.flips == 0 and row.kl > 0


def test_tuning_lowers_the_loss_on_what_it_reads(tiny, ids):
    tuned = variants.make("tuned", tiny, ids)
    assert quality.perplexity(tuned, ids).nll < quality.perplexity(tiny, ids).nll - 0.05


def test_recipes_differ_from_each_other(tiny, ids):
    one, two = (variants.make(f"recipe-{n}", tiny, ids)(ids).logits for n in (0, 1))
    assert not torch.equal(one, two)


def test_unknown_variants_are_named(tiny, ids):
    with pytest.raises(ValueError, match="int5"):
        variants.make("int5", tiny, ids)


def test_compare_equals_quality_compare(tiny, ids):
    other = models.tiny(seed=5)
    parts = [quality.Reference(tiny, rows) for rows in ids.split(3)]
    found = points.compare(parts, other)
    row = quality.compare(quality.Reference(tiny, ids), other)
    assert np.mean(found["kl"]) == pytest.approx(row.kl, rel=1e-5)
    assert np.mean(found["flip"]) == pytest.approx(row.flips, abs=1e-6)
    assert math.exp(np.mean(found["nll"])) == pytest.approx(row.perplexity, rel=1e-5)
    assert found["tokens"] == row.tokens


def test_text_drawn_from_a_model_costs_the_kl(tiny):
    """Equation eq-04-signed: on text of its own, the change of the loss is the KL up to chance."""
    first = torch.arange(64)[:, None]
    own = points.sample(tiny, first, 40, torch.Generator().manual_seed(0))
    found = points.compare([quality.Reference(tiny, own)], variants.make("int8", tiny, own))
    soft = points.compare([quality.Reference(tiny, own)], variants.make("softer", tiny, own))
    for result in (found, soft):
        signed = np.array(result["change"]) - np.array(result["kl"])
        assert abs(signed.mean()) < 3 * signed.std(ddof=1) / 8
    assert own.shape == (64, 41) and torch.equal(own[:, :1], first)


def fake():
    """A result for every point, from dice."""
    dice, found = np.random.default_rng(0), {}
    for point in study.POINTS:
        kind = point.split("/")[0]
        if kind == "protocol":
            found[point] = {"ppl": 20.0, "tokens": 10, "words": ""}
        elif kind in ("text", "own"):
            data = {k: dice.gamma(2, size=32).tolist() for k in ("nll", "nll_reference", "kl")}
            data |= {"change": dice.normal(size=32).tolist(), "flip": dice.random(32).tolist()}
            data |= {"tokens": 320, "kl_quantiles": [0.1, 0.2, 0.3, 0.4], "change_positive": 0.6}
            judged = {"kl", "nll", "change", "flip"} - ({"flip"} if "softer" in point else set())
            found[point] = data | {f"{key}_naive_error": 0.1 for key in judged}
        elif kind == "recipe":
            found[point] = {"nll": dice.normal(3, 0.1, 16).tolist()}
        else:
            share = 0 if "humaneval" in point else 0.5  # no solution matches greedily
            right = (dice.random(80) < share).astype(int).tolist()
            found[point] = {"correct": right, "nll": dice.gamma(2, size=80).tolist()}
    return found


def test_summary_makes_a_valid_record_of_every_point():
    found = fake()
    values = summary.values(found)
    for name, fields in values.items():
        assert all(math.isfinite(x) for x in fields.values()), name
        value = fields["value"]
        assert fields.get("low", value) <= value <= fields.get("high", value), name
    for name in study.TEXT:
        key = name.replace("-", "_")
        parts = values[f"{key}_kl"]["value"] + values[f"{key}_signed"]["value"]
        assert parts == pytest.approx(values[f"{key}_change"]["value"])
        ratio = math.exp(values[f"{key}_change"]["value"])
        assert values[f"{key}_ppl_ratio"]["value"] == pytest.approx(ratio)
    lost, won = values["cloze_int8_lost"]["value"], values["cloze_int8_won"]["value"]
    assert values["cloze_int8_difference"]["value"] == pytest.approx(100 * (won - lost) / 80)
    assert values["cloze_int8_discordant"]["value"] == pytest.approx(100 * (won + lost) / 80)


def test_a_lucky_winner_keeps_nothing_of_its_lead():
    """Ten equal recipes, 16 independent windows: the best of ten leads by 1.54 standard errors."""
    dice, chosen, fresh = np.random.default_rng(1), [], []
    for _ in range(12):
        result = summary._recipes(dice.normal(size=(10, 16)))
        chosen.append(result["recipes_gain_chosen"]["value"])
        fresh.append(result["recipes_gain_fresh"]["value"])
    assert np.mean(chosen) == pytest.approx(1.54 / math.sqrt(8), rel=0.2)
    assert abs(np.mean(fresh)) < 0.15


@pytest.fixture(scope="module")
def record():
    return ledger.recorded(study.UNIT)


def test_record_is_complete_and_made_by_this_script(record):
    assert record["script_sha256"] == ledger.file_sha256(study.__file__)
    assert record["values"].keys() == summary.values(fake()).keys()
    assert record["values"]["int8_kl"]["n"] == points.WINDOWS * (points.CONTEXT - 1)
    assert record["values"]["entities_fp32_accuracy"]["n"] == points.SIZES["entities"] >= 200


def test_record_holds_the_findings(record):
    value = {name: entry["value"] for name, entry in record["values"].items()}
    contexts = [value[f"protocol_disjoint_{c}"] for c in (128, 256, 512, 1024, 2048)]
    assert contexts == sorted(contexts, reverse=True)
    bits = [
        value[f"{name}_kl"] for name in ("int8", "int6_g64", "int4_g32", "int4_g64", "int3_g64")
    ]
    assert bits == sorted(bits)
    assert value["softer_flips"] == 0 and value["softer_kl"] > value["int8_kl"]
    assert value["int4_g64_tuned_ppl_ratio"] < value["int4_g64_ppl_ratio"]
    assert value["int4_g64_tuned_kl"] > 0.5 * value["int4_g64_kl"]


@pytest.mark.slow
def test_one_point_comes_out_again(record):
    """The 8-bit text point on its first windows: their mean lies within the record's spread."""
    bench = points.Bench()
    found = bench.run("text/int8", windows=4)
    kl, flips = record["values"]["int8_kl"], record["values"]["int8_flips"]
    assert 0.5 * kl["value"] < np.mean(found["kl"]) < 2 * kl["value"]
    assert abs(100 * np.mean(found["flip"]) - flips["value"]) < 3
    protocol = bench.run("protocol/half-512")
    assert protocol["ppl"] == pytest.approx(
        record["values"]["protocol_half_512"]["value"], rel=2e-3
    )
