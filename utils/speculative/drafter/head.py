"""The drafter: one decoder layer that reads the target's states and, later, its own.

At position t the target has been fed token t, and token t + 1 is known. The head's input is

    z = from_token(embedding of token t + 1) + from_states(the target's states at t)    step 0
    z = from_token(embedding of token t + 1) + from_own(the head's output at t - 1)     step 1, 2, …

and its output is a guess of the target's final state at t + 1, whose product with the target's
head is the guess of token t + 2. Embedding and head are the target's own, frozen: they cost no
bytes in the file. Only `draft_ids`, a part of the vocabulary, are scored.

All inputs are standardised per channel, and so is z: a state has channels that are a hundred times
larger than others, and one learning rate must fit all.

`unroll` is the training-time test of EAGLE-3 (Li et al. 2025): step k at position t is what the
head would say in a round that began at t - k, all rounds of a text at once. Its queries look at
keys of step 0 up to t - k, and at the round's own keys after that. HASS (Zhang et al. 2025,
"harmonized context alignment") trains so too. `chain` has the twin that goes step by step.

But: a chain, no tree. EAGLE-2's (Li et al. 2024) trees need a target that verifies branches.
Medusa (Cai et al. 2024) has a head for each place ahead and no attention; its heads don't know the
tokens that they themselves propose.
"""

import torch
from torch import nn
from torch.nn import functional as F

from utils.speculative.drafter.target import rotary, rotate, unit
from utils.speculative.drafter.watch import LAYERS, depths

LONGEST = 2048


class Head(nn.Module):
    """model: the target, read and not changed. draft_ids: token ids that can be proposed.

    layers: whose states are read. intermediate: width of the feed-forward (default: the target's).
    """

    def __init__(self, model, draft_ids, layers=LAYERS, intermediate=None, longest=LONGEST):
        super().__init__()
        c = model.config
        self.layers, self.hidden, self.eps = depths(model, layers), c.hidden_size, c.rms_norm_eps
        self.heads, self.groups = c.num_attention_heads, c.num_key_value_heads
        self.width = getattr(c, "head_dim", None) or self.hidden // self.heads
        self.intermediate = intermediate or c.intermediate_size
        self._linears(len(self.layers))
        ids = torch.as_tensor(sorted(draft_ids))
        self.register_buffer("draft_ids", ids)
        self.register_buffer("mean", torch.zeros((1 + len(self.layers)) * self.hidden))
        self.register_buffer("spread", torch.ones((1 + len(self.layers)) * self.hidden))
        embedding = model.model.embed_tokens.weight.detach()
        rows = model.lm_head.weight.detach()[ids] * model.model.norm.weight.detach()
        cos, sin = rotary(model, min(longest, c.max_position_embeddings))
        self.vocabulary, self.config = len(embedding), c
        frozen = {"embedding": embedding, "rows": rows, "cos": cos, "sin": sin}
        for name, tensor in frozen.items():
            self.register_buffer(name, tensor.detach(), persistent=False)

    def _linears(self, states):
        def linear(inputs, outputs):
            return nn.Linear(inputs, outputs, bias=False)

        d, inner, joined = self.hidden, self.heads * self.width, self.heads + 2 * self.groups
        self.from_token, self.from_own = linear(d, d), linear(d, d)
        self.from_states = linear(states * d, d)
        self.bias = nn.Parameter(torch.zeros(d))
        self.norm1, self.norm2 = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.qkv, self.o = linear(d, joined * self.width), linear(inner, d)
        self.gate_up, self.down = linear(d, 2 * self.intermediate), linear(self.intermediate, d)

    # Inputs. ids [...], states [..., layers, hidden] and own [..., hidden] are of unit RMS.

    def first(self, ids, states):
        """z of step 0: the target's states at the position are known."""
        return self._from_token(ids) + self.from_states(self.standard(states))

    def again(self, ids, own):
        """z of a later step: `own` is the head's output one position earlier."""
        return self._from_token(ids) + self.from_own(self.standard_own(own))

    def _from_token(self, ids):
        d = self.hidden
        token = (unit(self.embedding[ids], self.eps) - self.mean[:d]) / self.spread[:d]
        return self.from_token(token) + self.bias

    def standard(self, states):
        """States [..., layers, hidden] as one standardised vector."""
        return (states.flatten(-2) - self.mean[self.hidden :]) / self.spread[self.hidden :]

    def standard_own(self, own):
        """A final state, the target's or a guess of it, standardised."""
        return (own - self.mean[-self.hidden :]) / self.spread[-self.hidden :]

    def raw(self, z):
        """z in the units of the target's final state."""
        return z * self.spread[-self.hidden :] + self.mean[-self.hidden :]

    def read(self, z):
        """The guessed final state (unit RMS) from z behind the layer."""
        return unit(self.raw(z), self.eps)

    # The layer, in pieces: attention differs between training and drafting.

    def projected(self, z, cos, sin):
        """q, k, v [..., heads or groups, width] with positions; cos and sin [..., width]."""
        joined = self.qkv(unit(z, self.eps) * self.norm1)
        heads = joined.unflatten(-1, (-1, self.width))
        q, k, v = heads.split([self.heads, self.groups, self.groups], -2)
        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def finish(self, z, attended):
        """The guessed final state (unit RMS) from z and what attention brought."""
        z = z + self.o(attended)
        gate, up = self.gate_up(unit(z, self.eps) * self.norm2).chunk(2, -1)
        return self.read(z + self.down(F.silu(gate) * up))

    def logits(self, own):
        """Scores of the draft ids [..., len(draft_ids)]."""
        return own @ self.rows.T

    def unroll(self, ids, states, kept, steps):
        """Guesses [kept positions, hidden] of steps 0 to `steps` - 1, one tensor for each.

        ids [B, T]: token t + 1 at place t. states [B, T, layers, hidden]. kept bool [B, T]: where
        guesses are wanted. Step k is meaningful where its round began at a kept place too: see
        `began`.
        """
        places = torch.arange(ids.shape[1])
        z, keys, values, found = self.first(ids, states), [], [], []
        for step in range(steps):
            if step:
                z = self.again(ids, _later(_spread(found[-1], kept), 1))
            length = ids.shape[1]
            q, k, v = self.projected(z, self.cos[:length], self.sin[:length])
            keys.append(k)
            values.append(v)
            seen = places[None] <= places[:, None] - step
            found.append(self.finish(z[kept], _attend(q, keys, values, seen)[kept]))
        return found


