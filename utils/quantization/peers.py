"""The libraries that people use, applied to the same layers as our own code.

    bitsandbytes   NF4 codes (a table of 16 values), blocks of 64, fp32 absmax per block
    torchao        int8 weights, one scale per output channel

Each function takes a model and returns (a copy with the library's layers, bytes of its linear
weights). The copy shares all that is not quantized.

But: nothing is tuned; these are the libraries' plain weight-only modes. Both are optional installs.
"""

import contextlib
import io
import logging
import warnings

import torch

from utils.quantization.model import find, share


def bitsandbytes_nf4(model, skip=("lm_head",), double_quant=False):
    """NF4 by bitsandbytes; double_quant also quantizes the absmax values to 8 bits."""
    with quiet():
        import bitsandbytes as bnb
    model = share(model)
    used = 0
    for name, layer in find(model, skip)[0].items():
        weight = bnb.nn.Params4bit(
            layer.weight.detach().clone(),
            requires_grad=False,
            quant_type="nf4",
            blocksize=64,
            compress_statistics=double_quant,
        )
        new = bnb.nn.Linear4bit(
            layer.in_features, layer.out_features, layer.bias is not None, layer.weight.dtype
        )
        new.weight, new.bias = weight, layer.bias
        model.set_submodule(name, new.to(layer.weight.device))
        used += _nf4_bytes(new.weight)
    return model, used


def torchao_int8(model, skip=("lm_head",)):
    """int8 weight-only by torchao, per output channel."""
    with quiet():
        from torchao.quantization import Int8WeightOnlyConfig, quantize_
    model = share(model)
    names = set(find(model, skip)[0])
    with quiet():
        quantize_(model, Int8WeightOnlyConfig(), filter_fn=lambda _, name: name in names)
    layers = [model.get_submodule(name) for name in names]
    return model, sum(_inner_bytes(layer.weight) for layer in layers)


@contextlib.contextmanager
def quiet():
    """Hide import notices about GPU extensions that a CPU lacks; errors still raise."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _nf4_bytes(weight):
    """Codes and absmax values (with their own statistics when double-quantized)."""
    state = weight.quant_state
    parts = [weight, state.absmax]
    if state.nested:
        parts += [state.state2.absmax, state.offset]
    return sum(part.numel() * part.element_size() for part in parts)


def _inner_bytes(weight):
    """Bytes of the plain tensors inside torchao's tensor subclass."""
    names, _ = weight.__tensor_flatten__()
    inner = [getattr(weight, name) for name in names]
    return sum(
        t.numel() * t.element_size() if type(t) is torch.Tensor else _inner_bytes(t) for t in inner
    )
