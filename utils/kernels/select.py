"""Which storage form each matrix of a model gets.

    "int8"                      all matrices
    "int4", "nf4", "fp4"        the layers; embedding and head at 8 bits (they are read as a table
                                of words as well, and the head decides between 49,152 of them)
    {name: form or tensor}      per matrix; what is not named stays as the model has it
    None                        everything as the model has it: a PackedLinear keeps its codes

But: nothing is calibrated here. Pass QuantizedTensors that GPTQ, AWQ or others have made.
"""

from torch import nn

from utils.kernels import weights as forms
from utils.kernels.spec import EMBEDDING
from utils.quantization.linear import PackedLinear

FOUR_BITS = ("int4", "nf4", "fp4")


def each(model, spec, weights=None, group_size=None):
    """Pairs (matrix name, Weight) in the order of spec.matrices(), made one at a time.

    So a back end that packs each of them anew never holds all of them twice. ValueError names the
    matrix at fault; unknown names are found before any work.
    """
    if isinstance(weights, str):
        weights = _uniform(spec, weights)
    asked = weights or {}
    unknown = sorted(set(asked) - set(spec.matrices()))
    if unknown:
        raise ValueError(
            f"{unknown[0]!r} is not a matrix of this model; the names are those of "
            f"named_modules(), such as {spec.name(0, 'q')!r} and {EMBEDDING!r}"
        )
    return (
        (name, _weight(model, name, shape, asked.get(name), group_size))
        for name, shape in spec.matrices().items()
    )


def _uniform(spec, kind):
    """{name: form}: one form for all, but 8 bits for embedding and head beside 4-bit layers."""
    if kind not in forms.KINDS:
        raise ValueError(f"weights={kind!r}: use one of {', '.join(forms.KINDS)}, a dict or None")
    table = {"sparse24": "fp32"}.get(kind, "int8" if kind in FOUR_BITS else kind)
    return {name: kind if name.startswith("model.layers.") else table for name in spec.matrices()}


def _weight(model, name, shape, asked, group_size):
    try:
        found = _stored(model.get_submodule(name), asked, group_size)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if tuple(found.shape) != shape:
        raise ValueError(
            f"{name}: a weight of shape {tuple(found.shape)} was given, the model's "
            f"configuration asks for {shape}"
        )
    return found


def _stored(module, asked, group_size):
    if isinstance(asked, str):
        return forms.encode(_floats(module), asked, group_size)
    if asked is not None:
        return asked if isinstance(asked, forms.Weight) else forms.wrap(asked)
    if isinstance(module, PackedLinear):
        return forms.wrap(module.weight)
    return forms.wrap(_floats(module))


def _floats(module):
    if isinstance(module, PackedLinear):
        return module.weight.dequantize()
    if not isinstance(module, nn.Linear | nn.Embedding):
        raise ValueError(
            f"a {type(module).__name__} is neither nn.Linear, nn.Embedding nor PackedLinear"
        )
    return module.weight.detach().cpu()