def began(kept, steps):
    """For each step: which of the kept positions have a round that began at a kept place."""
    full, found = kept, []
    for step in range(steps):
        found.append((full & _later(kept, step, False))[kept])
    return found


def _attend(q, keys, values, seen):
    """Attention of step k = len(keys) - 1. q [B, T, heads, width]; seen [T, T] for step 0's keys.

    Step j's key for a round at position t stands at place t - k + j.
    """
    groups = keys[0].shape[-2]
    q = q.unflatten(-2, (groups, -1)).permute(0, 2, 3, 1, 4)  # [B, groups, heads each, T, width]
    scale, steps = q.shape[-1] ** -0.5, len(keys)
    old_k, old_v = keys[0].transpose(1, 2)[:, :, None], values[0].transpose(1, 2)[:, :, None]
    scores = (q @ old_k.transpose(-1, -2) * scale).masked_fill(~seen, float("-inf"))
    own_k = [_later(keys[j], steps - 1 - j).transpose(1, 2)[:, :, None] for j in range(1, steps)]
    own_v = [_later(values[j], steps - 1 - j).transpose(1, 2)[:, :, None] for j in range(1, steps)]
    each = [(q * k).sum(-1, keepdim=True) * scale for k in own_k]
    weights = torch.cat([scores, *each], -1).softmax(-1)
    length = seen.shape[-1]
    y = weights[..., :length] @ old_v
    for j, v in enumerate(own_v):
        y = y + weights[..., length + j, None] * v
    return y.permute(0, 3, 1, 2, 4).flatten(2)


def _later(x, places, fill=0.0):
    """x [B, T, ...] moved to the right by `places`, with `fill` in front."""
    if places == 0:
        return x
    front = torch.full_like(x[:, :places], fill)
    return torch.cat([front, x[:, :-places]], 1)


def _spread(rows, kept):
    """rows [kept positions, hidden] put back to their places in [B, T, hidden], zero elsewhere."""
    out = rows.new_zeros(*kept.shape, rows.shape[-1])
    out[kept] = rows
    return out


def parameters(head):
    """How many numbers are trained."""
    return sum(p.numel() for p in head.parameters())
