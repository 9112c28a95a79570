"""The head as a Drafter: the same text as plain decoding, the exact law, q as the head says it."""

from functools import partial

import pytest
import torch

from tests import small_drafter as small
from utils.engine import Engine
from utils.speculative import decode, lawtest, sampling, theory
from utils.speculative.drafter import data, evaluate, watch
from utils.speculative.drafter.drafting import Copies, HeadDrafter, LookupFirst
from utils.speculative.drafting import Draft

MODEL = small.target()
HEAD = small.head(MODEL, range(256))
HALF = small.head(MODEL)
GREEDY = partial(sampling.warp, temperature=0.0)
COUNT = 30


@pytest.fixture(scope="module", autouse=True)
def no_gradients():
    """For this module only."""
    with torch.no_grad():
        yield


def watched():
    return watch.Watched(MODEL, small.LAYERS)


def engine(**options):
    options = dict(max_tokens=128, threads=1, states=small.LAYERS) | options
    return Engine(MODEL, "fp32", **options)


def plain(count=COUNT, prompt=small.PROMPT):
    return decode.generate(MODEL, None, prompt, count, 0, eos_token_id=())[0].tolist()


def generate(made, drafter, k=3, count=COUNT, prompt=small.PROMPT, **options):
    options = {"eos_token_id": ()} | options
    tokens, stats = decode.generate(made, drafter, prompt, count, k, **options)
    return tokens.tolist(), stats


TARGETS = {
    "torch": (watched, None), "engine, torch head": (engine, None), "engine": (engine, "fp32"),
    "engine, int8 head": (engine, "int8"),
}  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("head", [HEAD, HALF])
def test_greedy_output_is_that_of_plain_decoding(name, head):
    make, weights = TARGETS[name]
    made = make()
    drafter = HeadDrafter(head, made, weights, 128, 1)
    for k in (1, 3, 6):
        tokens, stats = generate(made, drafter, k)
        assert tokens == plain()
        assert stats.target_forwards + stats.accepted == COUNT and stats.proposed > 0


@pytest.mark.parametrize("name", TARGETS)
def test_lookup_first_gives_the_same_text_in_fewer_forwards(name):
    make, weights = TARGETS[name]
    made = make()
    text = [*small.PROMPT, *plain(12), *small.PROMPT]
    drafter = LookupFirst(HeadDrafter(HEAD, made, weights, 128, 1))
    tokens, stats = generate(made, drafter, 8, prompt=text)
    assert tokens == plain(prompt=text)
    again, _ = generate(made, drafter, 8)
    assert again == plain() and max(len(stats.examined_at), 1) <= 8


def test_an_engines_own_generate_takes_it():
    made = engine()
    drafter = HeadDrafter(HEAD, made, "fp32", 128, 1)
    found = made.generate(small.PROMPT, COUNT, drafter=drafter, k=3, eos_token_id=())
    assert found.tokens[0] == plain()
    assert found.stats.proposed > 0


def perfect(made, tokens):
    """The drafter with its scores replaced by the text that will come."""

    class Perfect(HeadDrafter):
        def _whole(self, scores):
            place = len(self.ids) + self.said
            self.said += 1
            whole = super()._whole(scores)
            whole[tokens[place]] = 1e4
            return whole

        def propose(self, ids, k, warp, dice):
            self.said = 0
            return super().propose(ids, k, warp, dice)

    return Perfect(HEAD, made, None, 128, 1)


def test_the_states_are_followed_however_much_is_accepted():
    """After each call the head has taken in exactly the text without its last token."""
    made = watched()
    drafter = perfect(made, small.PROMPT + plain(60))
    tokens, stats = generate(made, drafter, 4)
    assert tokens == plain() and stats.tokens_per_forward > 3.5
    fresh = HeadDrafter(HEAD, made, None, 128, 1)
    text = small.PROMPT + tokens
    made.reset()
    made.follow(text)
    drafter.observe(text)
    fresh.observe(text)
    torch.testing.assert_close(drafter.last[1], fresh.last[1], rtol=1e-4, atol=1e-4)


