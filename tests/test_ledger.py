"""utils.ledger: records hold what they must, or are refused; numbers are glued as plain floats."""

import json

import numpy as np
import pytest
import torch

from utils import ledger, plotting

PROTOCOL = "one sentence that says how these values came about"


@pytest.fixture(autouse=True)
def folders(monkeypatch, tmp_path):
    monkeypatch.setattr(ledger, "EVIDENCE", tmp_path / "evidence")
    monkeypatch.setattr(ledger, "RECORDS", tmp_path / "records")
    return tmp_path


@pytest.fixture
def glued(monkeypatch):
    import myst_nb

    seen = {}
    monkeypatch.setattr(myst_nb, "glue", lambda name, value, display: seen.update({name: value}))
    return seen


def test_publish_writes_a_checked_record_and_glues_plain_numbers(glued):
    values = {
        "a": 1.5,
        "b": np.float64(2.5),
        "c": torch.tensor(3),
        "d": ledger.Value(np.float32(0.5), n=10, low=0.25, high=0.75, unit="nats"),
    }
    path = ledger.publish("06-rounding", PROTOCOL, values)
    content = json.loads(path.read_text())
    ledger.check(content)
    assert content["values"]["d"] == {
        "value": 0.5,
        "n": 10,
        "low": 0.25,
        "high": 0.75,
        "unit": "nats",
    }
    assert content["device"]["threads"] >= 1 and content["versions"]["torch"] == torch.__version__
    assert glued == {"a": 1.5, "b": 2.5, "c": 3, "d": 0.5}
    assert {type(v) for v in glued.values()} == {float, int}


@pytest.mark.parametrize(
    "unit, protocol, values, message",
    [
        ("06-rounding", PROTOCOL, {"speed": float("nan")}, "'speed'.*not a finite"),
        ("06-rounding", PROTOCOL, {"speed": ledger.Value(1.0, high=float("inf"))}, "high is inf"),
        (
            "06-rounding",
            PROTOCOL,
            {"kl": ledger.Value(3.0, low=1.0, high=2.0)},
            "'kl' lies outside",
        ),
        ("06-rounding", PROTOCOL, {"kl": ledger.Value(1.0, n=0)}, "values/kl/n"),
        ("06-rounding", PROTOCOL, {}, "values"),
        ("06-rounding", "short", {"a": 1}, "protocol"),
        ("rounding", PROTOCOL, {"a": 1}, "unit"),
    ],
)
def test_a_bad_record_is_refused_by_name_and_not_written(folders, unit, protocol, values, message):
    with pytest.raises(ValueError, match=message):
        ledger.publish(unit, protocol, values)
    assert not list(folders.rglob("*.json"))


def test_a_study_keeps_the_hash_of_its_script():
    path = ledger.record("06-rounding", ledger.__file__, PROTOCOL, {"a": 1})
    content = ledger.recorded("06-rounding")
    assert content["script"] == "utils/ledger.py" and path.name == "06-rounding.json"
    assert content["script_sha256"] == ledger.file_sha256(ledger.__file__)


def test_a_missing_record_names_the_command():
    with pytest.raises(ValueError, match="make records"):
        ledger.recorded("99-absent")


def test_the_palette_differs_in_lightness():
    """Neighbours stay apart in greyscale: relative luminance differs by a tenth or more."""

    def luminance(colour):
        r, g, b = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    values = [luminance(c) for c in plotting.COLOURS]
    assert all(abs(a - b) > 0.1 for a, b in zip(values, values[1:], strict=False))
    assert len(plotting.COLOURS) == len(plotting.MARKERS) == len(plotting.LINES)


def evidence_file(tmp_path, **changes):
    entry = {
        "claim": "c084",
        "verdict": "contradicted",
        "scope": "mechanism on our model",
        "kind": "measured",
        "says": "what was found",
        "values": {"11-weight-sparsity": ["below"]},
    }
    path = tmp_path / "evidence.yaml"
    path.write_text(json.dumps([entry | changes]))
    return path


def test_claims_are_joined_to_the_values_of_records(tmp_path):
    ledger.record("11-weight-sparsity", ledger.__file__, PROTOCOL, {"below": 0.75})
    claims = {c["id"]: c for c in ledger.load(evidence=evidence_file(tmp_path))}
    assert len(claims) == 270
    assert claims["c084"]["verdict"] == "contradicted"
    assert claims["c084"]["evidence"][0]["values"] == {"below": 0.75}
    assert claims["c001"]["verdict"] == "open" and not claims["c001"]["evidence"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"claim": "c999"}, "no claim"),
        ({"values": {"11-weight-sparsity": ["above"]}}, "has no value 'above'"),
        ({"values": {"12-absent": ["below"]}}, "no record 12-absent"),
    ],
)
def test_evidence_that_points_nowhere_is_refused(tmp_path, change, message):
    ledger.record("11-weight-sparsity", ledger.__file__, PROTOCOL, {"below": 0.75})
    with pytest.raises(ValueError, match=message):
        ledger.load(evidence=evidence_file(tmp_path, **change))


def test_the_courses_own_evidence_joins_to_its_records(monkeypatch):
    monkeypatch.undo()  # the real folders
    claims = ledger.load()
    settled = [c for c in claims if c["verdict"] != "open"]
    assert len(settled) >= 3 and all(c["evidence"] for c in settled)
    assert all(e["scope"] and e["says"] and e["values"] for c in settled for e in c["evidence"])
