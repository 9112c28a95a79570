"""`make new-unit` gives a unit that passes the structural checks, or changes nothing at all."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from utils.course import mutations, new_unit, site, toc
from utils.course.lab_files import Lab

ROOT = Path(__file__).resolve().parents[1]
SLUG, TITLE = "07-activation-aware", "Activation-aware: a try"
TAKEN = {path.name[:2] for path in (ROOT / "book").glob("[0-9][0-9]-*.md")}
FREE = next(f"{n:02}-a-trial" for n in range(20, 0, -1) if f"{n:02}" not in TAKEN)
TOC = """\
# The book's order.
format: jb-book
root: book/intro
parts:
  - caption: "Part II: Fewer bits"
    chapters:
      - file: book/06-rounding
        sections:
          - file: notebooks/06-rounding
      - file: book/08-gptq
  - caption: About the course
    chapters:
      - file: book/glossary
"""
SMALL_TOC = "format: jb-book\nroot: book/intro\nparts:\n" + TOC[TOC.index("  - caption: About") :]


@pytest.fixture
def course(tmp_path):
    """A copy of the course with one page and no unit, below `_build`."""
    for part in ("book/_ext", "book/_static"):
        shutil.copytree(ROOT / part, tmp_path / part)
    for part in ("_config.yml", "book/references.bib", "book/glossary.md"):
        shutil.copy(ROOT / part, tmp_path / part)
    for page in ("intro", "contributing"):
        (tmp_path / f"book/{page}.md").write_text(f"# The page {page}\n\nSome text.\n")
    references = "# References\n\n```{bibliography}\n```\n"
    (tmp_path / "book/references.md").write_text(references)
    pages = "".join(f"      - file: book/{page}\n" for page in ("contributing", "references"))
    (tmp_path / "_toc.yml").write_text(SMALL_TOC + pages)
    return tmp_path


def _tree(folder):
    """The files with their bytes, and the units' folders."""
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return files | {path: "folder" for path in folder.rglob(f"*{SLUG}") if path.is_dir()}


@pytest.fixture
def quick(monkeypatch):
    """Leave out running notebook and lab where a test is about names and files."""

    def make(slug, title, folder):
        for target in new_unit._targets(slug, folder):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("made\n")

    monkeypatch.setattr(new_unit, "make", make)
    monkeypatch.setattr(new_unit, "problems", lambda slug, folder: [])


# The whole of it, in a copy of the course


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """The whole course in a folder below `_build`, with a new unit made by the command."""
    folder = tmp_path_factory.mktemp("copy") / "course"
    left_out = (".git", ".venv", "_build", "__pycache__", ".*_cache", ".ipynb_checkpoints")
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*left_out))
    command = ["-m", "utils.course.new_unit", "--slug", FREE, "--title", TITLE]
    done = _python(folder, *command)
    assert done.returncode == 0, done.stdout
    return folder


def _python(folder, *arguments):
    kept = {name: v for name, v in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**kept, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, text=True, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


@pytest.mark.slow
def test_a_new_unit_passes_the_courses_structural_tests(copied):
    files = [f"tests/test_{name}.py" for name in ("notebooks", "book", "labs", "mutations")]
    done = _python(copied, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", FREE, *files)
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout).group(1)) >= 12
    again = _python(copied, "-m", "utils.course.new_unit", "--slug", FREE, "--title", TITLE)
    assert again.returncode == 1 and f"{FREE[:2]} exists already" in again.stdout


@pytest.mark.slow
def test_its_book_builds_strictly(copied, course):
    targets = new_unit._targets(FREE, copied)
    for path in targets:
        target = course / path.relative_to(copied)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    contents = toc.with_unit((course / "_toc.yml").read_text(), FREE)
    (course / "_toc.yml").write_text(contents)
    assert site.build(course, course).exists()
    text = "\n".join(path.read_text(encoding="utf-8") for path in targets)
    assert "{{" not in text
    assert not re.search(r"\b(todo|fixme|placeholder|lorem|coming soon)\b", text, re.I)


def test_the_scaffolds_mutations_fit_the_example():
    found = mutations.load("mutations", new_unit.TEMPLATES)
    assert len(found) >= 3
    for mutation in found:
        mutation.apply(ROOT)


