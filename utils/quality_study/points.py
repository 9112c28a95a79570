"""What unit 04 measures at one point of its study; plain lists, so that JSON can hold them.

"text/VARIANT": loss, KL and first choices against fp32, window by window.
"task/NAME/VARIANT": right or wrong per item, and the loss per answer token.
"rank/NAME/VARIANT": right or wrong when the model only ranks the candidates.
"protocol/NAME": one perplexity of fp32.   "recipe/N": losses by window of one random recipe.
"own/VARIANT": loss and KL on text that fp32 wrote itself.
"""

from functools import cached_property

import numpy as np
import torch
from transformers import DynamicCache

from utils import clusters, corpus, models, protocols, quality, scoring, tasks
from utils.quality_study import variants
from utils.speculative import cached

CONTEXT = 256
WINDOWS = 32  # of evaluation text, half from each source
RECIPE_WINDOWS = 16
CALIBRATION_TOKENS = 4096
SIZES = {"entities": 200, "cloze": 120, "humaneval": 40}  # items
RANKED = 100
OWN_TEXTS, OWN_TOKENS = 16, 160
LONG_TEXT = 4096  # tokens of one text for the protocols

PROTOCOLS = {
    **{f"disjoint-{c}": protocols.Protocol("disjoint", c) for c in (128, 256, 512, 1024, 2048)},
    "strided-512-256": protocols.Protocol("strided", 512, 256),
    "strided-512-128": protocols.Protocol("strided", 512, 128),
    "bos-512": protocols.Protocol("BOS", 512, bos=1),
    "half-512": protocols.second_half(512),
}


class Bench:
    """The model, its texts and its variants; the last variant is kept."""

    def __init__(self):
        loaded = models.load(dtype=torch.float32)
        self.model, self.tokenizer = loaded.model, loaded.tokenizer
        self._kept = "", None
        self._references = {}

    @cached_property
    def calibration(self):
        return corpus.sample(self.tokenizer, "calibration", CALIBRATION_TOKENS, CONTEXT)

    @cached_property
    def evaluation(self):
        return corpus.sample(self.tokenizer, "evaluation", WINDOWS * CONTEXT, CONTEXT)

    @cached_property
    def novel(self):
        """One long row: the novel's evaluation chapters, one after another."""
        text = "".join(corpus.documents("botchan", "evaluation").values())
        ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return torch.tensor(ids[:LONG_TEXT])

    def variant(self, name):
        if self._kept[0] != name:
            self._kept = "", None  # drop the old one first: two copies need memory
            self._kept = name, variants.make(name, self.model, self.calibration.ids)
        return self._kept[1]

    def run(self, point, windows=WINDOWS):
        """The measurement named by `point`."""
        kind, *rest = point.split("/")
        return getattr(self, f"_{kind}")(*rest, **({"windows": windows} if kind == "text" else {}))

    def _text(self, name, windows=WINDOWS):
        return compare(self._reference("text", self.evaluation.ids[:windows]), self.variant(name))

    def _recipe(self, number):
        self._references.clear()
        model, ids = self.variant(f"recipe-{number}"), self.evaluation.ids[:RECIPE_WINDOWS]
        return {"nll": [quality.perplexity(model, row[None]).nll for row in ids]}

    def _task(self, name, variant):
        self._references.clear()
        score = tasks.score(self.variant(variant), self.tokenizer, items(name))
        return {"correct": score.correct.int().tolist(), "nll": _rounded(score.nll)}

    def _rank(self, name, variant):
        right = scoring.ranked(self.variant(variant), self.tokenizer, items(name)[:RANKED])
        return {"correct": right.int().tolist()}

    def _protocol(self, name):
        result = protocols.perplexity(self.model, self.novel, PROTOCOLS[name])
        return {"ppl": result.value, "tokens": result.tokens, "words": result.protocol}

    def _own(self, variant):
        dice = torch.Generator().manual_seed(0)
        ids = sample(self.model, self.evaluation.ids[:OWN_TEXTS, :1], OWN_TOKENS, dice)
        return compare(self._reference("own", ids), self.variant(variant))

    def _reference(self, key, ids):
        """The reference on a text, 4 windows at a time; one text's is kept (1.6 GB)."""
        if (key, len(ids)) not in self._references:
            self._references.clear()
            parts = [quality.Reference(self.model, rows, batch=2) for rows in ids.split(4)]
            self._references[key, len(ids)] = parts
        return self._references[key, len(ids)]


def items(name):
    """The items of a task, always the same."""
    make = {"entities": tasks.entities, "cloze": tasks.cloze, "humaneval": tasks.humaneval}
    return make[name](SIZES[name])


def compare(references, variant):
    """Window means of loss, KL and agreement, and what they look like token by token."""
    parts = [quality.per_token(reference, variant) for reference in references]
    token = {key: np.concatenate([p[key] for p in parts]) for key in parts[0]}
    token["flip"], token["change"] = 1 - token["same"], token["nll"] - token["nll_reference"]
    result = {key: _rounded(token[key].mean(axis=1)) for key in token if key != "same"}
    result["tokens"] = int(token["kl"].size)
    result["kl_quantiles"] = _rounded(np.quantile(token["kl"], [0.5, 0.9, 0.99, 1.0]))
    result["change_positive"] = float((token["change"] > 0).mean())
    for key in ("kl", "flip", "nll", "change"):
        if token[key].std():
            result[f"{key}_naive_error"] = clusters.clustered(token[key]).naive_error
    return result


@torch.inference_mode()
def sample(model, first, count, generator):
    """Texts [n, 1 + count] drawn from the model itself at temperature 1."""
    ids, keyword, cache = first, cached.cache_keyword(model), DynamicCache(config=model.config)
    for _ in range(count):
        output = model(ids[:, -1:], use_cache=True, logits_to_keep=1, **{keyword: cache})
        law = output.logits[:, -1].softmax(-1).cpu()
        ids = torch.cat([ids, torch.multinomial(law, 1, generator=generator)], dim=1)
    return ids


def _rounded(values):
    return [round(float(value), 7) for value in values]
