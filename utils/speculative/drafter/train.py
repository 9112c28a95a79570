"""Training of the head: soft cross-entropy through unrolled chains.

The loss of step k, weighted 0.8^k as in EAGLE-3's code, is

    cross-entropy(the target's law on the draft ids, the head's law)
    + feature * mean square error of the standardised state + overlap * -log sum min(p, q)

The target's law comes from its stored state. EAGLE-3 (Li et al. 2025) drops the feature term, which
held back its training on some 0.5 million dialogues; with a few thousand answers it is kept as a
second teacher (`--feature 0` is the trial without). The last term, off unless asked for, is the
acceptance itself (Samarin et al. 2026, "LK losses").
Negatives: the sums over the draft ids take those that matter for some place of the batch and a
random share of the others, which count for 1 / share each (Jean et al. 2015).

Every random choice of step n comes from (seed, n), so that a run which was stopped goes on with
the same losses. `Trainer.average` is a running mean of the weights, which is what is shipped.
But: one process, one device, no gradients into the target.
"""

import contextlib
import time
from dataclasses import asdict, dataclass

import torch
from torch.nn import functional as F

from utils.speculative.drafter import data
from utils.speculative.drafter.head import began

MATTERS = 2e-4  # an id with this probability at some place is always scored


@dataclass(frozen=True)
class Recipe:
    """What decides a training, beside the texts.

    rate: of learning, after `warmup` steps; falls linearly to `last_rate` of it. decay: of weights.
    noise: on states, in their standard deviations. heat: temperature of the target's law; below 1
    its first choice weighs more. unroll: (share of the steps done, length of the chain) from there.
    """

    epochs: float = 5
    batch: int = 8
    rate: float = 8e-4
    warmup: int = 150
    last_rate: float = 0.03
    decay: float = 0.02
    noise: float = 0.1
    feature: float = 0.5
    overlap: float = 0.0
    negatives: float = 0.06
    heat: float = 1.0
    unroll: tuple = ((0.0, 2), (0.4, 3))
    average: float = 0.998
    seed: int = 0

    def steps_ahead(self, share):
        """Length of the chain after this share of the training."""
        return [length for start, length in self.unroll if share >= start][-1]


def loss_of(head, lot, steps, recipe, generator):
    """The loss of a batch, and per step [(cross-entropy, feature error)]."""
    law, chosen, shift = target_law(head, lot.goal, recipe, generator)
    noise = torch.randn(lot.states.shape, generator=generator) * recipe.noise
    scale = head.spread[head.hidden :].view(lot.states.shape[2:])
    guesses = head.unroll(lot.ids, lot.states + noise * scale, lot.kept, steps)
    total, parts, rows = 0.0, [], head.rows[chosen]
    for step, (own, fair) in enumerate(zip(guesses, began(lot.kept, steps), strict=True)):
        scores = (own[fair] @ rows.T + shift).log_softmax(-1)
        entropy = -(law[fair] * scores).sum(-1).mean()
        goal = head.standard_own(lot.goal[fair])
        feature = F.mse_loss(head.standard_own(own[fair]), goal)
        loss = entropy + recipe.feature * feature
        if recipe.overlap:
            accepted = torch.minimum(law[fair], scores.exp()).sum(-1)
            loss = loss - recipe.overlap * accepted.log().mean()
        total = total + 0.8**step * loss
        parts.append((float(entropy.detach()), float(feature.detach())))
    return total, parts


@torch.no_grad()
def target_law(head, goal, recipe, generator):
    """(the target's law on the chosen draft ids [places, n], their places, log weights [n])."""
    law = (goal @ head.rows.T / recipe.heat).softmax(-1)
    heavy = (law > MATTERS).any(0)
    drawn = torch.rand(len(heavy), generator=generator) < recipe.negatives
    chosen = (heavy | drawn).nonzero()[:, 0]
    weight = torch.where(heavy, 1.0, 1.0 / recipe.negatives).log()
    law = law[:, chosen]
    return law / law.sum(-1, keepdim=True), chosen, weight[chosen]


