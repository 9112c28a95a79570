"""Load on a server: one user's speed and everybody's, and the requests that a client never sent.

`replay` works out exactly when each request of a plan would be answered by a server that serves one
at a time, and what two kinds of client would write down. A client that waits for each answer before
it sends the next stops sending just when the server is slow: coordinated omission (Tene, wrk2).
What it does not do: serve anything, or guess. Service times are given; there is no randomness.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Throughput:
    """Tokens per second of `users` at a time. per_user: of one of them. aggregate: of all."""

    tokens: int
    seconds: float
    users: int = 1

    def __post_init__(self):
        if not (self.tokens >= 0 and self.seconds > 0 and self.users >= 1):
            raise ValueError(
                f"tokens={self.tokens}, seconds={self.seconds}, users={self.users}: "
                "need tokens >= 0, seconds > 0 and users >= 1"
            )

    @property
    def aggregate(self):
        return self.tokens / self.seconds

    @property
    def per_user(self):
        return self.aggregate / self.users


@dataclass(frozen=True)
class Replay:
    """Seconds per request. from_plan: since it was due. from_send: since a waiting client sent."""

    from_plan: tuple[float, ...]
    from_send: tuple[float, ...]


def replay(service, interval):
    """Send one request every `interval` seconds to a server that needs service[i] for request i.

    from_plan is what a user sees: requests are due at 0, interval, 2 interval, … and wait in line.
    from_send is what a client writes down that sends request i when it is due or, if the answer to
    request i - 1 isn't there by then, when that comes: the same answers, an easier clock.
    """
    if not interval > 0 or not all(seconds >= 0 for seconds in service):
        raise ValueError(f"interval={interval}: need an interval above 0 and no negative service")
    free, from_plan, from_send = 0.0, [], []
    for i, seconds in enumerate(service):
        due = i * interval
        sent = max(due, free)
        free = sent + seconds
        from_plan.append(free - due)
        from_send.append(free - sent)
    return Replay(tuple(from_plan), tuple(from_send))
