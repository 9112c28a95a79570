"""Unit 10's study: arms by name, its points on a tiny model, its record."""

import pytest
import torch

from utils import ledger, models
from utils.gptq_study import points as gptq_points
from utils.gptq_study import recipes
from utils.qat_study import arms, points, study, summary
from utils.quantization import distillation


@pytest.fixture(scope="module", autouse=True)
def gradients_as_found():
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    yield
    torch.set_grad_enabled(before)


@pytest.fixture
def bench(tmp_path):
    made = object.__new__(points.Bench)
    made.model = models.tiny()
    made.folder, made._kept, made._references = tmp_path, ("", None), {}
    ids = torch.randint(3, 250, (40, 32), generator=torch.manual_seed(0))
    made.training = ids[:24]
    names = [trial for trials in arms.TRIALS.values() for trial in trials]
    made.found = {f"rate/{trial}": {"losses": [1 - i / 100] * 8} for i, trial in enumerate(names)}
    made.hessians = recipes.Hessians(made.model, ids[:8], tmp_path / "h.safetensors")
    made.ids = lambda kind: ids[24:32] if kind == "text" else ids[32:]
    return made


def test_arms_are_read_as_written():
    assert arms.arm("kl").plan.loss == "kl" and arms.arm("text").plan.loss == "text"
    assert arms.arm("kl-3") == arms.replace(arms.arm("kl"), bits=3)
    assert arms.arm("gptq").start == "first-64" and arms.arm("kl").start == "rtn"
    trial = arms.arm("adapter-rate-0.003")
    assert (trial.what, trial.plan.rate, trial.tokens) == ("adapters", 0.003, 2048)
    assert arms.arm("gptq-rate-0.00003").start == "first-64"
    for wrong in ("best", "rate-", "other-rate-0.1"):
        with pytest.raises(ValueError, match="use one of kl"):
            arms.arm(wrong)
    for point in summary.POINTS:
        way, name = point.split("/")
        if way in ("qat", "rate"):
            assert arms.arm(name).plan.batch == 1


POINTS = ("ptq/rtn", "qat/kl", "qat/kl-3", "qat/text", "qat/gptq", "qat/adapters", "qat/norms")


@pytest.mark.parametrize("point", POINTS)
def test_points_run_and_leave_the_teacher(bench, point):
    before = models.weights_sha256(bench.model)
    result = bench.run(point)
    assert models.weights_sha256(bench.model) == before
    assert len(result["kl"]) == 8 and min(result["kl"]) > 0
    assert ("chat" in result) == (point in ("ptq/rtn", "qat/kl", "qat/text"))
    assert ("merged" in result) == (point == "qat/adapters")
    if point.startswith("qat"):
        assert len(result["losses"]) == 24 and result["tokens"] == 24 * 32
        frozen = point in ("qat/adapters", "qat/norms")
        assert result["flipped"] is None if frozen else result["flipped"] > 0
    assert not list(bench.folder.glob("*.pt"))


def test_the_rate_is_the_best_one_tried(bench):
    assert bench.rate("kl") == bench.rate("kl-3") == 0.0003
    bench.found["rate/rate-0.0001"] = {"losses": [9.0, 9.0, 9.0, 9.0, 0.5, 0.9, 0.9, 0.9]}
    bench.found["rate/rate-0.0003"] = {"losses": [0.0, 0.0, 0.0, 0.0, 0.9, 0.9, 0.9, 0.9]}
    assert bench.rate("kl") == bench.rate("text") == 0.0001
    assert bench.run("qat/kl")["rate"] == 0.0001


def test_what_is_trained(bench):
    tensors = recipes.rounded(bench.model, 4)
    counts = {
        name: arms.trained_parameters(arms.student(bench.model, arms.arm(name), tensors))
        for name in ("kl", "adapters", "norms")
    }
    assert counts["kl"] == arms.linear_parameters(bench.model)
    assert counts["norms"] == 5 * 64
    sides = [sum(m.weight.shape) for m in models.linears(bench.model).values()]
    assert counts["adapters"] == 8 * sum(sides)


def test_losses_before_training_and_at_the_first_step_agree(bench):
    before, trial = bench.run("start/rtn")["before"], bench.run("rate/rate-0.0001")
    assert len(before) == 24 and len(trial["losses"]) == 8
    assert trial["losses"][0] == pytest.approx(before[0], abs=2e-5)


