"""Samples on disk: shards while sampling goes on, one small file when it is done.

A shard holds ids as uint16, one text after the other, with their lengths, the prompts' numbers and
temperatures, and what was counted. No states: they are made again from the ids (`data`).
But: vocabularies above 65,536 ids don't fit.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from utils import cache

MANY = 1 << 16


@dataclass(frozen=True)
class Text:
    """ids: prompt and answer, which starts at `start`. number, temperature: of the prompt."""

    number: int
    temperature: float
    ids: list
    start: int


@dataclass(frozen=True)
class Shard:
    """texts in the order of their numbers; counts: {what: how many}."""

    texts: list
    counts: dict


def settle(folder, identity):
    """Note in `folder` what its shards are made of; ValueError where that was something else."""
    path = Path(folder) / "samples.json"
    if path.exists():
        found = json.loads(path.read_text("utf-8"))
        if found != identity:
            differs = ", ".join(k for k in identity if found.get(k) != identity[k])
            raise ValueError(
                f"{folder} holds samples with another {differs}: use another folder, or delete it"
            )
        return
    with cache.write_atomically(path) as scratch:
        scratch.write_text(json.dumps(identity, indent=1), "utf-8")


def name(number):
    """A shard's file name."""
    return f"samples-{number:04d}.npz"


def save(folder, number, shard):
    """Write a shard, whole or not at all."""
    _write(Path(folder) / name(number), shard)


def load(folder, number):
    """A shard, or None where it isn't there yet."""
    path = Path(folder) / name(number)
    return _read(path) if path.exists() else None


def read(path):
    """All texts of a folder of shards or of an exported file, with counts added up."""
    path = Path(path)
    files = sorted(path.glob("samples-*.npz")) if path.is_dir() else [path]
    if not files or not files[0].exists():
        raise ValueError(f"no samples in {path}: run `python -m utils.speculative.drafter sample`")
    parts = [_read(file) for file in files]
    counts = {}
    for part in parts:
        for key, value in part.counts.items():
            counts[key] = round(counts.get(key, 0) + value, 1)
    return Shard([text for part in parts for text in part.texts], counts)


def export(folder, path):
    """All shards of a folder as one compressed file; its size in bytes."""
    _write(Path(path), read(folder))
    return Path(path).stat().st_size


def _write(path, shard):
    ids = [token for text in shard.texts for token in text.ids]
    if ids and max(ids) >= MANY:
        raise ValueError(f"token id {max(ids)}: samples are stored as 16-bit numbers")
    with cache.write_atomically(path) as scratch:
        np.savez_compressed(
            scratch,
            ids=np.array(ids, np.uint16),
            lengths=np.array([len(text.ids) for text in shard.texts], np.int32),
            starts=np.array([text.start for text in shard.texts], np.int32),
            numbers=np.array([text.number for text in shard.texts], np.int32),
            temperatures=np.array([text.temperature for text in shard.texts], np.float32),
            counts=np.array(json.dumps(shard.counts)),
        )


def _read(path):
    with np.load(path) as held:
        ends = held["lengths"].cumsum()
        ids = np.split(held["ids"].astype(np.int64), ends[:-1]) if len(ends) else []
        each = zip(held["numbers"], held["temperatures"], ids, held["starts"], strict=True)
        texts = [Text(int(n), round(float(t), 3), i.tolist(), int(s)) for n, t, i, s in each]
        return Shard(texts, json.loads(str(held["counts"])))
