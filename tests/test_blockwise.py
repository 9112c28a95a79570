"""One block trained against its own float outputs."""

import pytest
import torch

from utils import models
from utils.quantization import blockwise, hessian, qat, rtn
from utils.quantization.distillation import Plan

IDS = torch.randint(0, 256, (6, 24), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True, scope="module")
def gradients_as_found():
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    yield
    torch.set_grad_enabled(before)


@pytest.fixture(scope="module")
def model():
    return models.tiny()


def test_recorded_pairs_are_what_the_block_does(model):
    pairs = blockwise.record(model, 1, IDS)
    assert pairs.inputs.shape == pairs.outputs.shape == (6, 24, 64)
    block = blockwise.copy_of(model, 1)
    with torch.no_grad():
        torch.testing.assert_close(block(pairs.inputs, **pairs.extra), pairs.outputs)
        assert float(blockwise.error(block, pairs)) < 1e-10
        hidden = model(input_ids=IDS, output_hidden_states=True).hidden_states
    torch.testing.assert_close(pairs.inputs, hidden[1])


def test_the_error_is_relative_to_what_the_block_adds(model):
    pairs = blockwise.record(model, 0, IDS)
    silent = lambda x, **_extra: x  # noqa: E731
    assert float(blockwise.error(silent, pairs)) == pytest.approx(1.0)
    half = lambda x, **_extra: x + 0.5 * (pairs.outputs - pairs.inputs)  # noqa: E731
    assert float(blockwise.error(half, pairs)) == pytest.approx(0.25)


def test_training_lowers_the_error_and_leaves_the_model(model):
    before = models.weights_sha256(model)
    pairs, watch = (blockwise.record(model, 0, ids) for ids in (IDS[:4], IDS[4:]))
    block = qat.prepare(blockwise.copy_of(model, 0), 2, 16, False)
    losses, watched = blockwise.train(block, pairs, 40, Plan(3e-3, batch=2), watch)
    assert len(losses) == 40 and len(watched) == 4
    assert losses[-1] < 0.7 * losses[0] and watched[-1] < watched[0]
    assert models.weights_sha256(model) == before
    for name, made in qat.export(block).items():
        weight = block.get_submodule(name).weight
        assert torch.equal(made.codes, rtn.quantize(weight, 2, 16, False).codes)


def test_windows_are_taken_in_turn(model):
    pairs = blockwise.record(model, 0, IDS[:3])
    block = qat.prepare(blockwise.copy_of(model, 0), 3, 16)
    losses, _ = blockwise.train(block, pairs, 6, Plan(rate=0.0, batch=1))
    assert losses[:3] == losses[3:] and len(set(losses)) == 3


def test_hessians_are_those_of_the_model(model):
    pairs = blockwise.record(model, 1, IDS)
    block = blockwise.copy_of(model, 1)
    found, expected = blockwise.hessians(block, pairs), hessian.collect(model, IDS)
    assert len(found) == 7
    for name, h in found.items():
        torch.testing.assert_close(h, expected[f"model.layers.1.{name}"], rtol=1e-4, atol=1e-3)


def test_nothing_to_train_is_named(model):
    pairs = blockwise.record(model, 0, IDS[:1])
    with pytest.raises(ValueError, match="prepare the block"):
        blockwise.train(blockwise.copy_of(model, 0), pairs, 1)
