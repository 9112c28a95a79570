"""Where a scale per channel can be folded into a Llama-like model without changing its function.

    y = W x = (W diag(s)) (diag(1/s) x)          s > 0, one number per input channel of W

A site is a module whose output is divided by s and the linear layers that read it, whose columns
are multiplied by s. Four per block:

    input norm -> q, k, v    value -> output    second norm -> gate, up    up -> down

Between value and output stand averages over positions, between up and down a product with the
gate: both are linear in the scaled channel, so 1/s passes through. With grouped-query attention
several query heads read one value head; their channels must share one s (`Site.tie`).

But: models with other names are refused; nothing is quantized here.
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
    """[Site] in model order. ValueError when the model has none of the names in READERS."""
    config, found = model.config, []
    kv = getattr(config, "num_key_value_heads", None)
    for name, _ in model.named_modules():
        for source in sources:
            if name.endswith(f".{source}"):
                prefix = name.removesuffix(source)
                heads = (
                    (kv, config.num_attention_heads // kv) if source.endswith("v_proj") else None
                )
                found.append(Site(name, tuple(prefix + r for r in READERS[source]), heads))
    if not found:
        raise ValueError(f"no module is named like {', '.join(sources)}: name the sites by hand")
    return found


def fold(model, site, scale):
    """Divide the site's source by `scale` [in], multiply its readers; new parameters, in place.

    The model's function stays the same. ValueError unless all scales are finite and positive.
    """
    if not (torch.isfinite(scale).all() and (scale > 0).all()):
        raise ValueError(f"{site.source}: scales must be finite and above 0")
    _divide(model.get_submodule(site.source), site.at_source(scale))
    for name in site.readers:
        layer = model.get_submodule(name)
        layer.weight = _parameter(layer.weight * scale.to(layer.weight))


def _divide(module, scale):
    """Divide the module's outputs: rows of a linear layer or the gain of a norm, and the bias."""
    scale = scale.to(module.weight)
    column = scale[:, None] if module.weight.dim() == 2 else scale
    module.weight = _parameter(module.weight / column)
    if getattr(module, "bias", None) is not None:
        module.bias = _parameter(module.bias / scale)


def _parameter(tensor):
    return nn.Parameter(tensor.detach(), requires_grad=False)


def weights(model, site):
    """The weights [out, in] of the site's readers."""
    return [weight_of(model.get_submodule(name)).float() for name in site.readers]
