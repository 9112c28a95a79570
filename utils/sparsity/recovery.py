"""Short training of a pruned model with its zeros held, on windows of text, one window a step.

Does: AdamW on the linear layers (embedding, head and norms stay), a rate that rises for a few
steps and then falls in a line to zero, gradients clipped to length 1, zeros frozen after each step
or raised by a `gradual.Schedule`. Does not: distil, mix precisions, or hold more than one device.
"""

from dataclasses import dataclass

import torch

from utils import models
from utils.sparsity import frozen, gradual, importance


@dataclass(frozen=True)
class Plan:
    """rate: the highest learning rate.  warm_up: steps.  gradual: share of the steps in which the
    sparsity rises (0: the zeros that are there stay).  every: steps between raises.
    pattern: "2:4" or None, for gradual alone."""

    rate: float = 1e-4
    warm_up: int = 4
    gradual: float = 0.0
    every: int = 1
    pattern: str | None = "2:4"


def rate(step, steps, plan):
    """Learning rate of step 0, 1, … of `steps`."""
    return plan.rate * min((step + 1) / plan.warm_up, (steps - step) / max(1, steps - plan.warm_up))


def tune(model, windows, plan=None):
    """Train in place, a step for each row of windows int64 [steps, time]; the losses by step.

    Afterwards the weights need no gradients again. Zeros (or the schedule's final ones) are kept.
    """
    plan = plan or Plan()
    if windows.dim() != 2 or not len(windows):
        raise ValueError(f"windows {tuple(windows.shape)}: need token ids [steps, time]")
    weights = [m.weight for m in models.linears(model).values()]
    for weight in weights:
        weight.requires_grad_(True)
    optimizer = torch.optim.AdamW(weights, 0.0, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    held = _holder(model, optimizer, len(windows), plan)
    try:
        with torch.enable_grad():
            return [
                _step(model, optimizer, row, rate(step, len(windows), plan), held, step)
                for step, row in enumerate(windows)
            ]
    finally:
        for weight in weights:
            weight.requires_grad_(False).grad = None
        held.release() if plan.gradual else held.remove()


def _holder(model, optimizer, steps, plan):
    if not plan.gradual:
        return frozen.FrozenZeros(model, optimizer)
    rising = max(1, round(plan.gradual * steps))
    return gradual.Schedule(model, optimizer, rising, plan.every, plan.pattern)


def _step(model, optimizer, row, rate_now, held, step):
    for group in optimizer.param_groups:
        group["lr"] = rate_now
    optimizer.zero_grad(set_to_none=True)
    logits = model(input_ids=row[None], use_cache=False).logits
    value = importance.loss(logits, row[None])
    value.backward()
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    optimizer.step()
    if isinstance(held, gradual.Schedule):
        held.advance(step + 1)
    return float(value.detach())
