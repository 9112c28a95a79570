"""Does a lab's grading do its work? Run it untouched, solved, and with every planted bug.

The student's cells come from the release, the checks (hidden tests included) from the source, as
when nbgrader grades. Expected: untouched earns nothing; solved passes; leaving one exercise blank
fails that exercise alone; a bug fails its own exercise alone, by an assert whose message teaches.
"""

from dataclasses import dataclass, replace

import nbformat

from utils.course import lab_files, lab_release
from utils.course.lab_run import LIMIT_S, run

SOLUTION_LIMIT_S = 15.0


@dataclass(frozen=True)
class Row:
    """One run: name, exercises that failed, seconds, a remark, and what is wrong with it."""

    name: str
    failed: tuple
    seconds: float
    remark: str
    problems: tuple


@dataclass(frozen=True)
class Versions:
    """The cells of a lab in the versions that are run."""

    solved: list
    blank: list
    student: list

    def without(self, exercise):
        """Solved, but for one exercise left as the student finds it."""
        pairs = zip(self.solved, self.blank, strict=True)
        return [blank if blank.exercise == exercise else solved for solved, blank in pairs]

    def with_bug(self, bug):
        """Solved, with one line of one exercise replaced."""
        own = bug["exercise"]
        return [_plant(cell, bug) if cell.exercise == own else cell for cell in self.solved]

    def exercises(self):
        """The exercises' names, in order."""
        return list(dict.fromkeys(cell.exercise for cell in self.solved if cell.exercise))


def versions(lab):
    """Solved, blank-as-graded, and the release exactly as a student gets it."""
    solved = lab_files.cells(lab_files.read(lab.source))
    release = nbformat.reads(lab_release.make(lab), as_version=4)
    student = lab_files.cells(release)
    pairs = zip(solved, student, strict=True)
    return Versions(solved, [theirs if ours.solution else ours for ours, theirs in pairs], student)


def _plant(cell, bug):
    line, other = bug["find"].rstrip(), bug["replace"].rstrip("\n")
    lines = [other if text.rstrip() == line else text for text in cell.source.split("\n")]
    return replace(cell, source="\n".join(lines))


def check(lab, limit_s=LIMIT_S):
    """All runs of a lab as `Row`s; the lab is sound when no row has problems."""
    all_cells = versions(lab)

    def go(cells):
        return run(cells, lab.build / "run", limit_s)

    rows = [
        _untouched("as the student gets it", go(all_cells.student), all_cells),
        _untouched("blank, all tests", go(all_cells.blank), all_cells),
        _solved(go(all_cells.solved)),
    ]
    for exercise in all_cells.exercises():
        rows.append(_alone(f"only {exercise} blank", exercise, go(all_cells.without(exercise))))
    for bug in lab.bugs():
        rows.append(_bug(bug, go(all_cells.with_bug(bug))))
    return rows


def _row(name, result, problems, remark=""):
    failed = tuple(dict.fromkeys(one.cell.exercise for one in result.failed()))
    return Row(name, failed, result.seconds, remark, tuple(problems))


def _untouched(name, result, all_cells):
    """Every exercise fails; with all tests present every graded cell does: no work, no points."""
    failed = {one.cell.grade_id for one in result.failed()}
    if name.startswith("blank"):
        expected = [cell.grade_id for cell in all_cells.blank if cell.graded_code]
    else:
        expected = [f"{exercise}-check" for exercise in all_cells.exercises()]
    passed = [f"{one} passes although nothing was done" for one in expected if one not in failed]
    return _row(name, result, passed)


def _solved(result):
    problems = [f"{_where(one)}: {one.error}: {one.message}" for one in result.errors()]
    if result.seconds > SOLUTION_LIMIT_S:
        problems.append(f"takes {result.seconds:.1f} s; the limit is {SOLUTION_LIMIT_S:g} s")
    if result.stderr.strip():
        problems.append(f"writes to stderr: {result.stderr.strip()[:200]}")
    return _row("solution", result, problems)


def _where(outcome):
    return outcome.cell.grade_id or f"cell {outcome.cell.position}"


def _alone(name, exercise, result):
    failed = {one.cell.exercise for one in result.failed()}
    others = sorted(failed - {exercise})
    problems = [f"{other} fails too: it depends on {exercise}" for other in others]
    if exercise not in failed:
        problems.append(f"{exercise} passes")
    return _row(name, result, problems)


def _bug(bug, result):
    """Caught in its own exercise alone, and by an assert rather than by a crash."""
    row = _alone(f"bug {bug['name']}", bug["exercise"], result)
    asserts = [one for one in result.failed() if one.error == "AssertionError" and one.message]
    problems = list(row.problems)
    if result.failed() and not asserts:
        first = result.failed()[0]
        problems.append(f"{_where(first)} crashes ({first.error}) where an assert should explain")
    seen = "visible" if any(not one.hidden for one in asserts) else "hidden test"
    return replace(row, remark=seen if asserts else "", problems=tuple(problems))


def table(rows):
    """The rows as text, one line each, problems below the row that has them."""
    lines = [f"{'run':44} {'fails':24} {'s':>6}  caught by"]
    for row in rows:
        failed = " ".join(row.failed) or "nothing"
        mark = "" if not row.problems else "  WRONG"
        lines.append(f"{row.name:44} {failed:24} {row.seconds:6.2f}  {row.remark}{mark}")
        lines += [f"    {problem}" for problem in row.problems]
    return "\n".join(lines)
