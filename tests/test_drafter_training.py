"""Training of the drafter: the loss, the start, going on after a stop, data on disk."""

import json

import numpy as np
import pytest
import torch

from tests import small_drafter as small
from utils.speculative.drafter import data, run, start, train
from utils.speculative.drafter.chain import Chain
from utils.speculative.drafter.head import Head

MODEL = small.target()
SEEN = small.seen(MODEL)
RECIPE = train.Recipe(epochs=3, batch=3, warmup=2, rate=2e-3, negatives=0.3)


def trainer(recipe=RECIPE, texts=SEEN):
    return train.Trainer(small.head(MODEL), texts, recipe)


def losses(made, steps):
    return [made.step()["loss"] for _ in range(steps)]


def test_a_step_of_training_equals_a_loss_computed_round_by_round():
    head, lot = small.head(MODEL), data.lot(SEEN[:2])
    recipe = train.Recipe(noise=0.0, negatives=1.0, feature=0.5)
    dice = torch.Generator().manual_seed(0)
    loss, _ = train.loss_of(head, lot, 3, recipe, dice)
    per_step = [[], [], []]
    for row, text in enumerate(SEEN[:2]):
        first, last = text.start - 1, len(text.ids) - 3
        for begin in range(first, last + 1):
            chain = Chain(head, 64)
            z = head.first(lot.ids[row, : begin + 1], lot.states[row, : begin + 1])
            own, scores = chain.extend(z, 0)
            for step in range(min(3, last + 1 - begin)):
                place = begin + step
                if step:
                    z = head.again(lot.ids[row, place : place + 1], own[None])
                    own, scores = chain.extend(z, place)
                goal = lot.states[row, place + 1, -1]
                p = head.logits(goal).softmax(-1)
                error = head.standard_own(own) - head.standard_own(goal)
                entropy = -(p * scores.log_softmax(-1)).sum()
                per_step[step].append(entropy + 0.5 * error.square().mean())
    expected = sum(0.8**k * torch.stack(each).mean() for k, each in enumerate(per_step))
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-4)


def test_gradients_pass_through_the_heads_own_states():
    head, lot = small.head(MODEL), data.lot(SEEN[:2])
    for steps, reached in ((1, False), (2, True)):
        head.zero_grad()
        train.loss_of(head, lot, steps, RECIPE, torch.Generator().manual_seed(0))[0].backward()
        gradient = head.from_own.weight.grad
        assert (gradient is not None and float(gradient.abs().sum()) > 0) == reached


def test_the_loss_on_a_share_of_the_ids_estimates_the_whole():
    head, lot = small.head(MODEL), data.lot(SEEN[:4])
    whole = train.Recipe(noise=0.0, negatives=1.0)
    share = train.Recipe(noise=0.0, negatives=0.5)
    with torch.no_grad():
        exact = float(train.loss_of(head, lot, 1, whole, torch.Generator())[0])
        dice = torch.Generator().manual_seed(0)
        several = [float(train.loss_of(head, lot, 1, share, dice)[0]) for _ in range(20)]
    assert np.mean(several) == pytest.approx(exact, rel=0.02)


def test_the_law_is_the_targets_at_its_temperature():
    head, lot = small.head(MODEL), data.lot(SEEN[:2])
    recipe = train.Recipe(negatives=1.0, heat=0.5)
    law, chosen, weight = train.target_law(head, lot.goal, recipe, torch.Generator())
    ids = torch.tensor([SEEN[0].ids])
    logits = MODEL(ids).logits[0, SEEN[0].start : -1, head.draft_ids]
    torch.testing.assert_close(law[: len(logits)], (logits / 0.5).softmax(-1), rtol=0.2, atol=0.02)
    assert len(chosen) == len(head.draft_ids) and not weight.any()


