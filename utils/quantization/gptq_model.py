"""GPTQ for a whole model: Hessians from calibration text, then one layer after the other.

One-shot: all Hessians come from the original model, in one pass. Sequential: each block's Hessians
come from the blocks before it as they are after quantization, so that later layers can answer for
what earlier ones changed; one more pass through each block, and the memory of one block at a time.

But: the layers of one block share one pass (q, k, v, o, gate, up, down see the block's unquantized
neighbours), and the head is left alone.
"""

import torch

from utils.quantization import gptq, hessian
from utils.quantization.model import METHODS, find, share, weight_of
from utils.sparsity import statistics


def tensors(
    model, calibration=None, emphasis=None, sequential=False, hessians=None, skip=("lm_head",),
    bits=4, group_size=64, **options,
):  # fmt: skip
    """{layer name: QuantizedTensor}; the model stays as it is.

    calibration: ids int64 [windows, time]. hessians: what `hessian.collect` gave, instead. options
    go to gptq.quantize. ValueError names the layer at fault.
    """
    if (calibration is None) == (hessians is None):
        raise ValueError("pass calibration ids [windows, time] or hessians, one of the two")
    if sequential:
        if calibration is None:
            raise ValueError("sequential needs calibration ids: its Hessians come block by block")
        return _sequential(model, calibration, emphasis, skip, bits, group_size, options)
    layers, _ = find(model, skip)
    if hessians is None:
        hessians = hessian.collect(model, calibration, emphasis, layers=layers)
    return {n: _one(n, m, hessians, bits, group_size, options) for n, m in layers.items()}


def _one(name, layer, hessians, bits, group_size, options):
    if name not in hessians:
        raise ValueError(f"layer {name}: never ran on the calibration text; add it to skip")
    try:
        return gptq.quantize(weight_of(layer), hessians[name], bits, group_size, **options)
    except ValueError as error:
        raise ValueError(f"layer {name}: {error}") from error


def _sequential(model, ids, emphasis, skip, bits, group_size, options):
    copy, found = share(model), {}
    waiting, _ = find(copy, skip)

    def visit(prefix, run):
        inside = {n: m for n, m in waiting.items() if f".{prefix}" in f".{n}"}
        recorder = hessian.Recorder(inside, emphasis)
        with recorder.attached():
            run()
        hessians = {n: s.hessian for n, s in recorder.statistics.items()}
        for name, layer in inside.items():
            found[name] = _one(name, layer, hessians, bits, group_size, options)
            _put(layer, found[name])

    statistics.walk_blocks(copy, ids, visit)
    return found


def simulate(model, made):
    """A copy of the model with the weights that `made` stands for, at full size, for evaluation."""
    copy = share(model)
    for name, tensor in made.items():
        _put(copy.get_submodule(name), tensor)
    return copy


def _put(layer, tensor):
    new = tensor.dequantize(layer.weight.dtype)
    new = new if isinstance(layer, torch.nn.Linear) else new.T.contiguous()
    layer.weight = torch.nn.Parameter(new, requires_grad=False)


class Prepared:
    """Tensors made beforehand, as a method for `quantize_model`, which asks layer by layer."""

    def __init__(self, made):
        self.made = made

    def for_layer(self, name):
        """What rtn.quantize is to a weight, for the one layer `name`."""
        return lambda weight, bits, group_size, symmetric: self.made[name]


class Method:
    """`quantize_model(model, "gptq", calibration=ids, symmetric=False)`."""

    @staticmethod
    def prepare(model, bits, group_size, symmetric, skip, **options):
        """The tensors of all layers that are not skipped."""
        options |= dict(bits=bits, group_size=group_size, symmetric=symmetric, skip=skip)
        return Prepared(tensors(model, **options))

    def __call__(self, *_args, **_options):
        raise ValueError("GPTQ needs the model: call quantize_model(model, 'gptq', calibration=…)")


METHODS["gptq"] = Method()
