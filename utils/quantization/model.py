"""Quantize the linear layers of a model, and report what that did to its bytes.

Every nn.Linear (and GPT-2's Conv1D, whose weight is stored transposed) becomes a PackedLinear. The
output head is left alone by default: in a model with tied embeddings it *is* the embedding table.
Predicted bytes are computed from shapes, measured bytes are counted from the tensors, and the two
must agree.

But: embeddings and norms stay as they are, and nothing gets faster (see linear.py).
"""

import copy

from torch import nn

from utils.models import linears
from utils.quantization import rtn
from utils.quantization.linear import PackedLinear
from utils.quantization.report import LayerReport, Report, resident_bytes
from utils.quantization.size import predicted_bytes

METHODS = {"rtn": rtn.quantize}


def quantize_model(
    model,
    method="rtn",
    bits=4,
    group_size=64,
    symmetric=True,
    skip=("lm_head",),
    inplace=True,
    simulate=False,
    **options,
):
    """Quantize all linear layers but those in `skip`; returns a Report with the model in it.

    method: a name in METHODS, or a function with rtn.quantize's signature.
    skip: names or parts of dotted names, e.g. "lm_head", "layers.0", "mlp.down_proj".
    inplace=True changes `model`. inplace=False leaves it alone: the copy shares every tensor that
    is not quantized, so it costs the packed bytes only. simulate=True ("fake quantization") puts
    the dequantized weights back into ordinary layers: the same numbers at the original speed and
    size, for evaluation; the report still states the packed bytes. options go to the method
    (clip=, scale_dtype=). Raises ValueError naming the layer at fault.
    """
    quantize = METHODS.get(method, method)
    if not callable(quantize) and not hasattr(quantize, "for_layer"):
        raise ValueError(f"method={method!r}: use one of {sorted(METHODS)} or a function")
    if hasattr(quantize, "prepare"):  # looks at the model and calibration text first (GPTQ)
        quantize = quantize.prepare(model, bits, group_size, symmetric, skip, **options)
        options = {}
    before = resident_bytes(model)
    model = model if inplace else share(model)
    if hasattr(quantize, "adjust"):  # folds scales into the model that is quantized (AWQ)
        quantize.adjust(model)
    targets, skipped = find(model, skip)
    report = Report(model, method, bits, group_size, symmetric, simulate, before, [], skipped)
    for name, layer in targets.items():
        weight = _quantize_layer(quantize, name, layer, bits, group_size, symmetric, options)
        report.layers.append(_describe(name, layer, weight))
        if simulate:
            _put_back(layer, weight)
        else:
            model.set_submodule(name, PackedLinear(weight, layer.bias))
    report.check()
    return report


def find(model, skip=("lm_head",)):
    """({name: layer to quantize}, {name: why a linear or embedding layer is left alone})."""
    tables = {n: m.weight for n, m in model.named_modules() if isinstance(m, nn.Embedding)}
    skipped = dict.fromkeys(tables, "embedding: read one row at a time, kept as it is")
    targets = {}
    for name, layer in linears(model, skip=()).items():
        tied = [table for table, weight in tables.items() if weight is layer.weight]
        if tied:
            skipped[name] = f"tied to {tied[0]}"
        elif any(f".{part}." in f".{name}." for part in skip):
            skipped[name] = "named in skip"
        else:
            targets[name] = layer
    if not targets:
        raise ValueError("no linear layer is left to quantize: check the model and `skip`")
    return targets, skipped


def share(model):
    """A copy of the modules that shares every parameter and buffer with the original."""
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def weight_of(layer):
    """The weight as [out, in]: GPT-2's Conv1D, the other kind of layer here, stores [in, out]."""
    weight = layer.weight.detach()
    return weight if isinstance(layer, nn.Linear) else weight.T


def _quantize_layer(quantize, name, layer, bits, group_size, symmetric, options):
    if hasattr(quantize, "for_layer"):
        quantize = quantize.for_layer(name)
    try:
        return quantize(weight_of(layer), bits, group_size, symmetric, **options)
    except ValueError as error:
        raise ValueError(f"layer {name}: {error}") from error


def _describe(name, layer, weight):
    predicted = predicted_bytes(
        weight.shape, weight.bits, weight.group_size, weight.symmetric, weight.scale.element_size()
    )
    original = layer.weight.numel() * layer.weight.element_size()
    return LayerReport(
        name=name,
        kind=type(layer).__name__,
        shape=weight.shape,
        parameters=layer.weight.numel(),
        original_bytes=original,
        predicted_bytes=predicted,
        measured_bytes=weight.nbytes,
        bits_per_weight=weight.bits_per_weight,
    )


def _put_back(layer, weight):
    """Replace the parameter (never write into it: a shared tensor belongs to the original too)."""
    new = weight.dequantize(layer.weight.dtype)
    new = new if isinstance(layer, nn.Linear) else new.T.contiguous()
    layer.weight = nn.Parameter(new, requires_grad=False)