def test_the_overlap_term_is_the_acceptance():
    head, lot = small.head(MODEL), data.lot(SEEN[:2])
    with torch.no_grad():
        without, with_it = (
            float(train.loss_of(head, lot, 1, train.Recipe(noise=0.0, negatives=1.0, overlap=o),
                                torch.Generator())[0])
            for o in (0.0, 2.0)
        )  # fmt: skip
        own = head.unroll(lot.ids, lot.states, lot.kept, 1)[0]
        p, q = head.logits(lot.goal).softmax(-1), head.logits(own).softmax(-1)
    expected = -2 * torch.minimum(p, q).sum(-1).log().mean()
    assert with_it - without == pytest.approx(float(expected), rel=1e-3)


def test_the_start_is_the_least_squares_guess():
    head = Head(MODEL, small.IDS, small.LAYERS)
    explained = start.ridge_start(head, MODEL, SEEN)
    assert set(explained) == {"own", "states"} and max(explained.values()) < 1
    lot = data.lot(SEEN[:2])
    with torch.no_grad():
        own = head.unroll(lot.ids, lot.states, lot.kept, 1)[0]
        error = (head.standard_own(own) - head.standard_own(lot.goal)).square().mean()
    assert float(error) < 1  # the mean of a standardised state has 1


def test_the_ridge_takes_the_strength_that_fits_unseen_rows_best():
    torch.manual_seed(0)
    x, y = torch.randn(100, 30), torch.randn(100, 4)
    weights, error = start._ridge(x, y)  # nothing to learn: the strongest is best
    twin = torch.linalg.solve(x[:80].T @ x[:80] + 80 * torch.eye(30), x[:80].T @ y[:80])
    torch.testing.assert_close(weights, twin, rtol=1e-3, atol=1e-4)
    assert error == pytest.approx(float((y[80:] - x[80:] @ twin).square().mean()), rel=1e-4)
    exact, _ = start._ridge(x, x @ torch.ones(30, 4))  # all to learn: the weakest
    twin = torch.linalg.solve(x[:80].T @ x[:80] + 2.4 * torch.eye(30), x[:80].T @ x[:80].sum(1))
    torch.testing.assert_close(exact[:, 0], twin, rtol=1e-3, atol=1e-4)


def test_training_lowers_the_loss():
    recipe = train.Recipe(epochs=12, batch=12, warmup=2, noise=0.0, negatives=1.0, unroll=((0, 2),))
    found = losses(trainer(recipe), 12)
    assert found[-1] < 0.95 * found[0] and found[-1] == min(found)


def test_going_on_from_a_checkpoint_gives_the_same_losses(tmp_path):
    expected = losses(trainer(), 8)
    first = trainer()
    found = losses(first, 5)
    torch.save(first.state(), tmp_path / "state.pt")
    second = trainer()
    second.restore(torch.load(tmp_path / "state.pt", weights_only=True))
    assert found + losses(second, 3) == expected
    assert second.places > first.places and second.done == 8


def test_a_checkpoint_of_another_recipe_or_of_other_texts_is_refused():
    state = trainer().state()
    with pytest.raises(ValueError, match="another recipe"):
        trainer(train.Recipe(epochs=1)).restore(state)
    with pytest.raises(ValueError, match="another texts"):
        trainer(texts=SEEN[:5]).restore(state)
    with pytest.raises(ValueError, match="sample first"):
        trainer(texts=[])


def test_the_average_is_lent_and_given_back():
    made = trainer()
    losses(made, 6)
    before = [p.detach().clone() for p in made.head.parameters()]
    with made.averaged() as head:
        for mean, parameter in zip(made.average, head.parameters(), strict=True):
            assert torch.equal(mean, parameter)
        assert not torch.equal(head.o.weight, before[[p.shape for p in before].index(
            head.o.weight.shape)])  # fmt: skip
    for kept, parameter in zip(before, made.head.parameters(), strict=True):
        assert torch.equal(kept, parameter)


def test_the_rate_warms_up_and_falls():
    made = trainer(train.Recipe(epochs=10, batch=3, warmup=4))
    rates = []
    while not made.finished:
        rates.append(made._rate(made.done / made.total))
        made.done += 1
    assert rates[0] < rates[1] < rates[3] and rates[4] > rates[20] > rates[-1] > 0
    assert [RECIPE.steps_ahead(s) for s in (0, 0.39, 0.4, 1)] == [2, 2, 3, 3]


