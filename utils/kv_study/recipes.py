"""Which caches and which FP8 recipes unit 09 measures, by name."""

from utils.quantization import capture
from utils.quantization import fp8_recipes as fp8
from utils.quantization.kv_cache import Recipe

CACHES = {  # at every context
    "8": Recipe(8, 8),
    "4": Recipe(4, 4),
    "2": Recipe(2, 2),
    "4-token": Recipe(4, 4, keys="token"),
    "2-token": Recipe(2, 2, keys="token"),
    "2-sinks4": Recipe(2, 2, sinks=4),
    "2-token-sinks4": Recipe(2, 2, keys="token", sinks=4),
}
ABLATION = 512  # the context at which these are measured too
ABLATIONS = {
    "8-token": Recipe(8, 8, keys="token"),
    "4-sinks4": Recipe(4, 4, sinks=4),
    "4-token-sinks4": Recipe(4, 4, keys="token", sinks=4),
    "2-sinks1": Recipe(2, 2, sinks=1),
    "keys2": Recipe(2, None),
    "keys2-token": Recipe(2, None, keys="token"),
    "values2": Recipe(None, 2),
    "values2-channel": Recipe(None, 2, values="channel"),
    "2-residual0": Recipe(2, 2, residual=0),
    "2-residual96": Recipe(2, 2, residual=96),
}
FP8 = {  # name: (scales of the weights, activations)
    "weights": ("channel", None),
    "weights-tensor": ("tensor", None),
    "weights-block": ("block", None),
    "static": ("tensor", "static"),
    "static-without-first": ("tensor", "static-without-first"),
    "current": ("tensor", "current"),
    "token": ("channel", "token"),
    "block": ("block", "block"),
}
DELAYED = {  # name: (amax_history_len, margin, amax_compute_algo)
    "1024": (1024, 0, "max"),
    "16": (16, 0, "max"),
    "16-margin4": (16, 4, "max"),
    "recent": (1024, 0, "most_recent"),
}


def caches(context):
    """{name: Recipe} to be measured behind so many tokens."""
    return CACHES | (ABLATIONS if context == ABLATION else {})


def maker(kind, calibrate):
    """A function of a layer's name that makes its activation recipe; None for weight-only.

    calibrate(skip_first): {layer: largest magnitude}, called for the static recipes only.
    """
    simple = {"current": fp8.Current, "token": fp8.Token, "block": fp8.Block}
    if kind is None:
        return None
    if kind in simple:
        return lambda _name: simple[kind]()
    amax = calibrate(1 if kind == "static-without-first" else 0)
    return lambda name: fp8.Static(amax[name])


def largest(model, ids, skip_first=0):
    """{layer: largest magnitude of its input on ids}."""
    found = capture.collect(model, ids, skip_first=skip_first)
    return {name: float(one.absmax.max()) for name, one in found.items()}
