"""A tiny target, texts with its states, and a head: for the drafter's tests."""

import torch

from utils import models
from utils.speculative.drafter import data, shards, start
from utils.speculative.drafter.head import Head

LAYERS = (1, 2, 3)
PROMPT = [5, 9, 17, 5, 9, 33, 41, 5, 9]
IDS = range(0, 256, 2)  # half of the vocabulary can be drafted


def target(**overrides):
    """A random Llama of three layers."""
    return models.tiny(seed=0, num_hidden_layers=3, **overrides)


class Tokenizer:
    """Letters as ids, with a common start, as a chat template has."""

    chat_template = "yes"

    def apply_chat_template(self, turns, **_options):
        return {"input_ids": [7, 8] + [3 + ord(letter) % 200 for letter in turns[0]["content"]]}


def texts(model, count=12, length=20, seed=0):
    """Random prompts with greedy answers, as shards.Text."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        prompt = torch.randint(3, 250, (4 + number % 3,), generator=generator).tolist()
        ids = list(prompt)
        for _ in range(length):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        found.append(shards.Text(number, 0.0, ids, len(prompt)))
    return found


def seen(model, **options):
    """The same with states."""
    return data.attach(model, texts(model, **options), LAYERS)


def head(model, ids=IDS, trained=True):
    """A head; trained: with weights that are random, but for scales that fit the states."""
    made = Head(model, ids, LAYERS, longest=256)
    if trained:
        start.ridge_start(made, model, seen(model, count=6))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            for matrix in (made.o.weight, made.down.weight):
                matrix.normal_(0, 0.05)
            made.bias.normal_(0, 0.1)
    return made
