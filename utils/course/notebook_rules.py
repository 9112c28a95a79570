"""What a committed notebook must look like: all cells run, no error, no trace of the machine.

`problems(notebook, path)` lists what is wrong, one line each. It reads the stored file only; it
runs nothing (`notebook_run.py` does) and compares no output (nbval does).
"""

import json
import re

from utils.course.bootstrap import ROOT, bootstrap
from utils.course.notebook_run import KERNEL, LANGUAGE

OUTPUT_LIMIT_BYTES = 1_000_000
COMPARED_TAG = "nbval-check-output"
MAY_PRINT = re.compile(
    r"models\.load\((?!.*original_order)|corpus\.(?:sample|text|documents)\("
    r"|\bEngine\(|contenders\.engine\("
)
MACHINE_PATHS = re.compile(
    r"(?<![\w.])(?:/home/|/root/|/Users/|/tmp/|/var/folders/|/opt/|/usr/lib/python)[\w.\-]+"
    r"|[A-Z]:\\\\?Users|site-packages/|dist-packages/"
)


def problems(notebook, path):
    """Everything wrong with a notebook whose outputs are stored, one line each."""
    name = f"{path.parent.name}/{path.name}"
    found = [f"{name}: {line}" for line in _whole(notebook)]
    for number, cell in enumerate(notebook.cells, 1):
        where = f"{name}, cell {number} ({cell.get('id', 'no id')})"
        found += [f"{where}: {line}" for line in _cell(cell)]
    return found


def code_cells(notebook):
    """The code cells that hold code."""
    return [c for c in notebook.cells if c.cell_type == "code" and c.source.strip()]


def compared_cells(notebook):
    """The cells whose output nbval compares."""
    return [c for c in code_cells(notebook) if COMPARED_TAG in c.metadata.get("tags", ())]


def first_cell_problem(notebook):
    """A line if the first code cell isn't the course's own, else None."""
    cells = code_cells(notebook)
    if cells and cells[0].source == bootstrap():
        return None
    return "the first code cell isn't the course's: python -m utils.course.notebooks sync"


def _whole(notebook):
    first = first_cell_problem(notebook)
    if first:
        yield first
    ids = [cell.get("id") for cell in notebook.cells]
    twice = sorted({i for i in ids if i and ids.count(i) > 1})
    if twice:
        yield f"cell ids used twice: {', '.join(twice)}"
    if notebook.metadata != {"kernelspec": KERNEL, "language_info": LANGUAGE}:
        yield "its metadata isn't the course's (make notebooks)"
    counts = [c.execution_count for c in code_cells(notebook)]
    if None not in counts and counts != list(range(1, len(counts) + 1)):
        yield "the cells were not run once each from top to bottom"


def _cell(cell):
    if not cell.get("id"):
        yield "has no id"
    if cell.cell_type != "code" or not cell.source.strip():
        return
    if cell.execution_count is None:
        yield "was not run (make notebooks)"
    if COMPARED_TAG in cell.metadata.get("tags", ()) and MAY_PRINT.search(cell.source):
        yield "is compared and may fetch or compile, which prints: do that in an earlier cell"
    for output in cell.outputs:
        yield from _output(output)
    size = len(json.dumps(cell.outputs))
    if size > OUTPUT_LIMIT_BYTES:
        yield f"its output takes {size / 1e6:.1f} MB; the limit is 1 MB"
    if any("image/png" in o.get("data", {}) for o in cell.outputs) and not alt_text(cell):
        yield "its figure has no alt text (cell metadata: mystnb: image: alt)"


def alt_text(cell):
    """The alt text of the figure that the cell draws, or ''."""
    return cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "").strip()


def _output(output):
    if output.output_type == "error":
        yield f"stores an error: {output.ename}: {output.evalue}"
    if output.output_type == "stream" and output.name == "stderr":
        yield f"writes to stderr: {output.text.strip()[:80]!r}"
    text = _text(output)
    if str(ROOT) in text:
        yield "its output names the folder of this checkout"
    elif match := MACHINE_PATHS.search(text):
        yield f"its output names a path of the machine: {match.group(0)}"


def _text(output):
    if output.output_type == "stream":
        return output.text
    data = output.get("data", {})
    return "\n".join(str(v) for k, v in data.items() if k.startswith(("text/", "application/json")))
