"""Unit 12's study: its points on a tiny model; its record; one point comes out again."""

import pytest
import torch

from utils import ledger, models
from utils.structured_study import points, study, summary


@pytest.fixture(scope="module", autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def bench():
    made = object.__new__(points.Bench)
    made.model = models.tiny(intermediate_size=128)
    flat = {"kl": [0.0], "same": [1.0]}
    made.found = {"rate/1e-4": flat | {"nll": [2.0]}, "rate/1e-3": flat | {"nll": [1.0]}}
    ids = torch.randint(3, 250, (24, 32), generator=torch.manual_seed(0))
    names = ("calibration", "choice", "training", "evaluation")
    made.texts = dict(zip(names, ids.split([4, 4, 8, 8]), strict=True))
    return made


TINY = ("prune/wanda", "channels/random_25", "channels/taylor_25", "channels/squared_50",
        "groups/magnitude_1", "blocks/influence_1", "rate/3e-4", "tune/dense", "tune/sparsegpt",
        "tune/gradual", "tune/channels")  # fmt: skip


@pytest.mark.parametrize("point", TINY)
def test_points_run_and_leave_the_dense_model(bench, point):
    before = models.weights_sha256(bench.model)
    result = bench.run(point)
    windows = 4 if point.startswith("rate/") else 8
    assert len(result["kl"]) == windows and min(result["kl"]) > 0
    assert models.weights_sha256(bench.model) == before


def test_arms_end_with_the_right_sizes_and_zeros(bench):
    weights = sum(m.weight.numel() for m in models.linears(bench.model).values())
    for arm in ("magnitude", "gradual"):
        result = bench.run(f"tune/{arm}")
        assert result["zeros"] == weights // 2 and len(result["losses"]) == 8
    assert bench.run("tune/dense")["zeros"] == 0
    sizes = [bench.run(f"channels/squared_{share}")["bytes"] for share in (10, 25, 50)]
    assert sizes == sorted(sizes, reverse=True)
    assert bench.run("blocks/influence_1")["gone"] in ([0], [1])


def test_the_rate_is_the_best_one_tried(bench):
    assert bench.rate() == 1e-3


def test_single_channels(bench, monkeypatch):
    monkeypatch.setattr(points, "SINGLES", 12)
    found = bench.run("single/1")
    assert len(found["change"]) == len(found["predicted"]) == len(found["squared"]) == 12
    ranks = summary.values({"single/1": found})
    assert ranks["single_1_signed"]["value"] > 0.9


def test_values_by_hand():
    flat = {"same": [0.5] * 8, "nll": [1.0] * 8, "nll_reference": [0.0] * 8}
    one, two = {"kl": [1.0, 3.0] * 4, **flat}, {"kl": [0.5, 2.5] * 4, **flat, "bytes": 7}
    single = {"change": [0.1, -0.3, 0.2], "predicted": [0.1, -0.3, 0.2], "magnitude": [3, 2, 1],
              "activation": [1, 3, 2], "taylor": [1, 3, 2], "squared": [2, 3, 1]}  # fmt: skip
    found = summary.values({"prune/wanda": one, "prune/sparsegpt": two, "single/3": single})
    assert found["prune_wanda_kl"]["value"] == 2 and found["prune_sparsegpt_bytes"]["value"] == 7
    assert found["prune_wanda_minus_prune_sparsegpt"]["value"] == pytest.approx(0.5)
    assert found["single_3_signed"]["value"] == pytest.approx(1)
    assert found["single_3_activation"]["value"] == pytest.approx(1)
    assert found["single_3_magnitude"]["value"] == pytest.approx(-0.5)
    assert found["single_3_largest_change"]["value"] == 0.3


@pytest.fixture(scope="module")
def record():
    return ledger.recorded(study.UNIT)


def test_record_is_complete_and_made_by_this_script(record):
    assert record["script_sha256"] == ledger.file_sha256(study.__file__)
    for point in summary.POINTS:
        last = "signed" if point.startswith("single/") else "kl"
        assert f"{summary.key(point)}_{last}" in record["values"], point


def test_record_holds_the_findings(record):
    kl = {n[:-3]: v["value"] for n, v in record["values"].items() if n.endswith("_kl")}
    assert kl["prune_magnitude"] > kl["prune_wanda"] > kl["prune_sparsegpt"]
    assert kl["channels_random_25"] > kl["channels_activation_25"]
    assert kl["tune_magnitude"] < kl["prune_magnitude"]
    assert record["values"]["tune_dense_zeros"]["value"] < 106_168_320 / 1000  # its own
    for arm in ("magnitude", "sparsegpt", "gradual"):
        assert record["values"][f"tune_{arm}_zeros"]["value"] >= 106_168_320 // 2


@pytest.mark.slow
def test_one_point_comes_out_again(record):
    result = points.Bench().run("channels/magnitude_25")
    for name, entry in summary.values({"channels/magnitude_25": result}).items():
        if name != "chosen_rate":
            assert entry["value"] == pytest.approx(record["values"][name]["value"], rel=2e-3)
