"""Unit 11's study: its points on a tiny model; its record; one point comes out again."""

import pytest
import torch

from utils import ledger, models, quality
from utils.sparsity_study import points, study, summary


@pytest.fixture(scope="module", autouse=True)
def no_gradients():
    """For this module only: a switch at import would stay off for all tests of the process."""
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def bench():
    """A Bench over a tiny model; block 0 is the sensitive one by what it is told."""
    made = object.__new__(points.Bench)
    made.model = models.tiny(intermediate_size=128)
    made.layers = models.linears(made.model)
    made.dense = {name: m.weight.clone() for name, m in made.layers.items()}
    made.found = {"only/block_0": {"kl": [2.0]}, "only/block_1": {"kl": [1.0]}}
    ids = torch.randint(3, 250, (12, 32), generator=torch.manual_seed(0))
    made.texts = {"calibration": ids[:4], "choice": ids[4:8], "evaluation": ids[8:]}
    made._references = {}
    return made


TINY = ("prune/magnitude_50", "prune/wanda_24", "only/block_1", "only/up_proj", "spread/even",
        "spread/sensitive", "bits/int4", "both/wanda_50_int4", "after/int4_wanda_50", "gate/50",
        "gate/relu")  # fmt: skip


@pytest.mark.parametrize("point", TINY)
def test_every_kind_of_point_runs_and_leaves_the_model_dense(bench, point):
    result = bench.run(point)
    assert len(result["kl"]) == 4 and min(result["kl"]) > 0
    assert all(torch.equal(m.weight, bench.dense[n]) for n, m in bench.layers.items())
    assert quality.kl_divergence(bench.model, bench.model, bench.texts["choice"]).mean < 1e-6


def test_zeros_are_counted_and_survive_rounding(bench):
    weights = sum(m.weight.numel() for m in bench.layers.values())
    assert bench.run("prune/magnitude_50")["zeros"] == weights // 2
    both = bench.run("both/wanda_50_int4")
    assert both["zeros_before"] == weights // 2 <= both["zeros"]
    even, uneven = bench.run("spread/even")["zeros"], bench.run("spread/sensitive")["zeros"]
    assert even == weights // 2 and uneven == pytest.approx(even, abs=len(bench.layers) * 40)


def test_what_is_done_last_is_what_is_judged(bench):
    """Judged before the second step, pruning after rounding would cost exactly nothing more."""
    rounded = bench.run("bits/int4")["kl"]
    for point in ("after/int4_wanda_50", "both/wanda_50_int4"):
        assert bench.run(point)["kl"] != rounded


def test_idle_channels_become_fewer_when_tokens_share_a_read(bench):
    idle = list(bench.run("gate/50")["idle"].values())
    assert idle == sorted(idle, reverse=True) and 0.3 < idle[0] < 0.7


def test_values_by_hand():
    flat = {"same": [0.5] * 8, "nll": [1.0] * 8, "nll_reference": [0.0] * 8}
    one = {"kl": [1.0, 3.0] * 4, **flat, "zeros": 7}
    other = {"kl": [0.5, 2.5] * 4, **flat}
    gate = {"kl": [0.1] * 8, **flat, "share": 0.5, "idle": {"4": 0.1}, "unread": {"4": 0.04}}
    found = summary.values({
        "prune/wanda_50": one, "prune/sparsegpt_50": other, "gate/50": gate,
        "only/block_0": one, "only/block_1": other,
    })  # fmt: skip
    assert found["wanda_50_kl"]["value"] == 2 and found["wanda_50_zeros"]["value"] == 7
    assert found["wanda_50_minus_sparsegpt_50"]["low"] == pytest.approx(0.5)
    assert found["sum_of_blocks_kl"]["value"] == 3.5
    assert found["gate_50_unread_4"]["value"] == 4 and found["gate_50_flips"]["value"] == 50


@pytest.fixture(scope="module")
def record():
    return ledger.recorded(study.UNIT)


def test_record_is_complete_and_made_by_this_script(record):
    assert record["script_sha256"] == ledger.file_sha256(study.__file__)
    for point in summary.POINTS:
        entry = record["values"][f"{summary.key(point)}_kl"]
        assert entry["n"] == (4 if point.startswith("only/") else 8)


def test_record_holds_the_findings(record):
    kl = {p: record["values"][f"{p}_kl"] for p in summary.PRUNE}
    for level in (50, "24"):
        magnitude, wanda, gpt = (kl[f"{m}_{level}"] for m in summary.METHODS)
        assert magnitude["low"] > wanda["high"] and wanda["value"] > gpt["value"]
    assert record["values"]["wanda_24_minus_sparsegpt_24"]["low"] > 0
    for method in summary.METHODS:
        levels = [kl[f"{method}_{s}"]["value"] for s in summary.LEVELS[:-1]]
        assert levels == sorted(levels)
        assert kl[f"{method}_24"]["value"] > kl[f"{method}_50"]["value"]
    for point in summary.POINTS:
        if point.startswith("prune/") and not point.endswith("24"):
            share = int(point.rsplit("_", 1)[1]) / 100
            zeros = record["values"][f"{summary.key(point)}_zeros"]["value"]
            # a row of n weights loses round(share n): at most half a weight off, in rows of 576
            assert zeros == pytest.approx(share * 106_168_320, abs=106_168_320 * 0.5 / 576)


@pytest.mark.slow
def test_one_point_comes_out_again(record):
    result = points.Bench().run("prune/magnitude_50")
    for name, entry in summary.values({"prune/magnitude_50": result}).items():
        if name != "sum_of_blocks_kl":
            assert entry["value"] == pytest.approx(record["values"][name]["value"], rel=2e-3)
