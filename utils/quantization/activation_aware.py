"""Quantization that looks at the activations: the entry points of unit 07.

    dynamic_int8, static_int8    one layer with INT8 weights and activations
    llm_int8                     the same, outlier columns in float
    smooth                       scales that move the difficulty from activations into weights
    awq                          scales, searched, that protect the weights of loud channels
    quantize_model(model, "awq", calibration=ids, symmetric=False)   a whole model, scales folded

But: the parts live in activations.py, outliers.py, sites.py, awq.py and capture.py.
"""

import torch

from utils.quantization import awq as awq_search
from utils.quantization import capture, rtn, sites
from utils.quantization.activations import Dynamic, Int8Linear, Static
from utils.quantization.model import METHODS
from utils.quantization.outliers import THRESHOLD, Decomposed


def dynamic_int8(x, weight, bias=None, per="token"):
    """x [..., in] times weight [out, in]: int8 codes, activation scale per "token" or "tensor"."""
    return Int8Linear(weight, bias, Dynamic(per))(x)


def static_int8(x, weight, low, high, bias=None):
    """The same with a fixed activation grid over [low, high], from calibration."""
    return Int8Linear(weight, bias, Static.over(low, high))(x)


def llm_int8(x, weight, bias=None, threshold=THRESHOLD):
    """The same per token, with the columns of x that reach the threshold in float."""
    return Int8Linear(weight, bias, Decomposed(threshold))(x)


def smoothing_scale(x_absmax, w_absmax, alpha=0.5):
    """SmoothQuant's s_j = x_absmax[j]^alpha / w_absmax[j]^(1 - alpha); silent channels get 1.

    Xiao et al. 2023 (arXiv:2211.10438), equation 4.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(
            f"alpha={alpha}: 0 leaves the difficulty in the activations, 1 moves it all"
        )
    if not (torch.isfinite(x_absmax).all() and torch.isfinite(w_absmax).all()):
        raise ValueError("a channel's largest magnitude is NaN or infinite: look at the inputs")
    alive = (x_absmax > 0) & (w_absmax > 0)
    scale = x_absmax.clamp(min=1e-30) ** alpha / w_absmax.clamp(min=1e-30) ** (1 - alpha)
    return torch.where(alive, scale, 1.0)


def smooth(model, found, alpha=0.5, sources=sites.NORMS):
    """Fold SmoothQuant's scales into the model, in place; returns {source: scale}.

    found: capture.collect's statistics of this model. sources: kinds of sites, by default the two
    norms of a block. The model's function is unchanged.
    """
    made = {}
    for site in sites.find(model, sources):
        x_absmax = site.tie(found[site.readers[0]].absmax)
        w_absmax = torch.stack([w.abs().amax(dim=0) for w in sites.weights(model, site)]).amax(0)
        made[site.source] = smoothing_scale(x_absmax, site.tie(w_absmax), alpha)
        sites.fold(model, site, made[site.source])
    return made


def awq(weight, x, bits=4, group_size=64, symmetric=False, ratios=awq_search.RATIOS):
    """Search one layer: weight [out, in], inputs x [tokens, in] -> awq.Search."""
    x = x.float().reshape(-1, x.shape[-1])
    if not (len(x) and torch.isfinite(x).all()):
        raise ValueError("calibration inputs are empty or hold NaN or infinity: check the text")
    return awq_search.search(
        [weight.float()], x.abs().mean(dim=0), x.T @ x, bits, group_size, symmetric, ratios
    )


def search_model(model, found, bits=4, group_size=64, symmetric=False, ratios=awq_search.RATIOS):
    """{Site: awq.Search} for all sites of a model; `found` with Hessians."""
    result = {}
    for site in sites.find(model):
        about = found[site.readers[0]]
        result[site] = awq_search.search(
            sites.weights(model, site), site.tie(about.mean_abs), about.hessian,
            bits, group_size, symmetric, ratios,
        )  # fmt: skip
    return result


class Method:
    """quantize_model(model, "awq", bits, group_size, symmetric=False, calibration=ids).

    Searches on the model, folds the scales into it (or its copy), and rounds to nearest.
    """

    def __init__(self, searches=None):
        self.searches = searches

    @classmethod
    def prepare(cls, model, bits, group_size, symmetric, skip, calibration=None, statistics=None):
        """Search the scales; calibration: ids [windows, time], or what capture.collect gave."""
        if (calibration is None) == (statistics is None):
            raise ValueError(
                "awq needs calibration=ids [windows, time] or statistics=, one of them"
            )
        found = statistics or capture.collect(model, calibration, hessian=True)
        return cls(search_model(model, found, bits, group_size, symmetric))

    def adjust(self, model):
        """Fold the scales into the model that is to be quantized."""
        for site, result in self.searches.items():
            sites.fold(model, site, result.scale)

    def __call__(self, weight, bits, group_size, symmetric):
        """Round to nearest: the scales are in the weight already."""
        return rtn.quantize(weight, bits, group_size, symmetric)


METHODS["awq"] = Method()
