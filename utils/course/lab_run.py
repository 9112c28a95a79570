"""Run a lab's code cells in this process, each on its own and within a time limit.

Much quicker than a kernel per run, so that a lab can be tried blank, solved and with every planted
bug within seconds. Not a sandbox: cells run with your rights, as nbgrader's do. The limit
interrupts Python code; it cannot stop a single call into C that never returns. Where the platform
has no interval timer (Windows), cells run without a limit.
"""

import contextlib
import io
import linecache
import os
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from dataclasses import dataclass

from utils.course.lab_files import HIDDEN, Cell, region

LIMIT_S = 20.0


class CellTimeout(BaseException):
    """A cell ran past its limit; not an Exception, so that a cell's own handler lets it through."""


@dataclass(frozen=True)
class Outcome:
    """What one cell did. `error` is '' for a cell that passed; `hidden`: a hidden test failed."""

    cell: Cell
    error: str
    message: str
    hidden: bool
    seconds: float

    @property
    def passed(self):
        """True when the cell raised nothing."""
        return not self.error


@dataclass(frozen=True)
class Run:
    """All outcomes of one run, and what the cells wrote to stderr."""

    outcomes: tuple
    stderr: str

    @property
    def seconds(self):
        """The whole run's duration."""
        return sum(outcome.seconds for outcome in self.outcomes)

    def failed(self):
        """The graded code cells that failed."""
        return [one for one in self.outcomes if one.cell.graded_code and not one.passed]

    def errors(self):
        """Every cell that failed, graded or not."""
        return [one for one in self.outcomes if not one.passed]


def run(cells, folder, limit_s=LIMIT_S):
    """Run the code cells in one fresh namespace.

    cells: `Cell`s; those that are not code are skipped. folder: the working directory, created when
    missing. limit_s: seconds per cell. Returns a `Run`; an error in a cell never leaves this call.
    """
    folder.mkdir(parents=True, exist_ok=True)
    namespace = {"__name__": "__main__"}
    stderr = io.StringIO()
    with _isolated(folder), contextlib.redirect_stderr(stderr):
        outcomes = [_run_cell(cell, namespace, limit_s) for cell in cells if cell.kind == "code"]
    return Run(tuple(outcomes), stderr.getvalue())


def _run_cell(cell, namespace, limit_s):
    name = f"<cell {cell.position} {cell.grade_id}>"
    linecache.cache[name] = (len(cell.source), None, cell.source.splitlines(True), name)
    error, message, hidden = "", "", False
    start = time.perf_counter()
    try:
        with contextlib.redirect_stdout(io.StringIO()), _limit(limit_s):
            exec(compile(cell.source, name, "exec"), namespace)
    except KeyboardInterrupt:
        raise
    except BaseException as caught:  # a cell may raise anything, SystemExit included
        error, message = type(caught).__name__, str(caught)
        hidden = _line(caught, name) in region(cell.source, HIDDEN)
    return Outcome(cell, error, message, hidden, time.perf_counter() - start)


def _line(error, name):
    """The line of the cell `name` at which the error surfaced; 0 when it isn't in the cell."""
    frames = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == name]
    return frames[0] if frames else 0


@contextlib.contextmanager
def _limit(seconds):
    if not _has_timer():
        yield
        return

    def expire(signum, frame):
        raise CellTimeout(f"no end within {seconds:g} s: an infinite loop?")

    before = signal.signal(signal.SIGALRM, expire)
    # repeats every second, should a bare `except:` in the cell swallow the first one
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _has_timer():
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def _isolated(folder):
    """Put back what cells commonly change: path, folder, warnings, random state, torch's modes."""
    path, here, state = list(sys.path), os.getcwd(), random.getstate()
    environment = dict(os.environ)
    os.environ["MPLBACKEND"] = "agg"
    os.chdir(folder)
    try:
        with warnings.catch_warnings(), _torch_modes():
            # plt.show() has no screen to show on: expected here
            warnings.filterwarnings("ignore", message=".*non-interactive.*")
            yield
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path
        random.setstate(state)
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")


@contextlib.contextmanager
def _torch_modes():
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
