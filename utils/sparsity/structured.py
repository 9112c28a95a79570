"""Remove MLP channels, groups of heads or whole blocks of a Llama-shaped model, so that it shrinks.

Does: cut rows and columns out of the matrices, and put the new sizes into the configuration; what
stays computes what it computed before, as if the rest were zero. Not a mask: the result is a
smaller dense model that any engine runs. Does not: choose (`importance`), or repair (`recovery`).
The copy shares every tensor that is not cut: `copy.deepcopy` it before you train it.

A channel c of an MLP  down(act(gate x) * (up x))  is row c of `gate` and `up`, column c of `down`.
With grouped-query attention G queries share a key: heads can only leave by groups, G query heads
with their key and value head, or the pairing of queries and keys would shift.
"""

import copy

import torch
from torch import nn

from utils.quantization.model import share
from utils.sparsity.layers import blocks


def decoder_blocks(model):
    """The decoder blocks in order; ValueError where a block isn't Llama-shaped."""
    found = [block for _, block in blocks(model)]
    if not found or not all(hasattr(b, "mlp") and hasattr(b, "self_attn") for b in found):
        raise ValueError(
            f"{type(model).__name__} has no blocks with `mlp` and `self_attn`; "
            "structured removal knows Llama-shaped models only"
        )
    return found


def keep_channels(model, keep):
    """A copy whose MLPs hold the channels keep[block] only: int64 indices, equally many each."""
    count = _checked(keep, len(decoder_blocks(model)), model.config.intermediate_size, "channels")
    small = _copy(model, intermediate_size=count)
    for block, index in zip(decoder_blocks(small), keep, strict=True):
        for name in ("gate_proj", "up_proj"):
            _cut(block.mlp, name, rows=index)
        _cut(block.mlp, "down_proj", columns=index)
        if hasattr(block.mlp, "intermediate_size"):
            block.mlp.intermediate_size = count
    return small


def keep_groups(model, keep):
    """A copy whose attention holds the key-value groups keep[block] only, with their queries."""
    config, size = model.config, head_size(model.config)
    count = _checked(keep, len(decoder_blocks(model)), config.num_key_value_heads, "groups")
    queries = config.num_attention_heads // config.num_key_value_heads
    small = _copy(
        model, num_key_value_heads=count, num_attention_heads=count * queries, head_dim=size
    )
    for block, index in zip(decoder_blocks(small), keep, strict=True):
        wide, narrow = spans(index, queries * size), spans(index, size)
        _cut(block.self_attn, "q_proj", rows=wide)
        _cut(block.self_attn, "k_proj", rows=narrow)
        _cut(block.self_attn, "v_proj", rows=narrow)
        _cut(block.self_attn, "o_proj", columns=wide)
    return small


def keep_blocks(model, keep):
    """A copy with the blocks `keep` (indices in order) only."""
    total = len(decoder_blocks(model))
    _checked([torch.as_tensor(keep)], 1, total, "blocks")
    small = _copy(model, num_hidden_layers=len(keep))
    if getattr(small.config, "layer_types", None):
        small.config.layer_types = [small.config.layer_types[i] for i in keep]
    decoder = small.base_model
    decoder.layers = nn.ModuleList(decoder.layers[i] for i in keep)
    for number, block in enumerate(decoder.layers):
        block.self_attn.layer_idx = number
    return small


def head_size(config):
    """Numbers per head, also where the configuration leaves it to be computed."""
    given = getattr(config, "head_dim", None)
    return given or config.hidden_size // config.num_attention_heads


def spans(index, width):
    """Indices of the `width` neighbours that belong to each of `index`: [1] by 2 is [2, 3]."""
    return (index[:, None] * width + torch.arange(width, device=index.device)).flatten()


def weight_bytes(model):
    """Bytes of all big matrices that one decoded token reads; a tied head counts once."""
    tensors = {p.data_ptr(): p for p in model.parameters() if p.dim() == 2}
    return sum(p.nbytes for p in tensors.values())


def _checked(keep, layers, size, what):
    """The number of indices per layer, if all is well."""
    keep = [torch.as_tensor(index) for index in keep]
    counts = {len(index) for index in keep}
    if len(keep) != layers or len(counts) != 1 or counts == {0}:
        raise ValueError(
            f"keep names {len(keep)} layers with {sorted(counts)} {what}: need one list for each "
            f"of the {layers}, all equally long and none empty, as one configuration serves all"
        )
    for index in keep:
        ordered = bool((index[1:] > index[:-1]).all())
        if not ordered or not 0 <= int(index[0]) <= int(index[-1]) < size:
            raise ValueError(f"{what} {index.tolist()[:8]}: need rising indices below {size}")
    return counts.pop()


def _copy(model, **sizes):
    """The same modules and tensors under a configuration of its own, in which `sizes` differ."""
    small, config = share(model), copy.deepcopy(model.config)
    for name, value in sizes.items():
        setattr(config, name, value)
    for module in small.modules():
        if hasattr(module, "config"):
            module.config = config
    return small


def _cut(parent, name, rows=None, columns=None):
    """Put a smaller linear layer in the place of `parent.name`."""
    old = getattr(parent, name)
    weight, bias = old.weight.detach(), old.bias
    if rows is not None:
        weight, bias = weight[rows], None if bias is None else bias.detach()[rows]
    if columns is not None:
        weight = weight[:, columns]
    new = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, weight.device, weight.dtype)
    new.weight = nn.Parameter(weight.clone(), requires_grad=old.weight.requires_grad)
    if bias is not None:
        new.bias = nn.Parameter(bias.clone(), requires_grad=old.weight.requires_grad)
    setattr(parent, name, new)
