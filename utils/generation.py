"""Turning logits into text: greedy and sampled decoding, streams, batches, speculation.

One loop for one text (`stream`), with or without drafts, and one for a batch of texts of different
lengths. Sampling: repetition penalty, then temperature, top-k, top-p, in the order of transformers.
With a draft the output is that of plain decoding: token for token when greedy, in law when sampled
(Leviathan et al. 2023; see speculative/sampling.py).

But: no beam search, no logit processors of others, and no drafts in batches.
"""

from dataclasses import dataclass, field

import torch

from utils.device import one_torch_thread
from utils.speculative import sampling
from utils.speculative.decode import stop_ids, until_stop
from utils.speculative.drafting import Draft
from utils.speculative.lookup import Adaptive, Index
from utils.speculative.stats import Stats


@dataclass(frozen=True)
class Sampling:
    """temperature 0: greedy. top_k 0 and top_p 1: off. repetition_penalty 1: off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self):
        if self.repetition_penalty <= 0:
            raise ValueError(f"repetition_penalty={self.repetition_penalty}: must be above 0")
        sampling.warp(torch.zeros(2), self.temperature, self.top_k, self.top_p)

    def law(self, logits, ids):
        """Probabilities float64 [V] for the token after `ids`."""
        logits = penalized(logits, ids, self.repetition_penalty)
        return sampling.warp(logits, self.temperature, self.top_k, self.top_p)

    def draw(self, logits, ids, dice):
        """A token after `ids` from its logits [V]."""
        with one_torch_thread():
            if self.temperature == 0:
                changed = penalized(logits, ids, self.repetition_penalty)
                return int(changed.cpu().numpy().argmax())
            return dice.draw(self.law(logits, ids))


def penalized(logits, ids, penalty):
    """Logits of tokens that occur in `ids` divided by `penalty` where positive, else multiplied."""
    if penalty == 1:
        return logits
    seen = torch.tensor(sorted(set(ids)))
    changed, values = logits.clone(), logits[seen]
    changed[seen] = torch.where(values > 0, values / penalty, values * penalty)
    return changed


@dataclass
class Generation:
    """tokens: new ids, one list for each text. stats: of speculation (None in batches)."""

    tokens: list
    stats: Stats | None = field(default=None)


class Generator:
    """What an engine can do once it can `step`, `decode` and `crop`."""

    def generate(
        self,
        input_ids,
        max_new_tokens,
        attention_mask=None,
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        repetition_penalty=1.0,
        generator=None,
        eos_token_id=None,
        drafter=None,
        k=31,
        on_token=None,
    ):
        """Decode at most `max_new_tokens` for each text; returns Generation.

        input_ids: ids of one text (list or int64 [n]), or of several: a list of lists, or int64
        [B, n] with attention_mask [B, n] (0: padding, on the left). eos_token_id: id or ids that
        end a text (kept); None: the model's own; (): none. generator: CPU torch.Generator.
        drafter: None, "lookup" (adaptive prompt lookup) or a drafting.Drafter; one text only.
        k: longest draft. on_token: called with each new id as it comes; one text only.
        """
        texts = prompts(input_ids, attention_mask)
        how = Sampling(temperature, top_k, top_p, repetition_penalty)
        stop = stop_ids(self, eos_token_id)
        self._check(texts, max_new_tokens)
        self._check_drafter(drafter, k)
        if len(texts) == 1:
            return self._one(texts[0], max_new_tokens, how, generator, stop, drafter, k, on_token)
        if drafter is not None or on_token is not None:
            raise ValueError("drafter= and on_token= take one text at a time: call once for each")
        return self._batch(texts, max_new_tokens, how, generator, stop)

    def stream(self, input_ids, max_new_tokens, eos_token_id=None, generator=None, **how):
        """Iterator over the new ids of one text, each as soon as it is known."""
        (text,) = prompts(input_ids)
        self._check([text], max_new_tokens)
        stop, dice = stop_ids(self, eos_token_id), sampling.as_dice(generator)
        return self._tokens(text, max_new_tokens, Sampling(**how), dice, stop, Stats())

    def _one(self, text, count, how, generator, stop, drafter, k, on_token):
        stats, dice = Stats(), sampling.as_dice(generator)
        if drafter is None:
            tokens = self._tokens(text, count, how, dice, stop, stats)
        elif drafter == "lookup":
            drafts = LookupDrafts(how, k)
            tokens = self._drafted(text, count, how, dice, stop, stats, drafts)
        else:
            drafts = OtherDrafts(drafter, how, dice, k)
            tokens = self._drafted(text, count, how, dice, stop, stats, drafts)
        new = []
        for token in tokens:
            new.append(token)
            if on_token is not None:
                on_token(token)
        return Generation([new], stats)

    def _tokens(self, text, count, how, dice, stop, stats):
        """Plain decoding: one token for each step."""
        self.reset()
        turn, ids = self.turn, list(text)
        logits = self.step(text, rows=1, keep=False)[0]
        for i in range(count):
            token = how.draw(logits, ids, dice)
            ids.append(token)
            stats.record(0, 0, 1)
            yield token
            if token in stop or i == count - 1:
                return
            if self.turn is not turn:
                raise RuntimeError("the engine began another text: read one stream at a time")
            logits = self._run([token], [0], [0])[0]

    def _drafted(self, text, count, how, dice, stop, stats, drafts):
        """Speculative decoding: verify a draft, keep what plain decoding would have said."""
        self.reset()
        ids, end = list(text), len(text) + count
        drafts.begin(ids)
        pending = list(text)
        while True:
            draft = drafts.propose(ids, min(end - len(ids) - 1, self.max_rows - 1))
            logits = self._verify(pending, draft.tokens)
            tokens, accepted = accept(logits, ids, draft, how, dice)
            tokens = until_stop(tokens, stop)
            stats.record(len(draft.tokens), accepted, len(tokens))
            drafts.learn(draft, accepted, tokens)
            ids += tokens
            self.crop(len(ids) - 1)
            yield from tokens
            if ids[-1] in stop or len(ids) >= end:
                return
            pending = ids[-1:]

    def _verify(self, pending, drafted):
        """Logits [len(drafted) + 1, V] after `pending` and each drafted token."""
        if len(pending) + len(drafted) > self.max_rows:
            return self.step(pending + drafted, rows=len(drafted) + 1)
        rows = len(pending) + len(drafted)
        return self._run(pending + drafted, [0] * rows, range(len(pending) - 1, rows))

    def _batch(self, texts, count, how, generator, stop):
        """Each text in a slot of its own; a text that has ended takes no more rows."""
        dice = sampling.as_dice(generator)
        self.reset()
        last = [self.step(text, slot, rows=1)[0] for slot, text in enumerate(texts)]
        new = [[] for _ in texts]
        active = list(range(len(texts)))
        for turn in range(count):
            for slot, logits in zip(active, last, strict=True):
                new[slot].append(how.draw(logits, texts[slot] + new[slot], dice))
            active = [slot for slot in active if new[slot][-1] not in stop]
            if not active or turn == count - 1:
                break
            last = self._run([new[slot][-1] for slot in active], active, range(len(active)))
        return Generation(new)

    def _check(self, texts, max_new_tokens):
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={max_new_tokens}: need at least 1")
        if len(texts) > self.batch:
            raise ValueError(f"{len(texts)} texts: this engine has {self.batch} slots (batch=)")
        for slot, text in enumerate(texts):
            if len(text) + max_new_tokens - 1 > self.max_tokens:
                raise ValueError(
                    f"text {slot}: {len(text)} tokens and {max_new_tokens} new ones are more than "
                    f"max_tokens={self.max_tokens}; make the engine with a larger max_tokens"
                )
            self._checked(text, slot, held=0)

    def _check_drafter(self, drafter, k):
        if k < 0 or (isinstance(drafter, str) and drafter != "lookup"):
            raise ValueError(f'drafter={drafter!r}, k={k}: use "lookup" or a Drafter, and k >= 0')
        known = getattr(drafter, "vocabulary", None)
        if known not in (None, self.spec.vocabulary):
            raise ValueError(
                f"the draft model has {known} token ids, the target {self.spec.vocabulary}: "
                "drafts must use the target's tokenizer"
            )


class LookupDrafts:
    """Adaptive prompt lookup."""

    def __init__(self, how, k):
        self.index, self.adaptive, self.k, self.size = Index(), Adaptive(), k, 0

    def begin(self, ids):
        """A new text."""
        self.index.reset()
        self.index.extend(ids)

    def propose(self, ids, room):
        """A draft of at most `room` tokens."""
        tokens, self.size = self.index.propose(min(self.k, room))
        if tokens:
            tokens = tokens[: self.adaptive.length(self.size, len(tokens))]
        return Draft(tokens)

    def learn(self, draft, accepted, tokens):
        """How the draft fared, and what was said instead."""
        if draft.tokens:
            self.adaptive.learn(self.size, len(draft.tokens), accepted)
        self.index.extend(tokens)


class OtherDrafts:
    """Any drafting.Drafter with a fixed draft length."""

    def __init__(self, drafter, how, dice, k):
        self.drafter, self.how, self.dice, self.k = drafter, how, dice, k

    def begin(self, ids):
        """A new text."""
        self.drafter.reset()

    def propose(self, ids, room):
        """A draft of at most `room` tokens."""
        room = min(self.k, room)
        how = self.how

        def warp(logits):
            return sampling.warp(logits, how.temperature, how.top_k, how.top_p)

        return self.drafter.propose(ids, room, warp, self.dice) if room > 0 else Draft([])

    def learn(self, draft, accepted, tokens):
        """Nothing to learn."""


def accept(logits, ids, draft, how, dice):
    """(tokens, accepted): the draft's part that plain decoding would have said, and one more."""
    if how.temperature == 0:
        tokens = []
        for i in range(len(draft.tokens) + 1):
            tokens.append(how.draw(logits[i], ids + tokens, dice))
            if i == len(draft.tokens) or tokens[-1] != draft.tokens[i]:
                return tokens, i
    with one_torch_thread():
        p = torch.stack([how.law(row, ids + draft.tokens[:i]) for i, row in enumerate(logits)])
        drafted = torch.tensor(draft.tokens, dtype=torch.int64)
        tokens, accepted = sampling.verify(p, draft.q_draft(p.shape[-1]), drafted, dice)
    return tokens.tolist(), accepted


def prompts(input_ids, attention_mask=None):
    """One list of ids for each text, without padding. ValueError names the text at fault."""
    if attention_mask is None:
        several = isinstance(input_ids, list | tuple) and input_ids
        if several and isinstance(input_ids[0], list | tuple | torch.Tensor):
            texts = [torch.as_tensor(text).flatten().tolist() for text in input_ids]
        else:
            ids = torch.as_tensor(input_ids)
            if ids.ndim == 2 and len(ids) > 1:
                raise ValueError("a padded batch needs its attention_mask (0: padding)")
            texts = [ids.flatten().tolist()]
    else:
        ids, mask = torch.as_tensor(input_ids), torch.as_tensor(attention_mask).bool()
        if ids.ndim != 2 or ids.shape != mask.shape:
            raise ValueError(
                f"input_ids {list(ids.shape)} and attention_mask {list(mask.shape)}: "
                "both must be [B, n]"
            )
        texts = [row[keep].tolist() for row, keep in zip(ids, mask, strict=True)]
    for i, text in enumerate(texts):
        if not text:
            raise ValueError(f"text {i} has no tokens")
    return texts
