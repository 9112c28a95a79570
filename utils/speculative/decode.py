"""The speculative decoding loop: propose, verify in one target forward, roll back, repeat.

Does: greedy (temperature 0) and sampled decoding of one sequence with any drafter; without a
drafter it is plain decoding, one token per forward.
Does not: batch, pad, or run tree drafts. The law of the output is that of plain decoding, whatever
the drafter does; the string may differ, because other random numbers are used.

Leviathan et al. 2023. Rollback is in `cached`, the rule in `sampling`.
"""

from functools import partial

import torch

from utils.speculative import cached, sampling
from utils.speculative.drafting import Draft
from utils.speculative.stats import Stats


def generate(
    target,
    drafter,
    input_ids,
    max_new_tokens,
    k,
    temperature=0.0,
    top_k=0,
    top_p=1.0,
    eos_token_id=None,
    generator=None,
    verify=sampling.verify,
):
    """Decode at most `max_new_tokens` with at most `k` drafted tokens per target forward.

    target: causal LM of transformers, or an Engine. drafter: see drafting.Drafter; None: plain.
    input_ids: int64 [n] or [1, n], no padding. eos_token_id: id or ids that end the text (kept in
    the output); None: those of the target's generation config; (): none.
    generator: CPU torch.Generator (None: torch's own, which greedy decoding advances too).
    verify: the acceptance rule (the zoo passes others).
    Returns (tokens int64 [m]: the new ones only, Stats).
    """
    ids = _prompt(input_ids)
    _check(target, drafter, max_new_tokens, k)
    stop = stop_ids(target, eos_token_id)
    warp = partial(sampling.warp, temperature=temperature, top_k=top_k, top_p=top_p)
    dice, model, stats = sampling.as_dice(generator), cached.of(target), Stats()
    end = len(ids) + max_new_tokens
    if drafter is not None:
        drafter.reset()
    while len(ids) < end and not (stats.emitted and ids[-1] in stop):
        room = min(k, end - len(ids) - 1)
        draft = drafter.propose(ids, room, warp, dice) if drafter and room else Draft([])
        p = warp(model.follow(ids + draft.tokens, rows=len(draft.tokens) + 1))
        q, drafted = draft.q_draft(p.shape[-1]), torch.tensor(draft.tokens, dtype=torch.int64)
        tokens, accepted = verify(p, q, drafted, dice)
        tokens = until_stop(tokens.tolist(), stop)
        stats.record(len(draft.tokens), accepted, len(tokens))
        ids = ids + tokens
    return torch.tensor(ids[end - max_new_tokens :]), stats


def until_stop(tokens, stop):
    """The tokens up to and including the first stop token."""
    ends = (i + 1 for i, token in enumerate(tokens) if token in stop)
    return tokens[: next(ends, len(tokens))]


def _prompt(input_ids):
    """The prompt as a list of ids, or ValueError: one sequence, at least one token."""
    ids = torch.as_tensor(input_ids)
    if ids.ndim == 2 and ids.shape[0] != 1:
        raise ValueError(
            f"batch of {ids.shape[0]}: rows accept different numbers of tokens, so that their "
            "caches part ways; call generate once per row"
        )
    if ids.ndim > 2 or ids.numel() == 0:
        raise ValueError(f"input_ids of shape {list(ids.shape)}: give one prompt of >= 1 token")
    return ids.flatten().tolist()


def _check(target, drafter, max_new_tokens, k):
    """ValueError for counts out of range and for a draft model with another vocabulary."""
    if max_new_tokens < 1 or k < 0:
        raise ValueError(f"max_new_tokens={max_new_tokens} must be >= 1 and k={k} >= 0")
    known, needed = getattr(drafter, "vocabulary", None), target.config.vocab_size
    if known not in (None, needed):
        raise ValueError(
            f"the draft model has {known} token ids, the target {needed}: "
            "drafts must use the target's tokenizer"
        )


def stop_ids(target, eos_token_id):
    """The set of ids that end the text."""
    if eos_token_id is None:
        eos_token_id = target.generation_config.eos_token_id
    if eos_token_id is None:
        return frozenset()
    return frozenset([eos_token_id] if isinstance(eos_token_id, int) else eos_token_id)