def test_q_is_the_softmax_of_the_heads_scores_and_zero_outside_the_draft_ids():
    made = watched()
    drafter = HeadDrafter(HALF, made)
    text = small.PROMPT + [20, 30]
    made.follow(text[:-1])
    warp = partial(sampling.warp, temperature=0.7)
    draft = drafter.propose(text, 3, warp, sampling.Dice(torch.Generator().manual_seed(0)))
    seen = data.attach(MODEL, [small.shards.Text(0, 0.0, [*text, *draft.tokens], 10)], small.LAYERS)
    lot = data.lot(seen)
    found = HALF.unroll(lot.ids, lot.states, lot.kept, 3)
    start = len(text) - 2  # the first draft comes from the last state that is known
    places = lot.kept[0].nonzero().flatten().tolist()
    for step, law in enumerate(draft.laws):
        if start + step not in places:
            continue
        scores = HALF.logits(found[step][places.index(start + step)])
        expected = torch.zeros(256, dtype=torch.float64)
        expected[HALF.draft_ids] = (scores.double() / 0.7).softmax(-1)
        torch.testing.assert_close(law, expected, rtol=2e-2, atol=1e-3)  # fp16 states
        assert float(law[1::2].sum()) == 0 and float(law.sum()) == pytest.approx(1)
    assert start + 1 in places and len(draft.laws) == 3


def test_nothing_is_proposed_before_the_target_has_run():
    made = watched()
    drafter = HeadDrafter(HEAD, made)
    assert drafter.propose(small.PROMPT, 3, GREEDY, sampling.Dice()).tokens == []
    made.follow(small.PROMPT)
    assert len(drafter.propose([*small.PROMPT, 7], 3, GREEDY, sampling.Dice()).tokens) == 3
    assert drafter.propose([*small.PROMPT, 7], 0, GREEDY, sampling.Dice()).tokens == []


def test_asked_twice_or_after_a_cut_it_answers_the_same():
    made = watched()
    made.follow(small.PROMPT)
    drafter = HeadDrafter(HEAD, made)
    ask = partial(drafter.propose, k=3, warp=GREEDY, dice=sampling.Dice())
    whole = ask([*small.PROMPT, 7]).tokens
    assert ask([*small.PROMPT, 7]).tokens == whole
    shorter = ask(small.PROMPT).tokens
    fresh = HeadDrafter(HEAD, made)
    assert fresh.propose(small.PROMPT, 3, GREEDY, sampling.Dice()).tokens == shorter


def test_missed_forwards_and_a_target_without_states_are_named():
    made = watched()
    made.follow(small.PROMPT)
    made.follow([*small.PROMPT, 7])
    with pytest.raises(ValueError, match="states of positions 0 to 8 are gone"):
        HeadDrafter(HEAD, made).propose([*small.PROMPT, 7, 8], 3, GREEDY, sampling.Dice())
    with pytest.raises(ValueError, match=r"Engine\(model, states=\(1, 2, 3\)\)"):
        HeadDrafter(HEAD, engine(states=()))
    with pytest.raises(ValueError, match="256 token ids, the target 128"):
        other = small.target(vocab_size=128)
        decode.generate(other, HeadDrafter(HEAD, watched()), [3, 4], 3, 2)


def test_a_chain_ends_where_the_head_is_unsure():
    made = watched()
    made.follow(small.PROMPT)
    text, lengths = [*small.PROMPT, 7], []
    whole = HeadDrafter(HEAD, made).propose(text, 4, GREEDY, sampling.Dice())
    for least in (0.0, 1e-6, 0.5, 1.0):
        drafter = HeadDrafter(HEAD, made, least=least)
        draft = drafter.propose(text, 4, GREEDY, sampling.Dice())
        assert draft.tokens == whole.tokens[: len(draft.tokens)]
        lengths.append(len(draft.tokens))
    assert lengths[:2] == [4, 4] and lengths[2] < 4 and lengths[3] == 0


def test_copies_learn_from_what_became_of_them():
    good, bad = Copies(), Copies()
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    assert good.offer(text, 8) == [4, 5, 6, 7]  # as many as pay at the chance assumed at first
    assert good.offer([*text, 4, 5, 6, 7], 3) == [8, 9, 1]
    assert good.offer([5, 1], 8) == []  # another text
    ids = list(text)
    for turn in range(6):  # the same three tokens, each time with another end
        offered = bad.offer(ids, 8)
        ids += [20 + turn, 1, 2, 3]
    assert len(offered) < 4 and bad.adaptive.chance[3] < 0.6
    assert Copies(shortest=3).offer([1, 2, 9, 1, 2], 8) == []


