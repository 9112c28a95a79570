"""AWQ: scale up the input channels that matter before rounding, so that they lose less.

    s_j = mean_abs[j]^ratio          W_hat = Q(W diag(s)) diag(1/s)
    loss(ratio) = sum_t |(W_hat - W) x_t|^2 = trace(D H D^T),   D = W_hat - W,  H = sum_t x_t x_t^T

Rounding moves w_j s_j by up to half a step whatever s_j is; divided by s_j again, the channel's
error shrinks by s_j, as long as s_j does not raise the largest weight of the group and with it the
step for all others. The ratio is searched on calibration text. Ratio 0 (s = 1, plain RTN) is always
a candidate, and a ratio that makes any layer of a site worse than RTN is not taken.
Lin et al. 2023 (arXiv:2306.00978), section 3.2.

But: the loss is the sum of the layers' squared output errors; the paper's code looks at the output
of the attention or MLP that the layers belong to. Nothing is folded here (see sites.py).
"""

from dataclasses import dataclass

import torch

from utils.quantization import rtn

RATIOS = tuple(i / 20 for i in range(20))
CLIPS = tuple(1 - i / 20 for i in range(10))  # share of a group's range


@dataclass(frozen=True)
class Search:
    """scale [in]; ratio: the best; losses: [ratios, layers], float64; ratios: as tried."""

    scale: torch.Tensor
    ratio: float
    losses: torch.Tensor
    ratios: tuple


def scales(mean_abs, ratio):
    """mean_abs [in] ** ratio, centred so that the geometric mean of its ends is 1.

    A channel that was silent on the calibration text counts like the quietest one that spoke.
    ValueError for means that are negative, NaN or infinite.
    """
    if not (torch.isfinite(mean_abs) & (mean_abs >= 0)).all():
        raise ValueError("mean magnitudes must be finite and not negative: check the calibration")
    alive = mean_abs > 0
    if not alive.any():
        return torch.ones_like(mean_abs)
    powers = torch.where(alive, mean_abs, mean_abs[alive].min()) ** ratio
    return powers / (powers.max().sqrt() * powers.min().sqrt())  # their product might underflow


def scaled_rtn(weight, scale, bits, group_size, symmetric=False):
    """Q(W diag(s)) diag(1/s) [out, in]: the weight that the layer then effectively has."""
    return rtn.quantize(weight * scale, bits, group_size, symmetric).dequantize() / scale


def output_loss(change, hessian):
    """sum_t |D x_t|^2 for a change D [out, in] of the weight, from H [in, in]; a float."""
    return ((change @ hessian) * change).sum(dtype=torch.float64).item()


def output_loss_naive(change, x):
    """The twin for the tests: x [tokens, in] itself."""
    return sum((change.double() @ token.double()).square().sum().item() for token in x)


def search(weights, mean_abs, hessian, bits=4, group_size=64, symmetric=False, ratios=RATIOS):
    """The ratio that serves the layers `weights` ([out, in] each, one input) best -> Search."""
    ratios = tuple(ratios)
    if not all(0 <= ratio <= 1 for ratio in ratios):
        raise ValueError(f"ratios={ratios}: exponents of the mean magnitude lie in [0, 1]")
    for weight in weights:
        _check(weight, hessian)
        if mean_abs.shape != weight.shape[1:]:
            raise ValueError(f"{len(mean_abs)} mean magnitudes for {weight.shape[1]} inputs")
    ratios = ratios if 0 in ratios else (0.0, *ratios)
    losses = torch.tensor(
        [
            _losses(weights, scales(mean_abs, r), hessian, bits, group_size, symmetric)
            for r in ratios
        ],
        dtype=torch.float64,
    )
    harmless = (losses <= losses[ratios.index(0)]).all(dim=1)
    total = torch.where(harmless, losses.sum(dim=1), float("inf"))
    best = int(total.argmin())
    return Search(scales(mean_abs, ratios[best]), ratios[best], losses, ratios)


def _check(weight, hessian):
    inputs = weight.shape[1]
    if hessian is None or hessian.shape != (inputs, inputs):
        shape = None if hessian is None else tuple(hessian.shape)
        raise ValueError(f"Hessian {shape} for {inputs} inputs: collect with hessian=True")
    if not torch.isfinite(hessian).all():
        raise ValueError("the Hessian holds NaN or infinity: look at the calibration inputs")


def _losses(weights, scale, hessian, bits, group_size, symmetric):
    changes = (scaled_rtn(w, scale, bits, group_size, symmetric) - w for w in weights)
    return [output_loss(change, hessian) for change in changes]


def clip(weight, hessian, bits=4, group_size=64, symmetric=False, shares=CLIPS):
    """The weight [out, in] with each group cut to the share of its range that serves it best.

    Best by the group's own part of the output error, d H_gg d^T; share 1 is always a candidate.
    """
    _check(weight, hessian)
    if not all(0 < share <= 1 for share in shares):
        raise ValueError(f"shares={shares}: a share of a group's range lies in (0, 1]")
    width = weight.shape[1] if group_size < 1 else group_size
    if weight.shape[1] % width:
        raise ValueError(f"groups of {group_size} do not divide rows of {weight.shape[1]}")
    groups = weight.reshape(len(weight), -1, width)
    blocks = torch.stack(
        [hessian[i : i + width, i : i + width] for i in range(0, len(hessian), width)]
    )
    best, least = groups, None
    for share in (1.0, *shares):
        low, high = (end(dim=-1, keepdim=True) * share for end in (groups.amin, groups.amax))
        cut = torch.minimum(torch.maximum(groups, low), high)
        rounded = rtn.quantize(cut.flatten(1), bits, group_size, symmetric).dequantize()
        change = rounded.reshape(groups.shape) - groups
        error = torch.einsum("ogi,gij,ogj->og", change, blocks, change)[..., None]
        best = cut if least is None else torch.where(error < least, cut, best)
        least = error if least is None else torch.minimum(error, least)
    return best.flatten(1)
