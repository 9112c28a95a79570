"""The student's notebook: made by nbgrader from the source, searched for what must not be in it.

Written only when it holds no solution line, no hidden test and no output; by a temporary name and a
rename, so that a half-written release cannot be committed.
"""

import os

import nbformat

from utils.course import lab_files
from utils.course.lab_files import HIDDEN, SOLUTION
from utils.course.lab_nbgrader import LabError, release_text

SHORTEST_TELLING_LINE = 10  # "return x" says nothing; a line this long that leaks is a leak


def make(lab):
    """The release's text, checked. Raises LabError that lists every leak."""
    text = release_text(lab)
    found = leaks(lab_files.read(lab.source), nbformat.reads(text, as_version=4))
    if found:
        listed = "\n".join(found)
        raise LabError(f"{lab.slug}: the student's notebook would give things away:\n{listed}")
    return text if text.endswith("\n") else text + "\n"


def write(lab):
    """Make the release and put it in place; returns its path."""
    text = make(lab)
    lab.release.parent.mkdir(parents=True, exist_ok=True)
    temporary = lab.release.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, lab.release)
    return lab.release


def leaks(source, release):
    """What the student's notebook must not hold, as sentences; [] when it is clean."""
    return [*_marks(release), *_secret_lines(source, release), *_outputs(release)]


def _marks(release):
    words = ("BEGIN SOLUTION", "END SOLUTION", "BEGIN HIDDEN TESTS", "END HIDDEN TESTS")
    for cell in lab_files.cells(release):
        for word in words:
            if word in cell.source:
                yield f"cell {cell.position} {cell.grade_id}: the mark {word!r}"


def _secret_lines(source, release):
    """Lines of solutions and hidden tests that also stand, whole, in the student's notebook."""
    public = _public_lines(source)
    secret = {line for cell in lab_files.cells(source) for line in _secrets(cell)} - public
    for cell in lab_files.cells(release):
        for line in cell.source.split("\n"):
            if line.strip() in secret:
                yield f"cell {cell.position} {cell.grade_id}: {line.strip()!r}"


def _secrets(cell):
    if cell.grade and cell.solution:  # an open question: the sample answers
        lines = [line.strip() for line in cell.source.split("\n")]
    else:
        lines = region_lines(cell)
    return [line for line in lines if len(line) >= SHORTEST_TELLING_LINE]


def region_lines(cell):
    """The lines of a cell between solution marks and between hidden-test marks."""
    marked = (SOLUTION, HIDDEN)
    return [line for marks in marked for line in lab_files.region_lines(cell.source, marks)]


def _public_lines(source):
    """Lines that the source itself shows outside of any marked region."""
    public = set()
    for cell in lab_files.cells(source):
        if cell.grade and cell.solution:
            continue
        hidden = lab_files.region(cell.source, SOLUTION) | lab_files.region(cell.source, HIDDEN)
        lines = enumerate(cell.source.split("\n"), start=1)
        public |= {line.strip() for number, line in lines if number not in hidden}
    return public


def _outputs(release):
    for position, cell in enumerate(release.cells, start=1):
        if cell.get("outputs") or cell.get("execution_count"):
            yield f"cell {position}: stored output"
