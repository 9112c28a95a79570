"""SparseGPT: equal to its column-wise float64 definition, exact counts, dead columns, damping."""

import pytest
import torch

from utils.sparsity import semi_structured, sparsegpt, unstructured


def _layer(out=12, width=24, tokens=200, seed=0, shared=0.0, dtype=torch.float64):
    """(weight, hessian) with correlated inputs; `shared` adds directions common to all features."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(width, width, generator=generator, dtype=dtype)
    mix[:, :4] *= 1 + shared
    x = mix @ torch.randn(width, tokens, generator=generator, dtype=dtype)
    return torch.randn(out, width, generator=generator, dtype=dtype), x @ x.T


@pytest.mark.parametrize("pattern", [None, "2:4"])
@pytest.mark.parametrize("block", [8, 20, 128])
@pytest.mark.parametrize("seed", range(4))
def test_fast_equals_naive_in_float64(pattern, block, seed):
    weight, hessian = _layer(seed=seed)
    fast = sparsegpt.prune(weight, hessian, 0.5, pattern, block=block)
    naive = sparsegpt.prune_naive(weight, hessian, 0.5, pattern, block=block)
    assert torch.equal(fast == 0, naive == 0)
    torch.testing.assert_close(fast, naive, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("pattern", [None, "2:4"])
def test_float32_makes_the_same_choices(pattern):
    weight, hessian = _layer()
    fast = sparsegpt.prune(weight.float(), hessian.float(), 0.5, pattern)
    naive = sparsegpt.prune_naive(weight, hessian, 0.5, pattern)
    assert fast.dtype == torch.float32
    assert torch.equal(fast == 0, naive == 0)
    torch.testing.assert_close(fast.double(), naive, rtol=1e-3, atol=1e-3)


def test_one_weight_is_the_optimal_brain_surgeon():
    """One weight gone: the update is the least-squares answer, the loss w^2 / [H^-1]_jj."""
    weight, hessian = _layer(out=1, width=6)
    full, _ = sparsegpt.damped(hessian, 0.01)
    pruned = sparsegpt.prune(weight, hessian, 1 / 6)
    j = int((pruned == 0).nonzero()[0, 1])
    later = list(range(j + 1, 6))
    best = torch.linalg.solve(full[later][:, later], full[later, j]) * weight[0, j]
    torch.testing.assert_close(pruned[0, later] - weight[0, later], best)
    change = pruned - weight
    loss = weight[0, j] ** 2 / torch.linalg.inv(full[j:, j:])[0, 0]
    torch.testing.assert_close((change @ full @ change.T)[0, 0], loss)


@pytest.mark.parametrize("sparsity", [0.0, 0.25, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("shape", [(7, 10), (12, 24), (5, 130)])
def test_exactly_k_zeros(sparsity, shape):
    weight, hessian = _layer(*shape)
    pruned = sparsegpt.prune(weight, hessian, sparsity, block=8)
    assert int((pruned == 0).sum()) == unstructured.zero_count(sparsity, weight.numel())


def test_two_of_four():
    weight, hessian = _layer()
    pruned = sparsegpt.prune(weight, hessian, pattern="2:4")
    assert semi_structured.is_semi_structured(pruned)
    assert int((pruned == 0).sum()) == weight.numel() // 2


@pytest.mark.parametrize("pattern", [None, "2:4"])
def test_compensation_lowers_the_output_error(pattern):
    weight, hessian = _layer(out=64, shared=3.0)
    ours = sparsegpt.prune(weight, hessian, 0.5, pattern)
    norm = hessian.diagonal().sqrt()
    for method in unstructured.METHODS:
        keep = unstructured.mask(weight, 0.5, method, norm)
        if pattern:
            keep = semi_structured.mask(weight, unstructured.score(weight, method, norm))
        error = sparsegpt.output_error(weight, weight * keep, hessian)
        assert sparsegpt.output_error(weight, ours, hessian) < 0.7 * error


def test_independent_inputs_leave_the_survivors_alone():
    """With a diagonal Hessian there is nothing to compensate: SparseGPT is Wanda's score alone."""
    weight, _ = _layer(out=1, width=16)
    diagonal = torch.arange(1.0, 17.0, dtype=torch.float64)
    pruned = sparsegpt.prune(weight, diagonal.diag(), 0.5, damping=0.0)
    keep = unstructured.mask(weight, 0.5, "wanda", diagonal.sqrt())
    assert torch.equal(pruned, weight * keep)


def test_dead_columns_go_first_and_disturb_nothing():
    weight, hessian = _layer(width=24)
    dead = [3, 4, 20]
    hessian[dead], hessian[:, dead] = 0, 0
    pruned = sparsegpt.prune(weight, hessian, 0.5)
    assert torch.isfinite(pruned).all() and (pruned[:, dead] == 0).all()
    torch.testing.assert_close(
        pruned, sparsegpt.prune_naive(weight, hessian, 0.5), atol=1e-9, rtol=1e-8
    )
    alive = [j for j in range(24) if j not in dead]
    twin = weight.clone()
    twin[:, dead] = 77.0
    torch.testing.assert_close(sparsegpt.prune(twin, hessian, 0.5)[:, alive], pruned[:, alive])


def test_one_calibration_token_and_growing_damping():
    weight, _ = _layer()
    x = torch.randn(24, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pruned = sparsegpt.prune(weight.float(), (x @ x.T).float(), 0.5, damping=1e-9)
    assert torch.isfinite(pruned).all() and int((pruned == 0).sum()) == weight.numel() // 2


def test_hopeless_hessian_is_refused():
    with pytest.raises(ValueError, match="not positive definite"):
        sparsegpt.inverse_factor(-torch.eye(4) * 10)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"hessian": torch.full((24, 24), float("nan"))}, "NaN"),
        ({"pattern": "4:8"}, "unknown pattern"),
        (
            {"weight": torch.ones(2, 10), "hessian": torch.eye(10), "pattern": "2:4"},
            "divisible by 4",
        ),
        ({"sparsity": 50}, "between 0 and 1"),
    ],
)
def test_bad_input_is_named(change, words):
    weight, hessian = _layer()
    with pytest.raises(ValueError, match=words):
        sparsegpt.prune(**({"weight": weight, "hessian": hessian} | change))
