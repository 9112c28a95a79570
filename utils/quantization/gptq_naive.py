"""GPTQ by its definition, for the tests: optimal brain surgeon, one column after the other.

Does: keeps the whole inverse Hessian of the columns that are still free. Rounding column j by the
error e = w_j - round(w_j) costs e^2 / [H^-1]_jj at least, and the best answer of the others is
    w <- w - e [H^-1]_:,j / [H^-1]_jj
    H^-1 <- H^-1 - [H^-1]_:,j [H^-1]_j,: / [H^-1]_jj       (column j leaves: its row becomes zero)
(Hassibi & Stork 1993; Frantar et al. 2023, equations 2 and 3.) float64, no Cholesky factor, no
blocks; the grid of a group is the one that rtn.py gives it.
But: it costs in^3 operations for the inverses alone and is for layers of some hundred columns.
"""

import torch

from utils.quantization import rtn


def quantize_naive(
    weight, hessian, bits=4, group_size=64, act_order=True, damping=0.01, symmetric=False,
    groups="static",
):  # fmt: skip
    """(codes [out, in], weights [out, in]) in float64, in the weight's own column order."""
    work, n = weight.detach().double().clone(), weight.shape[1]
    width = n if group_size == -1 else group_size
    diagonal = hessian.diagonal().double()
    turns = sorted(range(n), key=lambda j: -float(diagonal[j])) if act_order else list(range(n))
    original, inverse = work.clone(), inverse_hessian(hessian.double(), damping)
    codes, restored = torch.zeros_like(work), torch.zeros_like(work)
    for turn, j in enumerate(turns):
        if groups == "static":
            first = j // width * width
            grid = make_grid(original[:, first : first + width], bits, symmetric)
        elif turn % width == 0:
            grid = make_grid(work[:, turns[turn : turn + width]], bits, symmetric)
        codes[:, j], restored[:, j] = round_to(work[:, j], *grid)
        work, inverse = fix_column(work, inverse, j, restored[:, j])
    return codes, restored


def inverse_hessian(hessian, damping):
    """Inverse of the damped Hessian; a dead column gets a 1 on the diagonal first."""
    dead = hessian.diagonal() == 0
    mean = hessian.diagonal().mean()
    return torch.linalg.inv(hessian + torch.diag(dead.double() + damping * mean))


def fix_column(work, inverse, j, value):
    """Set column j to `value`; the others answer, and column j leaves the inverse Hessian."""
    column, pivot = inverse[:, j].clone(), inverse[j, j]
    error = work[:, j] - value
    work = work - torch.outer(error, column / pivot)
    inverse = inverse - torch.outer(column, column / pivot)
    inverse[j], inverse[:, j] = 0, 0
    work[:, j] = value
    return work, inverse


def make_grid(group, bits, symmetric):
    """(scale [out], zero point [out], lowest code, highest code) of one group [out, g]: rtn's."""
    nearest = rtn.quantize(group.float(), bits, -1, symmetric)
    scale, top = nearest.scale[:, 0].double(), 2 ** (bits - 1) - 1
    if symmetric:
        return scale, torch.zeros_like(scale), -top, top
    return scale, nearest.zero_point[:, 0].double(), 0, 2**bits - 1


def round_to(column, scale, zero, low, high):
    """(codes, values) of one column on its grid."""
    codes = (torch.round(column / scale) + zero).clamp(low, high)
    return codes, scale * (codes - zero)
