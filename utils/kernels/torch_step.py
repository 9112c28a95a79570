"""A Llama-shaped model's forward pass in torch operators, with a static key-value cache.

    x += W_o attention(rope(W_q n), rope(W_k n), W_v n)        n = rmsnorm(x)
    x += W_down (silu(W_gate n) * W_up n)                      n = rmsnorm(x)

One function does a prompt, one token for each of many sequences, and the check of a draft: a row
is a token at a position of a slot of the cache. All keys and values of a step are written before
any row attends, and a row sees the positions up to its own. So to take tokens back, write the
next ones at their positions; nothing has to be erased.

But: the caller keeps the books, and a row attends to whatever stands in the positions before its
own. Everything but the matrices is fp32. Sequences attend one after the other, with all scores of
a sequence in memory: cut a long prompt into several steps. A row computed alone agrees with the
same row among others to rounding, not in each bit, since torch orders its sums by shape.
"""

import math

import torch
from torch.nn.functional import silu

from utils.kernels.spec import EMBEDDING
from utils.kernels.torch_linear import TorchLinear


class TorchStep:
    """The model on a device. linear: TorchLinear, or TritonLinear on CUDA and ROCm.

    weights: {name: Weight} for all of spec.matrices(). slots: sequences that the cache has room
    for, each of max_tokens. states: after how many layers `states` keeps each row (0: what enters
    the first). ValueError for missing or misshapen weights and too many tokens.
    """

    def __init__(
        self, spec, weights, slots, max_tokens, device="cpu", linear=TorchLinear, states=()
    ):
        _check_weights(spec, weights, max_tokens)
        self.spec, self.slots, self.max_tokens, self.kept = spec, slots, max_tokens, states
        self.device = torch.device(device)
        self.linears = {name: linear(weights[name], device) for name in spec.matrices()}
        self.biases = {name: bias.to(device) for name, bias in spec.biases.items()}
        self.norms = {name: norm.to(device) for name, norm in spec.norms.items()}
        self.cos, self.sin = spec.cos[:max_tokens].to(device), spec.sin[:max_tokens].to(device)
        shape = (spec.layers, slots, max_tokens, spec.kv_heads, spec.head_dim)
        self.keys = torch.zeros(shape, device=device)
        self.values = torch.zeros(shape, device=device)

    @property
    def nbytes_weights(self):
        """Bytes of the stored matrices (a tied one counts once; norms and biases do not)."""
        return sum(linear.nbytes for linear in self.linears.values())

    @property
    def nbytes_cache(self):
        """Bytes of the cache, whether it is filled or not."""
        return self.keys.nbytes + self.values.nbytes

    @torch.no_grad()
    def step(self, tokens, slots, positions, wanted, inputs=None):
        """Run rows through the model; returns logits fp32 [len(wanted), V], on the device.

        tokens, slots, positions: equally long sequences of int; row m is tokens[m], at
        positions[m] of slots[m]. wanted: the rows whose logits are returned, in this order.
        inputs: fp32 [len(tokens), hidden] to start from in place of the tokens' embeddings.
        ValueError for numbers out of range and for two rows at one position of a slot.
        """
        tokens, slots, positions, wanted = map(_whole, (tokens, slots, positions, wanted))
        self._check_rows(tokens, slots, positions, wanted)
        if not tokens:
            return torch.empty(0, self.spec.vocabulary, device=self.device)
        places = self._tensor(slots), self._tensor(positions)
        views = [self._view(slot, slots, positions) for slot in sorted(set(slots))]
        x = inputs.to(self.device) if inputs is not None else self._embedded(tokens)
        self._after = {0: x}
        for layer in range(self.spec.layers):
            x = x + self._attention(layer, self._norm(x, "attention", layer), places, views)
            x = x + self._mlp(layer, self._norm(x, "mlp", layer))
            if layer + 1 in self.kept:
                self._after[layer + 1] = x
        if not wanted:
            return x.new_empty(0, self.spec.vocabulary)
        return self._multiply(self.spec.head, self._norm(x[self._tensor(wanted)], "final"))

    def states(self, rows):
        """fp32 [rows, len(kept), hidden] of the first rows of the last step."""
        return torch.stack([self._after[n][:rows] for n in self.kept], dim=1)

    def _embedded(self, tokens):
        return self.linears[EMBEDDING].rows.take(self._tensor(tokens)).dense()

    def _attention(self, layer, n, places, views):
        """n [M, hidden] -> [M, hidden]; writes the keys and values of all rows first."""
        q, k, v = (
            self._multiply(self.spec.name(layer, part), n).unflatten(1, (-1, self.spec.head_dim))
            for part in "qkv"
        )
        self.keys[layer][places] = self._rotate(k, places[1])
        self.values[layer][places] = v
        q, mixed = self._rotate(q, places[1]), torch.empty_like(q)
        for slot, rows, later in views:
            mixed[rows] = self._attend(layer, slot, q[rows], later)
        return self._multiply(self.spec.name(layer, "o"), mixed.flatten(1))

    def _attend(self, layer, slot, q, later):
        """q [R, heads, head_dim] of one slot -> the same shape. later: bool [R, T]."""
        length = later.shape[1]
        k, v = self.keys[layer, slot, :length], self.values[layer, slot, :length]
        grouped = q.unflatten(1, (self.spec.kv_heads, -1))  # r rows, g groups of h heads, d dim
        scores = torch.einsum("rghd,tgd->grht", grouped, k) / math.sqrt(self.spec.head_dim)
        scores = scores.masked_fill(later[:, None, :], -math.inf)
        return torch.einsum("grht,tgd->rghd", scores.softmax(-1), v).flatten(1, 2)

    def _mlp(self, layer, n):
        gate = self._multiply(self.spec.name(layer, "gate"), n)
        up = self._multiply(self.spec.name(layer, "up"), n)
        return self._multiply(self.spec.name(layer, "down"), silu(gate) * up)

    def _multiply(self, name, x):
        y = self.linears[name](x)
        return y + self.biases[name] if name in self.biases else y

    def _norm(self, x, name, layer=...):
        mean = x.square().mean(-1, keepdim=True)
        return self.norms[name][layer] * (x * torch.rsqrt(mean + self.spec.eps))

    def _rotate(self, x, positions):
        """Turn x [M, heads, head_dim] by its position; the halves of a head are the pairs."""
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
        return x * self.cos[positions][:, None] + turned * self.sin[positions][:, None]

    def _view(self, slot, slots, positions):
        """One slot's rows, and for each of them which positions come later than its own."""
        rows = [m for m, other in enumerate(slots) if other == slot]
        at = self._tensor([positions[m] for m in rows])
        length = max(positions[m] for m in rows) + 1
        later = torch.arange(length, device=self.device) > at[:, None]
        return slot, self._tensor(rows), later

    def _tensor(self, numbers):
        return torch.tensor(numbers, dtype=torch.int64, device=self.device)

    def _check_rows(self, tokens, slots, positions, wanted):
        if not len(tokens) == len(slots) == len(positions):
            raise ValueError(
                f"{len(tokens)} tokens, {len(slots)} slots and {len(positions)} positions: "
                "a row needs one of each"
            )
        limits = {
            "token": (tokens, self.spec.vocabulary), "slot": (slots, self.slots),
            "position": (positions, self.max_tokens), "wanted row": (wanted, len(tokens)),
        }  # fmt: skip
        for name, (numbers, limit) in limits.items():
            for number in numbers:
                if not 0 <= number < limit:
                    raise ValueError(f"{name} {number}: there are only 0 to {limit - 1}")
        if len(set(zip(slots, positions, strict=True))) < len(tokens):
            raise ValueError("two rows have the same slot and position: one row each per step")


def _whole(numbers):
    return torch.as_tensor(numbers).tolist()


def _check_weights(spec, weights, max_tokens):
    if max_tokens > spec.max_tokens:
        raise ValueError(
            f"max_tokens={max_tokens}, but the rotary tables end at {spec.max_tokens}: "
            "read the spec again with this many"
        )
    for name, shape in spec.matrices().items():
        if name not in weights:
            raise ValueError(f"there is no weight for {name}: encode all of spec.matrices()")
        if tuple(weights[name].shape) != shape:
            found = tuple(weights[name].shape)
            raise ValueError(f"the weight of {name} is {found}: this model needs {shape}")
