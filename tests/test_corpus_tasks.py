"""utils.corpus and utils.tasks on the real texts, with a toy tokenizer and a scripted model."""

from types import SimpleNamespace

import pytest
import torch

from utils import corpus, tasks


class Bytes:
    """One token per byte; ids 0–255."""

    def __call__(self, text, **_):
        return {"input_ids": list(text.encode("utf-8", errors="replace"))}


@pytest.fixture(scope="module")
def tokenizer():
    return Bytes()


def test_the_texts_are_the_pinned_ones():
    assert len(corpus.text("botchan")) == 247_873
    chapters = corpus.documents("botchan", "calibration")
    assert list(chapters) == ["I", "II", "III", "IV", "V", "VI"]
    assert not any("Gutenberg" in chapter for chapter in chapters.values())
    assert len(corpus.documents("django", "evaluation")) == 88


@pytest.mark.parametrize("source", corpus.SOURCES)
def test_calibration_and_evaluation_share_no_document_and_no_long_line(source):
    one, two = (corpus.documents(source, split) for split in corpus.SPLITS)
    assert one and two and not set(one) & set(two)
    lines, others = (
        {x for page in part.values() for x in page.splitlines() if len(x) > 60}
        for part in (one, two)
    )
    shared = len(lines & others) / len(lines)
    assert shared <= 0.01  # the manual repeats some boilerplate and import lines, 0.5 % of all


def test_a_sample_is_reproducible_balanced_and_documented(tokenizer):
    one, two, other = (corpus.sample(tokenizer, "evaluation", 512, 64, seed) for seed in (0, 0, 1))
    assert one.ids.shape == (8, 64) and one.ids.dtype == torch.int64
    assert torch.equal(one.ids, two.ids) and not torch.equal(one.ids, other.ids)
    novel = corpus.text("botchan")
    found = [bytes(row.tolist()).decode("utf-8", "ignore") in novel for row in one.ids]
    assert found == [True, False] * 4
    for part in ("evaluation", "512 tokens", "8 windows of 64", "Botchan chapters 7–11", "seed 0"):
        assert part in one.recipe


def test_windows_do_not_repeat(tokenizer):
    ids = corpus.sample(tokenizer, "calibration", 4096, 128).ids
    assert len({tuple(row.tolist()) for row in ids}) == len(ids) == 32


def test_tokens_are_rounded_up_to_whole_windows(tokenizer):
    assert corpus.sample(tokenizer, "evaluation", 100, 64).ids.shape == (2, 64)
    assert corpus.sample(tokenizer, "evaluation", 65, 64, sources=("botchan",)).ids.shape == (2, 64)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"split": "test"}, "calibration, evaluation"),
        ({"split": "evaluation", "sources": ("wiki",)}, "botchan, django"),
        ({"split": "evaluation", "tokens": 0}, "at least one"),
        ({"split": "evaluation", "tokens": 10**8, "context": 10**5}, "fewer tokens"),
    ],
)
def test_bad_requests_name_what_is_possible(tokenizer, options, message):
    with pytest.raises(ValueError, match=message):
        corpus.sample(tokenizer, **options)


def test_cloze_items_come_from_the_evaluation_chapters_only():
    items = tasks.cloze()
    held_out = " ".join(" ".join(corpus.documents("botchan", "evaluation").values()).split())
    assert len(items) >= 375
    assert all(item.answer.strip().isalpha() and item.answer[0] == " " for item in items)
    assert all(item.prompt + item.answer in held_out for item in items)


def test_entity_items_have_one_right_answer_and_real_distractors():
    items = tasks.entities(200)
    assert len(items) == 200 and len({item.prompt for item in items}) == 200
    first_wins = 0
    for item in items:
        record, question = item.prompt.rsplit("\n\n", 1)[-1].rsplit("\nCurrent ", 1)
        lines = record.splitlines()[1:]
        field, name = question.removesuffix(":").split(" of ")
        line = next(x for x in lines if x.startswith(f"- {name}:"))
        assert line.endswith(item.answer) and record.count("(cancelled)") == 1
        first_wins += lines[0].endswith(item.answer)
    assert 60 < first_wins < 140  # always taking the first record is a coin toss


def test_entities_are_reproducible():
    assert tasks.entities(5, seed=1) == tasks.entities(5, seed=1) != tasks.entities(5, seed=2)


def test_humaneval_is_complete():
    items = tasks.humaneval()
    assert len(items) == 164 and "has_close_elements" in items[0].prompt
    assert items[0].answer.startswith("    for idx")


class NextByte(torch.nn.Module):
    """Predicts the byte after the current one ('a' → 'b') and ignores padding."""

    def __init__(self):
        super().__init__()
        self.parameter = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids, attention_mask, logits_to_keep):
        logits = torch.nn.functional.one_hot((input_ids + 1) % 256, 256).float() * 20
        return SimpleNamespace(logits=logits[:, -logits_to_keep:])


def test_score_reads_the_right_positions(tokenizer):
    items = [tasks.Item("xyz a", "bcd"), tasks.Item("a", "bd"), tasks.Item("long prompt a", "b")]
    for batch in (1, 2, 3):
        score = tasks.score(NextByte(), tokenizer, items, batch=batch)
        assert score.correct.tolist() == [True, False, True]
        assert score.nll[0] < 1e-3 and score.nll[1] == pytest.approx(10, abs=0.01)
    assert score.accuracy == pytest.approx(2 / 3)
    assert score.standard_error == pytest.approx((2 / 9 / 3) ** 0.5)
    assert str(score) == "66.7% ± 27.2% (n=3)"


@pytest.mark.parametrize("items", [[], [tasks.Item("a", "")], [tasks.Item("", "b")]])
def test_nothing_to_score_is_refused(tokenizer, items):
    with pytest.raises(ValueError, match="item"):
        tasks.score(NextByte(), tokenizer, items)


def test_entity_items_name_their_distractors():
    """Both wrong values stand in the item's own record, and neither is the answer."""
    for item in tasks.entities(50):
        record = item.prompt.rsplit("\n\n", 1)[-1]
        assert len(set(item.distractors)) == 2 and item.answer not in item.distractors
        assert all(wrong.strip() in record for wrong in item.distractors)


def test_score_counts_the_answers_tokens(tokenizer):
    items = [tasks.Item("xyz a", "bcd"), tasks.Item("a", "b")]
    assert tasks.score(NextByte(), tokenizer, items).tokens.tolist() == [3, 1]
