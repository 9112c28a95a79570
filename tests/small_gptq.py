"""Small layers with correlated inputs, shared by the tests of unit 08."""

import torch


def layer(out=12, width=40, tokens=300, seed=0):
    """(weight [out, width] float32, Hessian float64): a few directions carry most of the input."""
    dice = torch.Generator().manual_seed(seed)
    mix = torch.randn(width, width, generator=dice, dtype=torch.float64)
    mix[:, :4] *= 4
    x = mix @ torch.randn(width, tokens, generator=dice, dtype=torch.float64)
    return torch.randn(out, width, generator=dice), x @ x.T
