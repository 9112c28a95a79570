"""The page of results: tables, sentences and figures from a record, and the course's own record."""

import json
import re
import sys
from pathlib import Path

import pytest
import small_results

from utils.course import site, toc
from utils.results_study.rows import BY_NAME

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import bench_figures  # noqa: E402 - the book's extension is no package
import course_records  # noqa: E402
import results_figures  # noqa: E402
import results_tables  # noqa: E402
import results_texts  # noqa: E402

TABLES, TEXTS, FIGURES = course_records.MAKERS["results"]


@pytest.fixture(scope="module")
def record():
    return small_results.record()


@pytest.fixture(scope="module")
def untimed():
    return small_results.record(timed=False)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("timed", [True, False])
def test_each_table_is_rectangular_and_holds_no_hole(record, untimed, name, timed):
    heads, rows = TABLES[name](record if timed else untimed)
    assert rows and {len(cells) for cells in rows} <= {len(heads), 1}
    assert all(cell for cells in rows for cell in cells)


def test_rows_are_grouped_by_bits_and_all_there(record):
    rows = results_tables.rows(record)[1]
    groups = [cells[0] for cells in rows if len(cells) == 1]
    assert groups == [text for _, text in results_tables.GROUPS]
    assert [cells[0] for cells in rows if len(cells) > 1] == list(BY_NAME)


def test_a_row_shows_its_numbers(record):
    cells = next(c for c in results_tables.rows(record)[1] if c[0] == "4 bit g64")
    row = record["rows"]["4 bit g64"]
    by_hand = 8 * sum(small_results.FORMS["int4 asym g64"].predict(s)
                      for s in small_results.SHAPES) / (64 * 64 + 2 * 64 * 192)  # fmt: skip
    assert cells[1] == f"{by_hand:.2f}" and cells[4] == f"{100 * row['flips']:.1f}"
    assert cells[3] == results_tables.ends(row["kl"], results_tables.number)
    assert cells[7] == f"{row['disk_bytes'] / 1e6:.1f}"


def test_a_speed_is_shown_missing_or_impossible(record, untimed):
    shown = {c[0]: c[9] for c in results_tables.rows(record)[1] if len(c) > 1}
    assert shown["bf16"] == "40 (2.00)" and shown["4 bit g64"] == "not measured"
    assert shown["Q8_0"] == shown["LLM.int8()"] == "no kernel"
    shown = {c[0]: c[9] for c in results_tables.rows(untimed)[1] if len(c) > 1}
    assert shown["bf16"] == "not measured" and shown["Q8_0"] == "no kernel"
    assert results_tables.speed(untimed)[1] == [[results_tables.HOW_TO_TIME]]
    assert results_texts.fastest(untimed) == results_tables.HOW_TO_TIME
    assert bench_figures.png(results_figures.speed, untimed)[1] == results_tables.HOW_TO_TIME


def test_speed_stands_beside_what_the_bytes_allow(record):
    rows = {c[0]: c[1:] for c in results_tables.speed(record)[1]}
    assert rows["int8 channel"] == ["2", "80 [72, 88]", "4.00 [3.60, 4.40]", "4.00"]
    said = results_texts.fastest(record)
    assert "highest median is that of int8 channel, at 4.00 times" in said and "(100%)" in said
    assert "overlap" not in said
    close = small_results.record()
    close["speed"]["forms"]["bf16"]["ratio"]["high"] = 3.7
    assert "quartiles of bf16 overlap" in results_texts.fastest(close)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (1e-9, "<0.000001"), (5.01e-5, "0.000050"), (4.44e-4, "0.00044"),
     (0.00288, "0.0029"), (0.2857, "0.286"), (1.234, "1.23")],
)  # fmt: skip
def test_kl_is_shown_with_the_digits_that_it_has(value, shown):
    assert results_tables.number(value) == shown


def test_bars_are_judged(record):
    verdicts = [cells[-1] for cells in results_tables.bars(record)[1]]
    assert verdicts == ["met", "met"]
    worse = small_results.record({"int8 per channel": 0.02})
    worse["rows"]["Q4_0"]["predicted_bytes"] += 1
    assert [cells[-1] for cells in results_tables.bars(worse)[1]] == ["missed", "missed"]
    assert f"{len(BY_NAME) - 1} of {len(BY_NAME)}" in results_tables.bars(worse)[1][1]


def windows(values):
    return {"kl_windows": values}


