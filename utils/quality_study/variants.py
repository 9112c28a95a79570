"""The variants of one model that unit 04 judges: rounded, pruned, sharpened, tuned.

`make(name, model, calibration)` returns a model that shares what it doesn't change.
Names: a grid of GRIDS ("int8", "int4-g64"), with "-mse" (clip by squared error), "prune-30",
"softer" (logits divided by 1.1), "tuned" (norms trained on other text of the same kind),
"int4-g64-tuned" (rounded, then the norms trained), "recipe-3" (4 bits, a random clip per layer).
"""

import copy
from types import SimpleNamespace

import numpy as np
import torch

from utils.quantization import quantize_model, rtn
from utils.quantization.model import share
from utils.sparsity import prune_model

GRIDS = {  # bits, group size, symmetric
    "int8": (8, -1, True),
    "int6-g64": (6, 64, True),
    "int5-g64": (5, 64, False),
    "int4-g32": (4, 32, False),
    "int4-g64": (4, 64, False),
    "int3-g64": (3, 64, False),
}
SOFTER = 1.1  # divides all logits
STEPS, RATE = 16, 3e-3  # of the norms' training: one window of calibration text per step
CLIPS = (0.85, 1.0)  # of the random recipes


def make(name, model, calibration):
    """The variant `name` of `model`; calibration: ids [windows, length] for what is trained."""
    if name == "fp32":
        return model
    if name == "softer":
        return Scaled(model, SOFTER)
    if name.startswith("prune-"):
        pruned = copy.deepcopy(model)
        prune_model(pruned, "magnitude", int(name.removeprefix("prune-")) / 100)
        return pruned
    if name.startswith("recipe-"):
        return _recipe(model, int(name.removeprefix("recipe-")))
    if name == "tuned" or name.endswith("-tuned"):
        base = make(name.removesuffix("-tuned").replace("tuned", "fp32"), model, calibration)
        return _tune_norms(share(base), calibration)
    return _rounded(model, name)


def _rounded(model, name):
    grid = name.removesuffix("-mse")
    if grid not in GRIDS:
        raise ValueError(f"unknown variant {name!r}: see {__name__}")
    clip = {"clip": "mse"} if name.endswith("-mse") else {}
    return quantize_model(model, "rtn", *GRIDS[grid], inplace=False, simulate=True, **clip).model


def _recipe(model, seed):
    """4 bits g64 with a clip drawn anew for each layer: one of many equally sensible recipes."""
    dice = np.random.Generator(np.random.PCG64(seed))

    def method(weight, bits, group_size, symmetric):
        return rtn.quantize(weight, bits, group_size, symmetric, clip=dice.uniform(*CLIPS))

    return quantize_model(model, method, *GRIDS["int4-g64"], inplace=False, simulate=True).model


class Scaled(torch.nn.Module):
    """A model whose logits are divided by a temperature; same first choices, other law."""

    def __init__(self, model, temperature):
        super().__init__()
        self.model, self.temperature = model, temperature

    def forward(self, *args, **kwargs):
        return SimpleNamespace(logits=self.model(*args, **kwargs).logits / self.temperature)


def _tune_norms(model, calibration):
    """Train the weights of the norms (0.03 % of all) to predict the calibration text."""
    norms = [m for m in model.modules() if type(m).__name__.endswith("RMSNorm")]
    for norm in norms:  # a copy of its own: the reference keeps the old one
        norm.weight = torch.nn.Parameter(norm.weight.detach().clone())
    optimizer = torch.optim.Adam([norm.weight for norm in norms], lr=RATE)
    for step in range(STEPS):
        ids = calibration[step % len(calibration)][None].to(model.device)
        with torch.enable_grad():
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.requires_grad_(False)
