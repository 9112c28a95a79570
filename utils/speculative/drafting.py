"""Who proposes tokens: prompt lookup (no model), a draft model, a truncated copy of the target.

Does: says what is proposed and from which law each token was drawn; the verifier needs both.
Does not: verify. A drafter can be as bad as it likes without changing the output law.

Prompt lookup: Saxena 2023. Draft model: Leviathan et al. 2023. Early exit: Elhoushi et al. 2024.
"""

import copy
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from utils.speculative import cached


@dataclass
class Draft:
    """Proposed tokens, and the laws they were drawn from: laws[i] is [V].

    `laws=None`: the drafter threw no dice, so that each law is one-hot at its token.
    """

    tokens: list[int]
    laws: list[torch.Tensor] | None = None

    def q_draft(self, vocabulary):
        """The laws as one tensor float64 [K, V]."""
        if self.laws:
            return torch.stack(self.laws)
        rows = torch.zeros(len(self.tokens), vocabulary, dtype=torch.float64)
        rows[range(len(self.tokens)), self.tokens] = 1.0
        return rows


class Drafter(Protocol):
    """What `decode.generate` asks of a drafter."""

    def reset(self):
        """Forget the last text; called once at the start of each generation."""

    def propose(self, ids, k, warp, dice) -> Draft:
        """At most `k` tokens to follow `ids`. `warp`: logits [V] to the law that may be drawn."""


class PromptLookup:
    """Copies what followed the last occurrence of the text's final n-gram; longest n-gram first.

    Saxena's code takes the first occurrence that has all k tokens behind it; here the latest one
    wins, even if fewer than k tokens follow it.
    """

    def __init__(self, max_ngram=3, min_ngram=1):
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"need 1 <= min_ngram <= max_ngram, got {min_ngram} and {max_ngram}")
        self.sizes = range(max_ngram, min_ngram - 1, -1)

    def reset(self):
        """Nothing to forget: the text is all the state there is."""

    def propose(self, ids, k, warp=None, dice=None):
        """At most `k` copied tokens; none where no n-gram occurs twice."""
        for size in self.sizes:
            for start in range(len(ids) - size - 1, -1, -1):
                if ids[start : start + size] == ids[-size:]:
                    return Draft(ids[start + size : start + size + k])
        return Draft([])


class ModelDrafter:
    """A smaller causal language model with the target's tokenizer proposes, one token at a time."""

    def __init__(self, model):
        self.model, self.cached = model, cached.of(model)

    @property
    def vocabulary(self):
        """Number of token ids that the draft model knows."""
        return self.model.config.vocab_size

    def reset(self):
        """Forget the last text's keys and values."""
        self.cached.reset()

    def propose(self, ids, k, warp, dice):
        """`k` tokens, each drawn from the draft model's warped law, which is kept as q."""
        draft = Draft([], [])
        for _ in range(k):
            law = warp(self.cached.follow(ids + draft.tokens))[0]
            draft.tokens.append(dice.draw(law))
            draft.laws.append(law)
        return draft


def truncated(model, layers):
    """The first `layers` layers of a Llama-like model with its final norm and head; shares weights.

    No memory beyond the module objects. Untrained for early exit, it is a poor draft; a step costs
    its share of the layers plus the whole head.
    """
    total = model.config.num_hidden_layers
    if not 1 <= layers <= total:
        raise ValueError(f"layers={layers}: the model has {total}; choose 1 to {total}")
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    with torch.device("meta"):
        draft = type(model)(config)
    draft.model.embed_tokens = model.model.embed_tokens
    draft.model.layers = nn.ModuleList(model.model.layers[:layers])
    draft.model.norm = model.model.norm
    draft.model.rotary_emb = model.model.rotary_emb
    draft.lm_head = model.lm_head
    return draft.eval()
