"""Mixture-of-experts layers: count what each expert sees, and quantize it with its own Hessian.

In transformers 5 the experts of a layer are two parameters [experts, out, in], `gate_up_proj` and
`down_proj`, and no nn.Linear: what looks for linear layers passes them by, and with them most of
the weights. The router is a parameter of another module; it stays in float here, since a rounding
error there sends a token to other experts.
But: weights are put back at full size (simulated); experts that no token reached are rounded to
nearest, and the report says how many tokens each one saw.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from utils.quantization import gptq, rtn
from utils.sparsity import statistics

PARTS = ("gate_up_proj", "down_proj")


@dataclass
class Seen:
    """Of one layer: tokens [experts] routed to each expert, and {part: [H or None per expert]}."""

    tokens: torch.Tensor
    hessians: dict = field(repr=False)


def find(model):
    """{name: module} of the modules that hold experts as parameters [experts, out, in]."""
    return {
        name: module
        for name, module in model.named_modules()
        if all(getattr(getattr(module, part, None), "ndim", 0) == 3 for part in PARTS)
    }


@contextmanager
def watch(model):
    """While the block runs, fill {name: Seen} from what the router sends to each expert."""
    seen, handles = {}, []
    for name, module in find(model).items():
        count = len(module.down_proj)
        blank = {part: [None] * count for part in PARTS}
        seen[name] = Seen(torch.zeros(count, dtype=torch.int64), blank)
        handles.append(module.register_forward_pre_hook(_hook(seen[name])))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _hook(seen):
    def record(module, inputs):
        x, chosen = inputs[0].detach().reshape(-1, inputs[0].shape[-1]), inputs[1]
        for expert in range(len(seen.tokens)):
            mine = x[(chosen == expert).any(dim=-1)]
            seen.tokens[expert] += len(mine)
            if len(mine):
                _add(seen, expert, mine, inner(module, expert, mine))

    return record


def inner(module, expert, x):
    """What the down projection of one expert sees: act(gate x) * up x."""
    gate, up = (x @ module.gate_up_proj[expert].T).chunk(2, dim=-1)
    return module.act_fn(gate) * up


def _add(seen, expert, *inputs):
    for part, x in zip(PARTS, inputs, strict=True):
        gram, old = x.double().T @ x.double(), seen.hessians[part][expert]
        seen.hessians[part][expert] = gram if old is None else old + gram


def collect(model, ids):
    """{name: Seen} of one pass over ids [windows, time]. ValueError without such layers."""
    if not find(model):
        raise ValueError("no module holds experts as parameters [experts, out, in]")
    with watch(model) as seen, torch.no_grad():
        statistics.forward(model, ids)
    return seen


@torch.no_grad()
def quantize(model, seen, bits=4, group_size=32, symmetric=False, least=1, **options):
    """Round every expert in place, with GPTQ where it saw `least` tokens, else to nearest.

    Returns {(name, expert, part): QuantizedTensor}. options go to gptq.quantize.
    """
    made = {}
    for name, module in find(model).items():
        for part in PARTS:
            for expert, weight in enumerate(getattr(module, part)):
                h = seen[name].hessians[part][expert]
                if seen[name].tokens[expert] < max(least, 1):
                    tensor = rtn.quantize(weight, bits, group_size, symmetric)
                else:
                    tensor = gptq.quantize(
                        weight, h, bits, group_size, symmetric=symmetric, **options
                    )
                made[name, expert, part] = tensor
                weight.copy_(tensor.dequantize(weight.dtype))
    return made
