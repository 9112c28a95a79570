"""Every lab of the course: its form, its release, and whether its grading does its work.

The tools that judge here are themselves judged in `test_lab_rules.py` and `test_lab_grading.py`.
"""

import pytest

from utils.course import lab_check, lab_nbgrader, lab_release, lab_rules
from utils.course.lab_files import Lab, cells, find, read, slugs

LABS = slugs()


@pytest.mark.parametrize("slug", LABS)
def test_the_form_is_right(slug):
    assert find(slug).chapter.exists(), "checks name sections of a chapter that isn't there"
    assert lab_rules.problems(find(slug)) == []


@pytest.mark.parametrize("slug", LABS)
def test_the_committed_release_is_what_the_source_gives(slug):
    lab = find(slug)
    assert lab.release.exists(), f"run: python -m utils.course.labs release {slug}"
    assert lab.release.read_text(encoding="utf-8") == lab_release.make(lab)


@pytest.mark.slow
@pytest.mark.parametrize("slug", LABS)
def test_untouched_fails_solution_passes_and_each_bug_fails_its_exercise(slug):
    """Field case 48."""
    rows = lab_check.check(find(slug))
    assert not any(row.problems for row in rows), "\n" + lab_check.table(rows)


def test_no_release_without_a_source_and_no_gradebook_in_the_course():
    folder = find(LABS[0]).root / "labs" if LABS else Lab("any").root / "labs"
    released = sorted(path.parent.name for path in (folder / "release").glob("*/*.ipynb"))
    assert released == LABS
    assert not list(folder.glob("release/*/bugs.yaml"))


@pytest.mark.slow
@pytest.mark.skipif(not LABS, reason="no lab in labs/source yet")
def test_nbgrader_grades_a_lab_of_the_course(tmp_path):
    """nbgrader itself on one real lab; the open question is left to a person."""
    lab = find(LABS[0])
    submissions = {
        "solved": lab.source.read_text(encoding="utf-8"),
        "untouched": lab.release.read_text(encoding="utf-8"),
    }
    found = lab_nbgrader.pipeline(lab, submissions, tmp_path / "course", say=lambda line: None)
    all_cells = cells(read(lab.source))
    automatic = sum(cell.points for cell in all_cells if cell.graded_code)
    possible = sum(cell.points for cell in all_cells if cell.grade)
    assert found == [("solved", automatic, possible), ("untouched", 0, possible)]
