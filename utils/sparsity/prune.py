"""Prune a whole model in place with one call, block by block, and report what came of it.

Does: magnitude, Wanda, SparseGPT; unstructured or 2:4; each block is pruned on inputs that already
come from the pruned blocks before it, as in the papers' code. Does not: retrain, pack, go faster.
"""

import torch

from utils import models
from utils.sparsity import layers as layer_tools
from utils.sparsity import report, semi_structured, sparsegpt, statistics, unstructured

METHODS = ("magnitude", "wanda", "sparsegpt")


def prune_model(
    model, method="wanda", sparsity=0.5, pattern=None, calibration=None, attention_mask=None,
    skip=("lm_head",), damping=0.01,
):  # fmt: skip
    """Set weights of every linear layer to zero, in place; returns a `report.Report`.

    method: "magnitude", "wanda" or "sparsegpt"; the last two need `calibration`, token ids int64
    [n, time] (with attention_mask [n, time] where they are padded). sparsity: fraction to drop;
    pattern "2:4" drops two of every four instead. skip: names (or endings) to leave alone, the tied
    head by default. ValueError names the layer that holds NaN, or that does not fit the pattern.
    """
    layers = models.linears(model, skip)
    _check(layers, method, pattern, sparsity, calibration)
    requested = 0.5 if pattern else sparsity
    if method == "magnitude":
        for module in layers.values():
            _prune_layer(module, None, method, sparsity, pattern)
    else:
        _prune_blocks(
            model, layers, calibration, attention_mask, (method, sparsity, pattern), damping
        )
    return report.inspect(layers, requested, method, pattern)


def _check(layers, method, pattern, sparsity, calibration):
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; one of {', '.join(METHODS)}")
    if pattern not in sparsegpt.PATTERNS:
        raise ValueError(f"unknown pattern {pattern!r}; one of {sparsegpt.PATTERNS}")
    if method != "magnitude" and calibration is None:
        raise ValueError(f"{method} needs calibration ids [n, time]; corpus.sample gives some")
    unstructured.zero_count(sparsity, 1)
    for name, module in layers.items():
        weight = layer_tools.matrix(module)
        layer_tools.require_finite(name, weight, "weights")
        if pattern and weight.shape[1] % 4:
            raise ValueError(
                f"{name}: 2:4 needs in-features divisible by 4, not {weight.shape[1]}; "
                "add it to skip"
            )


def _prune_blocks(model, layers, ids, attention_mask, recipe, damping):
    waiting = dict(layers)

    def visit(prefix, run):
        inside = {name: module for name, module in waiting.items() if _under(name, prefix)}
        if inside:
            _prune_group(inside, run, attention_mask, recipe, damping)
        for name in inside:
            del waiting[name]

    statistics.walk_blocks(model, ids, visit, attention_mask)
    if waiting:  # layers outside the blocks: an untied head, for one
        with torch.no_grad():
            _prune_group(waiting, lambda: model(ids), attention_mask, recipe, damping)


def _under(name, prefix):
    return name.startswith(prefix) or f".{prefix}" in f".{name}"


def _prune_group(layers, run, attention_mask, recipe, damping):
    """Record the inputs of `layers` in one run, then prune them all."""
    method, sparsity, pattern = recipe
    recorder = statistics.Recorder(layers, hessian=method == "sparsegpt")
    with recorder.attached(attention_mask):
        run()
    factors = {}
    for name, module in layers.items():
        stats = recorder.statistics.get(name)
        if stats is None:
            raise ValueError(f"{name}: never ran on the calibration text; add it to skip")
        if method == "sparsegpt" and id(stats) not in factors:
            factors[id(stats)] = sparsegpt.inverse_factor(stats.hessian, damping)
        _prune_layer(module, stats, method, sparsity, pattern, factors.get(id(stats)))


def _prune_layer(module, stats, method, sparsity, pattern, factor=None):
    weight = layer_tools.matrix(module)
    if method == "sparsegpt":
        weight.copy_(sparsegpt.prune(weight, stats.hessian, sparsity, pattern, factor=factor))
        return
    norm = stats.norm if method == "wanda" else None
    if pattern:
        keep = semi_structured.mask(weight, unstructured.score(weight, method, norm))
    else:
        keep = unstructured.mask(weight, sparsity, method, norm)
    weight.masked_fill_(~keep, 0)
