"""The bench measures what it says: turns, ratios within a round, totals. Its record is whole."""

import json

import jsonschema
import pytest
import torch

from utils import ledger, models, prompts
from utils.bench import contenders, protocol, speed
from utils.bench.schema import RATIO_NAMES, SCHEMA
from utils.engine import Engine


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(speed, "PAUSE", 0)


def test_each_round_calls_all_in_an_order_that_changes():
    calls = []

    def candidate(name):
        return lambda: calls.append(name) or len(calls)

    results = speed.rounds({name: candidate(name) for name in "abc"}, 2)
    assert "".join(calls) == "abc" + "bca" + "cab"  # the first round only warms up
    assert results == {"a": [6, 8], "b": [4, 9], "c": [5, 7]}


def test_ratios_are_taken_within_a_round():
    """The machine halves its speed between rounds: the ratio doesn't notice."""
    results = {"ours": [10.0, 20.0, 40.0], "theirs": [5.0, 10.0, 20.0]}
    assert speed.ratio(results, "ours", "theirs") == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert speed.ratio(results, "ours", "absent") is None


def test_quartiles():
    assert speed.spread([1, 2, 3, 4, 5]) == {"median": 3, "low": 2, "high": 4}


def test_looping_is_the_share_of_repeated_n_grams():
    assert speed.repeated(list(range(20))) == 0
    assert speed.repeated([1, 2] * 10) == pytest.approx(
        11 / 13
    )  # 13 8-grams, two of them different
    assert speed.repeated([1, 2, 3]) == 0


def test_throughput_is_total_tokens_over_total_time_and_not_a_mean_of_speeds():
    runs = [speed.Total([0] * 90, 1.0, 30), speed.Total([0] * 10, 4.0, 10)]
    assert speed.throughput(runs) == 20
    summary = speed.summary(runs)
    assert summary["tokens"] == 100 and summary["tokens_per_forward"] == 2.5
    assert speed.stack_ratio(runs, runs)["median"] == 1


def test_the_interval_of_the_stack_resamples_prompts():
    fast = [speed.Total([0] * 10, 1.0), speed.Total([0] * 10, 2.0)]
    slow = [speed.Total([0] * 10, 10.0), speed.Total([0] * 10, 10.0)]
    ratio = speed.stack_ratio(fast, slow)
    assert ratio["low"] == pytest.approx(5) and ratio["high"] == pytest.approx(10)
    assert ratio["median"] == pytest.approx(20 / 3)


def test_a_step_is_timed_at_the_place_it_says_and_leaves_it():
    machine = Engine(models.tiny(), max_tokens=64)
    assert speed.verify_time(machine, rows=4, context=20)() > 0
    assert machine.length() == 20
    made = Engine(models.tiny(), max_tokens=64, batch=2)
    assert speed.engine_after(made, list(range(5, 37)), slot=1)() > 0
    assert (made.length(0), made.length(1)) == (0, 32)


def test_contenders_say_the_same_tokens_and_count_their_bytes():
    model = models.tiny()
    ours, theirs = contenders.engine(model, "fp32", 1, 64), contenders.transformers(model)
    assert ours.generate([5, 6, 7], 12) == theirs.generate([5, 6, 7], 12)
    assert ours.bytes_per_token == theirs.bytes_per_token == 4 * contenders.matrices(model)
    assert ours.bits_per_weight == 32
    ids = torch.tensor([3, 4, 5, 6])
    assert torch.allclose(ours.logits(ids), theirs.logits(ids), atol=1e-4)
    assert contenders.AsModel(ours)(ids[None]).logits.shape == (1, 4, 256)


def test_speeds_are_measured_through_the_contender():
    ours = contenders.engine(models.tiny(), "int8", 1, 64)
    assert speed.decode_speed(ours, [5, 6, 7], 8)() > 0
    assert speed.prompt_speed(ours, [5, 6, 7])() > 0


def test_the_stack_is_part_of_the_record_and_drafts_change_nothing(monkeypatch):
    monkeypatch.setattr(prompts, "ids", lambda prompt, tokenizer: [5, 6, 7, 5, 6])
    ratios = {}
    plan = protocol.Plan(new_tokens=8, prompts=1)
    found = protocol._stack(models.tiny(), None, plan, ratios, lambda text: None)
    assert found["identical"] and set(found) == {*prompts.KINDS, "grounded", "identical"}
    assert (
        found["grounded"]["engine int8"]["tokens"] == 3 * found["copying"]["engine int8"]["tokens"]
    )
    assert set(ratios) == {"stack_grounded_vs_transformers_fp32", "stack_chat_vs_q8"}


def test_verification_is_measured_for_each_number_of_rows():
    ratios = {}
    found = protocol._verify(models.tiny(), protocol.Plan(rounds=2), ratios, lambda text: None)
    assert set(found) == set(protocol.VERIFIED)
    assert all(set(times) == {str(m) for m in protocol.ROWS} for times in found.values())
    assert set(ratios) == {"verify4_vs_1_fp32", "verify4_vs_1_int8"}


def test_one_part_is_measured_anew_on_the_same_machine_only():
    loaded = models.Loaded(models.tiny(), None, None)
    old = protocol.machine() | {"peers": {}, "ratios": {"q8": 1}, "decode": 5, "verify_ms": None}
    new = protocol.again(old, "verify_ms", loaded, protocol.Plan(rounds=2))
    assert set(new["verify_ms"]) == set(protocol.VERIFIED) and new["decode"] == 5
    assert new["ratios"]["q8"] == 1 and new["ratios"]["verify4_vs_1_int8"]["median"] > 0
    assert old["verify_ms"] is None and set(old["ratios"]) == {"q8"}
    elsewhere = old | {"versions": {"torch": "1.0"}}
    with pytest.raises(ValueError, match=r"different now: versions"):
        protocol.again(elsewhere, "verify_ms", loaded, protocol.Plan(rounds=2))
    with pytest.raises(ValueError, match=r"decode: one of verify_ms"):
        protocol.again(old, "decode", loaded, protocol.Plan(rounds=2))


def test_the_kept_record_is_whole():
    record = json.loads(protocol.RECORD.read_text(encoding="utf-8"))
    jsonschema.validate(record, SCHEMA)
    assert set(record["ratios"]) == set(RATIO_NAMES)
    assert not [name for name, ratio in record["ratios"].items() if ratio is None]
    assert record["stack"]["identical"]


def test_a_broken_record_is_not_written(tmp_path):
    with pytest.raises(jsonschema.ValidationError):
        protocol.write({"protocol": "x"}, tmp_path / "bench.json")
    assert not list(tmp_path.iterdir())


def test_a_trial_stays_below_build(monkeypatch):
    """`--quick` must not touch records/."""
    from utils.bench import __main__ as command

    written = []
    record = {"ratios": {"a": None, "b": {"median": 1.0, "low": 0.5, "high": 2.0}}}
    monkeypatch.setattr(command.models, "load", lambda **_: None)
    monkeypatch.setattr(command.protocol, "run", lambda *_: record)
    monkeypatch.setattr(command.protocol, "write", lambda _, path: written.append(path))
    assert command.main(["--quick"]) == 0
    assert written == [ledger.ROOT / "_build" / "evidence" / "bench.json"]
