"""Quantization-aware training: linear layers whose weights are rounded in every forward pass.

    prepare(model, …)   each nn.Linear becomes a FakeQuantLinear: float weights, rounded when used
    … train …           with distillation.Trainer, or any loop
    export(model)       {name: QuantizedTensor}, bit for bit what the last forward pass used
    convert(model)      the same, as PackedLinear layers

Three grids. "dynamic": taken anew from the weights in each pass, as torchao does. "frozen": taken
once, from the weights or from a QuantizedTensor (GPTQ, AWQ). "learned": like frozen, with the step
sizes trained (LSQ).
But: embeddings, norms and activations stay in float; nothing gets faster until `convert`.
"""

import torch
from torch import nn

from utils.quantization import fake_quant
from utils.quantization.fake_quant import Grid
from utils.quantization.linear import PackedLinear
from utils.quantization.model import find

GRIDS = ("dynamic", "frozen", "learned")
BYTES_PER_PARAMETER = {"weight": 4, "gradient": 4, "first moment": 4, "second moment": 4}


class FakeQuantLinear(nn.Module):
    """y = x W_hat^T + bias, W_hat = fake_quantize(weight); the same in train and in eval mode.

    start: a QuantizedTensor whose grid is taken, and whose codes are where training begins: the
    float weights are the layer's own, moved into the cells of those codes (`fake_quant.inside`).
    """

    def __init__(self, layer, bits=4, group_size=64, symmetric=False, grid="dynamic", start=None):
        super().__init__()
        if grid not in GRIDS:
            raise ValueError(f"grid={grid!r}: use one of {', '.join(GRIDS)}")
        if start is not None and grid == "dynamic":
            raise ValueError("a dynamic grid forgets `start`: use grid='frozen' or 'learned'")
        self.bits, self.group_size, self.symmetric, self.kind = bits, group_size, symmetric, grid
        first = layer.weight.detach().clone()
        if start is not None:
            first = fake_quant.inside(first, start)
        self.weight, self.bias = nn.Parameter(first), layer.bias
        self.scale = None
        if grid != "dynamic":
            made = (
                Grid.over(first, bits, group_size, symmetric) if start is None else Grid.of(start)
            )
            self.bits, self.group_size = made.bits, made.group_size
            self.scale = nn.Parameter(made.scale.clone(), requires_grad=grid == "learned")
            self.register_buffer("zero_point", made.zero_point)

    def grid(self):
        """The grid that the next forward pass uses."""
        if self.scale is None:
            return Grid.over(self.weight, self.bits, self.group_size, self.symmetric)
        return Grid(self.scale, self.zero_point, self.bits, self.group_size)

    def forward(self, x):
        """x [..., in] -> [..., out]."""
        weight = fake_quant.fake_quantize(self.weight, self.grid(), clipped=self.scale is not None)
        return nn.functional.linear(x, weight, self.bias)

    def export(self):
        """The QuantizedTensor that the forward pass uses."""
        return fake_quant.export(self.weight, self.grid())

    def extra_repr(self):
        rows, columns = self.weight.shape
        return f"{columns}, {rows}, bits={self.bits}, group={self.group_size}, grid={self.kind}"


def prepare(
    model, bits=4, group_size=64, symmetric=False, grid="dynamic", start=None, skip=("lm_head",)
):
    """Replace the linear layers of `model`, in place; returns the model.

    start: {name: QuantizedTensor} to begin at. Only the new layers' weights (and learned scales)
    ask for gradients afterwards: embeddings and norms are left as they are, frozen.
    """
    targets, _ = find(model, skip)
    missing = [] if start is None else [name for name in targets if name not in start]
    if missing:
        raise ValueError(f"start has no layer {missing[0]}: quantize all layers or name it in skip")
    model.requires_grad_(False)
    for name, layer in targets.items():
        if not isinstance(layer, nn.Linear):
            raise ValueError(f"layer {name} is a {type(layer).__name__}: only nn.Linear is trained")
        begin = None if start is None else start[name]
        new = FakeQuantLinear(layer, bits, group_size, symmetric, grid, begin)
        model.set_submodule(name, new)
    return model


def layers(model):
    """{name: FakeQuantLinear} of a prepared model."""
    found = {n: m for n, m in model.named_modules() if isinstance(m, FakeQuantLinear)}
    if not found:
        raise ValueError("no FakeQuantLinear in this model: call prepare first")
    return found


def export(model):
    """{name: QuantizedTensor} of all trained layers."""
    return {name: layer.export() for name, layer in layers(model).items()}


def convert(model):
    """Put packed layers in the place of the trained ones, in place; returns the model."""
    for name, layer in layers(model).items():
        model.set_submodule(name, PackedLinear(layer.export(), layer.bias))
    return model


@torch.no_grad()
def flipped(before, after):
    """Share of the codes that differ between two {name: QuantizedTensor}."""
    changed = sum(int((before[n].codes != after[n].codes).sum()) for n in before)
    return changed / sum(before[n].codes.numel() for n in before)


def training_bytes(trained, frozen=0, teacher=0):
    """Bytes of fp32 training with Adam: 16 for each trained parameter, 4 for each other one.

    Activations are not counted: they depend on the tokens in a step.
    """
    return sum(BYTES_PER_PARAMETER.values()) * trained + 4 * (frozen + teacher)
