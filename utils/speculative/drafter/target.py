"""The target's arithmetic for many texts at once: what sampling runs on.

`Batch` is a Llama with static keys and values for `slots` texts, one token for each per step.
But: Llama without biases, full attention, on the model's device; no paging, no prefix tree.
"""

import torch
from torch.nn import functional as F


def unit(x, eps=1e-5):
    """x divided by the root mean square of its last dimension, as RMSNorm does without weight."""
    return F.rms_norm(x, (x.shape[-1],), None, eps)


def rotary(model, length):
    """cos and sin [length, head_dim] of the model's own rotary module."""
    places = torch.arange(length, device=model.device)
    weight = model.model.embed_tokens.weight
    cos, sin = model.model.rotary_emb(weight[:1].float(), places[None])
    return cos[0], sin[0]


def rotate(x, cos, sin):
    """Rotary positions on x [..., head_dim]; cos and sin broadcast."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def check(model):
    """ValueError for a model whose arithmetic `Batch` doesn't know."""
    config = model.config
    plain = not getattr(config, "attention_bias", False) and not getattr(config, "mlp_bias", False)
    if config.model_type != "llama" or not plain:
        raise ValueError(
            f"a model of type {config.model_type!r}{'' if plain else ' with biases'}: "
            "the drafter's sampler knows Llama without biases; sample with model.generate instead"
        )


class Batch:
    """Keys and values of `slots` texts of at most `longest` tokens. Slots fill from 0."""

    @torch.no_grad()
    def __init__(self, model, slots, longest):
        check(model)
        c = model.config
        self.model, self.eps, self.hidden = model, c.rms_norm_eps, c.hidden_size
        self.heads, self.groups = c.num_attention_heads, c.num_key_value_heads
        self.width = getattr(c, "head_dim", None) or self.hidden // self.heads
        dtype = model.model.embed_tokens.weight.dtype
        self.cos, self.sin = (table.to(dtype) for table in rotary(model, longest))
        self.layers = [_packed(layer) for layer in model.model.layers]
        shape = (len(self.layers), slots, self.groups, longest, self.width)
        weight = model.model.embed_tokens.weight
        self.keys = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        self.values = torch.zeros_like(self.keys)
        self.lengths = torch.zeros(slots, dtype=torch.int64)

    @torch.no_grad()
    def prefill(self, ids, slot, start=0):
        """Put `ids` behind the first `start` tokens of a slot; logits [V] of the last one."""
        end = start + len(ids)
        causal = torch.ones(len(ids), end, dtype=torch.bool).tril(start)
        x = self.model.model.embed_tokens(torch.as_tensor(ids))
        cos, sin = self.cos[start:end], self.sin[start:end]
        for i, layer in enumerate(self.layers):
            q, k, v = self._projected(x, layer)
            q, k = rotate(q.transpose(0, 1), cos, sin), rotate(k.transpose(0, 1), cos, sin)
            self.keys[i, slot, :, start:end] = k
            self.values[i, slot, :, start:end] = v.transpose(0, 1)
            held = self.keys[i, slot, :, :end], self.values[i, slot, :, :end]
            k, v = (t.repeat_interleave(self.heads // self.groups, 0)[None] for t in held)
            y = F.scaled_dot_product_attention(q[None], k, v, attn_mask=causal)[0]
            x = self._after(x, y.transpose(0, 1).reshape(len(ids), -1), layer)
        self.lengths[slot] = end
        return self._logits(x[-1])

    @torch.no_grad()
    def decode(self, tokens):
        """One token for each of the first len(tokens) slots; logits [len(tokens), V]."""
        n, rows = len(tokens), torch.arange(len(tokens))
        at = self.lengths[:n]
        longest = int(at.max()) + 1
        seen = (torch.arange(longest)[None] <= at[:, None])[:, None, None]
        x = self.model.model.embed_tokens(torch.as_tensor(tokens))
        cos, sin = self.cos[at][:, None], self.sin[at][:, None]
        for i, layer in enumerate(self.layers):
            q, k, v = self._projected(x, layer)
            self.keys[i, rows, :, at], self.values[i, rows, :, at] = rotate(k, cos, sin), v
            q = rotate(q, cos, sin).view(n, self.groups, -1, self.width)
            held = self.keys[i, :n, :, :longest], self.values[i, :n, :, :longest]
            y = F.scaled_dot_product_attention(q, *held, attn_mask=seen)
            x = self._after(x, y.reshape(n, -1), layer)
        self.lengths[:n] += 1
        return self._logits(x)

    def share(self, length):
        """Give all slots the first `length` tokens of slot 0."""
        self.keys[:, 1:, :, :length] = self.keys[:, :1, :, :length]
        self.values[:, 1:, :, :length] = self.values[:, :1, :, :length]

    def move(self, source, slot):
        """Copy the text of one slot over that of another."""
        length = int(self.lengths[source])
        for held in (self.keys, self.values):
            held[:, slot, :, :length] = held[:, source, :, :length]
        self.lengths[slot] = length

    def _projected(self, x, layer):
        joined = F.linear(unit(x, self.eps) * layer["n1"], layer["qkv"])
        heads = joined.view(len(x), -1, self.width)
        return heads.split([self.heads, self.groups, self.groups], 1)

    def _after(self, x, attended, layer):
        x = x + F.linear(attended, layer["o"])
        gate, up = F.linear(unit(x, self.eps) * layer["n2"], layer["gate_up"]).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, layer["down"])

    def _logits(self, x):
        return self.model.lm_head(unit(x, self.eps) * self.model.model.norm.weight).float()


def _packed(layer):
    """A layer's matrices, those with the same input joined."""
    attention, mlp = layer.self_attn, layer.mlp
    return {
        "n1": layer.input_layernorm.weight,
        "n2": layer.post_attention_layernorm.weight,
        "qkv": torch.cat([getattr(attention, f"{name}_proj").weight for name in "qkv"]),
        "o": attention.o_proj.weight,
        "gate_up": torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
        "down": mlp.down_proj.weight,
    }
