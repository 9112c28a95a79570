"""Start a unit: `python -m utils.course.new_unit --slug 07-activation-aware --title "..."`.

Writes chapter, executed notebook with its record, lab with bugs and release, mutation list and the
entry in `_toc.yml`, filled with a small complete example that passes every structural check. All is
made and checked below `_build` first, so that either everything is put in place or nothing. It
never overwrites a file. What it does not do: write the unit.
"""

import argparse
import contextlib
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat

from utils import cache
from utils.course import (
    lab_check,
    lab_files,
    lab_release,
    lab_rules,
    mutations,
    notebook_rules,
    notebook_run,
    percent,
    prose_numbers,
    records,
    toc,
)
from utils.course.bootstrap import ROOT, bootstrap

TEMPLATES = Path(__file__).with_name("scaffold")
SLUG = re.compile(r"\d\d-[a-z0-9]+(-[a-z0-9]+)*")
LONGEST_TITLE = 80


def new_unit(slug, title, root=ROOT, say=print):
    """Create the unit in `root`; returns the new files. Raises ValueError and changes nothing."""
    _check_names(slug, title, root)
    build = ROOT / "_build" / "new-unit"
    build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as folder:
        staged = Path(folder)
        say(f"making {slug}: text, notebook (runs now), lab and its checks")
        make(slug, title, staged)
        found = problems(slug, staged)
        if found:
            raise ValueError("the scaffold fails its own checks:\n" + "\n".join(found))
        return _install(slug, staged, root)


def _check_names(slug, title, root):
    if not SLUG.fullmatch(slug):
        raise ValueError(
            f"slug {slug!r}: two digits, then words of a-z and 0-9 joined by -, "
            "for example 07-activation-aware"
        )
    toc.caption(int(slug[:2]))
    if not title.strip() or len(title) > LONGEST_TITLE or "\n" in title:
        raise ValueError(f"title {title!r}: give one line of 1 to {LONGEST_TITLE} characters")
    taken = sorted(path.stem for path in (root / "book").glob(f"{slug[:2]}-*.md"))
    if taken:
        found = ", ".join(taken)
        raise ValueError(f"unit {slug[:2]} exists already: {found}; choose another number")
    _refuse_existing(_targets(slug, root))


def _targets(slug, root):
    names = (
        f"book/{slug}.md",
        f"notebooks/{slug}.ipynb",
        f"records/notebooks/{slug}.json",
        f"labs/source/{slug}/{slug}.ipynb",
        f"labs/source/{slug}/bugs.yaml",
        f"labs/release/{slug}/{slug}.ipynb",
        f"tests/mutations/{slug}.yaml",
    )
    return [root / name for name in names]


def _refuse_existing(paths):
    existing = [str(path) for path in paths if path.exists()]
    if existing:
        raise ValueError(f"these files exist and are not overwritten: {', '.join(existing)}")


def make(slug, title, folder):
    """Write all files of the unit below `folder`, which lies in the checkout; runs the notebook."""
    words = {"slug": slug, "title": title.strip(), "bootstrap": bootstrap()}
    _write(folder / f"book/{slug}.md", _fill("chapter.md", words))
    _write(folder / f"tests/mutations/{slug}.yaml", _fill("mutations.yaml", words))
    lab = make_lab(slug, title, folder)
    lab_release.write(lab)
    path = folder / f"notebooks/{slug}.ipynb"
    path.parent.mkdir(parents=True)
    draft = percent.notebook(_fill("notebook.py.txt", words), slug)
    notebook_run.write(notebook_run.execute(draft, path), path)
    records.keep(slug, folder=folder / "records" / "notebooks")


def make_lab(slug, title, folder):
    """Write the lab's source and bugs below `folder`; returns the `Lab`."""
    words = {"slug": slug, "title": title.strip(), "bootstrap": bootstrap()}
    lab = lab_files.Lab(slug, folder)
    _write(lab.source.with_name("bugs.yaml"), _fill("bugs.yaml", words))
    notebook = percent.notebook(_fill("lab.py.txt", words), f"lab-{slug}")
    _write(lab.source, nbformat.writes(notebook) + "\n")
    return lab


def _fill(template, words):
    text = (TEMPLATES / template).read_text(encoding="utf-8")
    for name, value in words.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def problems(slug, folder):
    """What the structural checks say about the unit's files below `folder`; [] when all is well."""
    path, lab = folder / f"notebooks/{slug}.ipynb", lab_files.Lab(slug, folder)
    notebook = notebook_run.read(path)
    found = notebook_rules.problems(notebook, path)
    if len(notebook_rules.compared_cells(notebook)) < 8:
        found.append("fewer than 8 cells are compared")
    chapter = (folder / f"book/{slug}.md").read_text(encoding="utf-8")
    found += [
        f"number {one.number!r} in: {one.sentence}" for one in prose_numbers.offenders(chapter)
    ]
    found += lab_rules.problems(lab)
    found += [fault for row in lab_check.check(lab) for fault in row.problems]
    for mutation in mutations.load(slug, folder / "tests" / "mutations"):
        mutation.apply(ROOT)
    return found


def _install(slug, staged, root):
    """Move everything into place; on any failure take out again what was put there."""
    toc_path = root / "_toc.yml"
    contents = toc.with_unit(toc_path.read_text(encoding="utf-8"), slug)
    targets, done = _targets(slug, root), []
    _refuse_existing(targets)
    try:
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            done.append(target)
            shutil.move(staged / target.relative_to(root), target)
        with cache.write_atomically(toc_path) as scratch:
            scratch.write_text(contents, encoding="utf-8")
    except BaseException:
        for target in done:
            target.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty, or never made
                if target.parent.name == slug:
                    target.parent.rmdir()
        raise
    return targets


def main(arguments=None):
    """The command line."""
    parser = argparse.ArgumentParser(prog="new_unit", description=__doc__.splitlines()[0])
    parser.add_argument("--slug", required=True, help="for example 07-activation-aware")
    parser.add_argument("--title", required=True, help="the chapter's title")
    asked = parser.parse_args(arguments)
    try:
        files = new_unit(asked.slug, asked.title)
    except (ValueError, notebook_run.NotebookFailed) as error:
        print(f"new_unit: {error}", file=sys.stderr)
        return 1
    print("\n".join(f"wrote {os.path.relpath(path, ROOT)}" for path in files))
    print("Added to _toc.yml. Next: book/contributing.md, then `make check`.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
