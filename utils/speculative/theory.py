"""Closed forms of speculative decoding, and the exact output law of any sampler by enumeration.

Does: acceptance, expected tokens per target forward, speed-up; runs a sampler through every outcome
of its dice with the probability of each, so that its law is known without a single random number.
Does not: sample, or time anything: `c` is the price of a draft step that the caller measured.

Leviathan et al. 2023, definitions 3.1-3.2, theorems 3.5 and 3.8. Enumeration by replay is the
exhaustive inference of probabilistic programming.
"""

from collections import defaultdict

import torch

from utils.speculative.sampling import verify


def acceptance(p_target, q_draft):
    """Sum of min(p, q): the chance that one drafted token is accepted. Laws [..., V]."""
    return torch.minimum(p_target, q_draft).sum(-1)


def total_variation(p, q):
    """Half the sum of |p - q|: the largest difference in probability of any event. [..., V]."""
    return (p - q).abs().sum(-1) / 2


def expected_tokens(alpha, k):
    """Tokens per target forward, bonus included, if each of k drafts passes with chance alpha."""
    return sum(alpha**i for i in range(k + 1))


def expected_tokens_by_position(alphas):
    """The same where position i passes with chance alphas[i], given that all before it passed."""
    total, alive = 1.0, 1.0
    for alpha in alphas:
        alive *= alpha
        total += alive
    return total


def speedup(alpha, k, c, verify_cost=1.0):
    """Plain time / speculative time; c: one draft step's time / one target forward's time.

    verify_cost: time of a target forward over k + 1 tokens / over 1 token. The paper's formula
    takes 1: a forward limited by reading the weights.
    """
    return expected_tokens(alpha, k) / (k * c + verify_cost)


def best_k(alpha, c, largest=16):
    """(k, speed-up) with the highest `speedup`; k = 0 means: do not speculate."""
    return max(((k, speedup(alpha, k, c)) for k in range(largest + 1)), key=lambda pair: pair[1])


class Replay:
    """Dice that follow a script of branches, then the first branch each time, and remember all.

    `weight`: probability of the path. `trail`: (branch taken, branches) at each decision. Branches
    of probability 0 are never taken.
    """

    def __init__(self, script=()):
        self.script, self.trail, self.weight = list(script), [], 1.0

    def _choose(self, probabilities):
        options = [(i, w) for i, w in enumerate(probabilities) if w > 0]
        depth = len(self.trail)
        branch = self.script[depth] if depth < len(self.script) else 0
        self.trail.append((branch, len(options)))
        value, weight = options[branch]
        self.weight *= weight
        return value

    def coin(self, probability):
        """True on one branch, False on the other."""
        accepted = min(max(float(probability), 0.0), 1.0)
        return bool(self._choose([1.0 - accepted, accepted]))

    def draw(self, law):
        """One branch for each token with probability > 0."""
        return self._choose(torch.as_tensor(law).tolist())

    def next_script(self):
        """The script of the next path in depth-first order, or None after the last one."""
        taken = [branch for branch, _ in self.trail]
        while taken:
            if taken[-1] + 1 < self.trail[len(taken) - 1][1]:
                return [*taken[:-1], taken[-1] + 1]
            taken.pop()
        return None


def law_of(program):
    """Exact law {outcome: probability} of `program(dice)`, which must use no other randomness."""
    law, script = defaultdict(float), []
    while script is not None:
        dice = Replay(script)
        law[program(dice)] += dice.weight
        script = dice.next_script()
    return dict(law)


def markov(start, vocabulary=3):
    """A toy language model: the law after token t is `start` [V] rotated by t places."""
    start = torch.as_tensor(start, dtype=torch.float64)
    return lambda context: start.roll(context[-1]) if context else start


def plain_program(p, length):
    """Program that draws `length` tokens one by one from p(context): what is to be matched."""

    def program(dice):
        tokens = ()
        while len(tokens) < length:
            tokens += (dice.draw(p(tokens)),)
        return tokens

    return program


def block_program(p, q, k, length, verify=verify, propose=None):
    """Program: one speculative block of k drafts, filled up to `length` tokens by plain draws.

    p, q: functions from a tuple of tokens to a law [V]. `propose(law, dice)`: how a draft token
    is chosen (default: drawn from q). If one block is exact after any text, so is a chain of them.
    """
    propose = propose or (lambda law, dice: dice.draw(law))

    def program(dice):
        tokens = _block(p, q, k, verify, propose, dice)
        while len(tokens) < length:
            tokens += (dice.draw(p(tokens)),)
        return tokens[:length]

    return program


def _block(p, q, k, verify, propose, dice):
    """The tokens of one block at the start of a text: k drafts, then one verification."""
    draft, laws = (), []
    for _ in range(k):
        laws.append(q(draft))
        draft += (propose(laws[-1], dice),)
    p_target = torch.stack([p(draft[:i]) for i in range(k + 1)])
    q_draft = torch.stack(laws) if laws else p_target[:0]
    tokens, _ = verify(p_target, q_draft, torch.tensor(draft, dtype=torch.int64), dice)
    return tuple(tokens.tolist())
