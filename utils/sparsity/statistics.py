"""What a linear layer sees: the norm of each input feature, and the Hessian, over calibration text.

Does: sums over real tokens with forward hooks; padding is left out; linear layers only.
Does not: keep activations, or divide by the number of tokens (a constant changes no mask).

With the inputs of one layer as columns of X [in, tokens]:
    norm[j] = sqrt(sum_t X[j, t]^2)         Wanda
    hessian = X X^T                         SparseGPT; half the second derivative of ||D X||^2 in D
"""

from contextlib import contextmanager
from dataclasses import dataclass

import torch

from utils import models
from utils.sparsity import layers as layer_tools


@dataclass
class InputStatistics:
    """Sums over `tokens` real tokens: sum_squares [in] (float64, CPU), hessian [in, in] or None."""

    sum_squares: torch.Tensor
    tokens: int = 0
    hessian: torch.Tensor | None = None

    @property
    def norm(self):
        """L2 norm of each input feature [in]."""
        return self.sum_squares.sqrt()


class Recorder:
    """Hooks on `layers` (name -> module); `statistics` maps each name to its sums.

    Layers that get the very same input (q, k and v; gate and up) share one InputStatistics.
    `keep`, a boolean [batch, time], marks real tokens; None takes all of them.
    """

    def __init__(self, layers, hessian=False):
        self.layers, self.hessian, self.keep = layers, hessian, None
        self.statistics, self._last = {}, (None, None)

    @contextmanager
    def attached(self, keep=None):
        """Record while the block runs; the hooks are gone afterwards, error or not."""
        self.keep = None if keep is None else keep.bool()
        handles = [m.register_forward_pre_hook(self._hook(name)) for name, m in self.layers.items()]
        try:
            yield self
        finally:
            self._last = (None, None)
            for handle in handles:
                handle.remove()

    def _hook(self, name):
        def record(_module, inputs):
            source, owner = self._last
            if inputs[0] is source and name not in self.statistics:
                self.statistics[name] = self.statistics[owner]
            elif inputs[0] is not source or self.statistics[name] is not self.statistics[owner]:
                self._add(name, self._real_tokens(name, inputs[0]))
                self._last = (inputs[0], name)

        return record

    def _real_tokens(self, name, x):
        tokens = x.detach().reshape(-1, x.shape[-1])
        if self.keep is not None:
            if self.keep.numel() != tokens.shape[0]:
                raise ValueError(
                    f"{name}: {tokens.shape[0]} input rows for a mask of {self.keep.numel()} tokens"
                )
            tokens = tokens[self.keep.flatten().to(tokens.device)]
        return tokens.to(torch.promote_types(tokens.dtype, torch.float32))

    def _add(self, name, tokens):
        width = tokens.shape[1]
        stats = self.statistics.setdefault(
            name, InputStatistics(torch.zeros(width, dtype=torch.float64))
        )
        stats.sum_squares += tokens.square().sum(0).cpu().double()
        layer_tools.require_finite(name, stats.sum_squares, "input activations (or their squares)")
        stats.tokens += tokens.shape[0]
        if self.hessian:
            gram = tokens.T @ tokens
            stats.hessian = gram if stats.hessian is None else stats.hessian.add_(gram)


def forward(model, inputs, attention_mask=None):
    """Run the model's body (no logits, no cache) for the hooks' sake."""
    body = layer_tools.body(model)
    options = (
        {"use_cache": False, "attention_mask": attention_mask} if hasattr(body, "config") else {}
    )
    with torch.no_grad():
        body(inputs, **options)


def collect(model, ids, attention_mask=None, layers=None, hessian=False, batch=8):
    """Statistics of every linear layer's input: {name: InputStatistics}.

    ids int64 [n, time], or what the model takes, batch first; attention_mask [n, time], 0 at
    padding.
    All layers are read from the model as it is now; `prune.prune_model` reads them block by block.
    """
    recorder = Recorder(layers or models.linears(model), hessian)
    for start in range(0, len(ids), batch):
        part = slice(start, start + batch)
        keep = None if attention_mask is None else attention_mask[part]
        with recorder.attached(keep):
            forward(model, ids[part], keep)
    return recorder.statistics


def walk_blocks(model, ids, visit, attention_mask=None):
    """Visit the decoder blocks in order within one forward pass.

    Just before a block runs, `visit(prefix, run)` is called; `run()` replays the block on its true
    inputs, so that hooks can read them. What `visit` changes is felt by all later blocks.
    """

    def before(prefix, block):
        def hook(_module, args, kwargs):
            visit(prefix, lambda: block.forward(*args, **kwargs))

        return hook

    handles = [
        block.register_forward_pre_hook(before(prefix, block), with_kwargs=True)
        for prefix, block in layer_tools.blocks(layer_tools.body(model))
    ]
    try:
        forward(model, ids, attention_mask)
    finally:
        for handle in handles:
            handle.remove()
