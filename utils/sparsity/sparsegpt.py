"""SparseGPT: drop weights one input column at a time and let the later columns make good the error.

Does: one layer, unstructured or 2:4, blockwise masks (Frantar & Alistarh 2023, arXiv 2301.00774,
algorithm 1). Does not: quantize as well, or choose a sparsity per layer.

H = X X^T + lambda I. Dropping w_j while columns j, j+1, ... are still free (optimal brain surgeon):
    loss   = w_j^2 / (2 [F^-1]_00)        with F = H[j:, j:]
    update = -w_j [F^-1]_{:,0} / [F^-1]_00
Both are read off one upper Cholesky factor U of H^-1 (U^T U = H^-1):
    [F^-1]_00 = U_jj^2,  [F^-1]_{:,0} = U_jj U[j, j:]
Dead columns (input always zero) have score -1: they are dropped first, and touch no other column.
"""

import torch

from utils.sparsity.unstructured import keep_largest, zero_count

PATTERNS = (None, "2:4")


def damped(hessian, damping):
    """(hessian + damping * mean diagonal * I with 1 on the diagonal of dead columns, dead [in])."""
    if not torch.isfinite(hessian).all():
        raise ValueError("the Hessian holds NaN or infinity; look at the calibration activations")
    dtype = torch.promote_types(hessian.dtype, torch.float32)
    diagonal = hessian.diagonal().to(dtype)
    dead = diagonal == 0
    extra = dead.to(dtype) + damping * diagonal.mean()
    return hessian.to(dtype) + torch.diag(extra), dead


def inverse_factor(hessian, damping=0.01, attempts=6):
    """(U, dead): U upper triangular with U^T U = H^-1.

    If the Cholesky factorisation fails, the damping grows tenfold, at most `attempts` times.
    """
    for attempt in range(attempts):
        damped_hessian, dead = damped(hessian, damping * 10**attempt)
        lower, failed = torch.linalg.cholesky_ex(damped_hessian)
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
        if not failed:
            return upper, dead
    raise ValueError(
        f"the Hessian is not positive definite even with damping {damping * 10**attempt:g}"
    )


def prune(weight, hessian, sparsity=0.5, pattern=None, damping=0.01, block=128, factor=None):
    """The pruned and corrected weight [out, in].

    hessian [in, in] from `statistics.collect(..., hessian=True)`; pattern None or "2:4" (sparsity
    is then one half); block: columns whose mask is chosen at once, a multiple of four. `factor`
    takes the result of `inverse_factor` where several layers share it. Unstructured: exactly
    `zero_count(sparsity, n)` positions go. Works in fp32, in fp64 if the Hessian is fp64.
    """
    if pattern not in PATTERNS:
        raise ValueError(f"unknown pattern {pattern!r}; one of {PATTERNS}")
    if pattern and weight.shape[1] % 4:
        raise ValueError(f"2:4 needs in-features divisible by 4, not {weight.shape[1]}")
    upper, dead = factor or inverse_factor(hessian, damping)
    columns = weight.detach().t().to(upper.dtype).contiguous()  # [in, out]
    for start in range(0, len(columns), block):
        end = min(start + block, len(columns))
        errors = _prune_block(columns, upper, dead, start, end, sparsity, pattern)
        columns[end:] -= upper[start:end, end:].T @ errors
    return columns.t().contiguous().to(weight.dtype)


def _prune_block(columns, upper, dead, start, end, sparsity, pattern):
    """Prune columns start..end in place; return their errors [end - start, out]."""
    errors = torch.empty_like(columns[start:end])
    span = 4 if pattern else end - start
    for first in range(start, end, span):
        part = slice(first, first + span)
        diagonal = upper.diagonal()[part]
        drop = _drop(columns[part], diagonal, dead[part], start, sparsity, pattern).contiguous()
        share = drop / diagonal[:, None]  # 1 / U_jj where a weight goes, else 0
        for j in range(first, first + span):
            error = torch.mul(columns[j], share[j - first], out=errors[j - start])
            columns[j + 1 : end].addr_(upper[j, j + 1 : end], error, alpha=-1)
        columns[part].masked_fill_(drop, 0)
    return errors


def _drop(part, diagonal, dead, start, sparsity, pattern):
    """True where a weight of `part` [columns, out] goes, by the loss as it stands now."""
    scores = (part / diagonal[:, None]).square().masked_fill(dead[:, None], -1).t()
    if pattern:
        return ~keep_largest(scores, 2).t()
    rows = scores.shape[0]
    count = zero_count(sparsity, rows * (start + len(part))) - zero_count(sparsity, rows * start)
    return ~keep_largest(scores.reshape(1, -1), count).reshape(scores.shape).t()


def prune_naive(weight, hessian, sparsity=0.5, pattern=None, damping=0.01, block=128):
    """`prune` by its definition: float64, a fresh inverse for every column."""
    full, dead = damped(hessian.double(), damping)
    result, n = weight.detach().double().clone(), weight.shape[1]
    inverses = [torch.linalg.inv(full[j:, j:])[:, 0] for j in range(n)]  # their first columns
    diagonal = torch.stack([inverse[0].sqrt() for inverse in inverses])
    span = 4 if pattern else block
    for j in range(n):
        if j % span == 0:
            part = slice(j, min(j + span, n))
            drop = _drop(result.t()[part], diagonal[part], dead[part], j, sparsity, pattern)
        lost = result[:, j].where(drop[j % span], 0)
        result[:, j:] -= torch.outer(lost / inverses[j][0], inverses[j])
        result[:, j].masked_fill_(drop[j % span], 0)
    return result


def output_error(weight, pruned, hessian):
    """||(W' - W) X||^2 / ||W X||^2 from the Hessian alone: tr(D H D^T) / tr(W H W^T)."""
    change = (pruned - weight).to(hessian.dtype)
    original = weight.to(hessian.dtype)
    return float(((change @ hessian) * change).sum() / ((original @ hessian) * original).sum())
