"""What unit 11 measures at one point of its study; plain lists, so that JSON can hold them.

"prune/METHOD_LEVEL": all linear layers at LEVEL percent, or LEVEL = 24: the pattern 2:4.
"only/PLACE": half of the weights of one block ("block_7") or of one kind ("q_proj") by Wanda, on
    the text that chooses. "spread/RULE": half of all weights by Wanda, every block alike ("even"),
    or 40 % of the blocks that "only" found sensitive and 60 % of the others ("sensitive").
"bits/BITS", "both/METHOD_LEVEL_BITS", "after/BITS_METHOD_LEVEL": rounded, pruned and then rounded,
    rounded and then pruned. "gate/SHARE": thresholds in the MLPs; "gate/relu": ReLU for SiLU.
Each gives window means of KL, loss and agreement with the dense model, and counts of its own.
"""

from functools import cached_property

import torch
from torch import nn

from utils import corpus, models, quality
from utils.gptq_study.points import compare
from utils.quantization import quantize_model
from utils.sparsity import gated, prune_model, statistics, unstructured

CALIBRATION_TOKENS, CHOICE_TOKENS, EVALUATION_TOKENS = 2048, 2048, 4096
GRIDS = {"int8": (8, -1, True), "int4": (4, 64, False), "int3": (3, 64, False)}
SHARES = {"even": (0.5, 0.5), "sensitive": (0.4, 0.6)}  # of the more and the less sensitive half
TOGETHER = (1, 2, 4, 8)  # tokens that share one read of the weights


class Bench:
    """The dense model, its texts, and a way back to dense. found: points that others build on."""

    def __init__(self, found=None):
        loaded = models.load(dtype=torch.float32)
        self.model, self.tokenizer = loaded.model, loaded.tokenizer
        self.found = {} if found is None else found
        self.layers = models.linears(self.model)
        self.dense = {name: m.weight.clone() for name, m in self.layers.items()}
        self._references = {}

    @cached_property
    def texts(self):
        """{"calibration", "choice", "evaluation"}: ids [windows, 512], no window in two of them."""
        ours = CALIBRATION_TOKENS + CHOICE_TOKENS
        ids = corpus.sample(self.tokenizer, "calibration", ours).ids
        cut = CALIBRATION_TOKENS // ids.shape[1]
        evaluation = corpus.sample(self.tokenizer, "evaluation", EVALUATION_TOKENS).ids
        return {"calibration": ids[:cut], "choice": ids[cut:], "evaluation": evaluation}

    @cached_property
    def norms(self):
        """{layer: norms of its inputs} in the dense model."""
        found = statistics.collect(self.model, self.texts["calibration"])
        return {name: entry.norm for name, entry in found.items()}

    def run(self, point):
        """The measurement named by `point`, from dense weights and back to them."""
        kind, what = point.split("/")
        self._reference("choice" if kind == "only" else "evaluation")  # while all is dense
        try:
            return getattr(self, f"_{kind}")(what)
        finally:
            for name, module in self.layers.items():
                module.weight.data.copy_(self.dense[name])

    def _reference(self, text):
        if text not in self._references:
            self._references[text] = quality.Reference(self.model, self.texts[text], batch=1)
        return self._references[text]

    def _judge(self, candidate=None, text="evaluation"):
        return compare(self._reference(text), candidate or self.model)

    def _prune(self, recipe):
        report = self._pruned(recipe)
        return self._judge() | {"zeros": report.zeros}

    def _pruned(self, recipe):
        method, level = recipe.split("_")
        sparsity, pattern = (0.5, "2:4") if level == "24" else (int(level) / 100, None)
        return prune_model(self.model, method, sparsity, pattern, self.texts["calibration"])

    def _wanda(self, name, sparsity):
        keep = unstructured.mask(self.dense[name], sparsity, "wanda", self.norms[name])
        self.layers[name].weight.data.masked_fill_(~keep, 0)

    def _only(self, place):
        part = f".layers.{place[6:]}." if place.startswith("block_") else f".{place}"
        names = [name for name in self.layers if part in f".{name}"]
        for name in names:
            self._wanda(name, 0.5)
        zeros = sum(int((self.layers[name].weight == 0).sum()) for name in names)
        return self._judge(text="choice") | {"zeros": zeros}

    def _spread(self, rule):
        blocks = {n: sum(self.found[f"only/block_{n}"]["kl"]) for n in range(self._depth())}
        ranked = sorted(blocks, key=blocks.get)
        tender = set(ranked[len(ranked) // 2 :])
        more, less = SHARES[rule]
        for name in self.layers:
            self._wanda(name, more if int(name.split(".")[2]) in tender else less)
        zeros = sum(int((m.weight == 0).sum()) for m in self.layers.values())
        return self._judge() | {"zeros": zeros}

    def _depth(self):
        return self.model.config.num_hidden_layers

    def _rounded(self, grid):
        return quantize_model(self.model, "rtn", *GRIDS[grid], inplace=False, simulate=True).model

    def _bits(self, grid):
        return self._judge(self._rounded(grid))

    def _both(self, recipe):
        pruned, grid = recipe.rsplit("_", 1)
        before = self._pruned(pruned).zeros
        model = self._rounded(grid)
        zeros = sum(int((m.weight == 0).sum()) for m in models.linears(model).values())
        return self._judge(model) | {"zeros_before": before, "zeros": zeros}

    def _after(self, recipe):
        grid, pruned = recipe.split("_", 1)
        for name, module in models.linears(self._rounded(grid)).items():
            self.layers[name].weight.data.copy_(module.weight)
        zeros = self._pruned(pruned).zeros
        return self._judge() | {"zeros": zeros}

    def _gate(self, share):
        if share == "relu":
            return self._relu()
        limits = gated.calibrate(self.model, self.texts["calibration"], int(share) / 100)
        with gated.thresholded(self.model, limits) as kept:
            result = self._judge()
        idle = {n: kept.idle(n) for n in TOGETHER}
        unread = {n: gated.unread(self.model, part) for n, part in idle.items()}
        return result | {"share": kept.share(), "idle": idle, "unread": unread}

    def _relu(self):
        """Every gate max(0, x): what training with ReLU gives, without the training."""
        handles = [
            module.register_forward_hook(lambda _m, inputs, _out: nn.functional.relu(inputs[0]))
            for module in gated.gates(self.model).values()
        ]
        try:
            return self._judge()
        finally:
            for handle in handles:
                handle.remove()
