"""Quantization-aware training of one transformer block against its own outputs in float.

    inputs x -> block -> y        x, y recorded once from the float model
    L = sum ||block_hat(x) - y||² / sum ||y - x||²            over all positions

A block is a small model: a step is cheap and needs no teacher in memory. Done for one block after
the other this is the first phase of EfficientQAT (Chen et al. 2024, arXiv:2407.11062). y - x is
what the block adds to the residual stream; x itself is the same in both and is not counted.
But: blocks are not chained here, inputs come from the float model, and a small output error of one
block doesn't promise a small KL of the model.
"""

from contextlib import suppress
from dataclasses import dataclass

import torch

from utils.quantization import hessian
from utils.quantization.distillation import Plan, rate
from utils.quantization.model import find, share
from utils.sparsity import statistics


@dataclass(frozen=True)
class Pairs:
    """inputs, outputs [windows, time, hidden]; extra: the block's other arguments."""

    inputs: torch.Tensor
    outputs: torch.Tensor
    extra: dict

    def rows(self, chosen):
        """The pairs of some windows."""
        return Pairs(self.inputs[chosen], self.outputs[chosen], self.extra)


class _Enough(Exception):
    """Raised behind the block: what comes after it need not run."""


@torch.no_grad()
def record(model, number, ids):
    """Inputs and outputs of block `number` of a Llama on ids [windows, time]."""
    inputs, outputs, extra = [], [], {}

    def keep(_module, args, kwargs, output):
        inputs.append(args[0])
        outputs.append(output)
        extra.update(kwargs)
        raise _Enough

    handle = blocks(model)[number].register_forward_hook(keep, with_kwargs=True)
    try:
        for row in ids:
            with suppress(_Enough):
                statistics.forward(model, row[None])
    finally:
        handle.remove()
    return Pairs(torch.cat(inputs), torch.cat(outputs), extra)


def blocks(model):
    """The transformer blocks."""
    return model.model.layers


def copy_of(model, number):
    """A copy of one block that shares its tensors."""
    return share(blocks(model)[number])


@torch.no_grad()
def hessians(block, pairs):
    """{layer: H} of the block's linear layers on these pairs, for GPTQ (unit 08)."""
    recorder = hessian.Recorder(find(block)[0])
    with recorder.attached():
        for row in range(len(pairs.inputs)):
            block(pairs.inputs[row : row + 1], **pairs.extra)
    return {name: kept.hessian for name, kept in recorder.statistics.items()}


def error(block, pairs):
    """Squared error of what the block adds, relative to the size of what it adds."""
    made = block(pairs.inputs, **pairs.extra)
    return (made - pairs.outputs).square().sum() / (pairs.outputs - pairs.inputs).square().sum()


def train(block, pairs, steps, plan=None, watch=None):
    """Losses by step, and of `watch` (pairs that are not trained on) every tenth step.

    Windows are taken in turn, plan.batch per step, again and again.
    """
    plan = plan or Plan(rate=1e-3, batch=2)
    parameters = [p for p in block.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("nothing to train: prepare the block first")
    optimizer = torch.optim.AdamW(parameters, lr=0.0, betas=(0.9, 0.95), weight_decay=plan.decay)
    losses, watched = [], []
    for step in range(steps):
        if watch is not None and step % 10 == 0:
            with torch.no_grad():
                watched.append(float(error(block, watch)))
        first = step * plan.batch
        chosen = [(first + i) % len(pairs.inputs) for i in range(plan.batch)]
        with torch.enable_grad():
            loss = error(block, pairs.rows(chosen))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps, plan)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, watched
