"""Static against continuous batching, event by event, from measured costs of a step.

    static       take what waits, up to `slots`; prompts padded to the longest, and every text keeps
                 its row until the last one is done; all answers are handed over together
    continuous   between any two steps: texts that are done leave, waiting ones take their slots
                 (iteration-level scheduling, Yu et al. 2022)

A prompt's pass yields the first token, each step one token for every text in it.

But: one server, first come first served, no limit of memory (Kwon et al. 2023 is about that), no
chunked prompts: a prompt that comes in holds up all others. Nothing is random but `workload`.
"""

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """arrival in seconds; tokens of the prompt and of the answer (1 or more each)."""

    arrival: float
    prompt: int
    output: int


@dataclass(frozen=True)
class Served:
    """A request and when its prompt began and its answer was handed over, in seconds."""

    request: Request
    start: float
    finish: float

    @property
    def latency(self):
        """Seconds from arrival to the whole answer."""
        return self.finish - self.request.arrival


@dataclass(frozen=True)
class Run:
    """served: in the order of arrival. rows: token positions computed; useful: those asked for."""

    served: tuple
    rows: int
    useful: int

    @property
    def throughput(self):
        """Tokens of answers per second, from the first arrival to the last answer."""
        first = min(s.request.arrival for s in self.served)
        return sum(s.request.output for s in self.served) / (self._end - first)

    @property
    def _end(self):
        return max(s.finish for s in self.served)

    @property
    def waste(self):
        """Share of the computed positions that nobody asked for."""
        return 1 - self.useful / self.rows

    def latency(self, share):
        """The smallest latency that at least this share of the requests does not exceed."""
        if not 0 < share <= 1:
            raise ValueError(f"share={share}: above 0 and at most 1, such as 0.95")
        ordered = sorted(s.latency for s in self.served)
        return ordered[math.ceil(share * len(ordered)) - 1]


def static(requests, slots, prompt_seconds, step_seconds):
    """Serve batch after batch.

    prompt_seconds(tokens): of a pass over so many prompt positions. step_seconds(rows): of a step
    for so many texts. Returns a Run.
    """
    waiting, served, now, rows, useful = _queue(requests, slots), [], 0.0, 0, 0
    while waiting:
        now = max(now, waiting[0].arrival)
        batch = _arrived(waiting, now, slots)
        longest, steps = max(r.prompt for r in batch), max(r.output for r in batch) - 1
        finish = now + prompt_seconds(longest * len(batch)) + steps * step_seconds(len(batch))
        served += [Served(r, now, finish) for r in batch]
        rows += len(batch) * (longest + steps)
        useful += sum(r.prompt + r.output - 1 for r in batch)
        now = finish
    return Run(tuple(served), rows, useful)


def continuous(requests, slots, prompt_seconds, step_seconds):
    """Serve with places given away between steps. Arguments as in `static`; returns a Run."""
    waiting, active, served, now, rows = _queue(requests, slots), [], {}, 0.0, 0
    while waiting or active:
        if not active:
            now = max(now, waiting[0].arrival)
        new = _arrived(waiting, now, slots - len(active))
        if new:
            number, start, tokens = len(served) + len(active), now, sum(r.prompt for r in new)
            now, rows = now + prompt_seconds(tokens), rows + tokens
            active += [[number + i, r, start, r.output - 1] for i, r in enumerate(new)]
            active = _leave(active, now, served)
        if active:
            now, rows = now + step_seconds(len(active)), rows + len(active)
            for text in active:
                text[-1] -= 1
            active = _leave(active, now, served)
    return Run(tuple(served[number] for number in sorted(served)), rows, rows)


def _queue(requests, slots):
    if not requests or slots < 1:
        raise ValueError(f"{len(requests)} requests, slots={slots}: need at least one of each")
    for r in requests:
        whole = all(n >= 1 and n % 1 == 0 for n in (r.prompt, r.output))
        if not (whole and 0 <= r.arrival < math.inf):
            raise ValueError(f"{r}: prompt and output need 1 token or more, arrival >= 0")
    return sorted(requests, key=lambda r: r.arrival)


def _arrived(waiting, now, places):
    """Take up to `places` requests that have arrived off the front of the queue."""
    taken = []
    while waiting and len(taken) < places and waiting[0].arrival <= now:
        taken.append(waiting.pop(0))
    return taken


def _leave(active, now, served):
    """Hand over the answers that are complete; the texts that stay."""
    served |= {n: Served(r, start, now) for n, r, start, left in active if left == 0}
    return [text for text in active if text[-1] > 0]


def step_table(measured):
    """{rows: seconds} -> a function of any number of rows up to the largest, linear in between."""
    points = sorted(measured.items())
    if not points or points[0][0] > 1:
        raise ValueError(f"measured at {[rows for rows, _ in points]} rows: start with 1 row")

    def seconds(rows):
        if not 1 <= rows <= points[-1][0]:
            raise ValueError(f"{rows} rows: measured from 1 to {points[-1][0]}")
        (low, at_low), (high, at_high) = _around(points, rows)
        share = (rows - low) / (high - low) if high > low else 0.0
        return at_low + share * (at_high - at_low)

    return seconds


def _around(points, rows):
    below = [point for point in points if point[0] <= rows][-1]
    above = [point for point in points if point[0] >= rows][0]
    return below, above


def workload(count, per_second, prompt=(8, 64), output=(8, 64), seed=0):
    """`count` requests with exponential gaps; lengths log-uniform between the two ends, whole."""
    if count < 1 or per_second <= 0:
        raise ValueError(f"count={count}, per_second={per_second}: both must be positive")
    draw, now, found = random.Random(seed), 0.0, []
    for _ in range(count):
        now += draw.expovariate(per_second)
        found.append(Request(now, _length(draw, prompt), _length(draw, output)))
    return found


def _length(draw, ends):
    low, high = ends
    if not 1 <= low <= high:
        raise ValueError(f"lengths from {low} to {high}: need 1 <= low <= high")
    return round(low * (high / low) ** draw.random())
