"""The prompts for timing: how many, of which kind, how long; and what a broken file says."""

import re

import pytest
import yaml

from utils import prompts

COUNTS = {"copying": 10, "summarising": 10, "editing": 10, "chat": 24}
PUNCTUATION = set(" \n.,;:!?'\"()-")


def content():
    return yaml.safe_load(prompts.DATA.read_text(encoding="utf-8"))


def test_counts_and_order():
    everything = prompts.load()
    assert {kind: len(prompts.load(kind)) for kind in prompts.KINDS} == COUNTS
    assert everything == [p for kind in prompts.KINDS for p in prompts.load(kind)]


def test_names_and_texts_are_unique():
    everything = prompts.load()
    for field in ("name", "text"):
        assert len({getattr(p, field) for p in everything}) == len(everything), field


def test_grounded_prompts_end_with_their_passage_and_chat_has_none():
    for p in prompts.load():
        if p.kind == "chat":
            assert p.passage is None
        else:
            assert p.text.endswith(f"\n\n{p.passage}")


@pytest.mark.parametrize(
    "kind, low, high", [("copying", 80, 150), ("summarising", 80, 150), ("editing", 80, 140)]
)
def test_passages_are_long_enough_for_96_tokens(kind, low, high):
    lengths = {p.name: len(p.passage.split()) for p in prompts.load(kind)}
    assert all(low <= n <= high for n in lengths.values()), lengths


def test_characters_are_plain():
    for p in prompts.load():
        odd = {c for c in p.text if not (c.isascii() and c.isalnum()) and c not in PUNCTUATION}
        assert not odd, (p.name, odd)


def test_what_is_to_be_edited_occurs_in_the_passage():
    """The old value that each instruction wants changed."""
    old = {
        "glass-works-year": "1931",
        "name-change": "Gregor",
        "spelling-market": "chese",
        "color-of-door": "red door",
        "meeting-time": "5:00",
        "station-dog": "Admiral",
        "grammar-letter": "holders is",
        "trail-swap": "the northern trail",
        "price-list": "24",
        "city-swap": "Valencia",
    }
    assert {p.name for p in prompts.load("editing")} == set(old)
    for p in prompts.load("editing"):
        assert old[p.name] in p.passage, p.name


def test_no_two_passages_share_a_run_of_eight_words():
    seen = {}
    for p in prompts.load():
        words = re.findall(r"\w+", (p.passage or "").lower())
        for run in zip(*(words[i:] for i in range(8)), strict=False):
            assert seen.setdefault(run, p.name) == p.name, (run, p.name)


def test_an_unknown_kind_says_which_there_are():
    with pytest.raises(ValueError, match="copying, summarising, editing, chat"):
        prompts.load("poem")


def without_passage(c):
    del c["editing"][3]["passage"]


def with_typo(c):
    c["chat"][0]["passages"] = "x"


def without_kind(c):
    del c["copying"]


def with_bad_name(c):
    c["chat"][1]["name"] = "Two words"


def with_repeated_name(c):
    c["chat"][1]["name"] = c["copying"][0]["name"]


def with_empty_ask(c):
    c["chat"][2]["ask"] = ""


BROKEN = {
    without_passage: "editing/3.*passage",
    with_typo: "chat/0.*passages",
    without_kind: "copying",
    with_bad_name: "chat/1/name",
    with_repeated_name: "used twice: lighthouse-log",
    with_empty_ask: "chat/2/ask",
}


@pytest.mark.parametrize("breaks", BROKEN)
def test_a_broken_file_names_the_place(tmp_path, breaks):
    broken = content()
    breaks(broken)
    path = tmp_path / "prompts.yaml"
    path.write_text(yaml.safe_dump(broken), encoding="utf-8")
    with pytest.raises(ValueError, match=BROKEN[breaks]):
        prompts.load(path=path)


def test_a_tokenizer_without_chat_template_is_refused():
    class Plain:
        chat_template = None

    with pytest.raises(ValueError, match="instruct"):
        prompts.ids(prompts.load("chat")[0], Plain())


@pytest.mark.slow
def test_ids_are_one_chat_turn_of_at_most_400_tokens():
    from utils import models

    tokenizer = models.load().tokenizer
    for p in prompts.load():
        ids = prompts.ids(p, tokenizer)
        assert len(ids) <= 400, p.name
        text = tokenizer.decode(ids)
        assert f"<|im_start|>user\n{p.text}<|im_end|>" in text
        assert text.endswith("<|im_start|>assistant\n")
