"""What the target has in mind: each token after some of its layers, for training and drafting.

states    of whole texts, scaled to unit RMS
Watched   the target for `decode.generate` in plain torch, with the states of its last call

A state is taken after so many layers, before the final norm (as `Engine(states=...)` does), and
divided by its root mean square: `unit`. The last one times the final norm's weight is then what the
head multiplies, so that the target's law can be had from a stored state.

EAGLE-3 (Li et al. 2025) reads a low, a middle and a high layer; the last one of ours
carries what the head is about to say. But: full attention, one device.
"""

import torch

from utils.speculative.cached import CachedModel
from utils.speculative.drafter.target import unit

LAYERS = (3, 12, 22, 30)


def depths(model, layers=LAYERS):
    """The layers to read: `layers` where the model has them, else four spread over its depth."""
    total = model.config.num_hidden_layers
    if max(layers) == total:
        return tuple(layers)
    return tuple(sorted({max(1, round(total * share)) for share in (0.1, 0.4, 0.73, 1)}))


class _Hooks:
    """Keeps what the watched layers put out during one forward."""

    def __init__(self, model, layers):
        self.layers, self.seen = layers, {}
        blocks = model.model.layers
        wrong = [n for n in layers if not 1 <= n <= len(blocks)]
        if wrong:
            raise ValueError(f"states after {wrong} layers: the model has {len(blocks)}")
        self.handles = [blocks[n - 1].register_forward_hook(self._keeper(n)) for n in layers]

    def _keeper(self, n):
        def keep(_module, _inputs, output):
            self.seen[n] = output[0] if isinstance(output, tuple) else output

        return keep

    def taken(self):
        """The states of the last forward, [..., layers, hidden]."""
        return torch.stack([self.seen[n] for n in self.layers], -2)

    def remove(self):
        for handle in self.handles:
            handle.remove()


@torch.no_grad()
def states(model, texts, layers=LAYERS):
    """Unit states of whole texts (lists of ids), each fp32 [len(text), layers, hidden].

    One forward, padded at the end: no token looks at what follows it.
    """
    padded = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.int64, device=model.device)
    for row, text in zip(padded, texts, strict=True):
        row[: len(text)] = torch.as_tensor(text)
    hooks = _Hooks(model, layers)
    try:
        model.model(padded, use_cache=False)
    finally:
        hooks.remove()
    found = unit(hooks.taken().float(), model.config.rms_norm_eps)
    return [row[: len(text)] for row, text in zip(found, texts, strict=True)]


class Watched(CachedModel):
    """`decode.generate`'s target with the states of its last call, named as an Engine names them.

    `states`: fp32 [rows, layers, hidden], not scaled.  `texts[0]`: the tokens that are held.
    """

    def __init__(self, model, layers=LAYERS):
        super().__init__(model)
        self.config, self.generation_config = model.config, model.generation_config
        self.layers = layers

    def reset(self):
        """Forget everything."""
        super().reset()
        self.states = torch.empty(0)

    @property
    def texts(self):
        """The held tokens, in a list of one text."""
        return [self.ids]

    def follow(self, ids, rows=1):
        """As CachedModel.follow; the rows that were fed leave their states behind."""
        hooks = _Hooks(self.model, self.layers)
        try:
            logits = super().follow(ids, rows)
        finally:
            hooks.remove()
        self.states = hooks.taken()[0].float()
        return logits
