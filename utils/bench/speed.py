"""The measurements: decode, verification, context, prompts, and the lossless stack.

Whatever is compared runs in turn, round after round, in an order that changes, because the speed
of a machine's memory drifts by tens of per cent within minutes. Ratios are taken within a round.

But: one machine, batch 1; what a figure means is said in the book.
"""

import random
import statistics
import time
from dataclasses import dataclass

from utils import measure

PAUSE = 0.02  # seconds, so that the threads of the one before have gone to sleep


def spread(values):
    """{median, low, high}: the quartiles of a list."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high}


def rounds(candidates, count, progress=lambda text: None):
    """Call each of {name: function} once a round; {name: [result of each round]}.

    A first round warms up and is thrown away.
    """
    names, results = list(candidates), {name: [] for name in candidates}
    for turn in range(count + 1):
        progress(f"round {turn} of {count}")
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            time.sleep(PAUSE)
            result = candidates[name]()
            if turn:
                results[name].append(result)
    return results


def ratio(results, a, b):
    """Spread of a / b, round by round; None where one of them was not measured."""
    if a not in results or b not in results:
        return None
    pairs = zip(results[a], results[b], strict=True)
    return spread([x / y for x, y in pairs])


def decode_speed(contender, prompt, new_tokens):
    """A function that measures tokens per second after the first token."""

    def once():
        timer = measure.GenerationTimer()
        contender.decode(prompt, new_tokens, timer)
        return timer.decode_tokens_per_second

    return once


def prompt_speed(contender, prompt):
    """A function that measures prompt tokens per second, up to the first new token."""

    def once():
        timer = measure.GenerationTimer()
        contender.decode(prompt, 1, timer)
        return len(prompt) / timer.ttft

    return once


def verify_time(engine, rows, context=128, repeats=5):
    """A function that measures the seconds of a step of `rows` tokens after `context` tokens."""

    def once():
        engine.crop(min(context, engine.length()))
        if engine.length() < context:
            engine.step([5] * (context - engine.length()))
        samples = []
        for _ in range(repeats):
            start = time.perf_counter()
            engine.step(list(range(5, 5 + rows)), keep=False)
            samples.append(time.perf_counter() - start)
            engine.crop(context)
        return statistics.median(samples)

    return once


def engine_after(engine, text, slot=0, repeats=5):
    """A function that measures the seconds of one step after `text`, which a slot then holds."""
    engine.step(text, slot, rows=1)

    def once():
        samples = []
        for _ in range(repeats):
            start = time.perf_counter()
            engine.step([text[-1]], slot, keep=False)
            samples.append(time.perf_counter() - start)
            engine.crop(len(text), slot)
        return statistics.median(samples)

    return once


def llama_after(peer, text, repeats=5):
    """The same for llama.cpp; its text grows by `repeats` tokens each time."""
    peer.prefill(text)

    def once():
        samples = []
        for _ in range(repeats):
            start = time.perf_counter()
            peer.step(text[-1])
            samples.append(time.perf_counter() - start)
        return statistics.median(samples)

    return once


@dataclass
class Total:
    """One prompt decoded one way: the answer, its seconds, and steps of the model if known."""

    answer: list
    seconds: float
    forwards: int | None = None

    @property
    def tokens(self):
        return len(self.answer)


def stack(ways, prompts, new_tokens, progress=lambda text: None):
    """Decode each prompt in each of {name: function (ids, n) -> tokens or Generation}, in turn.

    Returns {name: [Total for each prompt]}; prompt processing is part of the time. The first
    prompt is decoded once before, to warm up.
    """
    totals, names = {name: [] for name in ways}, list(ways)
    for name in names:
        ways[name](prompts[0], 8)
    for i, ids in enumerate(prompts):
        progress(f"prompt {i + 1} of {len(prompts)}")
        shift = i % len(names)
        for name in names[shift:] + names[:shift]:
            time.sleep(PAUSE)
            start = time.perf_counter()
            answer = ways[name](ids, new_tokens)
            totals[name].append(_total(answer, time.perf_counter() - start))
    return totals


def _total(answer, seconds):
    if isinstance(answer, list):
        return Total(answer, seconds)
    forwards = answer.stats.target_forwards
    return Total(answer.tokens[0], seconds, forwards)


def throughput(totals):
    """Total tokens over total time."""
    return sum(t.tokens for t in totals) / sum(t.seconds for t in totals)


def repeated(tokens, n=8):
    """Share of n-grams that occurred before in the same answer: high in a text that loops."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def summary(totals):
    """What a record keeps of a list of Totals. looping: mean share of repeated 8-grams."""
    found = {
        "prompts": len(totals),
        "tokens": sum(t.tokens for t in totals),
        "seconds": sum(t.seconds for t in totals),
        "tokens_per_second": throughput(totals),
        "looping": statistics.mean(repeated(t.answer) for t in totals),
    }
    if all(t.forwards for t in totals):
        forwards = sum(t.forwards for t in totals)
        found["tokens_per_forward"] = found["tokens"] / forwards
    return found


def stack_ratio(a, b, resamples=2000, seed=0):
    """Throughput of a over that of b; low and high: 95 % interval over resampled prompts."""
    draw = random.Random(seed)
    values = []
    for _ in range(resamples):
        chosen = [draw.randrange(len(a)) for _ in a]
        values.append(throughput([a[i] for i in chosen]) / throughput([b[i] for i in chosen]))
    values.sort()
    low, high = values[int(0.025 * resamples)], values[int(0.975 * resamples)]
    return {"median": throughput(a) / throughput(b), "low": low, "high": high}
