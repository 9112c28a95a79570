"""The guide quotes the units as they are, names commands that exist, and the scaffold obeys it."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "book/contributing.md").read_text(encoding="utf-8")
TEACHER = (ROOT / "book/instructors.md").read_text(encoding="utf-8")
BLOCK = re.compile(
    r"^% from: (\S+)\n(?:```\w+|:::[^\n]*\n:class: [^\n]*)\n(.*?)\n(?:```|:::)$", re.M | re.S
)
QUOTES = BLOCK.findall(GUIDE + "\n" + TEACHER)
ROLE = re.compile(r"(?:\{derived\})?`([^`]*)`")


def _text(path):
    """A file's text; of a notebook the text of its cells."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if not path.endswith(".ipynb"):
        return text
    return "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])


def _flat(text):
    """The words alone: line breaks and marks of code and derived numbers are the page's own."""
    return " ".join(ROLE.sub(r"\1", text).split())


@pytest.mark.parametrize(("path", "quote"), QUOTES, ids=lambda value: value[:40])
def test_a_quotation_is_what_the_file_says(path, quote):
    assert _flat(quote) in _flat(_text(path))


def test_there_are_quotations_from_all_three_units():
    named = " ".join(path for path, _ in QUOTES)
    assert len(QUOTES) == (GUIDE + TEACHER).count("% from: ")
    assert all(slug in named for slug in ("06-rounding", "11-weight", "14-exact"))


@pytest.mark.parametrize("text", [GUIDE, TEACHER], ids=["guide", "teacher"])
def test_commands_exist(text):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.M))
    assert set(re.findall(r"(?:`|^)make ([a-z][\w-]*)", text, re.M)) - {"bench"} <= targets
    for module in re.findall(r"python -m (utils[\w.]*)", text):
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists(), module
