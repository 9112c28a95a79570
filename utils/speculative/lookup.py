"""Prompt lookup that costs next to nothing, and knows when to keep quiet.

`Index` proposes what `drafting.PromptLookup` proposes (its naive twin), but finds it in a table of
n-grams that grows with the text, instead of searching the text anew.

`Adaptive` chooses how many of the proposed tokens to verify. It keeps an estimate a of the chance
that a drafted token is accepted, one for each length of the n-gram that matched, and takes the k
with the most tokens per time:

    (1 + a + a^2 + ... + a^k) / cost[k]        cost[k]: time of a step of k + 1 rows, cost[0] = 1

k = 0 (no draft) is one of the choices. An estimate that forbids drafting rises with
each silent turn, so that a text that begins to repeat itself is noticed.

Saxena 2023 for the lookup; the rule is Leviathan et al. 2023, section 3.3, with estimated costs.
"""

# Time of a step of 1, 2, ... 32 rows relative to one row, int8 on two cores: reading the weights
# bounds the first four rows, arithmetic the others. Fitted to quiet moments of one machine;
# the rule needs the order of magnitude (records/bench.json has a measurement with its spread).
COSTS = tuple(1 + 0.07 * (min(m, 4) - 1) + 0.16 * max(0, m - 4) for m in range(1, 33))
PRIOR = {1: 0.3, 2: 0.6, 3: 0.8}  # chance of acceptance before anything was seen
FORGET = 0.7  # weight of the old estimate when a draft was examined
RECOVER = 0.02  # what a silent turn adds


class Index:
    """Where each n-gram of a growing text occurred last, its end excepted."""

    def __init__(self, max_ngram=3):
        self.sizes = range(max_ngram, 0, -1)
        self.reset()

    def reset(self):
        """Forget the text."""
        self.text = []
        self.after = {size: {} for size in self.sizes}

    def extend(self, tokens):
        """Append tokens. An n-gram is entered once something follows it."""
        for token in tokens:
            for size in self.sizes:
                if len(self.text) >= size:
                    self.after[size][tuple(self.text[-size:])] = len(self.text)
            self.text.append(token)

    def propose(self, k):
        """(at most k tokens that followed the longest n-gram at the end, its length or 0)."""
        for size in self.sizes:
            start = self.after[size].get(tuple(self.text[-size:]))
            if start is not None and len(self.text) >= size:
                return self.text[start : start + k], size
        return [], 0


class Adaptive:
    """Chooses the draft length; `learn` hears how each draft fared."""

    def __init__(self, costs=COSTS):
        self.costs = costs
        self.chance = dict(PRIOR)

    def length(self, size, offered):
        """How many of `offered` tokens to verify after an n-gram of `size` matched."""
        best, best_rate, expected, term = 0, 1.0, 1.0, 1.0
        for k in range(1, min(offered, len(self.costs) - 1) + 1):
            term *= self.chance[size]
            expected += term
            if expected / self.costs[k] > best_rate:
                best, best_rate = k, expected / self.costs[k]
        if best == 0:
            self.chance[size] = min(self.chance[size] + RECOVER, PRIOR[size])
        return best

    def learn(self, size, drafted, accepted):
        """`accepted` of `drafted` tokens passed; those behind a rejection were not examined."""
        if drafted:
            examined = min(drafted, accepted + 1)
            new = FORGET**examined
            self.chance[size] = new * self.chance[size] + (1 - new) * accepted / examined
