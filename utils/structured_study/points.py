"""What unit 12 measures at one point of its study; plain lists, so that JSON can hold them.

"prune/METHOD": 2:4 over all linear layers. "channels/SCORE_PERCENT", "groups/SCORE_COUNT",
"blocks/RULE_COUNT": units removed for good, by the score of `importance` ("random" too) or, for
    blocks, by influence or from the end ("end": those just before the last block).
"rate/RATE": 8 steps of training after 2:4 by magnitude, judged on the text that chooses the rate.
"tune/ARM": all TRAINING windows at the chosen rate; ARM is dense, magnitude, sparsegpt, gradual or
    channels. "single/BLOCK": single channels of one block removed: true changes and scores.
Each (but for single) gives window means of KL, loss and agreement with the dense model.
"""

import copy
from functools import cached_property

import torch

from utils import corpus, models, quality
from utils.gptq_study.points import compare
from utils.sparsity import importance, prune_model, recovery, structured

WINDOW = 256
CALIBRATION, CHOICE, TRAINING, EVALUATION = 8, 4, 16, 8  # windows
RATE_STEPS, SINGLES, SINGLE_WINDOWS = 8, 24, 2
GRADUAL_SHARE, EVERY = 0.5, 2


class Bench:
    """The dense model and its texts. found: points that others build on."""

    def __init__(self, found=None):
        loaded = models.load(dtype=torch.float32)
        self.model, self.tokenizer = loaded.model, loaded.tokenizer
        self.found = {} if found is None else found

    @cached_property
    def texts(self):
        """{name: ids [windows, 256]}; no window in two of them."""
        counts = {"calibration": CALIBRATION, "choice": CHOICE, "training": TRAINING}
        tokens = WINDOW * sum(counts.values())
        ids = corpus.sample(self.tokenizer, "calibration", tokens, WINDOW).ids
        parts = dict(zip(counts, ids.split(list(counts.values())), strict=True))
        evaluation = corpus.sample(self.tokenizer, "evaluation", EVALUATION * WINDOW, WINDOW)
        return parts | {"evaluation": evaluation.ids}

    @cached_property
    def sums(self):
        return importance.collect(self.model, self.texts["calibration"])

    @cached_property
    def references(self):
        return {}

    def run(self, point):
        """The measurement named by `point`; the dense model stays as it is."""
        kind, what = point.split("/")
        return getattr(self, f"_{kind}")(what)

    def _judge(self, candidate, text="evaluation"):
        if text not in self.references:
            self.references[text] = quality.Reference(self.model, self.texts[text], batch=1)
        return compare(self.references[text], candidate)

    def _pruned(self, method):
        model = copy.deepcopy(self.model)
        prune_model(model, method, pattern="2:4", calibration=self.texts["calibration"])
        return model

    def _prune(self, method):
        return self._judge(self._pruned(method))

    def removed(self, kind, recipe):
        """The smaller model of "channels" or "groups" by a recipe such as "taylor_25"."""
        method, amount = recipe.split("_")
        units = self._scores(kind, method)
        share = int(amount) / (100 if kind == "channels" else len(units[0]))
        keep = importance.largest(units, share)
        cut = structured.keep_channels if kind == "channels" else structured.keep_groups
        return cut(self.model, keep)

    def _scores(self, kind, method):
        if method != "random":
            return importance.score(self.model, kind, method, self.sums[kind])
        generator = torch.Generator().manual_seed(0)
        sums = importance.score(self.model, kind, "magnitude")
        return [torch.rand(len(s), generator=generator) for s in sums]

    def _channels(self, recipe):
        return self._smaller(self.removed("channels", recipe))

    def _groups(self, recipe):
        return self._smaller(self.removed("groups", recipe))

    def _smaller(self, model):
        return self._judge(model) | {"bytes": structured.weight_bytes(model)}

    def _blocks(self, recipe):
        rule, count = recipe.split("_")
        total = self.model.config.num_hidden_layers
        if rule == "end":
            gone = set(range(total - 1 - int(count), total - 1))
        else:
            values = importance.influence(self.model, self.texts["calibration"])
            gone = set(values.argsort()[: int(count)].tolist())
        keep = [n for n in range(total) if n not in gone]
        found = self._smaller(structured.keep_blocks(self.model, keep))
        return found | {"gone": sorted(gone)}

    def _rate(self, rate):
        model = self._pruned("magnitude")
        plan = recovery.Plan(rate=float(rate))
        recovery.tune(model, self.texts["training"][:RATE_STEPS], plan)
        return self._judge(model, "choice")

    def _tune(self, arm):
        rising = GRADUAL_SHARE if arm == "gradual" else 0
        plan = recovery.Plan(self.rate(), gradual=rising, every=EVERY)
        model = self._start(arm)
        losses = recovery.tune(model, self.texts["training"], plan)
        zeros = sum(int((m.weight == 0).sum()) for m in models.linears(model).values())
        return self._judge(model) | {"zeros": zeros, "losses": [round(x, 4) for x in losses]}

    def _start(self, arm):
        if arm in ("magnitude", "sparsegpt"):
            return self._pruned(arm)
        if arm == "channels":
            return copy.deepcopy(self.removed("channels", "squared_25"))  # shares no tensor
        return copy.deepcopy(self.model)

    def rate(self):
        """The rate whose point had the lowest loss on the text that chooses."""
        tried = {p: r for p, r in self.found.items() if p.startswith("rate/")}
        return float(min(tried, key=lambda p: sum(tried[p]["nll"])).split("/")[1])

    def _single(self, number):
        ids, number = self.texts["calibration"][:SINGLE_WINDOWS], int(number)
        sums = importance.collect(self.model, ids, ("channels",))["channels"]
        picked = torch.randperm(len(sums[number].first), generator=torch.manual_seed(0))[:SINGLES]
        removal = importance.Removal(self.model, number, ids)
        found = {"change": [removal.change(int(c)) for c in picked]}
        found["predicted"] = (-sums[number].first[picked] / len(ids)).tolist()
        for method in importance.SCORES:
            scores = importance.score(self.model, "channels", method, sums)[number]
            found[method] = scores[picked].tolist()
        return found
