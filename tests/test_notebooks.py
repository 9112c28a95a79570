"""Notebooks: what is committed obeys the rules, and the rules find what they are for.

The notebooks' own outputs are compared by nbval (stage "notebooks" of `make test`).
"""

import statistics
from itertools import groupby
from pathlib import Path

import nbformat
import pytest
import small_notebook

from utils.course import notebook_rules, notebooks, records
from utils.course.notebook_run import read

ROOT = Path(__file__).resolve().parents[1]
COMMITTED = notebooks.paths()
COMPARED_AT_LEAST = 8
CELL_LINES, LINE_LENGTH, CODE_CELLS_IN_A_ROW = 16, 120, 4


# What is committed


@pytest.mark.parametrize("path", COMMITTED, ids=lambda p: p.stem)
def test_committed_notebooks_obey_the_rules(path):
    assert notebook_rules.problems(read(path), path) == []


@pytest.mark.parametrize("path", COMMITTED, ids=lambda p: p.stem)
def test_enough_cells_are_compared(path):
    assert len(notebook_rules.compared_cells(read(path))) >= COMPARED_AT_LEAST


@pytest.mark.parametrize("path", COMMITTED, ids=lambda p: p.stem)
def test_cells_are_short_and_follow_prose(path):
    cells, sizes = read(path).cells, {}
    shown = [c for c in notebook_rules.code_cells(read(path))[1:] if not _is_hidden(c)]
    for cell in shown:
        lines = [x for x in cell.source.splitlines() if x.strip() and not x.startswith("#")]
        sizes[cell.id] = len(lines)
        assert max(map(len, lines)) <= LINE_LENGTH, f"{cell.id} has a longer line"
    assert max(sizes.values()) <= CELL_LINES, max(sizes, key=sizes.get)
    assert statistics.median(sizes.values()) <= CELL_LINES / 2
    runs = [len(list(run)) for kind, run in groupby(c.cell_type for c in cells) if kind == "code"]
    assert max(runs) <= CODE_CELLS_IN_A_ROW


def _is_hidden(cell):
    """Folded away on the page, like the last cell with its list of published values."""
    return "hide-input" in cell.metadata.get("tags", ())


@pytest.mark.parametrize("path", COMMITTED, ids=lambda p: p.stem)
def test_a_notebook_belongs_to_a_unit(path):
    assert (ROOT / "book" / f"{path.stem}.md").exists()
    if not path.stem.startswith("00-"):
        assert (ROOT / "labs/source" / path.stem / f"{path.stem}.ipynb").exists()
        assert (ROOT / "labs/release" / path.stem / f"{path.stem}.ipynb").exists()


@pytest.mark.parametrize("path", COMMITTED, ids=lambda p: p.stem)
def test_glued_numbers_come_from_the_run_whose_record_is_kept(path):
    assert records.differences(path.stem) == []


def test_labs_start_with_the_same_cell():
    for path in sorted((ROOT / "labs").glob("*/*/*.ipynb")):
        assert notebook_rules.first_cell_problem(read(path)) is None, path.name


# The rules find what they are for


def _output(kind, text):
    if kind == "stderr":
        return nbformat.v4.new_output("stream", name="stderr", text=text)
    if kind == "error":
        return nbformat.v4.new_output("error", ename="ValueError", evalue=text, traceback=[])
    return nbformat.v4.new_output("stream", name="stdout", text=text)


def _found(notebook):
    return "\n".join(notebook_rules.problems(notebook, Path("notebooks/x.ipynb")))


def test_a_clean_notebook_has_no_problem():
    assert _found(small_notebook.ran(small_notebook.new("1 + 1"))) == ""


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("error", "bad", "stores an error: ValueError: bad"),
        ("stderr", "a warning", "writes to stderr"),
        ("stdout", f"saved to {ROOT}/x", "names the folder of this checkout"),
        ("stdout", "saved to /home/ada/model", "names a path of the machine"),
        ("stdout", "x" * 1_100_000, "the limit is 1 MB"),
    ],
)
def test_a_bad_output_is_refused(kind, text, said):
    notebook = small_notebook.ran(small_notebook.new("1 + 1"))
    notebook.cells[1].outputs = [_output(kind, text)]
    assert said in _found(notebook)


def test_an_unrun_cell_a_missing_id_and_a_changed_first_cell_are_refused():
    notebook = small_notebook.ran(small_notebook.new("1 + 1"))
    notebook.cells[1].execution_count = None
    notebook.cells[1].id = ""
    notebook.cells[0].source += "\nextra = 1"
    found = _found(notebook)
    assert "was not run" in found and "has no id" in found and "first code cell" in found


def test_cells_out_of_order_and_a_figure_without_alt_text_are_refused():
    notebook = small_notebook.ran(small_notebook.new("1 + 1"))
    notebook.cells[1].execution_count = 7
    picture = nbformat.v4.new_output("display_data", data={"image/png": "aGk="})
    notebook.cells[1].outputs = [picture]
    assert "top to bottom" in _found(notebook) and "no alt text" in _found(notebook)


@pytest.mark.parametrize(
    "call",
    [
        "models.load()",
        "corpus.sample(tokenizer, 'evaluation')",
        "Engine(model, 'int8')",
        "contenders.engine(model, 'int8', 2)",
    ],
)
def test_a_compared_cell_may_neither_fetch_nor_compile(call):
    """With a cold cache both say what they do: such a cell can't be compared."""
    notebook = small_notebook.ran(small_notebook.new("1 + 1"))
    cell = notebook.cells[-1]
    cell.source = f"x = {call}"
    assert "may fetch" not in _found(notebook)
    cell.metadata["tags"] = [notebook_rules.COMPARED_TAG]
    assert "may fetch" in _found(notebook)
    harmless = ["models.load(original_order=True)", "plan_Engine(1)", "engine.generate(ids, 8)"]
    for source in harmless:  # the first is never the one that asks first for the model
        cell.source = f"x = {source}"
        assert "may fetch" not in _found(notebook)