# The law, enumerated on a tiny vocabulary

TINY = small.target(vocab_size=3)
TINY_HEAD = small.Head(TINY, [0, 2], small.LAYERS, longest=64)


def tiny_program(k, length, temperature, speculative, least=0.0):
    """Program: `length` tokens after a prompt, drafted or plain."""
    made = Engine(TINY, "fp32", max_tokens=32, threads=1, states=small.LAYERS)

    def program(dice):
        drafter = HeadDrafter(TINY_HEAD, made, None, 32, least=least) if speculative else None
        tokens, _ = decode.generate(
            made, drafter, [1, 0, 2], length, k, temperature, eos_token_id=(), generator=dice
        )
        return tuple(tokens.tolist())

    return program


@pytest.mark.parametrize(("temperature", "least"), [(1.0, 0.0), (3.0, 0.3)])
def test_the_law_of_the_output_is_that_of_plain_sampling(temperature, least):
    torch.manual_seed(0)
    for parameter in TINY_HEAD.parameters():
        parameter.copy_(torch.randn_like(parameter) * 0.2)
    expected = theory.law_of(tiny_program(0, 4, temperature, False))
    found = theory.law_of(tiny_program(2, 4, temperature, True, least))
    assert sum(found.values()) == pytest.approx(1)
    assert lawtest.distance(found, expected) < 1e-5


# What is counted on a sampled text is what happens


@pytest.mark.parametrize("k", [1, 3, 5])
def test_counted_rounds_are_those_of_the_loop(k):
    made = watched()
    drafter = HeadDrafter(HEAD, made)
    for text in small.seen(MODEL, count=5, length=25):
        best = evaluate.proposals(HEAD, [text], k)[0]
        prompt = text.ids[: text.start]
        _, stats = generate(made, drafter, k, 25, prompt)
        assert evaluate.rounds(text, best, k) == stats


def test_counted_rounds_with_lookup_are_those_of_the_loop():
    made = watched()
    drafter = LookupFirst(HeadDrafter(HEAD, made), Copies(most=4), drafted=3)
    for text in small.seen(MODEL, count=5, length=25):
        best = evaluate.proposals(HEAD, [text], 3)[0]
        prompt = text.ids[: text.start]
        _, stats = generate(made, drafter, 4, 25, prompt)
        assert evaluate.rounds(text, best, 3, Copies(most=4)) == stats


def test_a_perfect_head_has_an_acceptance_of_one(monkeypatch):
    text = small.seen(MODEL, count=1)[0]
    best = torch.zeros(3, len(text.ids) - 1, 2, dtype=torch.int64)
    for step in range(3):
        best[step, :-1, 0] = torch.tensor(text.ids[2:])
    assert evaluate.rounds(text, best, 3).tokens_per_forward == 20 / 6
    monkeypatch.setattr(evaluate, "proposals", lambda head, texts, steps: [best] * len(texts))
    found = evaluate.acceptance(HEAD, [text], 3)
    assert found == {"accepted": [1, 1, 1], "top2": 1, "known": 1}
    result = evaluate.measure(HEAD, [text, text], 3)
    assert result.tokens_per_forward == 20 / 6 and result.error == 0


def test_known_and_top2_are_counted():
    found = evaluate.acceptance(HALF, small.seen(MODEL, count=4), 2)
    assert 0 < found["known"] < 1 and found["top2"] >= found["accepted"][0]
    assert set(evaluate.summary(HALF, small.seen(MODEL, count=2), (1, 2))) >= {"chain1", "lookup+3"}


def test_timed_in_the_engine_all_texts_are_the_same():
    found = evaluate.in_engine(engine(), HEAD, [small.PROMPT], 12, turns=1)
    assert set(found) == {"plain", "chain", "sure", "lookup first"}
    assert all(way["same"] and way["ms_per_token"] > 0 for way in found.values())
    assert found["plain"]["tokens_per_forward"] == 1


def test_a_draft_of_the_head_is_a_draft_of_the_protocol():
    assert HeadDrafter(HEAD, watched()).vocabulary == 256
    assert Draft([3], [torch.ones(4)]).q_draft(4).shape == (1, 4)
