"""The drafter's head: unrolled against step by step, in torch against in an Engine, its inputs."""

import pytest
import torch

from tests import small_drafter as small
from utils.speculative.drafter import data, target, watch
from utils.speculative.drafter import head as heads
from utils.speculative.drafter.chain import Chain, EngineChain, as_llama

MODEL = small.target()
HEAD = small.head(MODEL)
SEEN = small.seen(MODEL, count=3)


@pytest.fixture(scope="module", autouse=True)
def no_gradients():
    """For this module only."""
    with torch.no_grad():
        yield


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def unrolled(steps):
    lot = data.lot(SEEN)
    return lot, HEAD.unroll(lot.ids, lot.states, lot.kept, steps)


def one_round(lot, row, start, steps, chain):
    """Outputs of a round that begins at `start`: true states up to there, own ones after."""
    ids, states = lot.ids[row], lot.states[row]
    own, scores = chain.extend(HEAD.first(ids[: start + 1], states[: start + 1]), 0)
    found = [own]
    for place in range(start + 1, start + steps):
        own, scores = chain.extend(HEAD.again(ids[place : place + 1], own[None]), place)
        found.append(own)
    close(scores, HEAD.logits(own))
    return found


@pytest.mark.parametrize("chain", [Chain, EngineChain])
def test_all_rounds_at_once_equal_each_round_step_by_step(chain):
    lot, found = unrolled(4)
    places = lot.kept.nonzero().tolist()
    twin = chain(HEAD, 64)
    for row in range(len(SEEN)):
        first, last = SEEN[row].start - 1, len(SEEN[row].ids) - 3
        for start in (first, first + 1, first + 5, last - 3):
            for step, own in enumerate(one_round(lot, row, start, 4, twin)):
                close(found[step][places.index([row, start + step])], own)


def test_which_places_belong_to_a_round_that_began_at_a_kept_place():
    kept = torch.tensor([[False, True, True, True, False], [True, True, False, False, False]])
    found = heads.began(kept, 3)
    assert [f.tolist() for f in found] == [
        [True] * 5,
        [False, True, True, False, True],
        [False, False, True, False, False],
    ]


@pytest.mark.parametrize("chain", [Chain, EngineChain])
def test_cached_chain_equals_the_whole_text_at_once(chain):
    lot = data.lot(SEEN[:1])
    z = HEAD.first(lot.ids[0], lot.states[0])
    whole, scores = chain(HEAD, 64).extend(z, 0)
    cached = chain(HEAD, 64)
    cached.extend(z[:5], 0)
    cached.extend(z[7:9], 5)  # a draft that is refused: overwritten by what follows
    for place in range(5, len(z)):
        own, now = cached.extend(z[place : place + 1], place)
    close(own, whole)
    close(now, scores)


def test_the_scores_are_the_targets_head_on_the_draft_ids():
    lot = data.lot(SEEN[:1])
    ids = torch.tensor([SEEN[0].ids])
    expected = MODEL(ids).logits[0, lot.kept.nonzero()[:, 1] + 1][:, HEAD.draft_ids]
    found = HEAD.logits(lot.goal)
    assert float((found - expected).abs().max()) < 0.02 * float(expected.abs().max())  # fp16


def test_as_a_llama_it_has_the_same_state_behind_the_layer():
    lot = data.lot(SEEN[:1])
    z = HEAD.first(lot.ids[0], lot.states[0])
    own, _ = Chain(HEAD, 64).extend(z, 0)
    hidden = watch._Hooks(llama := as_llama(HEAD), (1,))
    llama(inputs_embeds=z[None])
    close(HEAD.read(hidden.taken()[0, -1, 0]), own)
    assert llama.config.vocab_size == len(HEAD.draft_ids)


def test_inputs_are_standardised():
    lot = data.lot(small.seen(MODEL, count=6))
    z = HEAD.standard(lot.states[lot.kept])
    assert float(z.mean(0).abs().max()) < 0.2 and 0.8 < float(z.std(0).mean()) < 1.2


def test_a_token_more_in_the_text_leaves_the_earlier_guesses_alone():
    lot, found = unrolled(3)
    shorter = data.lot([data.Seen(t.ids[:-4], t.start, t.states[:-4]) for t in SEEN])
    again = HEAD.unroll(shorter.ids, shorter.states, shorter.kept, 3)
    both = lot.kept.clone()
    both[:, : shorter.kept.shape[1]] &= shorter.kept
    both[:, shorter.kept.shape[1] :] = False
    for step in range(3):
        close(found[step][both[lot.kept]], again[step])


# The target's side


def test_states_are_those_of_transformers():
    texts = [t.ids for t in small.texts(MODEL, count=3)]
    for text, found in zip(texts, watch.states(MODEL, texts, (1, 2, 3)), strict=True):
        hidden = MODEL(torch.tensor([text]), output_hidden_states=True).hidden_states
        close(found[:, 0], target.unit(hidden[1][0]))
        close(found[:, -1] * MODEL.model.norm.weight, hidden[3][0])  # after the final norm


def test_batch_equals_transformers_in_every_slot():
    batch = target.Batch(MODEL, 3, 40)
    texts = [[5, 9, 17, 3], [5, 9, 40, 41, 42, 43], [5, 9]]
    batch.prefill([5, 9], 0)
    batch.share(2)
    for slot, text in enumerate(texts):
        start = 2 if len(text) > 2 else 0
        close(batch.prefill(text[start:], slot, start), MODEL(torch.tensor([text])).logits[0, -1])
    for token in (60, 61, 62):
        logits = batch.decode([token + slot for slot in range(3)])
        for slot, text in enumerate(texts):
            text.append(token + slot)
            close(logits[slot], MODEL(torch.tensor([text])).logits[0, -1])
    batch.move(2, 0)
    close(batch.decode([80])[0], MODEL(torch.tensor([[*texts[2], 80]])).logits[0, -1])


def test_a_batch_in_half_the_bits_says_nearly_the_same():
    batch = target.Batch(small.target().bfloat16(), 2, 20)
    text = [5, 9, 17, 3]
    batch.prefill(text, 0)
    logits = batch.decode([40])[0]
    expected = MODEL(torch.tensor([[*text, 40]])).logits[0, -1]
    assert float((logits - expected).norm() / expected.norm()) < 0.1


def test_other_models_are_refused():
    with pytest.raises(ValueError, match="with biases"):
        target.Batch(small.target(attention_bias=True), 1, 8)
    with pytest.raises(ValueError, match="the model has 3"):
        watch.states(MODEL, [[1, 2]], (4,))


def test_watched_keeps_the_states_of_the_rows_that_it_fed():
    watched = watch.Watched(MODEL, (1, 3))
    watched.follow([5, 6, 7, 8])
    assert watched.states.shape == (4, 2, 64) and watched.texts == [[5, 6, 7, 8]]
    watched.follow([5, 6, 9, 10, 11], rows=2)
    whole = watch.states(MODEL, [[5, 6, 9, 10, 11]], (1, 3))[0]
    assert watched.states.shape == (3, 2, 64)
    close(target.unit(watched.states), whole[2:])


def test_layers_to_read_of_models_of_other_depths():
    assert watch.depths(MODEL, (1, 2, 3)) == (1, 2, 3)
    assert watch.depths(MODEL) == (1, 2, 3)
