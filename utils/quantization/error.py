"""How far a quantized weight is from the original.

But: a small error in the weights does not promise a small error in the model's output; for that see
`utils.quality`.
"""

import torch


def sqnr_db(weight, approximation):
    """Signal to quantization noise in decibels: 10 log10(sum w^2 / sum (w - w_hat)^2).

    Infinite when nothing was lost; raises ValueError for an all-zero weight, which has no signal.
    """
    signal = weight.double().square().sum()
    if signal == 0:
        raise ValueError("the weight is all zeros: its signal to noise ratio is not defined")
    noise = (weight.double() - approximation.double()).square().sum()
    return float(10 * torch.log10(signal / noise))


def mean_squared_error(weight, approximation):
    """Mean of (w - w_hat)^2."""
    return float((weight.double() - approximation.double()).square().mean())
