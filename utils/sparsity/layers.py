"""Which layers to prune, and their weight as a matrix [out, in] whatever the layer stores.

Does: nn.Linear and GPT-2's Conv1D (stored [in, out]); the blocks of a decoder in order.
Does not: embeddings, convolutions, norms.
"""

import torch
from torch import nn


def matrix(module):
    """The layer's weight as a view [out, in]: writing to it writes to the layer."""
    weight = module.weight.detach()
    return weight if isinstance(module, nn.Linear) else weight.t()


def blocks(model):
    """[(prefix, module)]: the decoder blocks in order (the longest ModuleList), or the model."""
    lists = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    if not lists:
        return [("", model)]
    name, longest = max(lists, key=lambda item: len(item[1]))
    return [(f"{name}.{i}." if name else f"{i}.", block) for i, block in enumerate(longest)]


def body(model):
    """The model without its output head where it has one: pruning needs no logits."""
    return getattr(model, "base_model", model)


def require_finite(name, tensor, what):
    """ValueError that names the layer if `tensor` holds NaN or infinity."""
    if not torch.isfinite(tensor).all():
        raise ValueError(
            f"{name}: the {what} hold NaN or infinity; find their source before pruning"
        )
