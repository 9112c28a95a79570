"""The fast decode path: a Llama-shaped model with packed weights and a static key-value cache.

    engine = Engine(model, weights="int8")
    engine.generate(ids, max_new_tokens=64)           one text or many, greedy or sampled
    engine.step(ids)                                  logits of new tokens, any number of them
    engine.crop(length)                               forget the end: the roll-back of a draft

The engine holds `batch` texts in slots of `max_tokens` each. Everything that is fed to it is a row:
a token at a position of a slot. With the Numba back end a row's logits are the same bits however
many rows share its step: prompt in one piece or in ten, drafted or not, alone or in a batch.

But: one process, one device, no paging and no prefix sharing. What has no kernel is refused.
"""

import torch

from utils.device import detect, one_torch_thread
from utils.generation import Generator
from utils.kernels import backends, select, spec
from utils.speculative.cached import common_prefix

LONGEST = 2048
_NONE = torch.empty(0)


class Engine(Generator):
    """model: a Llama, Qwen2 or Mistral of transformers; it is read, never kept.

    weights: "fp32", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "nf4", "fp4", "sparse24",
    {matrix name: form or tensor}, or None for what the model holds (see kernels/select.py).
    group_size: numbers per scale where the form has a choice. max_tokens: longest text, prompt and
    answer (default: 2048, or what the model is made for if that is less). batch: texts at a time.
    threads: default, as many as torch uses (OMP_NUM_THREADS).
    max_rows: rows of one step; longer prompts are cut. backend: "numba", "triton", "torch".
    states: counts of layers, e.g. (3, 30); `engine.states` then holds what each row of the last
    call had become after so many layers, before the final norm: fp32 [rows, len(states), hidden].
    ValueError before any work for what the engine can't run.
    """

    def __init__(
        self,
        model,
        weights="fp32",
        group_size=None,
        max_tokens=None,
        batch=1,
        threads=None,
        max_rows=64,
        backend=None,
        device=None,
        states=(),
    ):
        if batch < 1 or max_rows < 1 or (threads is not None and threads < 1):
            raise ValueError(f"batch={batch}, max_rows={max_rows}, threads={threads}: need >= 1")
        device = device or detect()
        self.config, self.generation_config = model.config, model.generation_config
        longest = min(LONGEST, getattr(model.config, "max_position_embeddings", LONGEST))
        max_tokens = longest if max_tokens is None else max_tokens
        self.spec = spec.read(model, max_tokens)
        self.max_tokens, self.batch, self.max_rows = max_tokens, batch, max(max_rows, batch)
        self.backend_name = backend or backends.choose(device)
        backends.check(self.backend_name, self.spec)
        self._keeps = _checked_states(states, self.spec.layers)
        stored = self._noted(select.each(model, self.spec, weights, group_size))
        self.backend = backends.make(
            self.backend_name,
            self.spec,
            stored,
            batch,
            max_tokens,
            threads or min(device.threads, torch.get_num_threads()),
            self.max_rows,
            device.torch,
            self._keeps,
        )
        self.reset()

    def _noted(self, weights):
        """The same pairs; `kinds` holds the storage forms that were seen."""
        self.kinds = []
        for name, weight in weights:
            self.kinds = sorted({*self.kinds, weight.kind})
            yield name, weight

    @property
    def nbytes(self):
        """Bytes of the packed matrices: what one token reads, but for the cache."""
        return self.backend.nbytes_weights

    @property
    def cache_nbytes(self):
        """Bytes of keys and values of all slots, filled or not."""
        return self.backend.nbytes_cache

    def bytes_per_token(self, context=0):
        """Bytes that decoding one token reads: all matrices, keys and values of `context`."""
        s = self.spec
        return self.nbytes + 8 * s.layers * s.kv_heads * s.head_dim * context

    def reset(self):
        """Forget all texts. A stream that was not read to its end is over."""
        self.turn, self.states = object(), _NONE
        self.texts = [[] for _ in range(self.batch)]

    def length(self, slot=0):
        """Tokens held in a slot."""
        return len(self.texts[slot])

    def crop(self, length, slot=0):
        """Keep the first `length` tokens of a slot. Nothing is erased: later rows overwrite."""
        if not 0 <= length <= self.length(slot):
            raise ValueError(f"crop to {length}: slot {slot} holds {self.length(slot)} tokens")
        del self.texts[slot][length:]

    def step(self, ids, slot=0, rows=None, keep=True, inputs=None):
        """Append `ids` to a slot; logits fp32 [rows, V] of the last `rows` (default: all).

        keep=False: where one step suffices the logits aren't copied; the next step overwrites them.
        inputs: fp32 [len(ids), hidden] to start from in place of the ids' embeddings.
        """
        ids = self._checked(ids, slot)
        self._check_inputs(inputs, len(ids))
        rows = len(ids) if rows is None else rows
        if not 0 < rows <= len(ids):
            raise ValueError(f"rows={rows}: between 1 and the {len(ids)} tokens of this step")
        parts, states = [], []
        for start in range(0, len(ids), self.max_rows):
            chunk = ids[start : start + self.max_rows]
            given = None if inputs is None else inputs[start : start + self.max_rows]
            first_wanted = max(0, len(ids) - rows - start)
            wanted = range(min(first_wanted, len(chunk)), len(chunk))
            logits = self._run(chunk, [slot] * len(chunk), wanted, given)
            states.append(self.states)
            if len(wanted):
                alone = start == 0 and len(chunk) == len(ids)
                parts.append(_kept(logits) if keep or not alone else logits)
        self.states = states[0] if len(states) == 1 else torch.cat(states)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def decode(self, ids, slots=None):
        """One token for each slot (or for the `slots` named) in one step; logits [len(ids), V]."""
        slots = list(range(len(ids))) if slots is None else list(slots)
        if len(set(slots)) != len(slots) or len(slots) != len(ids):
            raise ValueError(
                f"{len(ids)} tokens for slots {slots}: one token for each, no slot twice"
            )
        for token, slot in zip(ids, slots, strict=True):
            self._checked([token], slot)
        return _kept(self._run(list(ids), slots, range(len(ids))))

    def follow(self, ids, rows=1):
        """Logits of the last `rows` positions of the text `ids` in slot 0, reusing what is held.

        The same contract as speculative.cached.CachedModel, so that an Engine can be the target
        or the draft model of speculative.decode.generate.
        """
        if not 0 < rows <= len(ids):
            raise ValueError(f"rows={rows}: between 1 and the {len(ids)} tokens of the text")
        keep = min(common_prefix(self.texts[0], ids), len(ids) - rows)
        self._checked(ids[keep:], 0, held=keep)
        self.crop(keep)
        return self.step(ids[self.length() :], rows=rows)

    def close(self):
        """End the engine's threads; it can't run again."""
        if hasattr(self.backend, "close"):
            self.backend.close()

    def _run(self, tokens, slots, wanted, inputs=None):
        """One step of at most max_rows rows; texts are advanced. Logits: valid until the next."""
        positions = []
        for token, slot in zip(tokens, slots, strict=True):
            positions.append(self.length(slot))
            self.texts[slot].append(token)
        logits = self.backend.step(tokens, slots, positions, wanted, inputs)
        self.states = _kept(self.backend.states(len(tokens))) if self._keeps else _NONE
        return logits

    def _check_inputs(self, inputs, rows):
        wanted = (rows, self.spec.hidden)
        if inputs is not None and tuple(inputs.shape) != wanted:
            raise ValueError(f"inputs {tuple(inputs.shape)}: this step takes {wanted}")

    def _checked(self, ids, slot, held=None):
        """The ids as a list of ints that fit behind `held` tokens (default: all), or ValueError."""
        if not 0 <= slot < self.batch:
            raise ValueError(f"slot {slot}: this engine has {self.batch} (batch=)")
        held = self.length(slot) if held is None else held
        ids = torch.as_tensor(ids).flatten().tolist()
        if not ids:
            raise ValueError("a step needs at least one token")
        wrong = [i for i in ids if not isinstance(i, int) or not 0 <= i < self.spec.vocabulary]
        if wrong:
            raise ValueError(
                f"token id {wrong[0]}: ids are whole numbers from 0 to {self.spec.vocabulary - 1}"
            )
        if held + len(ids) > self.max_tokens:
            raise ValueError(
                f"{held} tokens are held and {len(ids)} would follow: the cache ends "
                f"at max_tokens={self.max_tokens}; make the engine with a larger max_tokens"
            )
        return ids


def _checked_states(states, layers):
    wrong = [n for n in states if not 0 <= n <= layers]
    if wrong or len(set(states)) != len(states):
        raise ValueError(f"states={tuple(states)}: different counts of layers from 0 to {layers}")
    return tuple(states)


def _kept(logits):
    """A copy that the next step does not overwrite, made without waking torch's threads."""
    with one_torch_thread():
        return logits.clone()
