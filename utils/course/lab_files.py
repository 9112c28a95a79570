"""Where a lab's files are, and what its cells are for.

A lab is one source notebook with nbgrader metadata (`labs/source/SLUG/SLUG.ipynb`), its planted
bugs (`bugs.yaml`) and one generated release. This module reads; it does not run cells (`lab_run`),
judge them (`lab_rules`, `lab_check`) or call nbgrader (`lab_nbgrader`).
"""

import re
from dataclasses import dataclass
from pathlib import Path

import nbformat
import yaml

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "_build" / "labs"
EXERCISE = re.compile(r"(ex\d+)-")
HIDDEN = ("### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS")
SOLUTION = ("### BEGIN SOLUTION", "### END SOLUTION")


@dataclass(frozen=True)
class Lab:
    """One lab of the course rooted at `root`; `build` is where runs may write."""

    slug: str
    root: Path = ROOT

    @property
    def source(self):
        """The notebook that holds exercises, solutions and all tests."""
        return self.root / "labs" / "source" / self.slug / f"{self.slug}.ipynb"

    @property
    def release(self):
        """The student's notebook, generated and committed."""
        return self.root / "labs" / "release" / self.slug / f"{self.slug}.ipynb"

    @property
    def chapter(self):
        """The chapter whose sections the failing checks name."""
        return self.root / "book" / f"{self.slug}.md"

    @property
    def build(self):
        """A folder below `_build` for everything that a run writes."""
        return BUILD / self.slug

    def bugs(self):
        """The planted bugs: a list of dicts; [] where the file is missing."""
        path = self.source.with_name("bugs.yaml")
        return yaml.safe_load(path.read_text(encoding="utf-8")) or [] if path.exists() else []


@dataclass(frozen=True)
class Cell:
    """A notebook cell with its part in the lab; `position` counts all cells from 1."""

    position: int
    kind: str
    source: str
    grade_id: str
    grade: bool
    solution: bool
    locked: bool
    points: float

    @property
    def exercise(self):
        """'ex3' for grade id 'ex3-check'; '' for a cell outside the exercises."""
        found = EXERCISE.match(self.grade_id)
        return found.group(1) if found else ""

    @property
    def graded_code(self):
        """True for the cells whose failure costs points automatically."""
        return self.grade and self.kind == "code"


def slugs(root=ROOT):
    """The labs that exist, in order."""
    return sorted(path.parent.name for path in (root / "labs" / "source").glob("*/*.ipynb"))


def find(slug, root=ROOT):
    """The lab `slug`, or ValueError that lists those that exist."""
    lab = Lab(slug, root)
    if not lab.source.exists():
        known = ", ".join(slugs(root)) or "none"
        raise ValueError(f"no lab {slug!r}: {lab.source} does not exist. Labs here: {known}")
    return lab


def read(path):
    """The notebook at `path`, or ValueError naming the file that is not one."""
    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:  # nbformat raises many kinds for a damaged file
        raise ValueError(f"{path} is not a readable notebook: {error}") from error


def cells(notebook):
    """The notebook's cells as `Cell`s."""
    return [_cell(position, raw) for position, raw in enumerate(notebook.cells, start=1)]


def _cell(position, raw):
    role = raw.metadata.get("nbgrader", {})
    return Cell(
        position=position,
        kind=raw.cell_type,
        source=raw.source,
        grade_id=role.get("grade_id", ""),
        grade=role.get("grade", False),
        solution=role.get("solution", False),
        locked=role.get("locked", False),
        points=role.get("points", 0),
    )


def region(source, marks):
    """The line numbers (from 1) strictly between the two marks, over all such regions."""
    inside, numbers = False, set()
    for number, line in enumerate(source.split("\n"), start=1):
        if marks[0] in line:
            inside = True
        elif marks[1] in line:
            inside = False
        elif inside:
            numbers.add(number)
    return numbers


def region_lines(source, marks):
    """The stripped, non-empty lines between the two marks."""
    numbers = region(source, marks)
    lines = enumerate(source.split("\n"), start=1)
    return [line.strip() for number, line in lines if number in numbers and line.strip()]
