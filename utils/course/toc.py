"""Put a unit into `_toc.yml`: under the part that its number belongs to, in order.

Edits the text rather than dumping the parsed file, so that comments and layout stay; the result is
parsed and compared before it is given back. It knows this course's layout of the file, no other.
"""

import re

import yaml

PARTS = (
    (4, "Part I: What decoding costs"),
    (10, "Part II: Fewer bits"),
    (13, "Part III: Fewer weights"),
    (16, "Part IV: Fewer steps"),
    (20, "Part V: Together"),
)
PART = re.compile(r'^  - caption: "?(.*?)"?$')
CHAPTER = re.compile(r"^      - file: book/(\d\d)-")
CLOSING = re.compile(r"^      - file: book/results$")  # a page that ends its part
ENTRY = """\
      - file: book/{slug}
        sections:
          - file: notebooks/{slug}
            title: Notebook
"""


def caption(number):
    """The caption of the part that a unit's number belongs to."""
    for last, name in PARTS:
        if 1 <= number <= last:
            return name
    raise ValueError(f"unit {number:02d}: units are numbered 01 to {PARTS[-1][0]}")


def with_unit(text, slug):
    """The text of `_toc.yml` with the unit's chapter and notebook added. Raises ValueError."""
    number, entry = int(slug[:2]), ENTRY.format(slug=slug)
    lines = text.splitlines(keepends=True)
    part = caption(number)
    start = _find(lines, part)
    if start is None:
        position = _before_later_part(lines, number)
        entry = f'  - caption: "{part}"\n    chapters:\n{entry}'
    else:
        position = _within_part(lines, start, number)
    result = "".join([*lines[:position], entry, *lines[position:]])
    return _compared(text, result, slug)


def _find(lines, part):
    for index, line in enumerate(lines):
        found = PART.match(line.rstrip())
        if found and found.group(1) == part:
            return index
    return None


def _before_later_part(lines, number):
    """Before the first part of later units, else before the last part (about the course)."""
    later = [name for last, name in PARTS if last > number]
    found = [_find(lines, name) for name in later]
    places = [index for index in found if index is not None]
    captions = [index for index, line in enumerate(lines) if PART.match(line.rstrip())]
    return min([*places, *captions[-1:]], default=len(lines))


def _within_part(lines, start, number):
    """Before the part's first chapter with a larger number or its closing page, else at its end."""
    for index in range(start + 1, len(lines)):
        chapter = CHAPTER.match(lines[index])
        over = PART.match(lines[index].rstrip()) or CLOSING.match(lines[index].rstrip())
        if over or (chapter and int(chapter.group(1)) > number):
            return index
    return len(lines)


def _compared(before, after, slug):
    """`after`, when it holds everything of `before` and the two new files, each once."""
    try:
        old, new = _files(yaml.safe_load(before)), _files(yaml.safe_load(after))
    except yaml.YAMLError:
        old, new = [], []
    if sorted(new) != sorted([*old, f"book/{slug}", f"notebooks/{slug}"]):
        raise ValueError(f"can't add {slug} to _toc.yml: its layout is not the course's")
    return after


def _files(node):
    if isinstance(node, dict):
        here = [node["file"]] if "file" in node else []
        return here + [name for value in node.values() for name in _files(value)]
    return [name for item in node for name in _files(item)] if isinstance(node, list) else []
