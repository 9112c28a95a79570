"""All checks of the course, stage by stage, with times and a summary of what did not run.

    python -m utils.course.suite            everything (`make test`)
    python -m utils.course.suite --quick    style, quick tests, structure (`make check`)
    python -m utils.course.suite --only NAME [NAME ...]

Every stage runs even if an earlier one failed. A check that can't run here is skipped by its test
with a reason; the summary lists it as not run and does not count it as passed. Two processes with
one thread each share the work: stored outputs were made with two threads, so comparing them is also
the check that results don't depend on the number of threads.
"""

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field

from utils.course.bootstrap import ROOT
from utils.course.notebook_run import CELL_TIMEOUT_S

REPORTS = ROOT / "_build" / "tests"
PYTEST = ["-m", "pytest", "-q", "-n", "2", "--dist", "loadscope"]
NO_KERNEL = "Kernel died before replying to kernel_info"  # said by jupyter_client
NBVAL = ["--nbval-lax", "--nbval-current-env", f"--nbval-cell-timeout={CELL_TIMEOUT_S}"]


@dataclass(frozen=True)
class Stage:
    """A heading and the Python commands under it; `report` names the pytest commands' counts."""

    name: str
    commands: tuple[list[str], ...]
    quick: bool = False


@dataclass
class Result:
    """What a stage did: seconds, exit statuses, counts and the checks that did not run."""

    name: str
    seconds: float = 0.0
    failed_commands: list[str] = field(default_factory=list)
    passed: int = 0
    failed: int = 0
    skipped: list[str] = field(default_factory=list)


MACHINERY = ("test_labs", "test_lab_grading", "test_lab_rules", "test_new_unit", "test_mutations")
MACHINERY = tuple(f"tests/{name}.py" for name in MACHINERY)


def _pytest(marker, *more):
    return [*PYTEST, "-m", marker, *more]


STAGES = (
    Stage("style", (["-m", "ruff", "check", "."],), quick=True),
    Stage("structure", (["-m", "utils.course.notebooks", "check"],), quick=True),
    Stage("quick tests", (_pytest("not slow and not book and not browser"),), quick=True),
    Stage("notebooks", ([*PYTEST, *NBVAL, "notebooks"],)),
    Stage("slow tests", (_pytest("slow", *(f"--ignore={name}" for name in MACHINERY)),)),
    Stage("labs and mutations", (_pytest("slow", *MACHINERY),)),
    Stage("book", (["-m", "utils.course.site", "html"], _pytest("book"))),
    Stage("browser", (["-m", "pytest", "-q", "-m", "browser"],)),
)


def environment(environ=os.environ):
    """One thread for each process, no hub, and scratch files under `_build`."""
    fixed = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**environ, **fixed, **offline, "PYTHONPATH": str(ROOT), "JUPYTER_PREFER_ENV_PATH": "1"}


def run_stage(stage, say=print):
    """Run a stage's commands and gather what they report."""
    say(f"\n=== {stage.name} {'=' * (60 - len(stage.name))}", flush=True)
    result, started = Result(stage.name), time.monotonic()
    for number, command in enumerate(stage.commands):
        report = REPORTS / f"{stage.name.replace(' ', '-')}-{number}.xml"
        report.unlink(missing_ok=True)
        is_pytest = command[:2] == ["-m", "pytest"]
        extra = [f"--junitxml={report}"] if is_pytest else []
        done = _run([*command, *extra])
        if done.returncode and _kernel_missed_its_start(report):
            say("\na notebook's kernel died while it started: the stage runs once more", flush=True)
            done = _run([*command, *extra])
        nothing_selected = is_pytest and done.returncode == 5
        if done.returncode and not nothing_selected:
            result.failed_commands.append("python " + " ".join(command))
        _count(result, report, ok=done.returncode == 0)
    result.seconds = time.monotonic() - started
    return result


def _run(command):
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment())


def _kernel_missed_its_start(report):
    """True if a kernel died before its first cell: two that start at once can want one port."""
    return report.exists() and NO_KERNEL in report.read_text(encoding="utf-8")


def _count(result, report, ok):
    """Add a pytest report's counts; a command without one counts as one check."""
    if not report.exists():
        result.passed += ok
        result.failed += not ok
        return
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is not None:
            result.skipped.append(f"{case.get('name')}: {skipped.get('message', '')}")
        elif case.find("failure") is not None or case.find("error") is not None:
            result.failed += 1
        else:
            result.passed += 1


def summary(results):
    """The closing table, what did not run and why, and the line with the counts."""
    lines = ["", f"=== summary {'=' * 53}"]
    for r in results:
        state = "FAILED" if r.failed_commands else "ok"
        counts = f"{r.passed:5} passed  {r.failed:3} failed"
        lines.append(f"{r.name:20} {r.seconds:6.0f} s  {counts}  {state}")
    skipped = [line for r in results for line in r.skipped]
    if skipped:
        lines += ["", "Did not run (not counted as passed):", *(f"  {line}" for line in skipped)]
    for r in results:
        lines += [f"failed: {command}" for command in r.failed_commands]
    total = sum(r.seconds for r in results)
    counts = sum(r.passed for r in results), sum(r.failed for r in results), len(skipped)
    lines += ["", f"{total / 60:.1f} minutes", "{} passed, {} failed, {} skipped".format(*counts)]
    return "\n".join(lines)


def main(argv=None):
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m utils.course.suite")
    parser.add_argument("--quick", action="store_true", help="the stages of `make check`")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[s.name for s in STAGES])
    arguments = parser.parse_args(argv)
    chosen = [s for s in STAGES if not arguments.only or s.name in arguments.only]
    if arguments.quick:
        chosen = [s for s in chosen if s.quick]
    REPORTS.mkdir(parents=True, exist_ok=True)
    results = [run_stage(stage) for stage in chosen]
    print(summary(results), flush=True)
    return 1 if any(r.failed_commands for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
