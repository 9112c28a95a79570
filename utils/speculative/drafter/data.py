"""Samples with the target's states, in batches: what training and evaluation read.

The states are made again from the ids, by one forward over whole texts, and kept as fp16 files
(2 bytes × layers × hidden for each token: 4.6 kB for the default model). So the samples alone, a
small file, are enough to repeat the training; and an epoch reads from disk, because a forward
costs more than a training step does (`python -m utils.speculative.drafter states` prints both).

But: the files of a million tokens take some 6 GB below `_build`.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from utils import cache
from utils.speculative.drafter import watch

TOGETHER = 16  # texts in one forward; POOL batches are sorted by length together
POOL = 16


@dataclass(frozen=True)
class Seen:
    """A text with its states: ids [n], the answer starts at `start`; states fp16 [n, layers, D]."""

    ids: list
    start: int
    states: np.ndarray


@dataclass(frozen=True)
class Lot:
    """A batch. ids [B, T]: token t + 1 at place t. states fp32 [B, T, layers, hidden].

    kept [B, T]: places whose next guess can be checked: answer token t + 2 and the target's state
    at t + 1 are known. goal fp32 [kept places, hidden]: that state.
    """

    ids: torch.Tensor
    states: torch.Tensor
    kept: torch.Tensor
    goal: torch.Tensor


def attach(model, texts, layers, together=TOGETHER):
    """The texts with their states, in memory."""
    found = []
    for first in range(0, len(texts), together):
        part = texts[first : first + together]
        states = watch.states(model, [text.ids for text in part], layers)
        for text, seen in zip(part, states, strict=True):
            found.append(Seen(text.ids, text.start, _half(seen)))
    return found


def _half(states):
    return states.clamp(-60_000, 60_000).half().cpu().numpy()


def store(model, texts, layers, folder, per_file=256, log=print):
    """Files of states, `per_file` texts each; what is there already is kept."""
    for number, first in enumerate(range(0, len(texts), per_file)):
        path, part = _file(folder, number), texts[first : first + per_file]
        if path.exists() and len(np.load(path, mmap_mode="r")) == sum(len(t.ids) for t in part):
            continue
        rows = np.concatenate([seen.states for seen in _in_order(model, part, layers)])
        with cache.write_atomically(path) as scratch:
            np.save(scratch, rows)
        log(f"{path.name}: {len(rows)} tokens")


def _in_order(model, texts, layers):
    """`attach`, with texts of like length in one forward."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i].ids))
    seen = attach(model, [texts[i] for i in order], layers)
    return [seen[order.index(i)] for i in range(len(texts))]


def stored(texts, folder, per_file=256):
    """The texts with the states that `store` wrote, read from disk where they are used."""
    found = []
    for number, first in enumerate(range(0, len(texts), per_file)):
        path = _file(folder, number)
        if not path.exists():
            raise ValueError(f"{path} is missing: run `python -m utils.speculative.drafter states`")
        rows, at = np.load(path, mmap_mode="r"), 0
        for text in texts[first : first + per_file]:
            found.append(Seen(text.ids, text.start, rows[at : at + len(text.ids)]))
            at += len(text.ids)
        if at != len(rows):
            raise ValueError(f"{path} has {len(rows)} tokens, the samples {at}: delete it")
    return found


def _file(folder, number):
    return Path(folder) / f"states-{number:04d}.npy"


def usable(texts):
    """Those with at least two answer tokens that a guess can be checked on."""
    return [text for text in texts if len(text.ids) - text.start >= 3]


def lot(texts):
    """A batch of texts."""
    length = max(len(text.ids) for text in texts) - 1
    layers, hidden = texts[0].states.shape[1:]
    ids = torch.zeros(len(texts), length, dtype=torch.int64)
    states = torch.zeros(len(texts), length, layers, hidden)
    kept = torch.zeros(len(texts), length, dtype=torch.bool)
    for row, text in enumerate(texts):
        n = len(text.ids) - 1
        ids[row, :n] = torch.tensor(text.ids[1:])
        states[row, :n] = torch.from_numpy(np.array(text.states[:n]))
        kept[row, text.start - 1 : n - 1] = True
    goal = torch.cat([states[:, 1:, -1], torch.zeros_like(states[:, :1, -1])], 1)[kept]
    return Lot(ids, states, kept, goal)


def order(texts, size, seed, epoch):
    """Batches of an epoch as lists of indices: shuffled, texts of like length together."""
    dice = random.Random(f"{seed} epoch {epoch}")
    shuffled = list(range(len(texts)))
    dice.shuffle(shuffled)
    batches = []
    for first in range(0, len(shuffled), size * POOL):
        pool = sorted(shuffled[first : first + size * POOL], key=lambda i: (len(texts[i].ids), i))
        batches += [pool[i : i + size] for i in range(0, len(pool), size)]
    dice.shuffle(batches)
    return batches
