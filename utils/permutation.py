"""A shuffle of a Llama-shaped model's channels that leaves its function unchanged.

Hidden channels, the MLP's inner channels and the channels inside each value head are renumbered,
and every weight that reads or writes them is renumbered to match. Sums over channels only change
their order, so the outputs agree up to rounding. Query and key heads are left alone (RoPE ties
their channels to positions).

Why: the embedded model's weights come from a 4-bit file and lie on a grid of blocks of 32 along
the input dimension. Quantizing them again on the same blocks would be lossless and teach a
falsehood. After the shuffle no block holds the values it was rounded with (unit 06 shows both).
"""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Permutation:
    """hidden: [H].  inner: per layer [F].  value: per layer [n_kv_heads, head_dim]."""

    hidden: torch.Tensor
    inner: list[torch.Tensor]
    value: list[torch.Tensor]

    def inverse(self):
        """The permutation that undoes this one."""
        return Permutation(
            torch.argsort(self.hidden),
            [torch.argsort(p) for p in self.inner],
            [torch.argsort(p, dim=-1) for p in self.value],
        )


def draw(config, seed):
    """A random permutation for a Llama config, from NumPy's PCG64 (the same on every machine)."""
    generator = np.random.Generator(np.random.PCG64(seed))

    def shuffle(n):
        return torch.from_numpy(generator.permutation(n))

    heads, layers = config.num_key_value_heads, config.num_hidden_layers
    head_dim = config.hidden_size // config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or head_dim
    hidden = shuffle(config.hidden_size)
    inner, value = [], []
    for _ in range(layers):
        inner.append(shuffle(config.intermediate_size))
        value.append(torch.stack([shuffle(head_dim) for _ in range(heads)]))
    return Permutation(hidden, inner, value)


@torch.no_grad()
def apply(model, permutation):
    """Renumber the channels of a `LlamaForCausalLM` in place; returns the model.

    A tied head stays tied. Raises ValueError for a model with biases or of another shape.
    """
    if any(name.endswith(".bias") for name, _ in model.named_parameters()):
        raise ValueError("the permutation knows Llama models without biases only")
    hidden = permutation.hidden
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    _columns(model.model.embed_tokens, hidden)
    if not tied:
        _columns(model.lm_head, hidden)
    _rows(model.model.norm, hidden)
    for layer, inner, value in zip(
        model.model.layers, permutation.inner, permutation.value, strict=True
    ):
        _permute_layer(layer, hidden, inner, value)
    return model


def _permute_layer(layer, hidden, inner, value):
    attention, mlp = layer.self_attn, layer.mlp
    for norm in (layer.input_layernorm, layer.post_attention_layernorm):
        _rows(norm, hidden)
    for reader in (attention.q_proj, attention.k_proj, attention.v_proj):
        _columns(reader, hidden)
    for reader in (mlp.gate_proj, mlp.up_proj):
        _columns(reader, hidden)
        _rows(reader, inner)
    _columns(mlp.down_proj, inner)
    _rows(mlp.down_proj, hidden)
    heads, head_dim = value.shape
    offsets = torch.arange(heads)[:, None] * head_dim
    _rows(attention.v_proj, (value + offsets).flatten())
    # Query head h reads value head h // repeats, so its output channels move as that head's do.
    repeats = attention.o_proj.in_features // (heads * head_dim)
    per_query = value.repeat_interleave(repeats, dim=0)
    offsets = torch.arange(heads * repeats)[:, None] * head_dim
    _columns(attention.o_proj, (per_query + offsets).flatten())
    _rows(attention.o_proj, hidden)


def _rows(module, order):
    module.weight.data = module.weight.data[order].contiguous()


def _columns(module, order):
    module.weight.data = module.weight.data[:, order].contiguous()
