"""The scaffold's small lab, for tests that spoil it."""

import nbformat
import pytest

from utils.course import lab_release, new_unit
from utils.course.lab_files import Lab, read

SLUG = "90-example"
HEADINGS = ("The grid and its step", "How large the error can be", "What it costs to store")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The scaffold's lab and chapter."""
    folder = tmp_path_factory.mktemp("lab")
    made = new_unit.make_lab(SLUG, "A small grid", folder)
    made.chapter.parent.mkdir()
    made.chapter.write_text("".join(f"## {heading}\n" for heading in HEADINGS))
    lab_release.write(made)
    return made


@pytest.fixture
def notebook(lab):
    """The small lab's source, to be spoiled."""
    return read(lab.source)


def cell_of(notebook, grade_id):
    found = [
        c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == grade_id
    ]
    return found[0]


def spoiled(lab, tmp_path, notebook, bugs=None):
    """A lab of the spoiled notebook."""
    other = Lab(SLUG, tmp_path)
    other.source.parent.mkdir(parents=True)
    nbformat.write(notebook, other.source)
    text = lab.source.with_name("bugs.yaml").read_text() if bugs is None else bugs
    other.source.with_name("bugs.yaml").write_text(text)
    other.chapter.parent.mkdir()
    other.chapter.write_text(lab.chapter.read_text())
    return other