class Trainer:
    """head, texts (data.Seen) and recipe; `step()` until `finished`."""

    def __init__(self, head, texts, recipe):
        if not texts:
            raise ValueError("no texts to train on: sample first")
        self.head, self.texts, self.recipe = head, texts, recipe
        self.done, self.places, self.seconds, self.cpu_seconds = 0, 0, 0.0, 0.0
        self.per_epoch = -(-len(texts) // recipe.batch)
        self.total = max(1, round(recipe.epochs * self.per_epoch))
        self.optimizer = torch.optim.AdamW(_groups(head, recipe), lr=recipe.rate, betas=(0.9, 0.97))
        self.average = [p.detach().clone() for p in head.parameters()]
        self._order = (None, None)

    @property
    def finished(self):
        """True when all steps are done."""
        return self.done >= self.total

    def step(self):
        """One update; {"step", "loss", "parts", ...}."""
        began_cpu, began_wall = time.process_time(), time.perf_counter()
        share, recipe = self.done / self.total, self.recipe
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + self.done)
        lot = self._lot()
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(share) * group["scale"]
        with torch.enable_grad():
            loss, parts = loss_of(self.head, lot, recipe.steps_ahead(share), recipe, generator)
            self.optimizer.zero_grad()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        self.optimizer.step()
        self._average()
        self.done += 1
        self.places += len(lot.goal)
        self.cpu_seconds += time.process_time() - began_cpu
        self.seconds += time.perf_counter() - began_wall
        return {"step": self.done, "loss": float(loss.detach()), "parts": parts}

    def _lot(self):
        epoch, place = divmod(self.done, self.per_epoch)
        if self._order[0] != epoch:
            found = data.order(self.texts, self.recipe.batch, self.recipe.seed, epoch)
            self._order = (epoch, found)
        return data.lot([self.texts[i] for i in self._order[1][place]])

    def _rate(self, share):
        warm = min(1.0, (self.done + 1) / self.recipe.warmup)
        return self.recipe.rate * warm * max(self.recipe.last_rate, 1 - share)

    @torch.no_grad()
    def _average(self):
        keep = min(self.recipe.average, (1 + self.done) / (10 + self.done))
        for mean, parameter in zip(self.average, self.head.parameters(), strict=True):
            mean.lerp_(parameter, 1 - keep)

    @contextlib.contextmanager
    def averaged(self):
        """Within: the head has the averaged weights."""
        kept = [p.detach().clone() for p in self.head.parameters()]
        self._put(self.average)
        try:
            yield self.head
        finally:
            self._put(kept)

    @torch.no_grad()
    def _put(self, values):
        for parameter, value in zip(self.head.parameters(), values, strict=True):
            parameter.copy_(value)

    def state(self):
        """All that `restore` needs to go on."""
        counted = {n: getattr(self, n) for n in ("done", "places", "seconds", "cpu_seconds")}
        return counted | {
            "head": self.head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average,
            "recipe": _plain(self.recipe),
            "texts": self._texts(),
        }

    def restore(self, state):
        """Go on from `state`; ValueError where it belongs to another recipe or other texts."""
        mine = {"recipe": _plain(self.recipe), "texts": self._texts()}
        differs = [name for name in mine if state[name] != mine[name]]
        if differs:
            raise ValueError(
                f"the checkpoint was made with another {' and '.join(differs)}: "
                "use the same ones, or another folder"
            )
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.average = [mean.clone() for mean in state["average"]]
        for name in ("done", "places", "seconds", "cpu_seconds"):
            setattr(self, name, state[name])

    def _texts(self):
        return [len(self.texts), sum(len(text.ids) for text in self.texts)]


def _groups(head, recipe):
    """Parameters with their decay and their share of the rate: matrices with more inputs move less.

    Adam moves all weights alike, so that an output moves as inputs x rate (Yang et al. 2021).
    """
    groups = []
    for parameter in head.parameters():
        matrix = parameter.dim() == 2
        scale = min(1.0, head.hidden / parameter.shape[1]) if matrix else 1.0
        decay = recipe.decay if matrix else 0.0
        groups.append({"params": [parameter], "weight_decay": decay, "scale": scale})
    return groups


def _plain(recipe):
    return {name: str(value) for name, value in asdict(recipe).items()}