def test_a_lab_is_made_of_the_same_bytes_each_time(tmp_path):
    texts = []
    for name in ("a", "b"):
        lab = new_unit.make_lab(SLUG, TITLE, tmp_path / name)
        texts.append(lab.source.read_bytes())
    assert isinstance(lab, Lab) and texts[0] == texts[1]


# Names


@pytest.mark.parametrize(
    ("slug", "title", "said"),
    [
        ("activation-aware", TITLE, "two digits"),
        ("7-activation", TITLE, "two digits"),
        ("07-Activation", TITLE, "two digits"),
        ("07_activation", TITLE, "two digits"),
        ("07-a/../../b", TITLE, "two digits"),
        ("07-", TITLE, "two digits"),
        ("", TITLE, "two digits"),
        ("00-start", TITLE, "01 to 20"),
        ("21-more", TITLE, "01 to 20"),
        (SLUG, "  ", "title"),
        (SLUG, "two\nlines", "title"),
        (SLUG, "x" * 81, "title"),
    ],
)
def test_a_bad_name_is_refused_and_nothing_changes(course, quick, slug, title, said):
    before = _tree(course)
    with pytest.raises(ValueError, match=said):
        new_unit.new_unit(slug, title, root=course)
    assert _tree(course) == before


@pytest.mark.parametrize("existing", [f"book/{SLUG}.md", f"labs/source/{SLUG}/bugs.yaml"])
def test_an_existing_file_is_not_overwritten(course, quick, existing):
    (course / existing).parent.mkdir(parents=True, exist_ok=True)
    (course / existing).write_text("mine\n")
    before = _tree(course)
    with pytest.raises(ValueError, match="exist"):
        new_unit.new_unit(SLUG, TITLE, root=course, say=lambda line: None)
    assert _tree(course) == before


def test_a_failure_half_way_leaves_nothing_behind(course, quick, monkeypatch):
    before, moved = _tree(course), []

    def move(source, target):
        moved.append(target)
        if len(moved) == 4:
            raise OSError("disk full")
        Path(target).write_bytes(Path(source).read_bytes())

    monkeypatch.setattr(new_unit.shutil, "move", move)
    with pytest.raises(OSError, match="disk full"):
        new_unit.new_unit(SLUG, TITLE, root=course, say=lambda line: None)
    assert _tree(course) == before


def test_a_scaffold_that_fails_its_checks_is_not_installed(course, quick, monkeypatch):
    monkeypatch.setattr(new_unit, "problems", lambda slug, folder: ["a fault"])
    before = _tree(course)
    with pytest.raises(ValueError, match="a fault"):
        new_unit.new_unit(SLUG, TITLE, root=course, say=lambda line: None)
    assert _tree(course) == before


# The table of contents


def _order(text):
    return [
        (part["caption"], chapter["file"])
        for part in yaml.safe_load(text)["parts"]
        for chapter in part["chapters"]
    ]


def test_a_unit_goes_between_its_neighbours_and_comments_stay():
    text = toc.with_unit(TOC, SLUG)
    assert [file for _, file in _order(text)][:3] == [
        "book/06-rounding",
        f"book/{SLUG}",
        "book/08-gptq",
    ]
    assert text.startswith("# The book's order.\n")


@pytest.mark.parametrize(
    ("slug", "place"),
    [("01-decode-cost", 0), ("05-number-formats", 0), ("10-qat", 2), ("11-x", 2), ("20-y", 2)],
)
def test_a_part_is_made_where_it_belongs(slug, place):
    order = _order(toc.with_unit(TOC, slug))
    assert order[place] == (toc.caption(int(slug[:2])), f"book/{slug}")


def test_the_courses_own_toc_takes_every_unit():
    text = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    for number in range(1, 21):
        if f"book/{number:02d}-" not in text:
            assert f"book/{number:02d}-new" in toc.with_unit(text, f"{number:02d}-new")


def test_an_unknown_layout_is_refused():
    with pytest.raises(ValueError, match="layout"):
        toc.with_unit(TOC.replace("  - caption", "- caption").replace("    ", "  "), SLUG)
