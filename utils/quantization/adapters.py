"""Low-rank adapters in float beside frozen quantized weights (QLoRA without its 4-bit floats).

    y = x W_hat^T + (alpha / rank) (x A^T) B^T       A [rank, in] random, B [out, rank] zero

At the start B = 0: the layer is the quantized layer. Only A and B are trained. Hu et al. 2022
(arXiv:2106.09685); on quantized weights: Dettmers et al. 2023 (arXiv:2305.14314).
But: W_hat + (alpha / rank) B A is not on W_hat's grid. It can be kept beside the codes (more bits,
two more products per layer), or be rounded again (`merge`), which loses part of what was learned.
"""

import torch
from torch import nn

from utils.quantization import rtn
from utils.quantization.model import find


class AdapterLinear(nn.Module):
    """A frozen layer with weight W_hat [out, in] from a QuantizedTensor, and its adapter."""

    def __init__(self, weight, bias=None, rank=8, alpha=16.0, generator=None):
        super().__init__()
        if not 1 <= rank <= min(weight.shape):
            raise ValueError(f"rank={rank}: use 1 to {min(weight.shape)} for {weight.shape}")
        self.quantized, self.scaling = weight, alpha / rank
        self.register_buffer("frozen", weight.dequantize())
        self.bias = bias
        first = torch.randn(rank, weight.shape[1], generator=generator) / weight.shape[1] ** 0.5
        self.down, self.up = nn.Parameter(first), nn.Parameter(torch.zeros(weight.shape[0], rank))

    def forward(self, x):
        """x [..., in] -> [..., out]."""
        y = nn.functional.linear(x, self.frozen, self.bias)
        return y + self.scaling * nn.functional.linear(nn.functional.linear(x, self.down), self.up)

    @torch.no_grad()
    def merged(self):
        """W_hat + (alpha / rank) B A in float: the layer's function, off the grid."""
        return self.frozen + self.scaling * self.up @ self.down

    def merge(self):
        """The merged weight, rounded again like the old one: a QuantizedTensor."""
        old = self.quantized
        return rtn.quantize(self.merged(), old.bits, old.group_size, old.symmetric)

    @property
    def bits_per_weight(self):
        """Bits of the codes and of the adapter in fp16, per weight of the layer."""
        extra = 16 * (self.down.numel() + self.up.numel())
        return self.quantized.bits_per_weight + extra / self.frozen.numel()


def attach(model, tensors, rank=8, alpha=16.0, seed=0, skip=("lm_head",)):
    """Put an AdapterLinear over tensors[name] in the place of each linear layer, in place."""
    generator = torch.Generator().manual_seed(seed)
    targets, _ = find(model, skip)
    model.requires_grad_(False)
    for name, layer in targets.items():
        new = AdapterLinear(tensors[name], layer.bias, rank, alpha, generator)
        model.set_submodule(name, new)
    return model


def layers(model):
    """{name: AdapterLinear}."""
    return {n: m for n, m in model.named_modules() if isinstance(m, AdapterLinear)}


def merge(model):
    """{name: QuantizedTensor}: every adapter merged and rounded."""
    return {name: layer.merge() for name, layer in layers(model).items()}
