"""Look at a student's notebook: copied or deleted cells in words, and what passes, in seconds.

The checks are taken from the source by their grade ids, hidden tests included, as nbgrader does, so
that an edited check cell changes nothing. Gives points for the automatic part only; it keeps no
gradebook. It runs the student's code with your rights: use an account that may lose its files.
"""

from collections import defaultdict
from dataclasses import dataclass

from utils.course import lab_files
from utils.course.lab_run import LIMIT_S, run


@dataclass(frozen=True)
class Report:
    """Notes in words, points earned and possible in the automatic part, and the failed cells."""

    notes: tuple
    points: float
    possible: float
    failed: tuple


def inspect(lab, notebook, limit_s=LIMIT_S):
    """Judge one student's notebook (nbformat) against the lab; returns a `Report`."""
    theirs = lab_files.cells(notebook)
    tests = {c.grade_id: c for c in lab_files.cells(lab_files.read(lab.source)) if c.graded_code}
    cells, notes = _keep_last(theirs)
    cells, missing = _restore(cells, tests)
    result = run(cells, lab.build / "inspect", limit_s)
    failed = {one.cell.grade_id: one for one in result.failed()}
    points = sum(cell.points for grade_id, cell in tests.items() if grade_id not in failed)
    words = tuple(f"{grade_id}: {_words(one)}" for grade_id, one in failed.items())
    return Report((*notes, *missing), points, sum(cell.points for cell in tests.values()), words)


def _words(outcome):
    unanswered = outcome.error == "NotImplementedError" and not outcome.message
    return "not answered yet" if unanswered else f"{outcome.error}: {outcome.message}"


def _keep_last(cells):
    """Of cells with one grade id only the last counts, as for nbgrader; say which they are."""
    places = defaultdict(list)
    for cell in cells:
        if cell.grade_id:
            places[cell.grade_id].append(cell.position)
    notes = [_copied(grade_id, where) for grade_id, where in places.items() if len(where) > 1]
    graded = {where[-1] for where in places.values()}
    return [c for c in cells if not (c.grade and c.position not in graded)], notes


def _copied(grade_id, where):
    cells = " and ".join(str(position) for position in where)
    return (
        f"cells {cells} have the grade id {grade_id!r}: a cell of the lab was copied. Only the "
        "last one counts; delete the copy (Edit > Delete Cell) and try things in a new cell"
    )


def _restore(cells, tests):
    """Put the source's text into the check cells; append those that were deleted."""
    restored = [tests.get(cell.grade_id, cell) for cell in cells]
    present = {cell.grade_id for cell in cells}
    lost = [cell for grade_id, cell in tests.items() if grade_id not in present]
    notes = [f"the check cell {one.grade_id!r} was deleted; it is run all the same" for one in lost]
    return restored + lost, notes


def text(name, report):
    """The report as lines to print."""
    lines = [f"{name}: {report.points:g} of {report.possible:g} points in the automatic part"]
    lines += [f"  note: {note}" for note in report.notes]
    return "\n".join(lines + [f"  failed: {line}" for line in report.failed])
