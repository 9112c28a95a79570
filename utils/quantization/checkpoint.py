"""Save a quantized model and load it back strictly, packed on disk as in memory.

One safetensors file holds all tensors once (a tied head is recorded as an alias) and describes the
packed layers; the model's configuration is not in it: `load_model` fills a model that you build.

But: this is the course's own format. Other programs read GGUF or compressed-tensors files.
"""

import hashlib

import torch

from utils.quantization import storage
from utils.quantization.linear import PackedLinear


def save_model(model, path):
    """Write all parameters and buffers; returns the path."""
    tensors, aliases = _unique(model.state_dict())
    layers = {n: m.about() for n, m in model.named_modules() if isinstance(m, PackedLinear)}
    about = {"layers": layers, "aliases": aliases, "sha256": _digest(tensors)}
    return storage.write(path, tensors, about)


def load_model(model, path):
    """Fill a freshly built `model` from a file of `save_model`; returns it in eval mode.

    Raises ValueError when a tensor is missing, surplus, of another shape, or changed since it was
    saved.
    """
    tensors, about = storage.read(path, required=("layers", "aliases", "sha256"))
    if _digest(tensors) != about["sha256"]:
        raise ValueError(f"{path}: the content does not match its hash; write the file again")
    for name, layer in about["layers"].items():
        model.set_submodule(name, PackedLinear.empty(layer))
    tensors |= {alias: tensors[name] for alias, name in about["aliases"].items()}
    try:
        model.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit this model: {error}") from error
    return model.eval()


def _unique(state):
    """Split a state dict into tensors stored once and {alias: name} for the tied rest."""
    seen, tensors, aliases = {}, {}, {}
    for name, tensor in state.items():
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype)
        if tensor.numel() and key in seen:
            aliases[name] = seen[key]
        else:
            seen[key], tensors[name] = name, tensor
    return tensors, aliases


def _digest(tensors):
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
