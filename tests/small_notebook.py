"""Small notebooks that tests write, run and break."""

import nbformat

from utils.course.bootstrap import bootstrap
from utils.course.notebook_run import cleaned


def new(*codes, tags=()):
    """A notebook with the course's first cell and these code cells."""
    cells = [nbformat.v4.new_code_cell(bootstrap(), id="a-00")]
    for number, code in enumerate(codes, 1):
        cell = nbformat.v4.new_code_cell(code, id=f"a-{number:02}")
        cell.metadata["tags"] = list(tags)
        cells.append(cell)
    return nbformat.v4.new_notebook(cells=cells)


def ran(notebook):
    """The notebook as if it had been run: the course's metadata, and cells counted."""
    cleaned(notebook)
    for number, cell in enumerate(notebook.cells, 1):
        cell.execution_count = number
    return notebook
