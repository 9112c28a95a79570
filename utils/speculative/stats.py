"""What happened during speculative decoding, counted once and labelled.

Two usual figures differ by the extra token of each block and are often confused:
`tokens_per_forward` counts it (with bonus), `accepted_per_forward` does not (without bonus).
Only emitted tokens count: what was accepted behind an end-of-sequence token is dropped.
"""

from dataclasses import dataclass, field


@dataclass
class Stats:
    """Counts over one or more `generate` calls. Position 0 is the first token of a draft."""

    target_forwards: int = 0
    proposed: int = 0
    accepted: int = 0
    emitted: int = 0
    examined_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)

    def record(self, proposed, accepted, emitted):
        """Add one target forward: tokens drafted, accepted by the rule, kept after end of text."""
        kept = min(accepted, emitted)
        examined = min(accepted + (accepted < proposed), emitted)
        self._grow(proposed)
        self.target_forwards += 1
        self.proposed += proposed
        self.accepted += kept
        self.emitted += emitted
        for i in range(examined):
            self.examined_at[i] += 1
            self.accepted_at[i] += i < kept

    def add(self, other):
        """Add the counts of another Stats."""
        self._grow(len(other.examined_at))
        for name in ("target_forwards", "proposed", "accepted", "emitted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for i in range(len(other.examined_at)):
            self.examined_at[i] += other.examined_at[i]
            self.accepted_at[i] += other.accepted_at[i]

    def _grow(self, positions):
        missing = [0] * (positions - len(self.examined_at))
        self.examined_at += missing
        self.accepted_at += missing

    @property
    def tokens_per_forward(self):
        """Emitted tokens per target forward, with the bonus or correction token; plain is 1."""
        return self.emitted / self.target_forwards

    @property
    def accepted_per_forward(self):
        """Accepted draft tokens per target forward, without the bonus or correction token."""
        return self.accepted / self.target_forwards

    @property
    def acceptance_rate(self):
        """Accepted / proposed. Lower than alpha: tokens behind a rejection count as refused."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def acceptance_by_position(self):
        """Accepted / examined per draft position: the chance to pass, given all before passed."""
        pairs = zip(self.accepted_at, self.examined_at, strict=True)
        return [a / n if n else None for a, n in pairs]

    @property
    def alpha(self):
        """Accepted / examined over all positions: the estimate of Leviathan's alpha."""
        examined = sum(self.examined_at)
        return self.accepted / examined if examined else 0.0
