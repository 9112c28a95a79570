"""The engine's hidden states and its own inputs: what a drafter that reads the target needs."""

import pytest
import torch

from tests.small_engine import PROMPT, close, engine, text
from utils import models


@pytest.fixture(scope="module", autouse=True)
def no_gradients():
    """For this module only: a switch at import would stay off for all tests of the process."""
    with torch.no_grad():
        yield


def reference(model, ids):
    """After 0, 1, … layers, the last one before the final norm: each [rows, hidden]."""
    raw = []
    handle = model.model.norm.register_forward_pre_hook(lambda _m, x: raw.append(x[0][0]))
    hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    handle.remove()
    return [*(h[0] for h in hidden[:-1]), raw[0]]


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("max_rows", [4, 64])
def test_states_of_transformers(backend, max_rows):
    model, ids = models.tiny(), text(30)
    made = engine(model, backend=backend, max_rows=max_rows, states=(0, 2, 1))
    made.step(ids)
    expected = reference(model, ids)
    assert made.states.shape == (30, 3, 64)
    for place, layers in enumerate((0, 2, 1)):
        assert close(made.states[:, place], expected[layers])


def test_same_bits_for_each_way_of_feeding():
    ids = text(30)
    whole = engine(states=(1, 2), weights="int8")
    whole.step(ids)
    single = engine(states=(1, 2), weights="int8")
    rows = []
    for token in ids:
        single.step([token])
        rows.append(single.states)
    assert torch.equal(torch.cat(rows), whole.states)


def test_states_belong_to_the_last_call_and_are_a_copy():
    made = engine(states=(2,), batch=2)
    made.step(PROMPT)
    before = made.states
    kept = before.clone()
    made.step([7], slot=1)
    assert made.states.shape == (1, 1, 64) and torch.equal(before, kept)
    made.decode([8, 9])
    assert made.states.shape == (2, 1, 64)
    made.follow([*PROMPT, 11, 12], rows=2)
    assert made.states.shape == (2, 1, 64)  # 8 gave way to 11, 12 is new
    made.reset()
    assert made.states.numel() == 0


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_inputs_in_place_of_embeddings(backend):
    model = models.tiny()
    plain, given = engine(model, backend=backend), engine(model, backend=backend, max_rows=4)
    expected = plain.step(PROMPT)
    rows = model.model.embed_tokens.weight[PROMPT]
    assert close(given.step([0] * len(PROMPT), inputs=rows), expected)
    assert given.length() == len(PROMPT)


@pytest.mark.parametrize("states", [(3,), (-1,), (1, 1)])
def test_impossible_states_are_refused(states):
    with pytest.raises(ValueError, match="counts of layers from 0 to 2"):
        engine(states=states)


def test_misshapen_inputs_change_nothing():
    made = engine()
    with pytest.raises(ValueError, match=r"takes \(2, 64\)"):
        made.step([1, 2], inputs=torch.zeros(1, 64))
    assert made.length() == 0
