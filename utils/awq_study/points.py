"""What unit 07 measures at one point of its study; plain lists, so that JSON can hold them.

"search/BITS": {site: [ratio, loss of each layer relative to RTN]} on calibration text.
"text/RECIPE": KL, loss and first choices against fp32 by window, on evaluation text.
"restored/RECIPE": the same with fp32 keys and values at position 0.
"outliers/THRESHOLD": share of the input columns that LLM.int8() keeps in float, by kind of layer.
"""

from functools import cached_property

import torch

from utils import corpus, models, quality
from utils.awq_study import recipes
from utils.gptq_study.points import compare, restored
from utils.quantization import activation_aware, capture, outliers
from utils.sparsity import statistics

CALIBRATION_TOKENS, CALIBRATION_WINDOW = 4096, 512
EVALUATION_TOKENS, EVALUATION_WINDOW = 2048, 256  # eight windows
RATIOS = tuple(i / 10 for i in range(11))


class Bench:
    """The model, its texts and statistics; `found`: the points measured so far."""

    def __init__(self, found):
        loaded = models.load(dtype=torch.float32)
        self.model, self.tokenizer, self.found = loaded.model, loaded.tokenizer, found

    @cached_property
    def calibration(self):
        return corpus.sample(self.tokenizer, "calibration", CALIBRATION_TOKENS, CALIBRATION_WINDOW)

    @cached_property
    def evaluation(self):
        return corpus.sample(self.tokenizer, "evaluation", EVALUATION_TOKENS, EVALUATION_WINDOW)

    @cached_property
    def reference(self):
        return quality.Reference(self.model, self.evaluation.ids, batch=1)

    @cached_property
    def statistics(self):
        ids, percentiles = self.calibration.ids, recipes.PERCENTILES
        return capture.collect(self.model, ids, hessian=True, percentiles=percentiles)

    @cached_property
    def without_first(self):
        return capture.collect(self.model, self.calibration.ids, skip_first=1)

    def run(self, point):
        """The measurement named by `point`."""
        kind, recipe = point.split("/")
        if kind == "search":
            return self._search(int(recipe))
        if kind == "outliers":
            return self._outliers(float(recipe))
        candidate = recipes.make(recipe, self)
        if kind == "text":
            return compare(self.reference, candidate)
        with restored(self.model, candidate):
            return compare(self.reference, candidate)

    def _search(self, bits):
        made = activation_aware.search_model(
            self.model, self.statistics, bits, recipes.GROUP, ratios=RATIOS
        )
        return {
            site.source: [s.ratio, *(s.losses[s.ratios.index(s.ratio)] / s.losses[0]).tolist()]
            for site, s in made.items()
        }

    def _outliers(self, threshold):
        """{"q_proj": mean share over blocks and windows, …} for windows of 256 tokens."""
        shares = {}

        def hook(name):
            def record(_module, inputs):
                share = outliers.columns(inputs[0], threshold).float().mean().item()
                shares.setdefault(name.rsplit(".", 1)[-1], []).append(share)

            return record

        layers = models.linears(self.model)
        handles = [m.register_forward_pre_hook(hook(n)) for n, m in layers.items()]
        try:
            for window in self.evaluation.ids.split(1):
                statistics.forward(self.model, window)
        finally:
            for handle in handles:
                handle.remove()
        return {kind: sum(found) / len(found) for kind, found in shares.items()}
