"""The record of unit 11: complete, in order, made by this code; one point comes out again."""

import pytest

from utils import ledger
from utils.sparsity import study


@pytest.fixture(scope="module")
def record():
    return ledger.recorded(study.UNIT)


def test_points_are_read_as_written():
    assert study.parse("wanda_50") == ("wanda", 0.5, None)
    assert study.parse("sparsegpt_24") == ("sparsegpt", 0.5, "2:4")


def test_record_is_complete_and_made_by_this_script(record):
    assert record["script_sha256"] == ledger.file_sha256(study.__file__)
    for point in study.POINTS:
        for part in ("ppl", "kl", "flips", "zeros"):
            assert f"{point}_{part}" in record["values"]
        assert record["values"][f"{point}_kl"]["n"] == 8 * 511


def test_record_holds_the_findings(record):
    kl = {p: record["values"][f"{p}_kl"] for p in study.POINTS}
    for level in (50, "24"):
        magnitude, wanda, gpt = (kl[f"{m}_{level}"] for m in study.METHODS)
        assert magnitude["low"] > wanda["high"] and wanda["value"] > gpt["value"]
    assert kl["wanda_24"]["low"] > kl["sparsegpt_24"]["high"]
    assert kl["wanda_50"]["low"] < kl["sparsegpt_50"]["high"]  # the intervals overlap
    for method in study.METHODS:
        levels = [kl[f"{method}_{s}"]["value"] for s in (30, 50, 70)]
        assert levels == sorted(levels)
        assert kl[f"{method}_24"]["low"] > kl[f"{method}_50"]["high"]


@pytest.mark.slow
def test_one_point_comes_out_again(record):
    values = study.Bench().run("magnitude_50")
    for name, entry in values.items():
        assert entry["value"] == pytest.approx(record["values"][name]["value"], rel=2e-3)
