"""Build the book, strictly and without the network, and look at what was built.

    python -m utils.course.site html [--into DIR]    from the stored outputs
    python -m utils.course.site book                 from notebooks run on this machine just now

`html` refuses notebooks that were not run or store an error. `book` runs copies under `_build/run`
and builds from them, so that the tracked files stay as they are. Both put the pages into
`_build/html` and fail on any warning. `--into DIR` builds a throwaway copy there instead. The rules
for built pages are in `site_rules.py`.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from utils.course import notebooks, site_rules
from utils.course.bootstrap import ROOT
from utils.course.notebook_run import NotebookFailed

SOURCES = (
    "_config.yml", "_toc.yml", "book", "notebooks", "labs/release", "records", "utils/kernels",
)  # fmt: skip


class BuildFailed(Exception):
    """The book can't be built: the message lists what is wrong."""


def stage(folder, root=ROOT):
    """A fresh copy of the book's sources in `folder`."""
    for part in (*SOURCES, "_build"):
        shutil.rmtree(folder / part, ignore_errors=True)
    for name in SOURCES:
        source, target = root / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
            shutil.copytree(source, target, ignore=ignore)
        elif source.exists():
            shutil.copy2(source, target)
    return folder


def build(source, output, say=print):
    """Build `source` into `output/_build/html`; raises BuildFailed with the warnings."""
    built = output / "_build"
    for part in ("html", ".doctrees", "jupyter_execute"):
        shutil.rmtree(built / part, ignore_errors=True)
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build"]
    command += [str(source), "--path-output", str(output), "-W", "-n", "--keep-going"]
    log = built / "book.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as kept:
        done = subprocess.run(command, stdout=kept, stderr=subprocess.STDOUT, env=_environment())
    if done.returncode:
        raise BuildFailed(_why(log))
    problems = site_rules.problems(built / "html", source)
    if problems:
        raise BuildFailed("\n".join(problems))
    return built / "html"


def _environment():
    """Without a hub, a terminal's colours or stray bytecode."""
    return {**os.environ, "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def _why(log):
    """The warnings and errors of a build's log, else its last lines."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(encoding="utf-8"))
    lines = text.splitlines()
    telling = re.compile(r"\b(WARNING|ERROR|CRITICAL|[A-Z]\w*Error):")
    found = [line for line in lines if telling.search(line)]
    return "\n".join(found or lines[-15:]) + f"\n(The whole log: {log})"


def html(into=None, say=print):
    """The book from the stored outputs."""
    problems = notebooks.check(notebooks.paths())
    if problems:
        raise BuildFailed("\n".join(problems))
    source = stage(into) if into else ROOT
    return build(source, into or ROOT, say)


def book(say=print):
    """The book from copies of the notebooks, run on this machine."""
    source = stage(ROOT / "_build" / "run")
    copies = notebooks.paths(folder=source / "notebooks")
    say(f"Running {len(copies)} notebooks in {source.relative_to(ROOT)}", flush=True)
    notebooks.run(copies, write_to=lambda path: path, say=say)
    problems = notebooks.check(copies)
    if problems:
        raise BuildFailed("\n".join(problems))
    return build(source, ROOT, say)


def main(argv=None):
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m utils.course.site")
    parser.add_argument("what", choices=("html", "book"))
    parser.add_argument("--into", type=Path, metavar="DIR", help="build a throwaway copy there")
    arguments = parser.parse_args(argv)
    started = time.monotonic()
    try:
        built = html(arguments.into) if arguments.what == "html" else book()
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except (BuildFailed, NotebookFailed) as failure:
        print(f"The book was not built.\n{failure}", file=sys.stderr)
        return 1
    pages = len(site_rules.pages(built))
    print(f"{pages} pages in {time.monotonic() - started:.0f} s: open {built / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
