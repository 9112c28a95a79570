"""The models that unit 07 compares, by name.

INT8 weights (per channel) and activations: "w8" (weights only), "token", "tensor" (dynamic),
"static-100", "static-99.99" (percentile of the range), "unseen" (static, position 0
of each window left out of the calibration), "llm-6" (LLM.int8() and its threshold),
"smooth-0.5" (SmoothQuant at the norms, then "tensor"), "smoothall-0.5" (at all sites).

Weights alone, asymmetric, groups of 64, BITS at the end: "rtn-4", "salient-4", "weight-4",
"random-4" (1 % of the columns of each layer in float: largest mean input, largest mean weight, or
drawn), "fixed-4" (scaled, exponent 0.5), "search-4" (AWQ), "clip-4" (AWQ, then clipped).

Libraries: "bnb-int8", "nf4", "torchao-int8", "torchao-dynamic", "torch-dynamic".
"""

import math

import torch
from torch import nn

from utils import models
from utils.awq_study import libraries
from utils.quantization import activation_aware, activations, awq, outliers, rtn, sites
from utils.quantization.model import find, share, weight_of

GROUP, SHARE, EXPONENT = 64, 0.01, 0.5
PERCENTILES = (100.0, 99.99)


def make(recipe, bench):
    """A copy of bench.model as the recipe says."""
    name, _, number = recipe.partition("-")
    if recipe in libraries.MAKERS:
        return libraries.MAKERS[recipe](bench.model)[0]
    if name in WEIGHTS:
        return weights(bench, name, int(number))
    if name in ("smooth", "smoothall"):
        return smoothed(
            bench, float(number), tuple(sites.READERS) if "all" in name else sites.NORMS
        )
    return activations.int8_model(bench.model, activation(recipe, bench))


def activation(recipe, bench):
    """How the activations of a recipe are made, for activations.int8_model."""
    name, _, number = recipe.partition("-")
    if name == "w8":
        return Exact()
    if name == "llm":
        return outliers.Decomposed(float(number))
    if name in ("static", "unseen"):
        found = bench.statistics if name == "static" else bench.without_first
        percentile = float(number or 100)
        return lambda layer: activations.Static.over(*found[layer].range(percentile))
    return activations.Dynamic(name)


class Exact:
    """Activations as they are; only the weights are int8."""

    def product(self, x, codes, scale):
        """x [n, in] times the dequantized weight."""
        return x @ codes.float().T * scale


def smoothed(bench, alpha, sources):
    """SmoothQuant folded into a copy, then INT8 with one dynamic scale per tensor."""
    copy = share(bench.model)
    activation_aware.smooth(copy, bench.statistics, alpha, sources)
    return activations.int8_model(copy, activations.Dynamic("tensor"))


def weights(bench, name, bits):
    """A copy with the weights that the layers effectively have after the recipe `name`."""
    copy = share(bench.model)
    for site in sites.find(copy):
        for layer in site.readers:
            weight = weight_of(copy.get_submodule(layer))
            new = WEIGHTS[name](bench, site, layer, weight, bits)
            copy.get_submodule(layer).weight = nn.Parameter(new, requires_grad=False)
    return copy


def rounded(weight, bits):
    """RTN, as numbers."""
    return rtn.quantize(weight, bits, GROUP, False).dequantize()


def protect(weight, bits, rank):
    """RTN with the 1 % of the columns that `rank` [in] puts first left as they are."""
    result = rounded(weight, bits)
    columns = rank.topk(math.ceil(SHARE * len(rank))).indices
    result[:, columns] = weight[:, columns]
    return result


def _salient(bench, site, layer, weight, bits):
    return protect(weight, bits, bench.statistics[layer].mean_abs)


def _weight(bench, site, layer, weight, bits):
    return protect(weight, bits, weight.abs().mean(dim=0))


def _random(bench, site, layer, weight, bits):
    seed = list(models.linears(bench.model)).index(layer)
    return protect(weight, bits, torch.rand(weight.shape[1], generator=torch.manual_seed(seed)))


def _scale(bench, site, ratio):
    return awq.scales(site.tie(bench.statistics[site.readers[0]].mean_abs), ratio)


def _fixed(bench, site, layer, weight, bits):
    return awq.scaled_rtn(weight, _scale(bench, site, EXPONENT), bits, GROUP)


def _search(bench, site, layer, weight, bits):
    scale = _scale(bench, site, bench.found[f"search/{bits}"][site.source][0])
    return awq.scaled_rtn(weight, scale, bits, GROUP)


def _clip(bench, site, layer, weight, bits):
    """As in the paper's code, q and k are not clipped: their outputs meet in a product."""
    if layer.endswith(("q_proj", "k_proj")):
        return _search(bench, site, layer, weight, bits)
    scale = _scale(bench, site, bench.found[f"search/{bits}"][site.source][0])
    seen = bench.statistics[layer].hessian / scale / scale[:, None]  # of the scaled inputs x / s
    return rounded(awq.clip(weight * scale, seen, bits, GROUP), bits) / scale


WEIGHTS = {
    "rtn": lambda bench, site, layer, weight, bits: rounded(weight, bits),
    "salient": _salient,
    "weight": _weight,
    "random": _random,
    "fixed": _fixed,
    "search": _search,
    "clip": _clip,
}


def layers(model):
    """Names of the layers that every recipe changes."""
    return list(find(model)[0])