def test_matrices_with_more_inputs_move_less_and_vectors_do_not_decay():
    made = trainer()
    made.step()
    shapes = {tuple(g["params"][0].shape): g for g in made.optimizer.param_groups}
    wide, square = shapes[64, 192], shapes[64, 64]  # from_states and others, hidden 64
    assert wide["lr"] == pytest.approx(square["lr"] / 3) and wide["weight_decay"] > 0
    assert shapes[(64,)]["weight_decay"] == 0 and shapes[(64,)]["lr"] == square["lr"]


def test_a_run_logs_keeps_and_goes_on(tmp_path):
    shown = []
    assert not run.go(trainer(), tmp_path, minutes=1e-9, show=shown.append)
    assert run.go(trainer(), tmp_path, check=lambda head: {"figure": 1}, show=shown.append)
    lines = [json.loads(line) for line in (tmp_path / run.LOG).read_text().splitlines()]
    assert [line["what"] for line in lines].count("start") == 2
    assert lines[-1]["finished"] and lines[-1]["step"] == 12 and lines[-2]["figure"] == 1
    assert [line["step"] for line in lines if line["what"] == "start"] == [0, 1]
    assert len(shown) == len(lines)


def test_the_draft_vocabulary_holds_what_answers_use():
    texts = small.texts(MODEL, count=3)
    used = {token for text in texts for token in text.ids[text.start :]}
    found = start.draft_vocabulary(texts, len(used) + 40, 256)
    assert used <= set(found) and len(found) == len(used) + 40 and found == sorted(found)
    prompts = {token for text in texts for token in text.ids[: text.start]}
    rest = sorted(set(range(256)) - used - prompts)
    assert set(rest[: 40 - len(prompts - used)]) <= set(found)


# Data


def test_states_on_disk_equal_those_in_memory(tmp_path):
    texts = small.texts(MODEL)
    data.store(MODEL, texts, small.LAYERS, tmp_path, per_file=5, log=lambda line: None)
    found = data.stored(texts, tmp_path, per_file=5)
    for text, expected in zip(found, SEEN, strict=True):
        assert text.ids == expected.ids and text.states.dtype == np.float16
        np.testing.assert_allclose(text.states, expected.states, rtol=2e-3, atol=2e-3)
    times = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*.npy"))]
    data.store(MODEL, texts, small.LAYERS, tmp_path, per_file=5)
    assert times == [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*.npy"))]


def test_missing_states_and_those_of_other_samples_are_named(tmp_path):
    texts = small.texts(MODEL, count=4)
    with pytest.raises(ValueError, match="is missing"):
        data.stored(texts, tmp_path)
    data.store(MODEL, texts, small.LAYERS, tmp_path, log=lambda line: None)
    with pytest.raises(ValueError, match="delete it"):
        data.stored(texts[:3], tmp_path)


def test_a_batch_holds_tokens_states_and_goals_at_their_places():
    lot = data.lot(SEEN[:3])
    text = SEEN[0]
    n, start = len(text.ids), text.start
    assert lot.ids[0, : n - 1].tolist() == text.ids[1:]
    assert lot.kept[0].nonzero().flatten().tolist() == list(range(start - 1, n - 2))
    np.testing.assert_array_equal(lot.states[0, 4].numpy(), text.states[4].astype(np.float32))
    first = lot.goal[: n - 1 - start]
    np.testing.assert_array_equal(first.numpy(), text.states[start : n - 1, -1].astype(np.float32))


def test_an_epoch_has_every_text_once_in_an_order_of_its_own():
    orders = [data.order(SEEN, 2, 0, epoch) for epoch in (0, 1, 0)]
    for found in orders:
        assert sorted(i for batch in found for i in batch) == list(range(len(SEEN)))
        assert max(map(len, found)) == 2
    assert orders[0] == orders[2] != orders[1]
    assert data.usable([data.Seen([1, 2, 3, 4], 2, None), data.Seen([1, 2, 3, 4], 1, None)])[
        0
    ].start == 1  # fmt: skip
