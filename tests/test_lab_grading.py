"""Grading: checks that don't work are found (field case 48), students' files are judged (47)."""

import copy
import os
import sys

import nbformat
import pytest
import small_lab
from small_lab import SLUG, cell_of, spoiled

from utils.course import lab_check, lab_inspect, lab_nbgrader, labs
from utils.course.lab_files import cells, read
from utils.course.lab_run import run

lab, notebook = small_lab.lab, small_lab.notebook  # fixtures

LOOP = "def step_for(values, bits):\n    while True:\n        pass"


# Grading that doesn't work is found (field case 48)


def _problems(lab, name):
    rows = [row for row in lab_check.check(lab, limit_s=2) if row.name.startswith(name)]
    return "\n".join(problem for row in rows for problem in row.problems)


def test_a_check_that_passes_untouched_is_found(lab, tmp_path, notebook):
    cell_of(notebook, "ex3-check").source = "assert True, 'nothing'"
    assert "ex3-check passes although" in _problems(spoiled(lab, tmp_path, notebook), "blank")


def test_a_wrong_solution_is_found(lab, tmp_path, notebook):
    cell = cell_of(notebook, "ex4-bits")
    cell.source = cell.source.replace("bits + shared", "bits")
    found = _problems(spoiled(lab, tmp_path, notebook), "solution")
    assert "ex4-check: AssertionError" in found


def test_an_exercise_that_needs_another_is_found(lab, tmp_path, notebook):
    cell = cell_of(notebook, "ex3-check")
    cell.source = "assert to_grid(1, 1) == 1, 'depends'\n" + cell.source
    assert "ex3 fails too: it depends on ex1" in _problems(
        spoiled(lab, tmp_path, notebook), "only ex1"
    )


def test_a_bug_that_no_check_notices_is_found(lab, tmp_path, notebook):
    text = lab.source.with_name("bugs.yaml").read_text()
    harmless = text.replace("    code = int(x / step)", "    code = round(x / step) + 0")
    assert "ex1 passes" in _problems(spoiled(lab, tmp_path, notebook, harmless), "bug cuts-off")


def test_a_bug_that_only_crashes_is_found(lab, tmp_path, notebook):
    text = lab.source.with_name("bugs.yaml").read_text()
    crash = text.replace("    code = int(x / step)", "    code = absent(x / step)")
    found = _problems(spoiled(lab, tmp_path, notebook, crash), "bug cuts-off")
    assert "crashes (NameError) where an assert should explain" in found


# Students' files (field case 47)


def _looped(notebook):
    cell_of(notebook, "ex2-step").source = LOOP


def _copied(notebook):
    where = notebook.cells.index(cell_of(notebook, "ex1-check"))
    twin = copy.deepcopy(notebook.cells[where])
    twin["id"], twin.source = "twin", "assert False, 'my own try'"
    notebook.cells.insert(where, twin)


def _deleted(notebook):
    notebook.cells.remove(cell_of(notebook, "ex3-check"))


def _edited(notebook):
    cell_of(notebook, "ex1-grid").source = "def to_grid(x, step):\n    return 0"
    cell_of(notebook, "ex1-check").source = "assert True"


def test_an_untouched_file_is_called_unanswered(lab):
    report = lab_inspect.inspect(lab, read(lab.release))
    assert report.points == 0 and report.failed[0] == "ex1-check: not answered yet"


def test_an_infinite_loop_costs_its_own_exercise_only(lab, notebook):
    _looped(notebook)
    report = lab_inspect.inspect(lab, notebook, limit_s=0.5)
    assert (report.points, report.possible) == (6, 8)
    assert "infinite loop?" in report.failed[0]


def test_a_loop_that_swallows_exceptions_ends_too(tmp_path, notebook):
    source = "while True:\n    try:\n        while True: pass\n    except Exception: pass"
    notebook.cells = [nbformat.v4.new_code_cell(source)]
    outcome = run(cells(notebook), tmp_path, limit_s=0.3).outcomes[0]
    assert outcome.error == "CellTimeout" and outcome.seconds < 3


def test_a_copied_cell_gets_a_clear_message(lab, notebook):
    _copied(notebook)
    report = lab_inspect.inspect(lab, notebook)
    assert report.points == 8
    assert "have the grade id 'ex1-check': a cell of the lab was copied" in report.notes[0]


def test_a_deleted_check_cell_is_run_all_the_same(lab, notebook):
    _deleted(notebook)
    report = lab_inspect.inspect(lab, notebook)
    assert report.points == 8 and "'ex3-check' was deleted" in report.notes[0]


def test_an_edited_check_cell_changes_nothing(lab, notebook):
    _edited(notebook)
    report = lab_inspect.inspect(lab, notebook)
    assert report.points == 6 and "ex1-check" in report.failed[0]


def test_a_file_that_is_no_notebook_is_named(tmp_path, capsys):
    path = tmp_path / f"{SLUG}.ipynb"
    path.write_text("not JSON")
    with pytest.raises(ValueError, match="is not a readable notebook"):
        read(path)
    assert labs.main(["check", "no-such-lab"]) == 1
    assert "no lab 'no-such-lab'" in capsys.readouterr().err


def test_a_renamed_file_is_recognised(tmp_path, monkeypatch, lab, notebook, capsys):
    monkeypatch.setattr(labs.lab_files, "slugs", lambda: [SLUG])
    monkeypatch.setattr(labs.lab_files, "find", lambda slug: {SLUG: lab}[slug])
    path = tmp_path / f"Copy of {SLUG} (1).ipynb"
    nbformat.write(notebook, path)
    assert labs.main(["inspect", str(path)]) == 0
    assert "8 of 8 points" in capsys.readouterr().out


def test_runs_leave_this_process_as_it_was(tmp_path, notebook):
    source = "import os, sys\nsys.path.insert(0, 'x')\nos.chdir('/')\nprint('hi')\nraise SystemExit"
    notebook.cells = [nbformat.v4.new_code_cell(source)]
    before = (list(sys.path), os.getcwd())
    outcome = run(cells(notebook), tmp_path).outcomes[0]
    assert outcome.error == "SystemExit" and (list(sys.path), os.getcwd()) == before


@pytest.mark.slow
def test_nbgrader_grades_everybody_whatever_one_file_does(lab, notebook, tmp_path):
    """nbgrader itself: loop, copied, deleted, edited cell; all graded, feedback, CSV."""
    submissions = {"solved": nbformat.writes(notebook)}
    for spoil in (_looped, _copied, _deleted, _edited):
        other = copy.deepcopy(notebook)
        spoil(other)
        submissions[spoil.__name__.strip("_")] = nbformat.writes(other)
    folder = tmp_path / "course"
    limit = ["--ExecutePreprocessor.timeout=5"]
    found = lab_nbgrader.pipeline(lab, submissions, folder, lambda line: None, limit)
    scores = {student: score for student, score, _ in found}
    assert scores == {"solved": 8, "looped": 6, "copied": 8, "deleted": 8, "edited": 6}
    feedback = folder / f"feedback/copied/{SLUG}/{SLUG}.html"
    assert "copied cell: only the last cell" in feedback.read_text(encoding="utf-8")
