"""What a GGUF file really holds: its tensor table, its true bits per weight, its weights.

    table(path)     one Row per tensor: name, type, shape, bytes
    summary(rows)   {type: (tensors, weights, bytes)}; bits_per_weight(rows): over all matrices
    restore(path, model)   the file's weights, decoded by our own codecs, in a copy of `model`

But: Llama-shaped files only (the names of gguf_file.py), and only the types that our codecs read;
the container is read by the `gguf` package.
"""

import re
from collections import namedtuple

import gguf
import torch
from torch import nn

from utils.quantization import gguf as codec
from utils.quantization import gguf_file, gguf_kquants
from utils.quantization.model import share

Row = namedtuple("Row", "name kind shape nbytes")
OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


def table(path):
    """The file's tensors as a list of Row; shape is [out, in] as in torch."""
    return [_row(tensor) for tensor in gguf.GGUFReader(path).tensors]


def summary(rows):
    """{type: (tensors, weights, bytes)}, the type with most bytes first."""
    found = {}
    for row in rows:
        tensors, weights, nbytes = found.get(row.kind, (0, 0, 0))
        weights += torch.Size(row.shape).numel()
        found[row.kind] = (tensors + 1, weights, nbytes + row.nbytes)
    return dict(sorted(found.items(), key=lambda item: -item[1][2]))


def bits_per_weight(rows):
    """8 x bytes / weights over the matrices of the table (norms are left out)."""
    matrices = [row for row in rows if len(row.shape) == 2]
    weights = sum(torch.Size(row.shape).numel() for row in matrices)
    return 8 * sum(row.nbytes for row in matrices) / weights


def decode(data, kind, shape):
    """A tensor's bytes (uint8) as fp32 of `shape`. ValueError for a type we can't read."""
    if kind in gguf_file.PLAIN:
        return data.contiguous().view(gguf_file.PLAIN[kind]).to(torch.float32).reshape(shape)
    if kind in codec.TYPES:
        return codec.dequantize(data, kind, shape)
    if kind in gguf_kquants.SIZES:
        return gguf_kquants.dequantize(data, kind, shape)
    known = [*gguf_file.PLAIN, *codec.TYPES, *gguf_kquants.SIZES]
    raise ValueError(f"type {kind}: our codecs read {', '.join(known)}")


def weights(path, config):
    """{transformers' parameter name: fp32} of a file, rows of q and k back in their order."""
    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        row = _row(tensor)
        data = torch.from_numpy(tensor.data.copy()).view(torch.uint8).flatten()
        weight = decode(data, row.kind, row.shape)
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        rotary = heads.get(row.name.split(".")[-2], 0)
        found[parameter(row.name)] = gguf_file.deinterleave(weight, rotary) if rotary else weight
    return found


def restore(path, model):
    """A copy of `model` that computes with the file's weights; `model` stays as it is."""
    made = share(model)
    for name, weight in weights(path, model.config).items():
        module = made.get_submodule(name.removesuffix(".weight"))
        module.weight = nn.Parameter(weight, requires_grad=False)
    if model.lm_head.weight is model.model.embed_tokens.weight:
        made.lm_head.weight = made.model.embed_tokens.weight
    return made


def parameter(name):
    """transformers' name of a tensor of the file; ValueError for one that no Llama has."""
    known = gguf_file.NORMS | gguf_file.MATRICES
    inside = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if inside and inside[2] in known:
        return f"model.layers.{inside[1]}.{known[inside[2]]}.weight"
    if name.removesuffix(".weight") in OUTSIDE:
        return OUTSIDE[name.removesuffix(".weight")] + ".weight"
    raise ValueError(f"tensor {name!r}: not one of a Llama without biases")


def _row(tensor):
    shape = tuple(int(n) for n in reversed(tensor.shape))
    return Row(tensor.name, tensor.tensor_type.name, shape, int(tensor.n_bytes))
