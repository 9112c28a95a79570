"""nbgrader itself, in a course folder of its own below `_build`.

`release_text` makes the student's notebook with nbgrader's generate_assignment; `pipeline` grades
submissions with nbgrader's own commands. Nothing here writes into `labs/`, and no gradebook is kept
beside the course's files. Settings come from `labs/nbgrader_config.py`, as an instructor's do.
"""

import csv
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from utils.course.lab_files import ROOT

VALID = "Success! Your notebook passes all the tests."
CONFIG = ROOT / "labs" / "nbgrader_config.py"


class LabError(ValueError):
    """A lab, or nbgrader on a lab, is not as it must be; the message names the lab and the cure."""


def release_text(lab):
    """The text of the student's notebook; the same text on every call. Raises LabError."""
    lab.build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="release-", dir=lab.build) as folder:
        course = Path(folder)
        _copy_source(lab, course)
        _generate(lab, course)
        return (course / "release" / lab.slug / f"{lab.slug}.ipynb").read_text(encoding="utf-8")


def _copy_source(lab, course):
    shutil.copytree(lab.source.parent, course / "source" / lab.slug)
    shutil.copy(CONFIG, course)


def _generate(lab, course):
    """nbgrader's generate_assignment in this process: its start-up would cost seconds per lab."""
    from nbgrader.apps import NbGraderAPI
    from traitlets.config import PyFileConfigLoader

    config = PyFileConfigLoader(CONFIG.name, path=str(CONFIG.parent)).load_config()
    config.CourseDirectory.root = str(course)
    config.NbGraderAPI.log_level = "ERROR"
    config.GenerateAssignment.no_database = True  # what --no-db does
    config.SaveCells.enabled = False
    result = NbGraderAPI(config=config).generate_assignment(lab.slug)
    if not result["success"]:
        raise LabError(f"{lab.slug}: nbgrader refused the source.\n{_reason(result)}")


def _reason(result):
    """The error that nbgrader logged, out of its several tracebacks."""
    text = "\n".join(filter(None, [result.get("log"), result.get("error")]))
    errors = re.findall(r"^\s*([\w.]*(?:Error|Exception): .*)$", text, re.MULTILINE)
    return next(iter(errors), text.strip() or "it gave no reason")


def command(course, *arguments):
    """Run `nbgrader ARGUMENTS` in the folder `course`; returns (exit code, whole output)."""
    line = [sys.executable, "-m", "nbgrader", *arguments]
    done = subprocess.run(
        line, cwd=course, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=_env()
    )
    return done.returncode, done.stdout


def _env():
    """This environment, but with this Python's programs (nbgrader calls `alembic`) and kernels."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    kernels = str(Path(sys.prefix) / "share" / "jupyter")
    return {**os.environ, "PATH": path, "JUPYTER_PATH": kernels, "OMP_NUM_THREADS": "1"}


def new_course(lab, submissions, folder):
    """A course folder with the lab's source and `submissions`: {student: notebook text}."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    _copy_source(lab, folder)
    for student, text in submissions.items():
        path = folder / "submitted" / student / lab.slug / f"{lab.slug}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    return folder


def pipeline(lab, submissions, folder, say=print, options=()):
    """Validate, generate, autograde, write feedback and export: [(student, score, max_score)].

    submissions: {student: notebook text}; options: more words for `nbgrader autograde`.
    The source is validated first and the words of the result are read, because a kernel that
    lacks a package would give everybody 0 with exit code 0.
    """
    course = new_course(lab, submissions, folder)
    source = f"source/{lab.slug}/{lab.slug}.ipynb"
    _step(course, say, ["validate", source], must_say=VALID)
    _step(course, say, ["generate_assignment", lab.slug, "--create", "--force"])
    _step(course, say, ["autograde", lab.slug, "--create", *options])
    _step(course, say, ["generate_feedback", lab.slug])
    _step(course, say, ["export", "--to", "grades.csv"])
    return grades(course / "grades.csv")


def _step(course, say, arguments, must_say=""):
    code, output = command(course, *arguments)
    if code or must_say not in output:
        shown = " ".join(arguments)
        raise LabError(f"`nbgrader {shown}` failed (exit code {code}):\n{output[-3000:]}")
    say("nbgrader " + " ".join(arguments))


def grades(path):
    """The exported grades: [(student, score, max_score)], floats, in the file's order."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        return [(r["student_id"], float(r["score"]), float(r["max_score"])) for r in rows]
