"""How many tokens a target forward yields with the head, on prompts that training never saw.

Greedy decoding says the same text with any drafter, so that the text is sampled once and the rounds
are counted on it: the head's proposals from all places are computed at once (`Head.unroll`), and
`rounds` walks through the text as `decode.generate` does, its first forward without a draft
included. `tests/test_drafter_evaluate.py` compares with the real loop.

`in_engine` runs the real loop and times it against plain decoding.
But: temperature 0 only; a tree is not built, `top2` says what one could gain at the first place.
"""

import statistics
import time
from dataclasses import dataclass

import torch

from utils.speculative import decode
from utils.speculative.cached import common_prefix
from utils.speculative.drafter import data
from utils.speculative.drafter.drafting import Copies, HeadDrafter, LookupFirst
from utils.speculative.stats import Stats


@dataclass(frozen=True)
class Result:
    """stats: over all texts. each: tokens per target forward of each text."""

    stats: Stats
    each: list

    @property
    def tokens_per_forward(self):
        """Tokens over target forwards, all texts together."""
        return self.stats.tokens_per_forward

    @property
    def error(self):
        """Standard error of the ratio over the texts (linearised, texts as the units)."""
        ratio, pairs = self.tokens_per_forward, [(e.emitted, e.target_forwards) for e in self.each]
        mean = self.stats.target_forwards / len(pairs)
        spread = sum((t - ratio * f) ** 2 for t, f in pairs) / max(1, len(pairs) - 1)
        return (spread / len(pairs)) ** 0.5 / mean


@torch.no_grad()
def proposals(head, texts, steps, together=6):
    """For each text the best ids [steps, places, 2]: place t, step k is a guess of token t + 2."""
    found = []
    for first in range(0, len(texts), together):
        part = texts[first : first + together]
        lot = data.lot(part)
        best = torch.zeros(steps, *lot.kept.shape, 2, dtype=torch.int64)
        for step, own in enumerate(head.unroll(lot.ids, lot.states, lot.kept, steps)):
            best[step][lot.kept] = head.draft_ids[head.logits(own).topk(2, -1).indices]
        found += [best[:, row] for row in range(len(part))]
    return found


def rounds(text, best, k, copies=None):
    """Stats of decoding `text` with chains of `k`; copies: drafting.Copies, asked first."""
    stats, total, done = Stats(), len(text.ids) - text.start, 0
    if copies:
        copies.reset()
    while done < total:
        end, room = text.start + done, total - done - 1
        draft = copies.offer(text.ids[:end], min(room, copies.most)) if copies and room else []
        if done and not draft:
            draft = [int(best[step, end - 2 + step, 0]) for step in range(min(k, room))]
        accepted = common_prefix(draft, text.ids[end:])
        stats.record(len(draft), accepted, accepted + 1)
        done += accepted + 1
    return stats


def measure(head, texts, k=3, copies=None):
    """Result over texts (data.Seen of greedy answers). copies: as in `rounds`."""
    texts = data.usable(texts)
    best = proposals(head, texts, max(k, 1))
    each = [rounds(text, b, k, copies) for text, b in zip(texts, best, strict=True)]
    whole = Stats()
    for stats in each:
        whole.add(stats)
    return Result(whole, each)


def acceptance(head, texts, steps=4):
    """{"accepted": [...], "top2": share, "known": share}.

    accepted: per step the share of places where it is right, given that the steps before were: over
    all places, not only those where a round begins. top2: one of the best two of step 0 is right.
    known: answer tokens that are draft ids.
    """
    texts = data.usable(texts)
    right, asked, second, known, tokens = [0] * steps, [0] * steps, 0, 0, 0
    ids = set(head.draft_ids.tolist())
    for text, best in zip(texts, proposals(head, texts, steps), strict=True):
        known += sum(token in ids for token in text.ids[text.start :])
        tokens += len(text.ids) - text.start
        for place in range(text.start - 1, len(text.ids) - 2):
            second += text.ids[place + 2] in best[0, place].tolist()
            for step in range(min(steps, len(text.ids) - 2 - place)):
                asked[step] += 1
                if int(best[step, place + step, 0]) != text.ids[place + step + 2]:
                    break
                right[step] += 1
    by_step = [a / n if n else None for a, n in zip(right, asked, strict=True)]
    return {"accepted": by_step, "top2": second / max(1, asked[0]), "known": known / max(1, tokens)}


def summary(head, texts, lengths=(1, 2, 3, 4)):
    """What a checkpoint's log line holds."""
    found = acceptance(head, texts, max(lengths))
    for k in lengths:
        found[f"chain{k}"] = measure(head, texts, k).tokens_per_forward
    found["lookup+3"] = measure(head, texts, 3, Copies()).tokens_per_forward
    return {name: _short(value) for name, value in found.items()}


def _short(value):
    return [_short(v) for v in value] if isinstance(value, list) else value and round(value, 4)


def in_engine(engine, head, prompts, count=128, k=3, weights="fp32", turns=3):
    """Decode prompts in the engine, plain and with the head, in turns; times and Stats of each.

    ms_per_token: median over `turns`. same: all texts equal the plain ones. "sure" ends chains
    early where the head itself expects a refusal.
    """
    drafter = HeadDrafter(head, engine, weights, engine.max_tokens)
    sure = HeadDrafter(head, engine, weights, engine.max_tokens, least=0.15)
    ways = {"plain": (None, 0), "chain": (drafter, k), "sure": (sure, k + 2)}
    ways["lookup first"] = (LookupFirst(sure, drafted=k + 2), 8)
    seconds, stats, texts = {way: [] for way in ways}, {}, {}
    for _ in range(turns):
        for way, (used, length) in ways.items():
            began, stats[way], texts[way] = time.perf_counter(), Stats(), []
            for ids in prompts:
                tokens, counted = decode.generate(engine, used, ids, count, length)
                stats[way].add(counted)
                texts[way].append(tokens.tolist())
            seconds[way].append((time.perf_counter() - began) / stats[way].emitted)
    return {
        way: {
            "ms_per_token": 1000 * statistics.median(seconds[way]),
            "tokens_per_forward": stats[way].tokens_per_forward,
            "same": texts[way] == texts["plain"],
        }
        for way in ways
    }