def test_a_change_is_judged_by_pairs_of_windows():
    loud, quiet = [0.1, 0.9] * 4, [0.05, 0.8] * 4
    gap = results_texts.difference(windows(loud), windows(quiet))
    assert gap["value"] == pytest.approx(-0.075) and results_texts.verdict(gap) == "better"
    assert results_texts.signed(gap["value"]) == "−0.0750"
    other = results_texts.difference(windows(loud), windows([0.9, 0.1] * 4))
    assert results_texts.verdict(other) == "not told apart"
    assert results_texts.verdict(results_texts.difference(windows(loud), windows(loud))) == (
        "the same"
    )


def test_student_takes_back_what_the_bootstrap_alone_decides(record):
    change = [1.0, 1.0, 1.0, 1.0, 1.0, -1.0, -1.0, 1.0]  # mean 0.5, s.e. 0.327, t = 1.53
    zero = [0.0] * 8
    assert results_texts.verdict(results_texts.difference(windows(zero), windows(change))) == (
        "not told apart"
    )
    change[6] = 0.3  # mean 0.66, s.e. 0.26, t = 2.6
    assert results_texts._by_student(zero, change)
    assert not results_texts._by_student(zero, [1.0, 0, 0, 0, 0, 0, 0, 1.0])
    assert "None would change" in results_texts.wider(record).replace("none", "None")


def test_the_front_is_told_from_few_bits_to_many(record):
    said = results_texts.front(record)
    assert said.startswith("The front, from few bits to many, with KL: 2 bit g32 (")
    assert f"of {len(BY_NAME)} rows lie behind" in said


def test_neighbours_that_are_not_told_apart_are_tied():
    made = small_results.record({"Q4_0": 0.02, "NF4 g64": 0.021, "MXFP4": 0.5})
    made["rows"]["NF4 g64"]["kl_windows"] = [0.0, 0.042] * 4
    said = results_texts.order(made, 4.4, 4.7)
    assert "Q4_0 (0.0200) ≈ NF4 g64 (0.0210) ≈" in said and "4 bit g32 (0.0263) < FP4" in said


def test_a_row_that_is_missing_stops_the_page(untimed):
    less = json.loads(json.dumps(untimed))
    del less["rows"]["Q4_0"]
    for maker in (results_texts.pairs, results_texts.wider):
        with pytest.raises(LookupError, match="Q4_0"):
            maker(less)
    with pytest.raises(LookupError, match="results"):
        course_records.make(ROOT / "absent", "nothing::rows", 0)


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_drawn_twice_the_same_with_their_numbers_as_text(record, name):
    picture, alt = bench_figures.png(FIGURES[name], record)
    assert picture.startswith(b"\x89PNG") and len(alt) > 60
    assert bench_figures.png(FIGURES[name], record)[0] == picture
    expected = {"pareto": "2 bit g32 2.", "four": "MXFP4 4.25 bits", "speed": "bf16 4 MB 2.00"}
    assert expected[name] in alt


def test_names_beside_the_axes_never_touch_and_keep_their_order():
    heights = results_figures.apart([0.1, 0.1, 0.11, 0.12, 0.5, 0.9])
    gaps = [b - a for a, b in zip(heights, heights[1:], strict=False)]
    assert min(gaps) >= results_figures.GAP - 1e-9
    assert heights[4:] == [0.5, 0.9]
    assert sum(heights[:4]) / 4 == pytest.approx(0.1075)


def test_the_courses_record_holds_what_the_page_prints():
    text = (ROOT / "book/results.md").read_text(encoding="utf-8")
    said = re.findall(r"\{recorded\}`([^`]+)`", text)
    assert len(said) > 10
    for argument in said:
        assert course_records.recorded(ROOT, argument)
    for kind, argument in re.findall(r"^```\{record-(table|text|figure)\} (\S+)", text, re.M):
        at = ("table", "text", "figure").index(kind)
        _, record, maker = course_records.make(ROOT, argument, at)
        assert maker if kind == "figure" else maker(record)


@pytest.fixture(scope="module")
def ours():
    return json.loads((ROOT / "records/results.json").read_text(encoding="utf-8"))["rows"]


def told(ours, a, b):
    """What the page may say about going from row a to row b."""
    return results_texts.verdict(results_texts.difference(ours[a], ours[b]))


