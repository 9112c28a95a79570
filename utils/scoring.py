"""Other rules for the same items: rank the candidates, or let the model write and compare text.

`tasks.score` asks whether every token of the answer is the model's first choice. `ranked` asks
only that the right answer is more likely than the wrong ones in the item (lm-eval's "acc", and
with per_byte its "acc_norm"). `generated` lets the model write greedily and compares the text up
to `stop`. The three give three accuracies on the same items and the same model.
But: `generated` knows no other stop than one string, and compares text exactly.
"""

import torch
import torch.nn.functional as F

from utils.speculative import cached


def ranked(model, tokenizer, items, per_byte=False):
    """Which items' answer is more likely than all their distractors: bool [n].

    The likelihood is that of the whole continuation; per_byte divides its logarithm by its length
    in bytes, so that a long candidate isn't punished for its length. A tie counts as wrong.
    ValueError for an item without distractors.
    """
    bare = [item for item in items if not item.distractors]
    if bare or not items:
        raise ValueError(f"ranking needs items with distractors, as of tasks.entities: {bare[:1]}")
    held = cached.of(model)  # the candidates share their prompt, so it is read once
    right = []
    for item in items:
        first, *others = (
            _loss(held, tokenizer, item.prompt, text) / (len(text.encode()) if per_byte else 1)
            for text in (item.answer, *item.distractors)
        )
        right.append(first < min(others))
    return torch.tensor(right)


def _loss(held, tokenizer, prompt, text):
    """Nats for `text` behind `prompt`."""
    before, after = (tokenizer(x, add_special_tokens=False)["input_ids"] for x in (prompt, text))
    logits = held.follow(before + after, rows=len(after) + 1)[:-1]
    target = torch.tensor(after, device=logits.device)
    return F.cross_entropy(logits.float(), target, reduction="sum").item()


def generated(generate, tokenizer, items, max_new_tokens=12, stop="\n"):
    """Which items the model answers, writing greedily: (bool [n], [text, ...]).

    generate: ids [length] -> new ids, greedy, at most max_new_tokens of them (see `greedy`). The
    text up to `stop` must equal the answer, spaces at the ends apart.
    """
    texts = []
    for item in items:
        ids = tokenizer(item.prompt, add_special_tokens=False)["input_ids"]
        written = tokenizer.decode(list(generate(ids, max_new_tokens)))
        texts.append(written.split(stop)[0].strip())
    right = [text == item.answer.strip() for text, item in zip(texts, items, strict=True)]
    return torch.tensor(right), texts


def greedy(model):
    """A `generate` for `generated`: greedy decoding with a cache, of a model or an Engine."""
    held = cached.of(model)

    def generate(ids, max_new_tokens):
        text = list(ids)
        for _ in range(max_new_tokens):
            text.append(held.follow(text)[-1].argmax().item())
        return text[len(ids) :]

    return generate
