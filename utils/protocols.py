"""Perplexity under named protocols, and the same loss per token, per word and per byte.

A perplexity belongs to a model, a text *and* a protocol: how the text is cut, whether a BOS comes
first, which tokens are scored. `token_losses` gives the loss of each scored token, so that two
protocols can be compared where both score; `perplexity` sums it up. Equations (eq-04-ppl) and
(eq-04-bpb) of the chapter. `quality.perplexity` is the short form for the two usual protocols.
But: one text at a time, without padding; rows of different length belong to quality.perplexity.
"""

import math
from dataclasses import dataclass

import torch

from utils import quality


@dataclass(frozen=True)
class Protocol:
    """How a text is cut into windows, and which of their tokens are scored.

    context: positions per window.  stride: how far the next window starts (default: as far as the
    window has text, so windows are disjoint).  bos: id put before the text of each window; it
    takes one position and is not scored.  history: a token is scored if at least so many
    positions stand before it in its window, and no earlier window scored it.
    whole: leave out a last window that is short.
    """

    name: str
    context: int
    stride: int | None = None
    bos: int | None = None
    history: int = 1
    whole: bool = False

    @property
    def room(self):
        """Tokens of text per window."""
        return self.context - (self.bos is not None)

    @property
    def step(self):
        """Tokens between the starts of two windows."""
        return self.room if self.stride is None else self.stride

    def __str__(self):
        bos = "no BOS added" if self.bos is None else f"BOS (id {self.bos}) in each window"
        tail = ", whole windows only" if self.whole else ""
        return (
            f"{self.name}: context {self.context}, stride {self.step}, {bos}, "
            f"scored from {self.history} token(s) of history{tail}"
        )


@dataclass(frozen=True)
class Losses:
    """nll: float64 [n], nats.  position: int64 [n], place in the text.  history: int64 [n]."""

    nll: torch.Tensor
    position: torch.Tensor
    history: torch.Tensor


def second_half(context, bos=None):
    """llama.cpp's rule: whole disjoint windows; the last context - 1 - context // 2 are scored.

    llama.cpp writes the BOS over a window's first token where the model wants one; here it takes
    that token's place, so the window's text is one token shorter.
    """
    return Protocol("second half", context, None, bos, context // 2 + 1, True)


def token_losses(model, ids, protocol, batch=4):
    """The loss of each scored token of `ids` (int64 [length]) under `protocol`: Losses.

    ValueError for a text that is no row, an impossible protocol, or nothing to score.
    """
    _check(ids, protocol)
    parts = []
    for starts, windows in _cut(ids.cpu(), protocol):
        batches = zip(windows.split(batch), starts.split(batch), strict=True)
        parts += [_score(model, *rows, protocol) for rows in batches]
    if not any(len(part[0]) for part in parts):
        raise ValueError(f"no token to score in a text of {len(ids)}: {protocol}")
    return Losses(*(torch.cat(column) for column in zip(*parts, strict=True)))


def perplexity(model, ids, protocol, batch=4):
    """exp of the mean loss, with the protocol in words: quality.Perplexity."""
    losses = token_losses(model, ids, protocol, batch)
    nll = losses.nll.mean().item()
    words = f"{len(losses.nll):,} of {len(ids):,} tokens scored; {protocol}"
    return quality.Perplexity(math.exp(nll), nll, len(losses.nll), words)


@dataclass(frozen=True)
class Normalised:
    """One total loss, divided by three counts of the same text."""

    nats: float
    tokens: int
    words: int
    bytes: int

    @property
    def token_perplexity(self):
        return math.exp(self.nats / self.tokens)

    @property
    def word_perplexity(self):
        return math.exp(self.nats / self.words)

    @property
    def bits_per_byte(self):
        return self.nats / math.log(2) / self.bytes


def normalised(nats, tokens, text):
    """The loss `nats` of all of `text` as a Normalised; words are what stands between spaces."""
    if not text or tokens < 1:
        raise ValueError("an empty text has no loss per byte: give the text that was scored")
    return Normalised(nats, tokens, len(text.split()) or 1, len(text.encode("utf-8")))


def _check(ids, protocol):
    if ids.ndim != 1:
        raise ValueError(f"ids must be one text [length], got shape {tuple(ids.shape)}")
    if len(ids) < 2:
        raise ValueError(f"no token to score: the text has {len(ids)} token(s), give two or more")
    if protocol.context < 2 or not 1 <= protocol.step <= protocol.room:
        raise ValueError(f"need 1 <= stride <= tokens per window and context >= 2: {protocol}")
    if not 1 <= protocol.history < protocol.context:
        raise ValueError(f"need 1 <= history < context: {protocol}")


def _cut(ids, protocol):
    """(starts [n], windows [n, tokens]): the whole windows together, then a short one."""
    room, starts = protocol.room, [0]
    while starts[-1] + room < len(ids):
        starts.append(starts[-1] + protocol.step)
    whole = [start for start in starts if start + room <= len(ids)]
    if whole:
        yield torch.tensor(whole), torch.stack([ids[s : s + room] for s in whole])
    if not protocol.whole and len(whole) < len(starts):
        yield torch.tensor(starts[-1:]), ids[starts[-1] :][None]


@torch.inference_mode()
def _score(model, windows, starts, protocol):
    """(nll, position, history) of the tokens that these windows score, flat."""
    count, length = windows.shape
    extra = protocol.bos is not None
    if extra:
        windows = torch.cat([torch.full((count, 1), protocol.bos), windows], dim=1)
    kept = torch.ones_like(windows, dtype=torch.bool)
    nll = -quality._target_logprobs(model, windows, kept).double()
    local = torch.arange(1 - extra, length).expand(count, -1)  # of the targets, in the text
    fresh = (local >= protocol.room - protocol.step) | (starts[:, None] == 0)
    scored = fresh & (local + extra >= protocol.history)
    return nll[scored], (local + starts[:, None])[scored], (local + extra)[scored]
