"""Where a scale per channel can be folded into a Llama-like model without changing its function.

    y = W x = (W diag(s)) (diag(1/s) x)          s > 0, one number per input channel of W

A site is a module whose output is divided by s and the linear layers that read it, whose columns
are multiplied by s. Four per block:

    input norm -> q, k, v    value -> output    second norm -> gate, up    up -> down

Between value and output stand averages over positions, between up and down a product with the
gate: both are linear in the scaled channel, so 1/s passes through. With grouped-query attention
several query heads read one value head; their channels must share one s (`Site.tie`).

Refused, since a fold would change the function: models with other names; blocks with one norm (as
in Phi, attention and MLP both read it); norms whose weight is no plain factor (Gemma's is 1 + w).

But: nothing is quantized here.
"""

from dataclasses import dataclass

import torch
from torch import nn

from utils.quantization.model import weight_of

READERS = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.v_proj": ("self_attn.o_proj",),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.up_proj": ("mlp.down_proj",),
}
NORMS = ("input_layernorm", "post_attention_layernorm")


@dataclass(frozen=True)
class Site:
    """`source`: the module that is divided; `readers`: the layers that are multiplied.

    heads: (key/value heads, query heads per key/value head) between value and output, else None.
    """

    source: str
    readers: tuple
    heads: tuple | None = None

    def tie(self, statistic):
        """[in] -> [in]: the mean over the channels that must share one scale."""
        if self.heads is None:
            return statistic
        grouped = statistic.reshape(*self.heads, -1)
        return grouped.mean(dim=1, keepdim=True).expand_as(grouped).reshape(-1)

    def at_source(self, scale):
        """[in of the readers] -> [out of the source]."""
        return scale if self.heads is None else scale.reshape(*self.heads, -1)[:, 0].reshape(-1)


def find(model, sources=tuple(READERS)):
    """[Site] in model order. ValueError unless the blocks have the names of a Llama."""
    names = dict.fromkeys(name for name, _ in model.named_modules())  # quick to search, in order
    found = [
        _site(names, name, source, model.config)
        for name in names
        for source in sources
        if name.endswith(f".{source}")
    ]
    if not found:
        raise ValueError(f"no module is named like {', '.join(sources)}: name the sites by hand")
    return found


def _site(names, name, source, config):
    prefix = name.removesuffix(source)
    readers = tuple(prefix + reader for reader in READERS[source])
    for needed in (*readers, *(prefix + norm for norm in NORMS)):
        if needed not in names:
            raise ValueError(f"{name}: no {needed}, so no block of a Llama: name sites by hand")
    if not source.endswith("v_proj"):
        return Site(name, readers)
    kv = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return Site(name, readers, (kv, config.num_attention_heads // kv))


def fold(model, site, scale):
    """Divide the site's source by `scale` [in], multiply its readers; new parameters, in place.

    The model's function stays the same. ValueError, and nothing changed, when it would not: scales
    that are not finite and positive, that differ where they must be tied, a norm that is no factor.
    """
    if not (torch.isfinite(scale).all() and (scale > 0).all()):
        raise ValueError(f"{site.source}: scales must be finite and above 0")
    inputs = model.get_submodule(site.readers[0]).weight.shape[1]
    if scale.shape != (inputs,) or not torch.allclose(scale, site.tie(scale), rtol=1e-4):
        raise ValueError(f"{site.source}: {inputs} scales, one for all heads that read a value")
    _divide(model.get_submodule(site.source), site.at_source(scale))
    for name in site.readers:
        layer = model.get_submodule(name)
        layer.weight = _parameter(layer.weight * scale.to(layer.weight))


def _divide(module, scale):
    """Divide the module's outputs: rows of a linear layer or the gain of a norm, and the bias."""
    scale, weight, bias = scale.to(module.weight), module.weight, getattr(module, "bias", None)
    probe = torch.linspace(1, 2, weight.shape[-1]).to(weight)[None]
    before = module(probe)
    module.weight = _parameter(weight / (scale[:, None] if weight.dim() == 2 else scale))
    if bias is not None:
        module.bias = _parameter(bias / scale)
    if not torch.allclose(
        module(probe) * scale, before, rtol=0.05, atol=float(before.abs().max()) / 100
    ):
        module.weight = weight
        if bias is not None:
            module.bias = bias
        raise ValueError(f"{type(module).__name__}: its output does not follow its weight")


def _parameter(tensor):
    return nn.Parameter(tensor.detach(), requires_grad=False)


def weights(model, site):
    """The weights [out, in] of the site's readers."""
    return [weight_of(model.get_submodule(name)).float() for name in site.readers]
