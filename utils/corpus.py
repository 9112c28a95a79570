"""Calibration and evaluation text: two sources, cut into documents, never shared by the splits.

"botchan": a novel (Natsume, *Botchan*, Project Gutenberg #8868, public domain).
"django": technical documentation (Django, BSD-3-Clause).
Both come from registry packages at pinned versions (`fetch.py`), so the windows are the same
tokens everywhere. A perplexity depends on the text: print `Sample.recipe` beside the number.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from utils import fetch

SOURCES = ("botchan", "django")
SPLITS = ("calibration", "evaluation")
CALIBRATION_CHAPTERS = 6  # of 11; the evaluation has the rest
SHORTEST_DOCUMENT = 6_000  # characters; shorter documentation pages are mostly link lists


@dataclass(frozen=True)
class Sample:
    """ids: int64 [windows, context].  recipe: where they come from, to print with a result."""

    ids: torch.Tensor
    recipe: str


def text(source):
    """The whole text of a source."""
    return "\n".join(_documents(source).values())


def documents(source, split):
    """{name: text} of a split. Botchan: chapters 1–6 and 7–11. Django: every other page."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: use one of {', '.join(SPLITS)}")
    pages = list(_documents(source).items())
    evaluation = split == "evaluation"
    if source == "botchan":
        cut = CALIBRATION_CHAPTERS
        return dict(pages[cut:] if evaluation else pages[:cut])
    return dict(pages[evaluation::2])


def sample(tokenizer, split, tokens=2048, context=512, seed=0, sources=SOURCES):
    """Windows of consecutive tokens, the same number from each source, in alternating order.

    tokens: at least so many in all, rounded up to whole windows per source.
    context: length of a window. No BOS is added and no window crosses a document's end.
    Raises ValueError when the split hasn't that many windows.
    """
    if tokens < 1 or context < 2:
        raise ValueError(f"tokens={tokens}, context={context}: ask for at least one window of two")
    each = -(-tokens // (context * len(sources)))
    generator = np.random.Generator(np.random.PCG64(seed))
    parts = [_windows(tokenizer, s, split, each, context, generator) for s in sources]
    ids = torch.stack([window for windows in zip(*parts, strict=True) for window in windows])
    recipe = (
        f"{split}: {ids.numel():,} tokens, {len(ids)} windows of {context} without BOS, half each "
        f"from {' and '.join(_label(s, split) for s in sources)}; seed {seed}"
        if len(sources) > 1
        else f"{split}: {ids.numel():,} tokens, {len(ids)} windows of {context} without BOS, "
        f"from {_label(sources[0], split)}; seed {seed}"
    )
    return Sample(ids, recipe)


def _windows(tokenizer, source, split, count, context, generator):
    """The first window of each document in random order, then the second ones, and so on."""
    pages = list(documents(source, split).values())
    order = generator.permutation(len(pages))
    found, turn = [], 0
    while len(found) < count:
        before = len(found)
        for index in order:
            ids = _tokenize(tokenizer, pages[index])[turn * context : (turn + 1) * context]
            if len(ids) == context:
                found.append(torch.tensor(ids))
            if len(found) == count:
                return found
        if len(found) == before:
            raise ValueError(
                f"{source}/{split} has only {before} windows of {context} tokens, not {count}: "
                "ask for fewer tokens or a shorter context"
            )
        turn += 1
    return found


@lru_cache(maxsize=512)
def _tokenize(tokenizer, page):
    return tuple(tokenizer(page, add_special_tokens=False, verbose=False)["input_ids"])


def _label(source, split):
    package = fetch.PACKAGES[source]
    if source == "botchan":
        chapters = "7–11" if split == "evaluation" else "1–6"
        return f"Botchan chapters {chapters} ({package.name} {package.version})"
    parity = "odd" if split == "evaluation" else "even"
    return f"{package.name} {package.version} documentation ({parity} pages)"


@lru_cache
def _documents(source):
    if source == "botchan":
        return _botchan()
    if source == "django":
        return _django()
    raise ValueError(f"unknown source {source!r}: use one of {', '.join(SOURCES)}")


def _botchan():
    """The chapters alone: no headings, no Project Gutenberg header, footer or list of errata."""
    book = fetch.read("botchan", "test/botchan.txt").decode("utf-8-sig").replace("\r\n", "\n")
    book = book[: book.index("--(THE END)--")]
    pieces = re.split(r"^CHAPTER ([IVX]+)\.?\n", book, flags=re.MULTILINE)[1:]
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


def _django():
    pages = fetch.members("django", _is_page)
    decoded = {name: page.decode("utf-8") for name, page in pages.items()}
    return {name: page for name, page in decoded.items() if len(page) >= SHORTEST_DOCUMENT}


def _is_page(name):
    return re.fullmatch(r"docs/(intro|topics|howto|ref|faq|internals)/.*\.txt", name) is not None
