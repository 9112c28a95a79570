"""What a page takes from records: numbers by their path, tables and figures of the bench."""

import copy
import json
import sys
from pathlib import Path

import jsonschema
import pytest

from utils.bench.schema import RATIO_NAMES, SCHEMA
from utils.course import site
from utils.course.prose_numbers import offenders

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import bench_figures  # noqa: E402 - the book's extension is no package
import bench_tables  # noqa: E402
import course_records  # noqa: E402


def spread(median):
    return {"median": median, "low": 0.9 * median, "high": 1.1 * median}


def row(speed, size, kl=0.0):
    return {
        "tokens_per_second": spread(speed), "bytes_per_token": size, "bits_per_weight": 8.0,
        "megabytes_per_token": size / 1e6,
        "bandwidth_share": spread(speed * size / 20e9), "kl": kl, "kl_se": kl / 10, "flips": 0.25,
    }  # fmt: skip


def run(speed):
    return {
        "prompts": 2, "tokens": 10, "seconds": 1.0, "tokens_per_second": speed,
        "tokens_per_forward": 2.5, "looping": 0.125,
    }  # fmt: skip


@pytest.fixture
def record():
    """A machine that reads 20 GB/s; the engine's fp32 reaches 90 % of it, llama.cpp's half."""
    decode = {
        "engine fp32": row(18, 10**9),
        "engine int8": row(60, 25 * 10**7, 0.004),
        "llama.cpp F32": row(10, 10**9, 1e-9),
        "llama.cpp Q8_0": row(50, 25 * 10**7, 0.2),
        "transformers fp32": row(4, 10**9),
    }
    for ours, theirs in (("bf16", "F16"), ("int4", "Q4_0"), ("sparse24", "F16")):
        decode[f"engine {ours}"] = row(30, 5 * 10**8, 0.3)
        decode[f"llama.cpp {theirs}"] = row(25, 5 * 10**8, 0.3)
    ways = {"transformers fp32": run(4), "engine int8": run(60), "engine int8 + lookup": run(90)}
    kinds = ("copying", "summarising", "editing", "grounded")
    stack = dict.fromkeys(kinds, ways) | {"chat": {k: ways[k] for k in list(ways)[1:]}}
    made = {
        "protocol": "made for this test, nothing measured", "date": "2026-11-30",
        "device": {"kind": "cpu", "name": "x", "threads": 2, "cpu_capability": "AVX2"},
        "versions": {"torch": "2"}, "peers": {"llama.cpp": {"version": "1", "features": "AVX2"}},
        "bandwidth_gb_s": spread(20.0), "decode": decode,
        "prompt": {"engine fp32": {"64": spread(100), "512": spread(200)}},
        "verify_ms": {"fp32": {"1": spread(5.0), "4": spread(6.0)}},
        "context_ms": {"engine fp32": {"64": spread(5.0), "4096": spread(9.0)}},
        "stack": stack | {"identical": True},
        "ratios": {name: spread(1.5) for name in RATIO_NAMES}, "reasons": {},
    }  # fmt: skip
    jsonschema.validate(made, SCHEMA)
    return made


@pytest.fixture
def source(tmp_path, record):
    (tmp_path / "records").mkdir()
    (tmp_path / "records/bench.json").write_text(json.dumps(record))
    return tmp_path


@pytest.mark.parametrize(
    "text, shown",
    [
        ("bench::decode/engine int8/tokens_per_second/median:.0f", "60"),
        ("bench::decode/engine int8/kl:.4f", "0.0040"),
        ("bench::decode/engine fp32/bandwidth_share/median:.0%", "90\N{NO-BREAK SPACE}%"),
        ("bench::date:s", "2026-11-30"),
        ("bench::decode/engine int8/bytes_per_token:,d", "250,000,000"),
    ],
)
def test_a_number_is_found_by_its_path(source, text, shown):
    assert course_records.recorded(source, text) == shown


@pytest.mark.parametrize(
    "text, said",
    [
        ("bench::decode/engine int9/kl:.4f", "decode has no key 'engine int9'"),
        ("bench::nothing:.1f", "the record has no key 'nothing'"),
        ("bench::bandwidth_gb_s/median/more:.1f", "bandwidth_gb_s/median has no key 'more'"),
        ("absent::x:.1f", "records/absent.json does not exist"),
        ("bench::bandwidth_gb_s/median", "write RECORD::PATH:FORMAT"),
        ("bench::date:.1f", "format code"),
        ("bench::bandwidth_gb_s:.1f", "unsupported format"),
    ],
)
def test_what_is_missing_is_named(source, text, said):
    with pytest.raises(course_records.PROBLEMS, match=said):
        course_records.recorded(source, text)


def test_a_ratio_that_was_not_measured_fails_with_its_reason(record):
    record["ratios"]["fp32_vs_llamacpp_f32"] = None
    record["reasons"]["fp32_vs_llamacpp_f32"] = "llama-cpp-python is not installed"
    with pytest.raises(LookupError, match="fp32_vs_llamacpp_f32 is null: llama-cpp-python is not"):
        course_records.find(record, "ratios/fp32_vs_llamacpp_f32")
    with pytest.raises(LookupError, match="is null: llama-cpp-python is not"):
        bench_tables.ratios(record)


@pytest.mark.parametrize("name", bench_tables.TABLES)
def test_each_table_is_rectangular_and_holds_no_hole(record, name):
    heads, rows = bench_tables.TABLES[name](record)
    assert rows and {len(cells) for cells in rows} == {len(heads)}
    assert all(cell for cells in rows for cell in cells)


