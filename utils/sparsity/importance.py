"""How much a channel, a group of heads or a block matters: four scores, and the true loss.

A unit u (a channel, or the heads of a key-value group) feeds some columns of a layer's output
matrix. Let h be its inputs to that matrix, g the loss's gradient with respect to h. Removing u sets
h to zero, so with sums over tokens t and the unit's own inputs i
    magnitude    norm of all weights of the unit
    activation   sqrt(sum_i ||h_i||^2 ||w_:,i||^2)          what its inputs can add to the output
    taylor       |sum_t sum_i g h|                          first order: |loss(h = 0) - loss|
    squared      sum_t (sum_i g h)^2                        the same products, which can't cancel
The Taylor sum is also sum_o G w over the unit's columns, G being the gradient of these weights:
|g w| (Molchanov et al. 2019 square it by batch, here by token; LLM-Pruner takes it by weight).
But: all of them take units one at a time.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from utils.sparsity import layers as layer_tools
from utils.sparsity import statistics
from utils.sparsity.structured import decoder_blocks, head_size, spans

SCORES = ("magnitude", "activation", "taylor", "squared")
KINDS = ("channels", "groups")


@dataclass
class Sums:
    """Sums over tokens for one block: squares [inputs], first and second [units]; float64."""

    squares: torch.Tensor | float = 0.0
    first: torch.Tensor | float = 0.0
    second: torch.Tensor | float = 0.0

    def add(self, h, gradient, width):
        """h, gradient [..., inputs]; `width` neighbouring inputs make a unit."""
        h, gradient = h.flatten(0, -2).double(), gradient.flatten(0, -2).double()
        products = (h * gradient).unflatten(-1, (-1, width)).sum(-1)
        self.squares = self.squares + h.square().sum(0)
        self.first = self.first + products.sum(0)
        self.second = self.second + products.square().sum(0)


def output(block, kind):
    """The matrix that the units of a block feed."""
    return {"channels": block.mlp.down_proj, "groups": block.self_attn.o_proj}[kind]


def width(config, kind):
    """Inputs of that matrix that belong to one unit."""
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}; one of {', '.join(KINDS)}")
    queries = config.num_attention_heads // config.num_key_value_heads
    return 1 if kind == "channels" else queries * head_size(config)


def collect(model, ids, kinds=KINDS):
    """{kind: [Sums of each block]} from one forward and one backward pass per window of ids."""
    wide = {kind: width(model.config, kind) for kind in kinds}
    found = {kind: [Sums() for _ in decoder_blocks(model)] for kind in kinds}

    def hook(sums, size):
        def keep(_module, inputs):
            h = inputs[0]
            h.register_hook(lambda gradient: sums.add(h.detach(), gradient, size))

        return keep

    handles = [
        output(block, kind).register_forward_pre_hook(hook(found[kind][number], wide[kind]))
        for kind in kinds
        for number, block in enumerate(decoder_blocks(model))
    ]
    handles.append(model.get_input_embeddings().register_forward_hook(_with_gradient))
    try:
        with torch.enable_grad():
            for row in ids:
                loss(model(input_ids=row[None], use_cache=False).logits, row[None]).backward()
    finally:
        for handle in handles:
            handle.remove()
    return found


def _with_gradient(_module, _inputs, embedded):
    """Start the graph here: the weights themselves may need no gradient."""
    return embedded.detach().requires_grad_()


def loss(logits, ids):
    """Mean negative log-likelihood of the next tokens."""
    return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def score(model, kind, method, sums=None):
    """[float64 [units] of each block]; sums: `collect(...)[kind]`, not needed for magnitude."""
    if method not in SCORES:
        raise ValueError(f"unknown score {method!r}; one of {', '.join(SCORES)}")
    if method != "magnitude" and sums is None:
        raise ValueError(f"{method} needs the sums of a calibration text: importance.collect")
    size = width(model.config, kind)
    if method == "magnitude":
        return [_magnitude(block, kind, size) for block in decoder_blocks(model)]
    if method == "activation":
        pairs = zip(decoder_blocks(model), sums, strict=True)
        return [_reach(output(block, kind), entry.squares, size) for block, entry in pairs]
    return [entry.first.abs() if method == "taylor" else entry.second for entry in sums]


def _magnitude(block, kind, size):
    if kind == "channels":
        rows = [(block.mlp.gate_proj, 1), (block.mlp.up_proj, 1)]
    else:
        attention = block.self_attn
        narrow = attention.head_dim
        rows = [(attention.q_proj, size), (attention.k_proj, narrow), (attention.v_proj, narrow)]
    squares = [m.weight.detach().double().square().sum(1).view(-1, n).sum(1) for m, n in rows]
    columns = output(block, kind).weight.detach().double().square().sum(0).view(-1, size).sum(1)
    return (sum(squares) + columns).sqrt()


def _reach(matrix, squares, size):
    columns = matrix.weight.detach().double().square().sum(0)
    return (columns * squares).view(-1, size).sum(1).sqrt()


def largest(scores, share):
    """Rising indices of the units that stay if a share of each block goes (ties: earlier go)."""
    if not 0 <= share < 1:
        raise ValueError(f"share={share}: need 0 <= share < 1")
    kept = []
    for values in scores:
        order = values.argsort(stable=True)
        kept.append(order[round(share * len(values)) :].sort().values)
    return kept


def influence(model, ids):
    """Block influence (ShortGPT): 1 - mean cosine of a block's input and output; [blocks]."""
    found = []

    def hook(_module, args, kwargs, result):
        before = args[0] if args else kwargs["hidden_states"]
        after = result[0] if isinstance(result, tuple) else result
        found.append(F.cosine_similarity(before.double(), after.double(), dim=-1).mean())

    handles = [b.register_forward_hook(hook, with_kwargs=True) for b in decoder_blocks(model)]
    try:
        statistics.forward(model, ids)
    finally:
        for handle in handles:
            handle.remove()
    return 1 - torch.stack(found).cpu()


class Removal:
    """The true change of the loss when single units of one block are removed, others untouched.

    Runs the model once up to the block and then from it on for every question; ids [n, time].
    """

    def __init__(self, model, number, ids, kind="channels"):
        self.model, self.ids, self.number = model, ids, number
        self.matrix = output(decoder_blocks(model)[number], kind)
        self.size = width(model.config, kind)
        self._call = None

        def keep(_module, args, kwargs):
            self._call = (args, dict(kwargs))

        handle = decoder_blocks(model)[number].register_forward_pre_hook(keep, with_kwargs=True)
        try:
            statistics.forward(model, ids)
        finally:
            handle.remove()
        self.before = self._loss()

    def change(self, unit):
        """loss without the unit minus loss with it."""
        columns = spans(torch.tensor([unit]), self.size)

        def silence(_module, inputs):
            h = inputs[0].clone()
            h[..., columns] = 0
            return (h, *inputs[1:])

        handle = self.matrix.register_forward_pre_hook(silence)
        try:
            return self._loss() - self.before
        finally:
            handle.remove()

    @torch.no_grad()
    def _loss(self):
        args, kwargs = self._call
        hidden = args[0] if args else kwargs["hidden_states"]
        rest = {k: v for k, v in kwargs.items() if k != "hidden_states"}
        for block in decoder_blocks(self.model)[self.number :]:
            result = block(hidden, *args[1:], **rest)
            hidden = result[0] if isinstance(result, tuple) else result
        logits = self.model.get_output_embeddings()(layer_tools.body(self.model).norm(hidden))
        return float(loss(logits, self.ids))
