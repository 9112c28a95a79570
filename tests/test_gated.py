"""MLP gates below a threshold: exact shares and zeros, idle channels; skipped rows."""

import numpy as np
import pytest
import torch
from torch import nn

from utils import models
from utils.sparsity import gated, skipping


@pytest.fixture(scope="module", autouse=True)
def no_gradients():
    """For this module only: a switch at import would stay off for all tests of the process."""
    with torch.no_grad():
        yield


@pytest.fixture
def ids():
    return torch.randint(3, 256, (2, 16), generator=torch.Generator().manual_seed(0))


def logits(model, ids):
    return model(ids, use_cache=False).logits


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.9])
def test_the_share_is_exact_on_the_calibration_text(ids, share):
    model = models.tiny()
    limits = gated.calibrate(model, ids, share)
    with gated.thresholded(model, limits) as kept:
        one_layer = gated.gates(model)
        logits(model, ids)
    first = kept.masks[next(iter(one_layer))][0]
    assert int((~first).sum()) == round(share * first.numel())  # later layers see other inputs
    assert kept.share() == pytest.approx(share, abs=0.1)


def test_nothing_below_the_threshold_changes_nothing_and_hooks_go(ids):
    model = models.tiny()
    dense = logits(model, ids)
    with gated.thresholded(model, dict.fromkeys(gated.gates(model), 0.0)) as kept:
        assert torch.equal(logits(model, ids), dense)
    assert kept.share() == 0
    with gated.thresholded(model, dict.fromkeys(gated.gates(model), float("inf"))):
        assert not torch.equal(logits(model, ids), dense)
    assert torch.equal(logits(model, ids), dense)


def test_against_the_mlp_by_hand(ids):
    """Rows of up and columns of down of idle channels play no part: cut them out, same result."""
    mlp = models.tiny().model.layers[0].mlp
    x = torch.randn(1, 64, generator=torch.Generator().manual_seed(1))
    gate = nn.functional.silu(mlp.gate_proj(x))
    limit = float(gate.abs().median())
    active = (gate.abs() >= limit)[0]
    small = (gate * mlp.up_proj(x))[:, active] @ mlp.down_proj.weight[:, active].T
    with gated.thresholded(nn.ModuleDict({"mlp": mlp}), {"mlp.act_fn": limit}) as kept:
        assert torch.allclose(mlp(x), small, atol=1e-6)
    assert kept.masks["mlp.act_fn"][0].tolist() == [active.tolist()]


def test_idle_channels_by_hand():
    mask = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]])
    kept = gated.Kept({"a": [mask.bool()]})
    assert kept.share() == pytest.approx(11 / 20)
    assert kept.idle(1) == pytest.approx(11 / 20)
    assert kept.idle(2) == pytest.approx(4 / 8)  # rows 0|1: 2 used, rows 2|3: 2 used; row 4 left
    assert kept.idle(4) == pytest.approx(1 / 4)
    with pytest.raises(ValueError, match="no pass had 6"):
        kept.idle(6)


def test_unread_share_by_hand():
    model = models.tiny()  # hidden 64, inner 160, 2 layers, 4 heads, 2 for the cache
    attention = 64 * 64 * 2 + 64 * 32 * 2
    total = 2 * (attention + 3 * 64 * 160) + 64 * 256
    assert gated.unread(model, 0.5) == pytest.approx(0.5 * 2 * 2 * 64 * 160 / total)


def test_bad_requests_are_refused(ids):
    with pytest.raises(ValueError, match="share=1"):
        gated.calibrate(models.tiny(), ids, 1)
    with pytest.raises(ValueError, match="not gated"):
        gated.gates(nn.Linear(2, 2))


def test_the_skipping_product_equals_the_dense_one():
    generator = np.random.Generator(np.random.PCG64(0))
    rows = generator.standard_normal((96, 40), dtype=np.float32)
    x = generator.standard_normal(96, dtype=np.float32)
    for share in (0.0, 0.5, 1.0):
        thin = np.where(generator.random(96) < share, 0, x).astype(np.float32)
        assert np.allclose(skipping.product(thin, rows), thin @ rows, atol=1e-5)
    with pytest.raises(ValueError, match="do not fit"):
        skipping.product(x[:5], rows)


def test_the_skipped_rows_are_not_read():
    rows = np.ones((3, 4), dtype=np.float32)
    rows[1] = np.nan  # 0 times NaN would be NaN
    assert skipping.product(np.array([1, 0, 2], np.float32), rows).tolist() == [3.0] * 4
