"""The hardware table: every figure has a source or says uncited; ceilings recomputed by hand."""

import json

import pytest
import yaml

from utils import hardware, ledger

PAGE = ledger.ROOT / "book" / "03-roofline.md"
RECORD = ledger.RECORDS / "notebooks" / "03-roofline.json"
LLAMA_70B = {"read": 69_503_033_344, "all": 70_553_706_496}  # without and with the embedding
LLAMA_8B = {"read": 7_504_924_672, "all": 8_030_261_248}


@pytest.fixture(scope="module")
def table():
    return hardware.load()


def test_the_platforms_of_the_claims_are_there(table):
    named = (
        "rtx-5000-ada mac-mini-m4 mac-mini-m4-pro mac-studio-m4-max strix-halo h100 h200 b200 b300 "
        "a100-80gb mi300x rtx-4090 rtx-4070 t4 l4"
    ).split()
    assert set(named) == set(table)


def test_every_figure_names_an_address_or_is_uncited(table):
    for platform in table.values():
        for name in hardware.FIGURES:
            figure = getattr(platform, name)
            if figure is None:
                continue
            assert figure.value > 0
            assert figure.source is None or figure.source.startswith("https://")
            assert ("(uncited)" in str(figure)) == (figure.source is None)


def test_bandwidth_and_memory_are_cited_but_for_one(table):
    wanting = {key: platform.uncited for key, platform in table.items()}
    missing = {(k, n) for k, names in wanting.items() for n in names if "tflops" not in n}
    assert missing == {("b300", "memory_gb")}


def test_the_cited_gpus_of_the_claims_rest_on_their_vendors(table):
    """Memory, bandwidth and 16-bit peak of the five server GPUs that the claims name most."""
    for key in ("a100-80gb", "h100", "h200", "b200", "mi300x"):
        figures = [getattr(table[key], name) for name in hardware.FIGURES[:3]]
        assert {figure.by for figure in figures} == {"vendor"}, key
    by = [f.by for p in table.values() for n in hardware.FIGURES if (f := getattr(p, n))]
    assert by.count("vendor") >= len(by) / 2


def test_every_source_is_used_and_dated():
    content = yaml.safe_load(hardware.DATA.read_text(encoding="utf-8"))
    text = hardware.DATA.read_text(encoding="utf-8").split("platforms:\n")[1]
    assert str(content["accessed"]) == "2026-11-30"
    for key, source in content["sources"].items():
        assert source["url"].startswith("https://") and source["by"]
        assert key in text, f"{key} is named by no figure"


def test_unknown_source_is_refused(tmp_path):
    figure = "{value: 1, source: hearsay}"
    names = "".join(f"    {name}: {figure}\n" for name in hardware.FIGURES)
    path = tmp_path / "hardware.yaml"
    path.write_text(f"sources: {{}}\nplatforms:\n  x:\n    name: X\n{names}", encoding="utf-8")
    with pytest.raises(ValueError, match="x: memory_gb: source 'hearsay'"):
        hardware.load(path)


@pytest.mark.parametrize(
    ("key", "model", "count", "bits", "expected"),
    [
        ("h100", "llama-3-70b", LLAMA_70B, 16, 3350e9 / (2 * 69.503e9)),  # 24.1
        ("h100", "llama-3-70b", LLAMA_70B, 8, 3350e9 / 69.503e9),  # 48.2
        ("rtx-5000-ada", "llama-3-70b", LLAMA_70B, 4, 576e9 / (0.5 * 69.503e9)),  # 16.6
        ("rtx-5000-ada", "llama-3-8b", LLAMA_8B, 16, 576e9 / (2 * 7.505e9)),  # 38.4
        ("mac-mini-m4", "llama-3-8b", LLAMA_8B, 4.5, 120e9 / (0.5625 * 7.505e9)),  # 28.4
        ("b200", "llama-3-70b", LLAMA_70B, 4, 7700e9 / (0.5 * 69.503e9)),  # 222
    ],
)
def test_ceilings_by_hand(table, key, model, count, bits, expected):
    found = hardware.ceiling(table[key], model, bits)
    assert found == pytest.approx(expected, rel=2e-4)
    assert hardware.stored_bytes(model, bits) == pytest.approx(count["all"] * bits / 8, rel=1e-6)


