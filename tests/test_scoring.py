"""utils.scoring: ranking and writing, with a scripted model and a tiny one."""

import pytest
import torch

from utils import models, scoring, tasks
from utils.tasks import Item


class Bytes:
    """One token per byte; ids 0–255."""

    def __call__(self, text, **_):
        return {"input_ids": list(text.encode("utf-8"))}

    def decode(self, ids):
        return bytes(ids).decode("latin-1")


class Script:
    """A `follow` model: p(next | text so far) from a function text -> {byte: logit}."""

    def __init__(self, law):
        self.law, self.calls = law, 0

    def reset(self):
        pass

    def follow(self, ids, rows=1):
        self.calls += 1
        logits = torch.full((rows, 256), -30.0)
        for row in range(rows):
            for byte, value in self.law(ids[: len(ids) - rows + row + 1]).items():
                logits[row, ord(byte)] = value
        return logits


def prefers_b(ids):
    """After 'a' comes b (2/3) or c (1/3), then x for sure."""
    return {"b": 0.693, "c": 0.0} if ids[-1] == ord("a") else {"x": 5.0}


def test_ranked_asks_for_the_likelier_text_only():
    items = [Item("a", "b", ("c",)), Item("a", "c", ("b",)), Item("a", "bx", ("cx", "cy"))]
    assert scoring.ranked(Script(prefers_b), Bytes(), items).tolist() == [True, False, True]


def test_ranking_and_greedy_match_disagree():
    """Neither candidate is the first choice 'x', but one of them is likelier."""
    law = {"x": 2.0, "b": 1.0, "c": 0.0}
    item = Item("a", "b", ("c",))
    assert scoring.ranked(Script(lambda ids: law), Bytes(), [item]).tolist() == [True]
    right, texts = scoring.generated(scoring.greedy(Script(lambda ids: law)), Bytes(), [item], 1)
    assert right.tolist() == [False] and texts == ["x"]


def test_per_byte_helps_the_longer_candidate():
    """Four sure bytes against one of probability 1/2: nearly equal in all, cheaper per byte."""

    def law(ids):
        if ids[-1] == ord("a"):
            return {"l": -0.1, "s": 0.0}
        return {"l": 5.0}

    item = Item("a", "llll", ("s",))
    assert scoring.ranked(Script(law), Bytes(), [item]).tolist() == [False]
    assert scoring.ranked(Script(law), Bytes(), [item], per_byte=True).tolist() == [True]


def test_a_tie_is_no_success():
    item = Item("a", "b", ("c",))
    assert scoring.ranked(Script(lambda ids: {}), Bytes(), [item]).tolist() == [False]


def test_generated_stops_at_the_end_of_the_line():
    written = {"q": "yes \nno", "r": "yes indeed\n"}
    items = [Item("q", " yes"), Item("r", " yes")]
    right, texts = scoring.generated(
        lambda ids, count: list(written[chr(ids[0])].encode())[:count], Bytes(), items
    )
    assert right.tolist() == [True, False] and texts == ["yes", "yes indeed"]


@pytest.fixture(scope="module")
def tiny():
    return models.tiny()


def test_greedy_match_is_what_greedy_decoding_writes_first(tiny):
    """The theorem of the chapter: every token first choice <=> the decoded text begins with it."""
    generator = torch.Generator().manual_seed(0)
    write = scoring.greedy(tiny)
    seen = set()
    for n in range(24):
        ids = torch.randint(32, 126, (6,), generator=generator).tolist()
        new = write(ids, 3)
        if n % 2:
            new[n % 3] = (new[n % 3] + 1) % 256
        prompt, answer = (bytes(x).decode("latin-1") for x in (ids, new))
        item = Item(prompt, answer)
        score = tasks.score(tiny, Latin(), [item])
        assert score.correct.tolist() == [write(ids, 3) == new]
        seen.add(score.correct.item())
    assert seen == {True, False}


class Latin(Bytes):
    """Latin-1, so that every id has a text of its own."""

    def __call__(self, text, **_):
        return {"input_ids": list(text.encode("latin-1"))}


def test_ranked_equals_the_losses_of_score(tiny):
    items = [Item(f"abc {i}", f" {i}x", (f" {i}y", f" {i + 1}zz")) for i in range(5)]
    expected = []
    for item in items:
        rows = [Item(item.prompt, text) for text in (item.answer, *item.distractors)]
        score = tasks.score(tiny, Bytes(), rows)
        total = (score.nll * score.tokens).tolist()
        expected.append(total[0] < min(total[1:]))
    assert scoring.ranked(tiny, Bytes(), items).tolist() == expected


@pytest.mark.parametrize("items", [[], [Item("a", "b")]])
def test_ranking_needs_distractors(tiny, items):
    with pytest.raises(ValueError, match="distractors"):
        scoring.ranked(tiny, Bytes(), items)