def test_the_record_holds_what_the_prose_says_is_better(ours):
    better = [
        ("bf16", "fp16"), ("int8 per channel", "int8 g64"), ("int8 g64", "Q8_0"),
        ("fp8 E4M3 per channel", "int8 per channel"), ("4 bit g64", "4 bit g32"),
        ("4 bit g32", "NVFP4"), ("Q4_1", "NVFP4"), ("FP4 g64", "NF4 g64"), ("Q4_0", "Q4_1"),
        ("Q4_1", "AWQ 4 bit g64"), ("Q4_1", "GPTQ 4 bit g64"), ("MXFP4", "4 bit g64"),
        ("GPTQ 4 bit g64", "AWQ, then GPTQ, 4 bit g64"),
        ("AWQ, then GPTQ, 4 bit g64", "GPTQ 4 bit g64, first token × 64"),
        ("3 bit g64", "GPTQ 3 bit g64"), ("GPTQ 3 bit g64", "4 bit per channel"),
        ("int8 per channel, activations int8", "LLM.int8()"),
    ]  # fmt: skip
    assert [pair for pair in better if told(ours, *pair) != "better"] == []


def test_the_record_holds_what_the_prose_calls_a_tie(ours):
    ties = [("Q4_0", "NF4 g64"), ("AWQ 4 bit g64", "GPTQ 4 bit g64"), ("4 bit g192", "MXFP4"),
            ("4 bit g32, 16 levels, symmetric", "Q4_0")]  # fmt: skip
    assert [pair for pair in ties if told(ours, *pair) != "not told apart"] == []
    calibrated = told(ours, "Q5_0", "GPTQ 4 bit g64, first token × 64")
    assert calibrated in ("better", "not told apart")


def test_perplexity_cannot_see_integers_of_eight_bits_and_orders_three_formats_otherwise(ours):
    ratio = {name: row["perplexity_ratio"] for name, row in ours.items()}
    assert ratio["int8 per channel"]["low"] < 1 < ratio["int8 per channel"]["high"]
    assert ratio["int8 g64"]["high"] < 1 < ratio["fp8 E4M3 per channel"]["low"]
    names = ("NF4 g64", "Q4_0", "NVFP4")
    values = [ratio[name]["value"] for name in names]
    assert values == sorted(values)
    assert max(ratio[n]["low"] for n in names) < min(ratio[n]["high"] for n in names)
    assert ratio["Q4_1"]["value"] > ratio["Q4_0"]["value"]


@pytest.fixture
def book(tmp_path, untimed):
    """A book of one page with the course's own extension."""
    (tmp_path / "records").mkdir()
    (tmp_path / "records/results.json").write_text(json.dumps(untimed))
    for part in ("book/_ext", "book/_static"):
        (tmp_path / part).parent.mkdir(exist_ok=True)
        (tmp_path / part).symlink_to(ROOT / part)
    (tmp_path / "_config.yml").write_bytes((ROOT / "_config.yml").read_bytes())
    (tmp_path / "book/references.bib").write_text("")
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: book/intro\n")
    return tmp_path


def _page(faults=()):
    parts = [f"```{{record-table}} results::{name}\n```" for name in TABLES]
    parts += [f"```{{record-text}} results::{name}\n```" for name in TEXTS]
    parts += [f"```{{record-figure}} results::{name}\nThe caption.\n```" for name in FIGURES]
    return "\n\n".join(["# A title", *parts, *faults, ""])


@pytest.mark.slow
def test_a_page_without_speeds_says_so(book):
    (book / "book/intro.md").write_text(_page())
    page = (site.build(book, book) / "book/intro.html").read_text(encoding="utf-8")
    assert page.count("Not measured yet: python -m utils.results_study.speed") >= 3
    assert 'colspan="11"' in page and "2 bit g32" in page and "The front, from few bits" in page


@pytest.mark.slow
def test_each_fault_stops_the_build(book):
    faults = {
        "{recorded}`results::rows/int9/flips:.1f`": "rows has no key 'int9'",
        "```{record-table} results::nothing\n```": "record-table results::nothing: no 'nothing'",
        "```{record-text} results::nothing\n```": "record-text results::nothing: no 'nothing'",
        "```{record-figure} results::nothing\n```": "record-figure results::nothing: no 'nothing'",
        "```{record-table} absent::rows\n```": "are made from bench, results, not 'absent'",
    }
    (book / "book/intro.md").write_text(_page(faults))
    with pytest.raises(site.BuildFailed) as stopped:
        site.build(book, book)
    assert not [said for said in faults.values() if said not in str(stopped.value)]


def test_a_new_unit_of_part_two_stands_before_its_page_of_results():
    listed = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    without = re.sub(r"( {6}- file: book/10-\S+\n)( {8}.*\n)*", "", listed)
    made = toc.with_unit(without, "10-something")
    assert made.index("book/10-something") < made.index("book/results") < made.index("Part III")


@pytest.mark.parametrize(
    ("value", "shown"), [(0.99961, "0.9996"), (1.2885, "1.29"), (4625.6, "4,626")]
)
def test_ratios_have_the_digits_that_they_need(value, shown):
    assert results_tables.ratio(value) == shown
