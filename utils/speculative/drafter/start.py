"""Where training starts: the draft ids by frequency, the head by least squares.

The least-squares guess drafts usable tokens before any training; what a linear guess can't say is
left to the layer, whose two output matrices start at zero.
"""

from collections import Counter

import torch

from utils.speculative.drafter import data
from utils.speculative.drafter.target import unit

STRENGTHS = (0.03, 0.1, 0.3, 1.0)  # of the ridge, per row and standardised channel


def draft_vocabulary(texts, size, total):
    """The ids that answers use most; prompts count a tenth. Filled up with the first ids.

    A tokenizer made by merging gives small ids to frequent pieces. EAGLE-3's code counts too.
    """
    counts = Counter({token: 1e-6 / (1 + token) for token in range(total)})
    for text in texts:
        for place, token in enumerate(text.ids):
            counts[token] += 1 if place >= text.start else 0.1
    return sorted(token for token, _ in counts.most_common(size))


@torch.no_grad()
def ridge_start(head, model, texts, most=12_000):
    """Set the scales and the linear part by least squares, the layer to the target's last one.

    The layer's two output matrices start at zero, so that the start is the least-squares guess.
    Returns {"own": R2, "states": R2} of the guess of the next final state, on a fifth held out.
    """
    tokens, states, goal = _rows(head, texts, most)
    inputs = torch.cat([tokens, states.flatten(1)], 1)
    head.mean.copy_(inputs.mean(0))
    head.spread.copy_(inputs.std(0).clamp_min(1e-3))
    inputs, goal, d = (inputs - head.mean) / head.spread, head.standard_own(goal), head.hidden
    own, fit = _ridge(torch.cat([inputs[:, :d], inputs[:, -d:]], 1), goal)
    rest = goal - inputs[:, :d] @ own[:d]
    wide, fit_wide = _ridge(inputs[:, d:], rest)
    head.from_token.weight.copy_(own[:d].T)
    head.from_own.weight.copy_(own[d:].T)
    head.from_states.weight.copy_(wide.T)
    _last_layer(head, model.model.layers[-1])
    variance = float(goal[_held(goal)].square().mean())
    return {"own": 1 - fit / variance, "states": 1 - fit_wide / variance}


def _rows(head, texts, most):
    """Unit embeddings, states and next final states of answer places, at most `most` of them."""
    parts, count = [], 0
    for text in texts:
        if count >= most:
            break
        lot = data.lot([text])
        tokens = unit(head.embedding[lot.ids], head.eps)[lot.kept]
        parts.append((tokens, lot.states[lot.kept], lot.goal))
        count += len(tokens)
    return [torch.cat(part) for part in zip(*parts, strict=True)]


def _held(rows):
    """The last fifth: texts that the fit doesn't see."""
    return slice(len(rows) * 4 // 5, None)


def _ridge(x, y):
    """(weights [in, out], mean square error on the last fifth) of the best of STRENGTHS."""
    held = _held(x)
    seen, goal = x[: held.start].double(), y[: held.start].double()
    gram, cross = seen.T @ seen, seen.T @ goal
    found = []
    for strength in STRENGTHS:
        weights = torch.linalg.solve(_raised(gram, strength * len(seen)), cross).float()
        found.append((float((y[held] - x[held] @ weights).square().mean()), weights))
    error, weights = min(found, key=lambda pair: pair[0])
    return weights, error


def _raised(gram, amount):
    return gram + amount * torch.eye(len(gram), dtype=gram.dtype)


def _last_layer(head, layer):
    """The target's last layer, its inputs and matrices scaled so that first steps stay small.

    Adam moves every weight by the rate, however small its gradient: a matrix behind large
    activations would leave the least-squares guess at once.
    """
    attention, mlp, spread = layer.self_attn, layer.mlp, head.spread[-head.hidden :]
    for norm, weight in (
        (head.norm1, layer.input_layernorm.weight),
        (head.norm2, layer.post_attention_layernorm.weight),
    ):
        norm.copy_(0.7 * weight * spread / (weight * spread).abs().mean())
    joined = torch.cat([getattr(attention, f"{name}_proj").weight for name in "qkv"])
    head.qkv.weight.copy_(_of_size(joined, 0.5))
    if head.intermediate == mlp.gate_proj.weight.shape[0]:
        wide = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        head.gate_up.weight.copy_(_of_size(wide, 1.0))
    head.o.weight.zero_()
    head.down.weight.zero_()


def _of_size(matrix, size):
    """Scaled so that inputs of size 1 have outputs of about `size`."""
    return matrix * size / (matrix.std() * matrix.shape[1] ** 0.5)
