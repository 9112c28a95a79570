"""The three back ends behind one interface, and which of them a machine gets.

    numba    CPU, any architecture     one compiled step for the whole model
    triton   CUDA and ROCm             compiled products, the rest in torch
    torch    MPS, and anything else    torch operators; nothing is compiled

Each offers step(tokens, slots, positions, wanted, inputs) -> logits, states(rows), nbytes_weights,
nbytes_cache. Rows of one step give the same bits as the same rows one by one with numba; see the
module of each back end.
"""

import importlib.util

from utils.device import detect

NAMES = ("numba", "triton", "torch")


def choose(device=None):
    """Name of the back end for a device."""
    kind = (device or detect()).kind
    if kind == "cpu":
        return "numba" if _installed("numba") else "torch"
    return "triton" if kind in ("cuda", "rocm") and _installed("triton") else "torch"


def check(name, spec):
    """ValueError for an unknown name, a missing package, or a model the back end can't run."""
    if name not in NAMES:
        raise ValueError(f"backend={name!r}: use one of {', '.join(NAMES)}")
    if name != "torch" and not _installed(name):
        raise ValueError(f"backend={name!r} needs the package {name}: install it or use 'torch'")
    if name == "numba" and spec.head_dim % 16:
        raise ValueError(
            f"head_dim={spec.head_dim}: the Numba kernels need a multiple of 16; use "
            "backend='torch'"
        )


def make(name, spec, weights, slots, max_tokens, threads, max_rows, device, states=()):
    """The step object of a back end that `check` has let pass. weights: see `select.each`."""
    if name == "numba":
        from utils.kernels.numba_step import NumbaStep

        return NumbaStep(spec, weights, slots, max_tokens, threads, max_rows, states)
    from utils.kernels.torch_step import TorchStep

    return TorchStep(spec, dict(weights), slots, max_tokens, device, _linear(name), states)


def _linear(name):
    if name == "triton":
        from utils.kernels.triton_linear import TritonLinear

        return TritonLinear
    from utils.kernels.torch_linear import TorchLinear

    return TorchLinear


def _installed(package):
    return importlib.util.find_spec(package) is not None
