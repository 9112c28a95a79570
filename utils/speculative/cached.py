"""A causal language model and its key-value cache, kept in step with a list of token ids.

Does: holds the invariant "the cache has the keys and values of exactly `ids`". Rolling back after a
rejection is cropping the cache to what the new text and the old one have in common.
Does not: batch, sample, or reach into the cache: only transformers' public Cache interface.
"""

import inspect

import torch
from transformers import DynamicCache


def of(model):
    """A model of transformers with a cache; what can `follow` already (an Engine) as it is."""
    if not hasattr(model, "follow"):
        return CachedModel(model)
    model.reset()
    return model


class CachedModel:
    """`follow(ids, rows)` gives the logits of the last rows of any text, reusing what is cached."""

    def __init__(self, model):
        kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise ValueError(
                f"layers of kind {sorted(kinds)}: a rejected draft can only be cropped from the "
                "cache of a model with full attention in every layer"
            )
        self.model = model
        self.keyword = cache_keyword(model)
        self.reset()

    def reset(self):
        """Forget everything."""
        self.ids = []
        self.cache = DynamicCache(config=self.model.config)

    @property
    def length(self):
        """Tokens whose keys and values are held."""
        return self.cache.get_seq_length()

    def crop(self, length):
        """Keep the first `length` tokens (0: none) and forget the rest."""
        surplus = self.length - length
        if surplus > 0:
            self.cache.crop(-surplus)
            del self.ids[length:]

    @torch.no_grad()
    def follow(self, ids, rows=1):
        """Logits [rows, V] at the last `rows` positions of `ids` (list of int), in one forward.

        Crops the cache to the common prefix with `ids`, then feeds what is missing (at least
        `rows` tokens, because logits are not cached).
        """
        self.crop(min(common_prefix(self.ids, ids), len(ids) - rows))
        new = torch.tensor([ids[self.length :]], device=self.model.device)
        held = {self.keyword: self.cache, "use_cache": True}
        output = self.model(new, logits_to_keep=rows, **held)
        self.ids = list(ids)
        return output.logits[0]


def cache_keyword(model):
    """The name of the cache argument: transformers 5 renames `past_key_values` to `cache`."""
    known = inspect.signature(model.forward).parameters
    return "cache" if "cache" in known else "past_key_values"


def common_prefix(a, b):
    """How many leading items two lists share."""
    pairs = enumerate(zip(a, b))  # noqa: B905 - the shorter one ends the comparison
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
