"""The libraries' INT8 and 4-bit modes on the CPU: each maker gives (a copy, bytes of its weights).

    bnb-int8          bitsandbytes Linear8bitLt, threshold 6: LLM.int8()
    nf4               bitsandbytes NF4, blocks of 64
    torchao-int8      int8 weights per channel, activations as they are
    torchao-dynamic   int8 weights per channel, int8 activations per token
    torch-dynamic     torch.ao.quantization.quantize_dynamic (deprecated): per tensor by default

But: plain modes with default settings; the modules they are optional in are imported on use.
"""

import warnings

import torch

from utils.quantization import peers
from utils.quantization.model import find, share

THRESHOLD = 6.0


def bnb_int8(model):
    """LLM.int8() by bitsandbytes."""
    with peers.quiet():
        import bitsandbytes as bnb
    model, used = share(model), 0
    for name, layer in find(model)[0].items():
        new = bnb.nn.Linear8bitLt(
            layer.in_features, layer.out_features, layer.bias is not None,
            has_fp16_weights=False, threshold=THRESHOLD,
        )  # fmt: skip
        new.weight = bnb.nn.Int8Params(
            layer.weight.detach().clone(), requires_grad=False, has_fp16_weights=False
        )
        new.bias = layer.bias
        model.set_submodule(name, new.to(layer.weight.device).eval())  # training takes floats
        used += layer.weight.numel() + 4 * layer.out_features
    return model, used


def torchao_dynamic(model):
    """int8 activations per token by torchao."""
    with peers.quiet():
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
    model = share(model)
    layers = find(model)[0]
    with peers.quiet():
        config = Int8DynamicActivationInt8WeightConfig()
        quantize_(model, config, filter_fn=lambda _, name: name in layers)
    return model, sum(m.weight.numel() + 4 * m.out_features for m in layers.values())


def torch_dynamic(model):
    """torch's own dynamic quantization: one scale for a weight, one for a call's activations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = share(model)
        used = 0
        for name, layer in find(model)[0].items():
            used += layer.weight.numel() + 12
            wrapped = torch.nn.Sequential(layer)
            wrapped = torch.ao.quantization.quantize_dynamic(
                wrapped, {torch.nn.Linear}, dtype=torch.qint8
            )
            model.set_submodule(name, wrapped[0])
    return model, used


MAKERS = {
    "bnb-int8": bnb_int8,
    "nf4": peers.bitsandbytes_nf4,
    "torchao-int8": peers.torchao_int8,
    "torchao-dynamic": torchao_dynamic,
    "torch-dynamic": torch_dynamic,
}
