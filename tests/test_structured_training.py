"""The cubic schedule, its masks, and training that keeps zeros zero (case 15, with AdamW)."""

import pytest
import torch

from utils import models
from utils.sparsity import frozen, gradual, prune_model, recovery, semi_structured

WINDOWS = torch.randint(3, 250, (8, 24), generator=torch.Generator().manual_seed(0))


def zeros(model):
    return sum(int((m.weight == 0).sum()) for m in models.linears(model).values())


def weights(model):
    return sum(m.weight.numel() for m in models.linears(model).values())


def test_the_cubic_by_hand():
    """Half way: 0.5 - 0.5 * (1/2)^3 = 0.4375; a quarter: 0.5 - 0.5 * 27/64 = 0.2890625."""
    assert [gradual.level(t, 4) for t in (0, 1, 2, 4, 9)] == [0, 0.2890625, 0.4375, 0.5, 0.5]
    assert gradual.level(1, 2, final=0.8, initial=0.4) == pytest.approx(0.8 - 0.4 / 8)
    levels = [gradual.level(t, 20) for t in range(21)]
    steps = [b - a for a, b in zip(levels, levels[1:], strict=False)]
    assert steps == sorted(steps, reverse=True) and steps[-1] > 0


@pytest.mark.parametrize("share", [0.0, 0.1, 0.33, 0.5])
def test_masks_have_the_exact_count_and_nest(share):
    weight = torch.randn(24, 32, generator=torch.Generator().manual_seed(1))
    for pattern in (None, "2:4"):
        keep = gradual.keep_mask(weight, share, pattern)
        assert int((~keep).sum()) == round(share * weight.numel())
        later = gradual.keep_mask(weight * keep, 0.5, pattern)
        assert not (later & ~keep).any()  # what went never comes back
    assert torch.equal(gradual.keep_mask(weight, 0.5, "2:4"), semi_structured.mask(weight))


def test_the_pattern_holds_candidates_back():
    """0.3 is smaller than 0.4, but only 0.4 is among those that 2:4 drops in its group."""
    row = torch.tensor([[0.9, -0.1, 0.4, -0.7, 0.3, 0.05, -0.6, 0.2]])
    assert gradual.keep_mask(row, 0.5, "2:4").int().tolist() == [[1, 0, 0, 1, 1, 0, 1, 0]]
    assert gradual.keep_mask(row, 0.5).int().tolist() == [[1, 0, 1, 1, 0, 0, 1, 0]]


@pytest.mark.parametrize("rising", [0.0, 0.5])
def test_training_ends_in_an_exact_pattern_and_lowers_the_loss(rising):
    model = models.tiny(intermediate_size=128)
    if not rising:
        prune_model(model, "magnitude", pattern="2:4")
    same = WINDOWS[:1].repeat(24, 1)
    losses = recovery.tune(model, same, recovery.Plan(rate=3e-3, gradual=rising, every=2))
    assert len(losses) == 24 and losses[-1] < 0.7 * losses[0]
    layers = models.linears(model)
    assert all(semi_structured.is_semi_structured(m.weight) for m in layers.values())
    assert zeros(model) == weights(model) // 2
    assert not any(p.requires_grad or p.grad is not None for p in model.parameters())


def test_only_linear_layers_move():
    model = models.tiny(intermediate_size=128)
    before = {name: p.clone() for name, p in model.named_parameters()}
    recovery.tune(model, WINDOWS[:2], recovery.Plan(rate=1e-2))
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {f"{name}.weight" for name in models.linears(model)}


@pytest.mark.parametrize("held", [True, False])
def test_warm_adam_revives_weights_unless_they_are_held(held):
    """Case 15 with AdamW: first moments from before pruning move weights without a gradient."""
    model = models.tiny(intermediate_size=128)
    parameters = [m.weight.requires_grad_(True) for m in models.linears(model).values()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.0)

    def step(masks=None):
        optimizer.zero_grad()
        recovery.importance.loss(model(WINDOWS[:1]).logits, WINDOWS[:1]).backward()
        for p, mask in zip(parameters, masks or [], strict=False):
            p.grad.masked_fill_(mask, 0)
        optimizer.step()

    step()
    with torch.no_grad():
        count = prune_model(model, "magnitude", pattern="2:4").zeros
    keeper = frozen.FrozenZeros(model, optimizer) if held else None
    masks = [p.detach() == 0 for p in parameters]
    for _ in range(5):
        step(masks)
    assert (zeros(model) == count) == held
    if held:
        assert keeper.zeros == count
    else:
        assert zeros(model) < count / 100


def test_the_schedule_raises_when_it_should():
    model = models.tiny(intermediate_size=128)
    parameters = [m.weight for m in models.linears(model).values()]
    schedule = gradual.Schedule(model, torch.optim.AdamW(parameters), steps=5, every=2)
    counts = []
    for step in range(1, 9):
        schedule.advance(step)
        counts.append(round(zeros(model) / weights(model), 3))
    want = [round(gradual.level(t, 5), 3) for t in (0, 2, 2, 4, 5, 5, 5, 5)]
    assert counts == pytest.approx(want, abs=1e-3)
    schedule.release()
    schedule.release()


def test_the_rate_rises_and_falls():
    plan = recovery.Plan(rate=1.0, warm_up=4)
    rates = [recovery.rate(step, 12, plan) for step in range(12)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0] and rates[4:6] == [1.0, 7 / 8]
    assert rates[-1] == pytest.approx(1 / 8) and max(rates) == 1.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gradual.level(1, 0), "steps=0"),
        (lambda: gradual.level(1, 5, final=0.2, initial=0.4), "rising shares"),
        (lambda: gradual.keep_mask(torch.ones(4, 4), 0.6, "2:4"), "half of the weights"),
        (lambda: gradual.keep_mask(torch.ones(4, 4), 0.5, "1:2"), "unknown pattern"),
        (lambda: recovery.tune(models.tiny(), torch.ones(5)), "token ids"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
