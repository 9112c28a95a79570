"""Answers to many prompts by continuous batching, with loops cut off.

A small model in greedy mode often ends in a loop. Such an answer is stopped, its repeating tail is
cut off, and what is left is dropped if it is short: a drafter learns loops at once and nothing from
them. But: a long prompt holds up all texts while it is read.
"""

import random
from dataclasses import dataclass

import torch

from utils.speculative.drafter import shards
from utils.speculative.drafter.target import Batch


@dataclass
class _Open:
    """An answer that is being written."""

    number: int
    prompt: list
    temperature: float
    dice: random.Random
    tokens: list


class Work:
    """Continuous batching: an answer that ends gives its slot to the next prompt."""

    def __init__(self, model, plan, waiting, keep_loops):
        self.plan, self.waiting, self.keep_loops = plan, waiting[::-1], keep_loops
        ends = model.generation_config.eos_token_id
        self.stop = set(ends if isinstance(ends, list) else [ends])
        self.prefix = _common([ids for _, ids in waiting])
        longest = max((len(ids) for _, ids in waiting), default=1) + plan.longest_answer
        self.batch = Batch(model, max(1, min(plan.batch, len(waiting))), longest)
        self.open, self.done = [], []
        self.counts = dict(sampled=0, kept=0, looping=0, dropped=0, prompts=len(waiting))

    def run(self):
        """Answer all; `done` and `counts` tell what came out."""
        if self.prefix:
            self.batch.prefill(self.waiting[-1][1][: self.prefix], 0)
            self.batch.share(self.prefix)
        while self.waiting or self.open:
            while self.waiting and len(self.open) < len(self.batch.lengths):
                self._begin(len(self.open))
            if self.open:
                self._step()

    def _begin(self, slot):
        number, ids = self.waiting.pop()
        logits = self.batch.prefill(ids[self.prefix :], slot, self.prefix)
        dice = random.Random(f"{self.plan.seed} tokens {number}")
        text = _Open(number, ids, self.plan.temperature(number), dice, [])
        self.open.append(text)
        text.tokens += drawn(logits[None], [text], self.plan.top_k)
        self.counts["sampled"] += 1
        if self._ended(text):
            self._close(slot)

    def _step(self):
        logits = self.batch.decode([text.tokens[-1] for text in self.open])
        tokens = drawn(logits, self.open, self.plan.top_k)
        self.counts["sampled"] += len(tokens)
        for text, token in zip(self.open, tokens, strict=True):
            text.tokens.append(token)
        for slot in reversed(range(len(self.open))):
            if self._ended(self.open[slot]):
                self._close(slot)

    def _ended(self, text):
        n = len(text.tokens)
        if text.tokens[-1] in self.stop or n >= self.plan.longest_answer:
            return True
        return not self.keep_loops and n % 8 == 0 and loop_start(text.tokens) is not None

    def _close(self, slot):
        """Keep the answer; its slot goes to a waiting prompt or to the last open text."""
        text, last = self.open[slot], len(self.open) - 1
        self._keep(text)
        if slot != last:
            self.batch.move(last, slot)
            self.open[slot] = self.open[last]
        self.open.pop()

    def _keep(self, text):
        start = None if self.keep_loops else loop_start(text.tokens)
        tokens = text.tokens[:start]
        self.counts["looping"] += start is not None
        if start is not None and len(tokens) < self.plan.shortest_kept:
            self.counts["dropped"] += 1
            return
        self.counts["kept"] += len(tokens)
        done = shards.Text(text.number, text.temperature, text.prompt + tokens, len(text.prompt))
        self.done.append(done)


def drawn(logits, texts, top_k):
    """One token for each row from its text's own dice; temperature 0 takes the largest logit."""
    best = logits.topk(min(top_k, logits.shape[-1]), -1)
    heat = torch.tensor([max(text.temperature, 1e-6) for text in texts])
    chances = ((best.values - best.values[:, :1]) / heat[:, None]).double().exp().cumsum(-1)
    u = torch.tensor([text.dice.random() if text.temperature else 0.0 for text in texts]).double()
    place = torch.searchsorted(chances, u[:, None] * chances[:, -1:], right=True)
    place = place.clamp(max=best.indices.shape[-1] - 1)
    return best.indices.gather(-1, place)[:, 0].tolist()


def loop_start(tokens, longest=40, least=24):
    """Where the text begins to repeat itself at its end, or None.

    The end repeats with period p when at least max(2p, `least`) last tokens equal the ones p
    before; the answer is the index of the first of them, so that one copy of the period is kept.
    """
    for period in range(1, min(longest, len(tokens) - 1) + 1):
        run = 0
        while run < len(tokens) - period and tokens[-1 - run] == tokens[-1 - run - period]:
            run += 1
        if run >= max(2 * period, least):
            return len(tokens) - run
    return None


def _common(texts):
    """How many leading ids all texts share, at most all but one of the shortest."""
    if not texts:
        return 0
    first, last = min(texts), max(texts)
    most = min(map(len, texts)) - 1
    return next((i for i in range(most) if first[i] != last[i]), most)
