"""The head at work, one position after the other: keys and values are kept, later ones replaced.

Chain         plain torch: what `Head.unroll` does for all rounds at once, step by step
EngineChain   the same layer inside an Engine of one layer, which starts from given inputs

Both have `extend(z, start)`: put rows z at the positions from `start` on, forget what was held
there and behind, and give (guessed final state [hidden], scores [draft ids]) of the last row.
"""

import copy

import torch
from torch.nn import functional as F

from utils.engine import Engine


class Chain:
    """Keys and values of one text in plain torch."""

    def __init__(self, head, longest=1024):
        self.head = head
        self.keys = torch.zeros(1, head.groups, longest, head.width)
        self.values = torch.zeros_like(self.keys)

    @torch.no_grad()
    def extend(self, z, start):
        """See the module."""
        end, head = start + len(z), self.head
        q, k, v = head.projected(z, head.cos[start:end], head.sin[start:end])
        self.keys[0, :, start:end], self.values[0, :, start:end] = (
            k.transpose(0, 1),
            v.transpose(0, 1),
        )
        causal = torch.ones(len(z), end, dtype=torch.bool).tril(start)
        q = q.transpose(0, 1).unflatten(0, (head.groups, -1))  # [groups, heads each, rows, width]
        held_k, held_v = self.keys[0, :, None, :end], self.values[0, :, None, :end]
        shape = (*q.shape[:2], end, head.width)
        y = F.scaled_dot_product_attention(
            q, held_k.expand(shape), held_v.expand(shape), attn_mask=causal
        )
        own = head.finish(z[-1], y[:, :, -1].flatten())
        return own, head.logits(own)


class EngineChain:
    """The head's layer in an Engine; weights: any of its storage forms, such as "int8".

    Less exact weights change what is proposed, never what is said: the target decides.

    The engine's last norm knows no mean: it gives rows (spread z) / |z|. The head's scores are
    rows (spread z + mean) / |spread z + mean|; |·| is the root mean square.
    """

    @torch.no_grad()
    def __init__(self, head, longest=1024, weights="fp32", threads=None):
        self.head = head
        self.shift = head.rows @ head.mean[-head.hidden :]
        made = dict(max_tokens=longest, threads=threads, states=(1,))
        self.engine = Engine(as_llama(head), weights, **made)

    @torch.no_grad()
    def extend(self, z, start):
        """See the module."""
        self.engine.crop(start)
        scores = self.engine.step([0] * len(z), rows=1, keep=False, inputs=z)[0]
        z = self.engine.states[-1, 0]
        size, size_raw = self._size(z), self._size(self.head.raw(z))
        return self.head.read(z), (scores * size + self.shift) / size_raw

    def _size(self, x):
        return (x.square().mean() + self.head.eps).sqrt()


@torch.no_grad()
def as_llama(head):
    """The head's layer as a Llama of one layer over the draft ids, which starts from z."""
    from transformers import LlamaForCausalLM

    config = copy.deepcopy(head.config)
    config.num_hidden_layers, config.vocab_size = 1, len(head.draft_ids)
    config.intermediate_size, config.tie_word_embeddings = head.intermediate, False
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1]
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    layer, attention = model.model.layers[0], model.model.layers[0].self_attn
    inner = [n * head.width for n in (head.heads, head.groups, head.groups)]
    for name, rows in zip("qkv", head.qkv.weight.split(inner), strict=True):
        getattr(attention, f"{name}_proj").weight.copy_(rows)
    gate, up = head.gate_up.weight.chunk(2)
    layer.mlp.gate_proj.weight.copy_(gate)
    layer.mlp.up_proj.weight.copy_(up)
    attention.o_proj.weight.copy_(head.o.weight)
    layer.mlp.down_proj.weight.copy_(head.down.weight)
    layer.input_layernorm.weight.copy_(head.norm1)
    layer.post_attention_layernorm.weight.copy_(head.norm2)
    model.model.norm.weight.copy_(head.spread[-head.hidden :])
    model.lm_head.weight.copy_(head.rows)
    return model
