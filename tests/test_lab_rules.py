"""A lab's form and its release: faults are found and named (field case 47)."""

import copy

import nbformat
import pytest
import small_lab
from small_lab import cell_of, spoiled

from utils.course import lab_check, lab_nbgrader, lab_release, lab_rules
from utils.course.bootstrap import repository_url
from utils.course.lab_files import read

lab, notebook = small_lab.lab, small_lab.notebook  # fixtures


def test_the_small_lab_is_sound(lab):
    assert lab_rules.problems(lab) == []
    rows = lab_check.check(lab)
    assert not any(row.problems for row in rows), "\n" + lab_check.table(rows)
    names = [row.name for row in rows]
    assert names[:3] == ["as the student gets it", "blank, all tests", "solution"]
    assert [row.failed for row in rows if row.name.startswith("bug")] == [
        ("ex1",), ("ex2",), ("ex3",), ("ex4",),
    ]  # fmt: skip


def test_two_releases_are_the_same_bytes(lab):
    assert lab_release.make(lab) == lab_release.make(lab) == lab.release.read_text()


def test_a_student_file_holds_no_solution_and_no_hidden_test(lab):
    """Field case 47."""
    text = lab.release.read_text()
    for secret in ("round(x / step)", "BEGIN", "hidden", "-0.7 must become", "**Excellent"):
        assert secret not in text
    assert "YOUR CODE HERE" in text and "YOUR ANSWER HERE" in text
    assert all(not c.get("outputs") for c in read(lab.release).cells)


def test_a_leak_is_refused(lab, tmp_path, notebook):
    notebook.cells[0].source += "\n\n    code = round(x / step)"
    open_source = spoiled(lab, tmp_path, notebook)
    assert lab_release.leaks(read(lab.source), nbformat.reads(lab_release.make(lab), 4)) == []
    released = nbformat.reads(lab.release.read_text(), as_version=4)
    released.cells[0].source += "\n    code = round(x / step)"
    found = lab_release.leaks(read(lab.source), released)
    assert len(found) == 1 and "code = round(x / step)" in found[0]
    assert lab_release.make(open_source)  # what the source shows openly is not a secret


def test_marks_in_the_wrong_cell_are_refused_with_the_reason(lab, tmp_path, notebook):
    """nbgrader itself refuses a solution in a cell that isn't marked as one."""
    notebook.cells[2].source += "\n### BEGIN SOLUTION\nx = 1\n### END SOLUTION"
    with pytest.raises(lab_nbgrader.LabError, match="Solution region detected"):
        lab_release.make(spoiled(lab, tmp_path, notebook))


def _drop_hidden(notebook):
    cell = cell_of(notebook, "ex1-check")
    cell.source = cell.source[: cell.source.index("### BEGIN HIDDEN")]


def _short_message(notebook):
    cell = cell_of(notebook, "ex1-check")
    cell.source = 'assert to_grid(1, 1) == 1, "wrong"\n' + cell.source


def _unknown_section(notebook):
    cell = cell_of(notebook, "ex1-check")
    cell.source = cell.source.replace("The grid and its step", "A section that is not there")


def _copied_check(notebook):
    where = notebook.cells.index(cell_of(notebook, "ex2-check"))
    notebook.cells.insert(where, copy.deepcopy(notebook.cells[where]))
    notebook.cells[where]["id"] = "a-copy"


def _no_open_question(notebook):
    notebook.cells.pop()


def _no_rubric(notebook):
    notebook.cells[-2].source = "What do you think?"


def _reference(notebook):
    notebook.cells[2].source += "\nfrom utils.quantization import rtn"


def _magic(notebook):
    notebook.cells[2].source += "\n%time 1"


def _other_first_cell(notebook):
    notebook.cells[1].source = "import sys"


def _address(notebook):
    notebook.cells[0].source += f" See {repository_url()}/blob/main/book/x.md."


def _stored_output(notebook):
    notebook.cells[2].execution_count = 1


def _three_exercises(notebook):
    notebook.cells = [
        c for c in notebook.cells
        if not c.metadata.get("nbgrader", {}).get("grade_id", "").startswith("ex4")
    ]  # fmt: skip


def _no_points(notebook):
    cell_of(notebook, "ex1-check").metadata.nbgrader.points = 0


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_drop_hidden, "ex1: no hidden tests"),
        (_short_message, "too short to teach"),
        (_unknown_section, "no heading 'A section that is not there'"),
        (_copied_check, "'ex2-check' stands in 2 cells: a copied cell?"),
        (_no_open_question, "one open question"),
        (_no_rubric, "no rubric"),
        (_reference, "imports utils.quantization.rtn"),
        (_magic, "not plain Python"),
        (_other_first_cell, "first code cell"),
        (_stored_output, "holds output"),
        (_address, "names the repository's address"),
        (_three_exercises, "3 exercises"),
        (_no_points, "points above 0"),
    ],
)
def test_a_fault_of_form_is_named(lab, tmp_path, notebook, spoil, said):
    spoil(notebook)
    assert said in "\n".join(lab_rules.problems(spoiled(lab, tmp_path, notebook)))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    code = int(x / step)", "    code = 1\n    code = 2", "one line each"),
        ("    code = round(x / step)", "    no such line", "occurs 0 times"),
        ("exercise: ex1", "exercise: ex2", "not in the solution of ex2"),
        ("misconception", "reason", "the keys are"),
    ],
)
def test_a_fault_of_a_planted_bug_is_named(lab, tmp_path, notebook, old, new, said):
    text = lab.source.with_name("bugs.yaml").read_text()
    changed = text.replace(old, new.replace("\n", "\\n"))
    assert changed != text
    found = lab_rules.problems(spoiled(lab, tmp_path, notebook, changed))
    assert said in "\n".join(found)
