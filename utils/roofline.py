"""What a step of a language model costs: multiply-adds, bytes, and the time they can't go below.

A step computes `new_tokens` tokens in each of `batch` texts that already have `context` tokens in
the cache. One token is decoding, a whole prompt is prefill. A matrix product [m, k] x [k, n] is
2 m k n FLOPs: a multiply-add is two. Time follows Williams, Waterman & Patterson (2009):

    seconds >= max(bytes / bandwidth, FLOPs / (FLOPs per second))

But: matrix products alone are counted; norms, rotations, softmax and activations are of order
hidden per token and left out, and so are the bytes of activations. Nothing here is measured:
`bandwidth` and `flops_per_second` come from a machine (`measure.read_bandwidth`).
"""

import math
from numbers import Real

from utils.architecture import read

PARTS = ("projections", "scores", "mixing", "mlp", "experts", "router", "head")


def kv_cache_bytes(config, tokens, bytes_per_value=2, batch=1):
    """Bytes of the keys and values of `tokens` tokens in each of `batch` texts.

    2 x layers x kv_heads x head_dim values per token; with latent attention one vector per layer.
    config: whatever `architecture.read` takes.  bytes_per_value: 2 for fp16, 1 for fp8.
    """
    a = read(config)
    _at_least(0, tokens=tokens, bytes_per_value=bytes_per_value)
    _at_least(1, batch=batch)
    return batch * tokens * a.layers * a.cache_values * bytes_per_value


def flops(config, new_tokens, context=0, batch=1, causal=True, logits=None, absorbed=True):
    """{part: FLOPs} of one step; the sum is the step's.

    Parts: projections (attention's matrices), scores (queries x keys), mixing (probabilities x
    values), mlp, experts, router, head.
    causal: count the pairs of query and key that the mask allows. False: the whole rectangle
    new_tokens x (context + new_tokens), which attention without a fused kernel computes.
    logits: rows the head is applied to per text (default: all new tokens; prefill needs 1).
    absorbed: latent attention works on the cached vectors themselves. False: on keys and values
    that each step expands from them, for the whole context. Other architectures don't care.
    """
    a = read(config)
    _at_least(1, new_tokens=new_tokens, batch=batch)
    _at_least(0, context=context)
    rows = new_tokens if logits is None else logits
    if not 0 <= rows <= new_tokens:
        raise ValueError(f"logits={logits}: between 0 and the {new_tokens} new tokens")
    pairs = batch * a.layers * a.heads * query_key_pairs(new_tokens, context, causal)
    found = dict.fromkeys(PARTS, 0)
    for m in a.matrices():
        part = "projections" if m.part == "attention" else m.part
        times = rows if m.part == "head" else new_tokens
        if m.name == "kv_b" and not absorbed:
            times += context
        found[part] += 2 * batch * times * m.used * m.weights
    key, value = _widths(a, absorbed)
    found["scores"], found["mixing"] = 2 * pairs * key, 2 * pairs * value
    return found


def query_key_pairs(new_tokens, context=0, causal=True):
    """Pairs of one head in one layer of one text: token i sees `context` + i, itself included."""
    _at_least(0, new_tokens=new_tokens, context=context)
    if new_tokens != int(new_tokens):
        raise ValueError(f"new_tokens={new_tokens}: need a whole number of tokens")
    if not causal:
        return new_tokens * (context + new_tokens)
    return new_tokens * context + new_tokens * (new_tokens + 1) // 2


def _widths(a, absorbed):
    """Numbers per query-key pair: in a score and in the mixing of values."""
    if a.latent is None:
        return a.head_dim, a.head_dim
    if absorbed:
        return a.latent.rank + a.latent.rotary, a.latent.rank
    return a.head_dim, a.latent.value


def decode_bytes(config, context, bits_per_weight=16, bytes_per_value=2, batch=1):
    """{part: bytes} that one decoding step moves: `batch` texts, each with `context` tokens cached.

    weights: every matrix once for the whole batch, of the experts the expected number that the
    batch selects.  norms: with the biases, at bytes_per_value each.  embedding: a row per text.
    cache_read: the keys and values of all texts.  cache_write: those of the new tokens.
    """
    a = read(config)
    _at_least(0, context=context, bits_per_weight=bits_per_weight)
    _at_least(1, batch=batch)
    matrices = sum(m.weights * _copies_read(a, m, batch) for m in a.matrices())
    return {
        "weights": matrices * bits_per_weight / 8,
        "norms": (a.norms + a.biases) * bytes_per_value,
        "embedding": batch * a.hidden * bits_per_weight / 8,
        "cache_read": kv_cache_bytes(a, context, bytes_per_value, batch),
        "cache_write": kv_cache_bytes(a, 1, bytes_per_value, batch),
    }


def _copies_read(a, matrix, batch):
    if matrix.part != "experts":
        return matrix.copies
    layers = matrix.copies / a.experts
    return layers * distinct_experts(a.experts, a.experts_per_token, batch)


def distinct_experts(experts, per_token, tokens):
    """Expected number of different experts that `tokens` tokens select in one layer.

    Each picks `per_token` different ones, all equally likely, independently of the others:
    E (1 - (1 - k/E)^tokens). Real routers repeat themselves, so they need fewer.
    """
    if not 0 < per_token <= experts:
        raise ValueError(f"{per_token} experts per token of {experts}: need 1 to {experts}")
    _at_least(0, tokens=tokens)
    return experts * (1 - (1 - per_token / experts) ** tokens)


def crossover_tokens(config, bits_per_weight=16, bytes_per_value=2):
    """Cached tokens, over all texts, whose keys and values weigh as much as all stored weights."""
    a = read(config)
    _at_least(0, bits_per_weight=bits_per_weight)
    per_token = kv_cache_bytes(a, 1, bytes_per_value)
    if per_token == 0:
        raise ValueError("bytes_per_value=0: a cache of no bytes never outweighs the weights")
    return a.total * bits_per_weight / 8 / per_token


def intensity(flops, bytes_moved):
    """FLOPs per byte. Both: a number, or a dict of parts, which is summed."""
    work, moved = _sum(flops), _sum(bytes_moved)
    _at_least(0, flops=work)
    if not moved > 0:
        raise ValueError(f"{moved} bytes: an intensity needs bytes that are moved")
    return work / moved


def decode_ceiling(bytes_per_token, bandwidth):
    """Tokens/s that reading `bytes_per_token` (number or parts) at `bandwidth` bytes/s allows."""
    moved = _sum(bytes_per_token)
    if not (moved > 0 and bandwidth > 0):
        raise ValueError(f"{moved} bytes per token at {bandwidth} bytes/s: both must be above 0")
    return bandwidth / moved


def step_seconds(bytes_moved, flops, bandwidth, flops_per_second, fixed=0.0):
    """Seconds of a step: the longer of its two times, plus `fixed` for what neither explains."""
    if not (bandwidth > 0 and flops_per_second > 0):
        raise ValueError(f"bandwidth={bandwidth}, flops_per_second={flops_per_second}: need > 0")
    moved, work = _sum(bytes_moved), _sum(flops)
    _at_least(0, bytes_moved=moved, flops=work, fixed=fixed)
    return max(moved / bandwidth, work / flops_per_second) + fixed


def _sum(number_or_parts):
    if hasattr(number_or_parts, "values"):
        return sum(number_or_parts.values())
    return number_or_parts


def _at_least(least, **numbers):
    for name, value in numbers.items():
        if not isinstance(value, Real) or not math.isfinite(value) or value < least:
            raise ValueError(f"{name}={value!r}: need a number of at least {least}")