def test_a_stopped_point_goes_on(bench, monkeypatch):
    whole = bench.run("rate/rate-0.0001")["losses"]
    monkeypatch.setattr(points, "SAVE_EVERY", 3)
    saved, real = [], distillation.Trainer.save

    def stop(trainer, path):
        real(trainer, path)
        saved.append(trainer.done)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(distillation.Trainer, "save", stop)
        bench.run("rate/rate-0.0001")
    assert saved == [3] and list(bench.folder.glob("*.pt"))
    assert bench.run("rate/rate-0.0001")["losses"] == whole


def test_values_by_hand():
    one = {"kl": [0.4, 0.6] * 4, "same": [0.5] * 8, "nll": [2.0] * 8, "nll_reference": [1.5] * 8}
    two = one | {"kl": [0.2, 0.4] * 4, "losses": [4.0, 3.0, 2.0, 1.0, 0.0], "seconds": 2.0,
                 "tokens": 8, "rate": 0.1, "trained": 5, "flipped": 0.25}  # fmt: skip
    frozen = two | {"flipped": None, "merged": one | {"kl": [0.3, 0.5] * 4}}
    found = summary.values({"ptq/rtn": one | {"chat": one}, "qat/kl": two | {"chat": two},
                            "qat/adapters": frozen, "start/rtn": {"before": [0.5]}})  # fmt: skip
    assert found["rtn_kl"]["value"] == pytest.approx(0.5)
    assert found["qat_kl_minus_rtn"]["value"] == pytest.approx(-0.2)
    assert found["qat_kl_minus_rtn"]["high"] < found["qat_kl_minus_rtn"]["value"] + 1e-6
    assert found["chat_qat_kl_minus_rtn"]["value"] == pytest.approx(-0.2)
    assert found["merged_adapters_minus_qat_adapters"]["value"] == pytest.approx(0.1)
    assert found["qat_kl_loss_late"]["value"] == 1.5 and found["qat_kl_changed"]["value"] == 25
    assert "qat_adapters_changed" not in found and found["start_rtn_0"]["value"] == 0.5
    assert found["rtn_flips"]["value"] == 50 and found["rtn_nll_minus_fp32"]["value"] == 0.5
    assert summary.key("rate/norm-rate-0.01") == "norm_rate_0p01"
    assert summary.key("qat/kl-3") == "qat_kl_3" and summary.key("ptq/first-64-3") == "first_64_3"


@pytest.fixture(scope="module")
def record():
    return ledger.recorded(study.UNIT)


def test_record_is_complete_and_made_by_this_script(record):
    assert record["script_sha256"] == ledger.file_sha256(study.__file__)
    last = {"ptq": "kl", "qat": "kl", "rate": "loss_late", "start": "0"}
    for point in summary.POINTS:
        assert f"{summary.key(point)}_{last[point.split('/')[0]]}" in record["values"], point


def test_record_holds_the_findings(record):
    values = record["values"]
    assert values["qat_kl_minus_rtn"]["high"] < 0 and values["chat_qat_kl_minus_rtn"]["high"] < 0
    assert values["qat_kl_3_minus_rtn_3"]["high"] < 0
    assert values["qat_kl_minus_first_64"]["low"] > 0  # GPTQ is better, without training
    assert values["qat_text_nll_minus_qat_kl"]["high"] < 0 < values["qat_text_minus_qat_kl"]["low"]
    assert values["chat_qat_text_minus_rtn"]["low"] > 0  # further from fp32 than rounding alone
    assert values["qat_adapters_minus_rtn"]["high"] < 5 * values["merged_adapters_minus_rtn"]["low"]
    assert -0.01 < values["qat_gptq_minus_first_64"]["high"] < 0
    assert values["qat_norms_minus_rtn"]["high"] < 0
    assert values["qat_kl_changed"]["value"] < 2
    late = {trial: values[f"{summary.key(trial)}_loss_late"]["value"] for trial in arms.RATES}
    assert arms.arm(min(late, key=late.get)).plan.rate == values["qat_kl_rate"]["value"]


@pytest.mark.slow
def test_training_and_evaluation_share_no_window(tmp_path):
    bench = points.Bench(tmp_path)
    rows = {tuple(row.tolist()) for row in bench.training}
    assert len(rows) == len(bench.training) == 128
    for kind in ("choice", "text"):
        halves = bench.ids(kind).reshape(-1, points.LENGTH)
        assert not rows & {tuple(row.tolist()) for row in halves}
    seen = bench.calibration.ids[: recipes.TOKENS // gptq_points.WINDOW].reshape(-1, points.LENGTH)
    assert torch.equal(bench.training[: len(seen)], seen)
