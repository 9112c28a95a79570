"""Run a notebook on this machine and clean what it stores, so that two runs differ only in results.

What it does not do: compare outputs (nbval does) or judge them (`notebook_rules.py`).
"""

import copy
import os
import time

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from utils import cache

CELL_TIMEOUT_S = 180
KEPT_CELL_METADATA = ("tags", "mystnb", "nbgrader", "editable", "deletable")
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
}


class NotebookFailed(Exception):
    """A cell failed: the message names the notebook, the cell and the error."""


def execute(notebook, path, on_cell=lambda: None, timeout_s=CELL_TIMEOUT_S):
    """A copy of `notebook`, run in the folder of `path`; raises NotebookFailed at the first error.

    `on_cell()` is called after each code cell.
    """
    os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")
    fresh = without_outputs(notebook)
    client = NotebookClient(
        fresh,
        timeout=timeout_s,
        kernel_name=KERNEL["name"],
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_executed=lambda **event: on_cell(),
    )
    try:
        client.execute()
    except CellTimeoutError:
        raise NotebookFailed(f"{_where(fresh, path)}: took more than {timeout_s} s") from None
    except DeadKernelError:
        raise NotebookFailed(
            f"{_where(fresh, path)}: the kernel died; most often the memory was used up"
        ) from None
    except AssertionError:  # nbclient 0.11 trips over its own clean-up after Ctrl-C
        if client.km is not None:
            raise
        raise NotebookFailed(f"{_where(fresh, path)}: stopped") from None
    except CellExecutionError as error:
        line = f"{error.ename}: {error.evalue}".rstrip(": ")
        raise NotebookFailed(f"{_where(fresh, path)}: {line}") from None
    return cleaned(fresh)


def without_outputs(notebook):
    """A copy of the notebook with no outputs and no execution counts."""
    fresh = copy.deepcopy(notebook)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return fresh


def _where(notebook, path):
    """`notebooks/NAME.ipynb, cell 7 (its-id)`: the cell that ran last."""
    cells = [(i, c) for i, c in enumerate(notebook.cells, 1) if c.cell_type == "code"]
    started = [(i, c) for i, c in cells if c.execution_count or c.outputs or _timed(c)]
    index, cell = (started or cells)[-1]
    return f"{path.parent.name}/{path.name}, cell {index} ({cell.get('id', 'no id')})"


def _timed(cell):
    return "execution" in cell.metadata


def cleaned(notebook):
    """The notebook without volatile metadata; cell ids, execution counts and outputs stay."""
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": LANGUAGE})
    for cell in notebook.cells:
        kept = {key: cell.metadata[key] for key in KEPT_CELL_METADATA if key in cell.metadata}
        cell.metadata = nbformat.from_dict(kept)
    return notebook


def read(path):
    """The notebook at `path`; a broken file raises NotebookFailed with its name."""
    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:
        raise NotebookFailed(f"{path} can't be read as a notebook: {error}") from None


def write(notebook, path):
    """Write the notebook under a temporary name, then rename it."""
    nbformat.validate(notebook)
    with cache.write_atomically(path) as scratch:
        nbformat.write(notebook, scratch)


class Progress:
    """Lines such as `06-rounding 12/40 cells, 31 s, about 2 min left` over all notebooks."""

    def __init__(self, cells, clock=time.monotonic, say=print, every_s=10.0):
        self.cells, self.done, self.clock, self.say = cells, 0, clock, say
        self.started = self.last = clock()
        self.every_s = every_s

    def cell(self, name):
        """One more cell has run; prints a line at most every `every_s` seconds."""
        self.done += 1
        now = self.clock()
        if now - self.last >= self.every_s:
            self.last = now
            self.say(f"  {name}: {self.line()}", flush=True)

    def line(self):
        """How far it is, the seconds so far, and the time left if the rest goes as fast."""
        spent = self.clock() - self.started
        left = spent / max(self.done, 1) * (self.cells - self.done)
        return f"{self.done} of {self.cells} cells, {spent:.0f} s, about {_span(left)} left"


def _span(seconds):
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
