"""Prompts for the drafter: thousands made from templates and passages, 24 + 24 held out.

Does: combines word lists (utils/data/drafter/prompts.yaml) and passages of the fetched calibration
text into questions, instructions, code tasks, tales, summaries and rewriting tasks.
Does not: promise that all are sensible ("Compare soap and democracy"). A drafter learns how its
target answers, whatever it is asked.

Held out are two sets: "validation" chooses settings and checkpoints, "test" (the chat prompts of
utils/prompts.py, written for another purpose) is measured once. `resemblance` says how near a
training prompt comes to one of them.
"""

import random
import re
from functools import lru_cache
from pathlib import Path

import yaml

from utils import corpus
from utils import prompts as timing_prompts

DATA = Path(__file__).parents[2] / "data" / "drafter" / "prompts.yaml"
KINDS = {  # name: share
    "topic": 0.40, "tale": 0.11, "problem": 0.10, "everyday": 0.13, "code": 0.11,
    "news": 0.06, "corpus": 0.06, "sentence": 0.03,
}  # fmt: skip
LONGEST_PASSAGE = 420  # characters


@lru_cache
def lists(path=DATA):
    """{name: list of str} of the word lists and templates."""
    content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    return {name: _split(value) for name, value in content.items()}


def _split(value):
    return [part.strip() for part in value.split("|")] if isinstance(value, str) else value


def training(count, seed=0, passages=None):
    """`count` different prompts; the first n of a larger count are those of n.

    passages: texts to quote; default: paragraphs of the calibration split of `corpus`.
    """
    passages = corpus_passages() if passages is None else passages
    dice, seen, found = random.Random(seed), set(), []
    while len(found) < count:
        text = _one(dice, passages)
        if text not in seen and _apart(text):
            found.append(text)
        seen.add(text)
    return found


def held_out(name):
    """The prompts of "validation" or "test"."""
    if name == "validation":
        return list(lists()["validation"])
    if name == "test":
        return [prompt.text for prompt in timing_prompts.load("chat")]
    raise ValueError(f"held_out({name!r}): use 'validation' or 'test'")


def resemblance(text, other):
    """Shared words over all words of the two texts (Jaccard), words of 4 letters or more."""
    a, b = words(text), words(other)
    return len(a & b) / max(1, len(a | b))


@lru_cache(maxsize=100_000)
def words(text):
    """The set of words of at least four letters, in lower case."""
    return frozenset(re.findall(r"[a-z]{4,}", text.lower()))


@lru_cache
def corpus_passages():
    """Paragraphs of the calibration text that fit into a prompt."""
    pages = [p for s in corpus.SOURCES for p in corpus.documents(s, "calibration").values()]
    blocks = [" ".join(b.split()) for page in pages for b in re.split(r"\n\s*\n", page)]
    prose = re.compile(r"^[A-Z].*[.!?]$")
    return sorted({b for b in blocks if 150 < len(b) < LONGEST_PASSAGE and prose.match(b)})


def _apart(text):
    """True unless a held-out prompt shares half of its words."""
    return all(resemblance(text, other) < 0.5 for other in _all_held_out())


@lru_cache
def _all_held_out():
    return tuple(held_out("validation") + held_out("test"))


def _one(dice, passages):
    kind = dice.choices(list(KINDS), KINDS.values())[0]
    return _MAKERS[kind](dice, lists(), passages)


def _topic(dice, w, _):
    t, u = dice.sample(w["topics"], 2)
    return dice.choice(w["by_topic"]).format(t=t, u=u)


def _tale(dice, w, _):
    return dice.choice(w["tales"]).format(c=dice.choice(w["characters"]), d=dice.choice(w["deeds"]))


def _problem(dice, w, _):
    return f"{dice.choice(w['problems'])}. {dice.choice(w['asks'])}"


def _everyday(dice, w, _):
    return dice.choice(w["everyday"]).format(
        f=dice.choice(w["foods"]), l=dice.choice(w["lands"]), b=dice.choice(w["things"]),
        w=dice.choice(w["jobs"]), n=dice.choice(w["people"]), m=dice.choice(w["months"]),
        a=dice.randint(11, 99), i=dice.randint(2, 60), j=dice.randint(3, 10),
    )  # fmt: skip


def _code(dice, w, _):
    if dice.random() < 0.1:
        return dice.choice(w["programming"])
    return dice.choice(w["code"]).format(x=dice.choice(w["tasks"]))


def _news(dice, w, _):
    place = dice.choice(w["places"])
    lines = [f"{place[0].upper()}{place[1:]} {dice.choice(w['events'])} last week."]
    for detail in dice.sample(w["details"], dice.randint(3, 5)):
        name = f"{dice.choice(w['people'])} {dice.choice(w['surnames'])}"
        lines.append(detail.format(n=name, k=dice.randint(12, 900), m=dice.choice(w["months"])))
    return f"{dice.choice(w['by_passage'])}\n\n{' '.join(lines)}"


def _corpus(dice, w, passages):
    return f"{dice.choice(w['by_passage'])}\n\n{dice.choice(passages)}"


def _sentence(dice, w, _):
    return dice.choice(w["by_sentence"]).format(s=dice.choice(w["sentences"]))


_MAKERS = {
    "topic": _topic, "tale": _tale, "problem": _problem, "everyday": _everyday, "code": _code,
    "news": _news, "corpus": _corpus, "sentence": _sentence,
}  # fmt: skip
