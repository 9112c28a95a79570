"""Run, check and keep in step the course's notebooks.

    python -m utils.course.notebooks run [SLUG ...] [--in-place | --into DIR]
        Runs notebooks, shows the progress and the time left, stops with one clear line at the
        first failing cell. `--in-place` stores the outputs (for authors), `--into DIR` writes the
        executed copies there, neither keeps nothing. `--source DIR`: not those of notebooks/.
    python -m utils.course.notebooks check [SLUG ...]
        Refuses cells that were not run, stored errors, stderr, missing ids, a changed first cell,
        outputs over 1 MB and paths of this machine.
    python -m utils.course.notebooks sync
        Rewrites every notebook's and lab's first cell after `repository.url` has changed.
"""

import argparse
import sys
import time
from pathlib import Path

from utils.course import notebook_rules
from utils.course.bootstrap import ROOT, bootstrap
from utils.course.notebook_run import NotebookFailed, Progress, execute, read, write

NOTEBOOKS = ROOT / "notebooks"


def paths(slugs=(), folder=NOTEBOOKS):
    """The notebooks of these slugs (all of them if none is named), sorted."""
    if not slugs:
        return sorted(folder.glob("*.ipynb"))
    found = [folder / f"{slug.removesuffix('.ipynb')}.ipynb" for slug in slugs]
    missing = [path.name for path in found if not path.exists()]
    if missing:
        known = ", ".join(path.stem for path in sorted(folder.glob("*.ipynb")))
        raise NotebookFailed(f"no notebook {', '.join(missing)} in {folder}; there are: {known}")
    return found


def run(files, write_to=None, say=print):
    """Run notebooks one after the other; `write_to(path)` names where each executed copy goes."""
    loaded = [(path, read(path)) for path in files]
    cells = sum(len(notebook_rules.code_cells(notebook)) for _, notebook in loaded)
    progress = Progress(cells, say=say)
    for path, notebook in loaded:
        started = time.monotonic()
        name = path.stem
        done = execute(notebook, path, on_cell=lambda name=name: progress.cell(name))
        if write_to:
            write(done, write_to(path))
        say(f"{name} ran in {time.monotonic() - started:.0f} s ({progress.line()})", flush=True)


def check(files):
    """Everything wrong with these stored notebooks, one line each."""
    found = []
    for path in files:
        found += notebook_rules.problems(read(path), path)
    return found


def sync(root=ROOT):
    """Rewrite the first code cells that differ from the course's; the files changed."""
    changed = []
    for path in [*(root / "notebooks").glob("*.ipynb"), *(root / "labs/source").glob("*/*.ipynb")]:
        notebook = read(path)
        if notebook_rules.first_cell_problem(notebook):
            notebook_rules.code_cells(notebook)[0].source = bootstrap()
            write(notebook, path)
            changed.append(path)
    return changed


def _destination(arguments):
    if arguments.in_place:
        return lambda path: path
    if arguments.into:
        return lambda path: arguments.into / path.name
    return None


def _run(arguments):
    run(paths(arguments.slugs, arguments.source), _destination(arguments))
    return 0


def _check(arguments):
    files = paths(arguments.slugs, arguments.source)
    found = check(files)
    print("\n".join(found) if found else f"{len(files)} notebooks are as they should be")
    return 1 if found else 0


def _sync(arguments):
    for path in sync():
        print(f"rewrote the first cell of {path.relative_to(ROOT)}")
    print("Labs: run `make labs` to write the student versions anew")
    return 0


def _parser():
    parser = argparse.ArgumentParser(prog="python -m utils.course.notebooks")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, action in (("run", _run), ("check", _check), ("sync", _sync)):
        command = commands.add_parser(name)
        command.set_defaults(action=action)
        if name != "sync":
            command.add_argument("slugs", nargs="*", metavar="SLUG")
            command.add_argument("--source", type=Path, default=NOTEBOOKS, metavar="DIR")
    where = commands.choices["run"].add_mutually_exclusive_group()
    where.add_argument("--in-place", action="store_true")
    where.add_argument("--into", type=Path, metavar="DIR")
    return parser


def main(argv=None):
    """Entry point; returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        return arguments.action(arguments)
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except NotebookFailed as failure:
        print(f"Failed: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
