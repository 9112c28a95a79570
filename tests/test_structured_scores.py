"""Scores of channels, groups and blocks against their definitions and the true change of loss."""

import pytest
import torch
from scipy import stats

from utils import models
from utils.sparsity import importance, structured

IDS = torch.randint(3, 250, (3, 24), generator=torch.Generator().manual_seed(0))
WIDE = 128


@pytest.fixture(scope="module", autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def model():
    return models.tiny(intermediate_size=WIDE)


@pytest.fixture(scope="module")
def sums(model):
    return importance.collect(model, IDS)


def test_the_taylor_sum_is_gradient_times_weight(model, sums):
    """sum_t h g over tokens = sum_o G w over the unit's column, G by torch's own autograd."""
    twin = models.tiny(intermediate_size=WIDE).requires_grad_(True)
    with torch.enable_grad():
        for row in IDS:
            importance.loss(twin(row[None]).logits, row[None]).backward()
    for number, block in enumerate(structured.decoder_blocks(twin)):
        down, out = block.mlp.down_proj.weight, block.self_attn.o_proj.weight
        channel = (down * down.grad).sum(0).double()
        group = (out * out.grad).sum(0).view(2, -1).sum(1).double()
        torch.testing.assert_close(sums["channels"][number].first, channel, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(sums["groups"][number].first, group, rtol=1e-3, atol=1e-6)


def test_squares_are_taken_by_token(sums, model):
    one = importance.collect(model, IDS[:1])["channels"][0]
    assert (one.second >= one.first.square() / IDS.shape[1] - 1e-12).all()  # Cauchy-Schwarz
    assert not torch.allclose(one.second, one.first.square())
    two = importance.collect(model, IDS[1:])["channels"][0]
    torch.testing.assert_close(sums["channels"][0].second, one.second + two.second)


def test_hooks_are_gone_and_weights_have_no_gradients(model, sums):
    assert all(not m._forward_pre_hooks and not m._forward_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_activation_score_is_the_output_without_the_channel(model, sums):
    """||h_c|| ||w_c|| is the Frobenius norm of what channel c adds to the layer's output."""
    seen = []
    block = structured.decoder_blocks(model)[1]
    handle = block.mlp.down_proj.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs))
    model(IDS)
    handle.remove()
    h = seen[0][0].flatten(0, 1)
    want = torch.stack([torch.outer(h[:, c], block.mlp.down_proj.weight[:, c]).norm()
                        for c in range(WIDE)])  # fmt: skip
    got = importance.score(model, "channels", "activation", sums["channels"])[1]
    torch.testing.assert_close(got.float(), want, rtol=1e-4, atol=1e-6)


def test_magnitude_counts_every_weight_once(model):
    channel = importance.score(model, "channels", "magnitude")[0].square().sum()
    group = importance.score(model, "groups", "magnitude")[0].square().sum()
    block = structured.decoder_blocks(model)[0]
    total = sum(p.double().square().sum() for p in block.mlp.parameters())
    torch.testing.assert_close(channel, total)
    total = sum(p.double().square().sum() for p in block.self_attn.parameters())
    torch.testing.assert_close(group, total)


def test_first_order_predicts_the_true_change(model, sums):
    removal = importance.Removal(model, 1, IDS)
    units = range(0, WIDE, 4)
    true = torch.tensor([removal.change(c) for c in units], dtype=torch.float64)
    predicted = -sums["channels"][1].first[::4] / len(IDS)
    assert stats.spearmanr(predicted, true).statistic > 0.9
    worst = 4 * int((predicted - true).abs().argmax())
    rest = [_scaled(worst, size) + size * float(sums["channels"][1].first[worst]) / len(IDS)
            for size in (0.5, 0.25)]  # fmt: skip
    assert rest[1] / rest[0] == pytest.approx(1 / 4, rel=0.3)  # what is left is of second order


def _scaled(channel, size):
    """The loss with the channel `size` weaker, minus the loss as it is."""
    twin = models.tiny(intermediate_size=WIDE)
    before = importance.loss(twin(IDS).logits, IDS)
    structured.decoder_blocks(twin)[1].mlp.down_proj.weight[:, channel] *= 1 - size
    return float(importance.loss(twin(IDS).logits, IDS) - before)


@pytest.mark.parametrize("kind", importance.KINDS)
def test_removal_equals_the_smaller_model(model, kind):
    total = {"channels": WIDE, "groups": 2}[kind]
    removal = importance.Removal(model, 0, IDS, kind)
    keep = [torch.arange(1, total), torch.arange(total - 1)]
    cut = structured.keep_channels if kind == "channels" else structured.keep_groups
    only_first = cut(model, keep)
    second = structured.decoder_blocks(only_first)[1]
    second.load_state_dict(structured.decoder_blocks(cut(model, keep))[1].state_dict())
    twin = models.tiny(intermediate_size=WIDE)
    size = importance.width(model.config, kind)
    importance.output(structured.decoder_blocks(twin)[0], kind).weight[:, :size] = 0
    want = importance.loss(twin(IDS).logits, IDS) - importance.loss(model(IDS).logits, IDS)
    assert removal.change(0) == pytest.approx(float(want), abs=2e-6)


def test_block_influence_by_hand(model):
    states = model.model(IDS, output_hidden_states=True).hidden_states
    cosine = torch.nn.functional.cosine_similarity(states[0], states[1], dim=-1).mean()
    found = importance.influence(model, IDS)
    assert found.shape == (2,) and found[0] == pytest.approx(float(1 - cosine), abs=1e-6)


def test_the_smallest_share_goes_and_ties_drop_the_earlier():
    scores = [torch.tensor([5.0, 1.0, 4.0, 1.0]), torch.tensor([2.0, 2.0, 2.0, 2.0])]
    kept = importance.largest(scores, 0.5)
    assert [k.tolist() for k in kept] == [[0, 2], [2, 3]]
    assert [len(k) for k in importance.largest(scores, 0.25)] == [3, 3]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: importance.score(m, "channels", "luck"), "unknown score 'luck'"),
        (lambda m: importance.score(m, "rows", "magnitude"), "unknown kind 'rows'"),
        (lambda m: importance.score(m, "channels", "taylor"), "needs the sums"),
        (lambda m: importance.largest([torch.ones(2)], 1.0), "share=1.0"),
    ],
)
def test_bad_input_is_named(model, call, words):
    with pytest.raises(ValueError, match=words):
        call(model)
