"""Notebooks from plain text: `# %%` starts a code cell, `# %% [markdown]` a text cell.

A cell mark may be followed by the cell's metadata as JSON. Text lines start with `# `. Cell ids
come from the notebook's name and the cell's position, or the metadata's `"id"`, so that a rebuild
changes nothing. Only what the scaffold needs: no raw cells, no outputs.
"""

import json

import nbformat

from utils.course.notebook_run import KERNEL, LANGUAGE

MARK = "# %%"
TEXT = "[markdown]"


def notebook(text, name):
    """The notebook written in `text`; `name` starts every cell id."""
    blocks = ("\n" + text).split("\n" + MARK)[1:]
    width = max(2, len(str(len(blocks))))
    cells = [_cell(block, name, f"{n:0{width}d}") for n, block in enumerate(blocks, start=1)]
    info = {"kernelspec": dict(KERNEL), "language_info": dict(LANGUAGE)}
    result = nbformat.v4.new_notebook(cells=cells, metadata=info)
    nbformat.validate(result)
    return result


def _cell(block, name, number):
    head, _, body = block.partition("\n")
    is_text = TEXT in head
    metadata = json.loads(head.replace(TEXT, "").strip() or "{}")
    cell_id = f"{name}-{metadata.pop('id', number)}"
    source = _uncomment(body) if is_text else body
    make = nbformat.v4.new_markdown_cell if is_text else nbformat.v4.new_code_cell
    return make(source.strip("\n"), metadata=metadata, id=cell_id)


def _uncomment(body):
    return "\n".join(line[2:] if line.startswith("# ") else line[1:] for line in body.split("\n"))
