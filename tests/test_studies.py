"""A study goes on where it stopped, and keeps each result at once."""

import json

import pytest

from utils import studies


def test_a_study_measures_what_is_missing_and_keeps_it(tmp_path, capsys):
    path, found = tmp_path / "study.json", {"a": 1}
    assert studies.go_on(path, {"code": "x"}, found, ("a", "b"), str.upper, brief=repr)
    assert found == {"a": 1, "b": "B"}
    assert json.loads(path.read_text()) == {"code": "x", "points": found}
    assert capsys.readouterr().out == "b: 0 s 'B'\n"


def test_a_stopped_study_says_what_is_left_and_loses_nothing(tmp_path, capsys):
    path, found = tmp_path / "study.json", {}

    def fails_at_c(point):
        if point == "c":
            raise RuntimeError("out of memory")
        return point

    with pytest.raises(RuntimeError):
        studies.go_on(path, {}, found, ("b", "c", "d"), fails_at_c)
    assert json.loads(path.read_text())["points"] == {"b": "b"}
    assert not studies.go_on(path, {}, found, ("b", "c", "d"), str, only="d")
    assert capsys.readouterr().out.endswith("2 of 3 points done; run again to go on\n")


def test_no_point_is_begun_after_the_time(tmp_path, monkeypatch):
    clock = iter(range(0, 10_000, 50))
    monkeypatch.setattr(studies.time, "monotonic", lambda: next(clock))
    found = {}
    assert not studies.go_on(tmp_path / "s.json", {}, found, tuple("abcdef"), str, minutes=3)
    assert list(found) == ["a"]
