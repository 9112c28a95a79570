"""Training a student against its teacher's distributions, a batch of windows per step, resumable.

    L = mean over positions of sum_v p(v) (log p(v) - log q(v))       p: teacher, q: student
    dL/dlogit(v) = (q(v) - p(v)) / positions                          against q - onehot for text

Hinton et al. 2015 (arXiv:1503.02531) without temperature and without a share of text loss.
AdamW, no weight decay unless asked, linear warm-up, then a line to a tenth of the rate, gradients
clipped to length 1. Seconds are of the process on its CPU, evaluation left out.
But: one device, one process, fp32; the teacher runs in each step and nothing of it is kept.
"""

import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from utils import cache


@dataclass(frozen=True)
class Plan:
    """rate: highest learning rate.  batch: windows per step.  loss: "kl" or "text"."""

    rate: float = 1e-4
    batch: int = 2
    loss: str = "kl"
    warm_up: int = 4
    decay: float = 0.0
    clip: float = 1.0
    last: float = 0.1  # of the rate, at the end


def rate(step, steps, plan):
    """Learning rate of step 0, 1, … of `steps`."""
    rising = min(1.0, (step + 1) / plan.warm_up)
    left = (steps - 1 - step) / max(1, steps - 1)
    return plan.rate * rising * (plan.last + (1 - plan.last) * left)


def kl(teacher_logits, student_logits):
    """Mean over positions of KL(teacher || student), nats; logits [..., vocabulary]."""
    p = F.log_softmax(teacher_logits.float(), dim=-1).flatten(0, -2)
    q = F.log_softmax(student_logits.float(), dim=-1).flatten(0, -2)
    return F.kl_div(q, p, reduction="batchmean", log_target=True)


def text(logits, ids):
    """Mean cross-entropy of the next token, nats; logits [rows, time, vocabulary]."""
    return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


class Trainer:
    """student, teacher; windows int64 [n, time]: step i takes rows i * batch …, each row once."""

    def __init__(self, student, teacher, windows, plan=None):
        self.plan = plan or Plan()
        if self.plan.loss not in ("kl", "text"):
            raise ValueError(f"loss={self.plan.loss!r}: use 'kl' or 'text'")
        if windows.dim() != 2 or len(windows) < self.plan.batch:
            raise ValueError(f"windows {tuple(windows.shape)}: need at least one batch [n, time]")
        self.student, self.teacher, self.windows = student, teacher, windows
        self.parameters = [p for p in student.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError("nothing to train: prepare the student first")
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=0.0, betas=(0.9, 0.95), weight_decay=self.plan.decay
        )
        self.steps, self.done = len(windows) // self.plan.batch, 0
        self.losses, self.seconds = [], 0.0

    @property
    def tokens(self):
        """Tokens seen so far."""
        return self.done * self.plan.batch * self.windows.shape[1]

    def run(self, until=None):
        """Train up to step `until` (default: all); returns self."""
        until = self.steps if until is None else min(until, self.steps)
        start = time.process_time()
        with torch.enable_grad():
            while self.done < until:
                self._step()
        self.seconds += time.process_time() - start
        return self

    def _step(self):
        rows = slice(self.done * self.plan.batch, (self.done + 1) * self.plan.batch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.done, self.steps, self.plan)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.windows[rows])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.plan.clip)
        self.optimizer.step()
        self.losses.append(float(loss.detach()))
        self.done += 1

    def loss(self, ids):
        """The loss of one batch of windows, with a gradient."""
        logits = self.student(input_ids=ids, use_cache=False).logits
        if self.plan.loss == "text":
            return text(logits, ids)
        with torch.no_grad():
            target = self.teacher(input_ids=ids, use_cache=False).logits
        return kl(target, logits)

    def save(self, path):
        """Everything that is needed to go on, in one file, written in one piece."""
        named = [p.detach() for p in self.parameters]
        state = dict(parameters=named, optimizer=self.optimizer.state_dict(), done=self.done,
                     losses=self.losses, seconds=self.seconds, plan=repr(self.plan))  # fmt: skip
        with cache.write_atomically(path) as scratch:
            torch.save(state, scratch)

    def load(self, path):
        """Go on from `save`; ValueError if that was another plan."""
        state = torch.load(path, weights_only=True)
        if state["plan"] != repr(self.plan):
            raise ValueError(f"{path} holds {state['plan']}, not {self.plan}: delete it")
        with torch.no_grad():
            for mine, kept in zip(self.parameters, state["parameters"], strict=True):
                mine.copy_(kept)
        self.optimizer.load_state_dict(state["optimizer"])
        self.done, self.losses = state["done"], state["losses"]
        self.seconds = state["seconds"]
        return self