def test_the_cache_lowers_the_ceiling(table):
    """8,192 tokens of Llama-3-8B at 16 bits are 1 GiB (case 50) beside 7.5 GB of weights."""
    empty, full = (hardware.ceiling(table["l4"], "llama-3-8b", 8, c) for c in (0, 8192))
    assert full / empty == pytest.approx(7.505e9 / (7.505e9 + 2**30), rel=1e-3)


def test_what_fits(table):
    fits = {
        key: [b for b in (16, 8, 4) if hardware.fits(p, "llama-3-70b", b)]
        for key, p in table.items()
    }
    assert fits["rtx-5000-ada"] == fits["rtx-4090"] == fits["mac-mini-m4"] == []
    assert fits["mac-mini-m4-pro"] == [4]
    assert fits["h100"] == fits["mac-studio-m4-max"] == [8, 4]
    assert fits["h200"] == [8, 4]  # 141.1 GB of weights in 141 GB of memory
    assert fits["mi300x"] == fits["b200"] == [16, 8, 4]


def test_balance_and_the_batch_where_arithmetic_binds(table):
    h100 = table["h100"]
    assert hardware.balance(h100) == pytest.approx(989e12 / 3350e9)  # 295 FLOP a byte
    assert hardware.binding_batch(h100, 16) == pytest.approx(295.2, rel=1e-3)
    assert hardware.binding_batch(h100, 8) == pytest.approx(295.2 / 2, rel=1e-3)
    assert hardware.binding_batch(h100, 8, "fp8_tflops") == pytest.approx(295.2, rel=1e-3)
    assert hardware.balance(table["mac-mini-m4"]) is None
    assert hardware.binding_batch(table["mac-mini-m4"], 4) is None


@pytest.mark.parametrize(
    ("key", "bits", "claimed", "fits", "texts"),
    [
        ("rtx-5000-ada", 16, 14, False, None),
        ("rtx-5000-ada", 4, 95, False, None),
        ("h100", 16, 180, False, None),
        ("h100", 8, 1100, True, 23),  # 1100 / 48.2
    ],
)
def test_claims_that_can_not_be_one_text(table, key, bits, claimed, fits, texts):
    verdict = hardware.judge(claimed, table[key], "llama-3-70b", bits)
    assert not verdict.possible_alone and verdict.times_too_fast > 3
    assert (verdict.fits, verdict.texts) == (fits, texts)


def test_published_single_texts_stay_below_their_ceilings():
    """Ceilings by hand: Llama-2-7B 6.607e9, 70B 68.71e9, Qwen3-4B 4.022e9 weights and 0.30 GB."""
    rows = hardware.published()
    by_hand = [2039 / (6.607 * b / 8) for b in (16, 8, 5)]
    by_hand += [2039 / (68.71 * b / 8) for b in (8, 5)]
    by_hand += [546 / (4.022 * b / 8 + 0.302) for b in (16, 8.5, 4.5)]
    for row, expected in zip(rows, by_hand, strict=True):
        assert row.ceiling == pytest.approx(expected, rel=2e-3)
        assert 0.35 < row.share < 0.9 and row.source.startswith("https://")


def test_fewer_bits_reach_a_smaller_share():
    rows = hardware.published()
    for model in ("llama-2-7b", "llama-2-70b", "qwen3-4b"):
        shares = [row.share for row in rows if row.model == model]
        assert shares == sorted(shares, reverse=True)


def test_the_page_prints_the_figures_of_the_file(table):
    page = PAGE.read_text(encoding="utf-8")
    for p in table.values():
        assert f"| {p.name} | {p.memory_gb} | {p.bandwidth_gb_s} |" in page
        for name in ("memory_gb", "bandwidth_gb_s"):
            source = getattr(p, name).source
            assert source is None or f"({source})" in page


def test_bad_input_is_named(table):
    with pytest.raises(ValueError, match="bits_per_weight=0"):
        hardware.ceiling(table["l4"], "llama-3-8b", 0)
    for claimed in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"claimed={claimed}"):
            hardware.judge(claimed, table["l4"], "llama-3-8b", 4)


def test_the_record_holds_these_ceilings(table):
    values = json.loads(RECORD.read_text(encoding="utf-8"))["values"]
    for key, platform in table.items():
        for model, short in (("llama-3-8b", "8b"), ("llama-3-70b", "70b")):
            for bits in (16, 8, 4):
                name = f"ceiling_{key.replace('-', '_')}_{short}_{bits}"
                again = hardware.ceiling(platform, model, bits)
                assert values[name]["value"] == pytest.approx(again, rel=1e-9)