def test_the_roofline_splits_the_time_of_a_token(record):
    rows = {cells[0]: cells[1:] for cells in bench_tables.roofline(record)[1]}
    # 10^9 bytes at 20 GB/s: 50 ms or 20 tokens/s; measured 18, that is 55.56 ms
    assert rows["engine fp32"] == ["20", "18", "55.56", "50.00", "5.56"]
    assert not any(name.startswith("llama") for name in rows)


def test_the_ceiling_is_the_fastest_reading_over_the_peers_speed(record):
    assert bench_tables.ceiling(record, "engine fp32", "llama.cpp F32") == pytest.approx(2.0)
    record["decode"]["llama.cpp F16"] = row(50, 5 * 10**8)  # reads 25 GB/s, more than the sum did
    assert bench_tables.ceiling(record, "engine fp32", "llama.cpp F32") == pytest.approx(2.5)


def test_bars_are_judged_in_their_direction(record):
    verdicts = {cells[0]: cells[-1] for cells in bench_tables.ratios(record)[1]}
    assert verdicts["engine fp32 / llama.cpp F32"] == "met"  # 1.5, bar 1
    assert verdicts["engine int8 / llama.cpp Q8_0"] == "missed"  # 1.5, bar 1.8
    assert verdicts["time of 4 rows / 1 row, fp32"] == "missed"  # 1.5, at most 1.25
    record["ratios"]["verify4_vs_1_fp32"] = spread(1.2)
    assert {c[0]: c[-1] for c in bench_tables.ratios(record)[1]}[
        "time of 4 rows / 1 row, fp32"
    ] == "met"
    assert set(bench_tables.RATIOS) == set(RATIO_NAMES)


def test_a_stack_whose_drafts_changed_a_token_is_refused(record):
    record["stack"]["identical"] = False
    with pytest.raises(LookupError, match="identical is not true"):
        bench_tables.stack(record)


@pytest.mark.parametrize(
    "kl, se, shown",
    [
        (0.0, 0.0, "0"),
        (1e-8, 1e-9, "below 0.00001"),
        (9e-5, 1e-5, "0.00009 ± 0.00001"),
        (0.0044, 3e-4, "0.0044 ± 0.0003"),
        (0.2891, 0.0102, "0.289 ± 0.010"),
        (5.04, 0.1, "5.04 ± 0.10"),
    ],
)
def test_kl_is_shown_with_the_digits_that_it_has(kl, se, shown):
    assert bench_tables.kl({"kl": kl, "kl_se": se}) == shown


def test_figures_are_drawn_with_their_numbers_as_text(record):
    picture, alt = bench_figures.draw("quality", record)
    assert picture.startswith(b"\x89PNG")
    assert "engine int8 60 tokens/s at KL 0.004" in alt
    picture, alt = bench_figures.draw("costs", record)
    assert picture.startswith(b"\x89PNG") and "fp32 from 5.0 at 1 to 6.0 at 4" in alt
    assert bench_figures.draw("costs", copy.deepcopy(record))[0] == picture


def test_a_recorded_number_is_vouched_for():
    assert offenders("It decodes {recorded}`bench::a/b:.0f` tokens/s, or 5 ms.") == []
    assert len(offenders("It decodes `bench::a/b:.0f`, or 5 ms.")) == 1


def test_the_courses_records_hold_what_the_page_prints():
    text = (ROOT / "book/kernels.md").read_text(encoding="utf-8")
    parts = text.split("{recorded}`")[1:]
    assert len(parts) > 20
    for part in parts:
        assert course_records.recorded(ROOT, part.partition("`")[0])


@pytest.fixture
def book(source):
    """A book of one page with the course's own extension."""
    for part in ("book/_ext", "book/_static"):
        (source / part).parent.mkdir(exist_ok=True)
        (source / part).symlink_to(ROOT / part)
    (source / "_config.yml").write_bytes((ROOT / "_config.yml").read_bytes())
    (source / "book/references.bib").write_text("")
    (source / "_toc.yml").write_text("format: jb-book\nroot: book/intro\n")
    return source


PAGE = """# A title

{recorded}`bench::decode/engine int8/tokens_per_second/median:.0f` tokens/s

```{bench-table} ratios
```

```{bench-figure} costs
The caption.
```
"""
FAULTS = {
    "{recorded}`bench::absent/x:.1f`": "the record has no key 'absent'",
    "{recorded}`bench::ratios/q8_vs_own_fp32:.1f`": "is null: lost",
    "```{bench-table} nothing\n```": "bench-table nothing: no 'nothing'",
    "```{bench-figure} nothing\n```": "bench-figure nothing: no 'nothing'",
}


@pytest.mark.slow
def test_a_page_shows_them(book):
    (book / "book/intro.md").write_text(PAGE)
    page = (site.build(book, book) / "book/intro.html").read_text(encoding="utf-8")
    assert '<span class="pasted-text recorded">60</span> tokens/s' in page
    assert "engine fp32 / llama.cpp F32" in page and "Two charts of milliseconds" in page


@pytest.mark.slow
def test_each_fault_stops_the_build(book, record):
    record["ratios"]["q8_vs_own_fp32"] = None
    record["reasons"] = {"q8_vs_own_fp32": "lost"}
    (book / "records/bench.json").write_text(json.dumps(record))
    (book / "book/intro.md").write_text("\n\n".join(["# A title", *FAULTS, ""]))
    with pytest.raises(site.BuildFailed) as stopped:
        site.build(book, book)
    assert not [said for said in FAULTS.values() if said not in str(stopped.value)]
