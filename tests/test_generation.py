"""Text from the engine: greedy, sampled, drafted, streamed, stopped.

With a draft the text must be that of plain decoding: token for token when greedy; when sampled, its
law is computed exactly by running through every outcome of the dice.
"""

import random

import pytest
import torch
from small_engine import MODELS, PROMPT, engine, greedy_by_transformers, text
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from utils import models
from utils.engine import Engine
from utils.generation import Sampling, penalized, prompts
from utils.speculative import decode, drafting, theory
from utils.speculative.lookup import COSTS, PRIOR, Adaptive, Index

ENGINE = engine(batch=3, max_rows=16)
LOOPING = [7, 8, 9, 10] * 6


class Oracle:
    """Drafts a known text, wrong at the given places."""

    def __init__(self, start, known, wrong=()):
        self.start, self.known, self.wrong = start, known, set(wrong)

    def reset(self):
        """Nothing to forget."""

    def propose(self, ids, k, warp, dice):
        places = range(len(ids) - self.start, min(len(ids) - self.start + k, len(self.known)))
        return drafting.Draft([(self.known[i] + (i in self.wrong)) % 256 for i in places])


def generate(ids=PROMPT, count=30, **how):
    return ENGINE.generate(ids, count, **{"eos_token_id": ()} | how)


def drafters(known=()):
    return {
        "lookup": "lookup",
        "prompt lookup": drafting.PromptLookup(),
        "another model": drafting.ModelDrafter(models.tiny(seed=1, num_hidden_layers=1)),
        "itself": drafting.ModelDrafter(models.tiny()),
        "an engine": drafting.ModelDrafter(engine(weights="int4")),
        "half right": Oracle(len(PROMPT), list(known), range(0, 64, 3)),
        "all right": Oracle(len(PROMPT), list(known)),
    }


# Drafted text equals plain text.


@pytest.mark.parametrize("how", [{}, {"repetition_penalty": 1.3}], ids=["greedy", "penalty"])
@pytest.mark.parametrize("name", drafters())
def test_drafted_text_equals_plain_text(name, how):
    plain = generate(count=40, **how).tokens[0]
    for k in (1, 3, 15):
        drafted = generate(count=40, drafter=drafters(plain)[name], k=k, **how)
        assert drafted.tokens[0] == plain
        stats = drafted.stats
        assert stats.emitted == stats.accepted + stats.target_forwards == 40
    if name == "all right":
        assert stats.target_forwards == 3 and stats.tokens_per_forward > 13


@pytest.mark.parametrize("form", ["fp32", "bf16", "int8", "int4", "nf4", "sparse24"])
def test_lookup_on_a_text_that_repeats_itself(form):
    made = engine(weights=form)
    plain = made.generate(LOOPING, 100, eos_token_id=()).tokens
    drafted = made.generate(LOOPING, 100, eos_token_id=(), drafter="lookup")
    assert drafted.tokens == plain and drafted.stats.proposed > 0


@pytest.mark.parametrize("prompt_length", [1, 15, 16, 17, 70])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_exact_lengths_whatever_the_prompt(prompt_length, count):
    ids = text(prompt_length)
    plain = generate(ids, count)
    assert len(plain.tokens[0]) == count == plain.stats.emitted
    assert generate(ids, count, drafter="lookup").tokens == plain.tokens
    assert generate(ids, count, drafter=drafting.PromptLookup(), k=4).tokens == plain.tokens


@pytest.mark.parametrize("place", range(9))
def test_an_end_of_text_inside_a_draft(place):
    known = generate(count=40).tokens[0]
    end, seen = known[place], []
    expected = known[: known.index(end) + 1]
    how = dict(drafter=Oracle(len(PROMPT), known), k=8, on_token=seen.append)
    for stop in (end, [end, 999]):
        assert generate(count=40, eos_token_id=stop).tokens == [expected]
        assert generate(count=40, eos_token_id=stop, **how).tokens == [expected]
    assert seen == expected * 2


def test_the_models_own_end_of_text():
    known = generate(count=30).tokens[0]
    model = models.tiny()
    model.generation_config.eos_token_id = known[4]
    made = engine(model)
    expected = known[: known.index(known[4]) + 1]
    assert made.generate(PROMPT, 30).tokens == [expected]
    assert made.generate(PROMPT, 30, eos_token_id=()).tokens == [known]


def test_a_text_that_has_ended_leaves_the_others_alone():
    texts = [PROMPT, text(12), text(3, seed=4)]
    plain = [generate(one, 20).tokens[0] for one in texts]
    end = plain[1][6]
    ended = ENGINE.generate(texts, 20, eos_token_id=end).tokens
    for new, old in zip(ended, plain, strict=True):
        assert new == (old[: old.index(end) + 1] if end in old else old)


def test_an_engine_as_target_of_the_courses_own_loop():
    target, ids = engine(), torch.tensor(PROMPT)
    plain = greedy_by_transformers(models.tiny(), PROMPT, 30)
    for drafter in (None, drafting.PromptLookup(), drafting.ModelDrafter(engine(weights="int8"))):
        tokens, stats = decode.generate(target, drafter, ids, 30, k=4, eos_token_id=())
        assert tokens.tolist() == plain and stats.emitted == 30


# Sampling.


@pytest.mark.parametrize("drafter", ["lookup", "model", "oracle"])
@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_sampled_speculation_has_exactly_the_law_of_plain_sampling(drafter, penalty):
    made = engine(models.tiny(vocab_size=8, initializer_range=0.1), max_tokens=64)
    ids = [3, 4, 5, 3, 4, 5, 3]
    how = dict(temperature=0.8, top_k=3, top_p=0.95, repetition_penalty=penalty, eos_token_id=())
    draft = {
        "lookup": "lookup",
        "model": drafting.ModelDrafter(models.tiny(seed=1, vocab_size=8, initializer_range=0.1)),
        "oracle": Oracle(len(ids), [4, 5, 3]),
    }[drafter]

    def law(**more):
        def run(dice):
            return tuple(made.generate(ids, 3, generator=dice, **how, **more).tokens[0])

        return theory.law_of(run)

    plain, drafted = law(), law(drafter=draft, k=2)
    assert len(plain) > 8
    for outcome in plain | drafted:
        assert abs(plain.get(outcome, 0) - drafted.get(outcome, 0)) < 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_laws_of_transformers_processors(seed):
    generator = torch.Generator().manual_seed(seed)
    logits, ids = torch.randn(500, generator=generator) * 4, text(40, seed, vocabulary=500)
    for temperature, top_k, top_p, penalty in (
        (0.7, 0, 1.0, 1.0), (1.0, 50, 1.0, 1.0), (1.3, 0, 0.9, 1.0), (1.0, 0, 1.0, 1.4),
        (0.6, 40, 0.8, 0.7), (2.0, 1, 0.5, 1.1), (1.0, 900, 0.01, 1.0),
    ):  # fmt: skip
        steps = [RepetitionPenaltyLogitsProcessor(penalty), TemperatureLogitsWarper(temperature)]
        steps += [TopKLogitsWarper(top_k)] if top_k else []
        steps += [TopPLogitsWarper(top_p)] if top_p < 1 else []
        warped = LogitsProcessorList(steps)(torch.tensor([ids]), logits.clone()[None])[0]
        law = Sampling(temperature, top_k, top_p, penalty).law(logits, ids)
        assert torch.allclose(law, warped.double().softmax(-1), atol=1e-6)
        assert torch.equal(law > 0, torch.isfinite(warped))


def test_a_seed_gives_one_text_and_leaves_the_global_generator_alone():
    def run(seed, **how):
        generator = torch.Generator().manual_seed(seed)
        return generate(temperature=1.5, generator=generator, **how).tokens

    state = torch.get_rng_state()
    for how in ({}, {"drafter": "lookup"}, {"ids": [PROMPT, [7]]}):
        assert run(1, **how) == run(1, **how) != run(2, **how)
    assert torch.equal(state, torch.get_rng_state())


def test_the_penalty_on_both_signs():
    logits = torch.tensor([2.0, -2.0, 1.0, -1.0])
    assert penalized(logits, [0, 1, 0], 2.0).tolist() == [1.0, -4.0, 1.0, -1.0]
    assert logits.tolist() == [2.0, -2.0, 1.0, -1.0]


# Streams.


@pytest.mark.parametrize("drafter", [None, "lookup"])
def test_tokens_are_handed_over_in_order_and_once(drafter):
    seen = []
    done = generate(LOOPING, 40, drafter=drafter, on_token=seen.append)
    assert seen == done.tokens[0]


def test_a_stream_yields_each_token_before_the_next_is_made():
    made = engine()
    stream = made.stream(PROMPT, 30, eos_token_id=())
    seen = []
    for token in stream:
        seen.append(token)
        assert made.length() == len(PROMPT) + len(seen) - 1
    assert seen == generate().tokens[0]
    sampled = made.stream(PROMPT, 9, generator=torch.Generator().manual_seed(3), temperature=1.0)
    again = generate(count=9, generator=torch.Generator().manual_seed(3), temperature=1.0)
    assert list(sampled) == again.tokens[0]


def test_after_a_stream_was_left_the_next_text_is_right():
    made = engine()
    next(made.stream(PROMPT, 30))
    assert made.generate(PROMPT, 30, eos_token_id=()).tokens == generate().tokens


# Errors, before any work.

BAD = {
    "text 0 has no tokens": dict(input_ids=[]),
    "text 1 has no tokens": dict(input_ids=[[1], []]),
    "token id 256": dict(input_ids=[3, 256]),
    "token id -3": dict(input_ids=[[3], [-3]]),
    "4 texts: this engine has 3": dict(input_ids=[[1], [2], [3], [4]]),
    "needs its attention_mask": dict(input_ids=torch.ones(2, 3, dtype=torch.int64)),
    "must be .B, n.": dict(
        input_ids=torch.ones(2, 3, dtype=torch.int64), attention_mask=torch.ones(2, 2)
    ),
    "text 0: 399 tokens and 3 new": dict(input_ids=[5] * 399, max_new_tokens=3),
    "max_new_tokens=0": dict(max_new_tokens=0),
    "one text at a time": dict(input_ids=[[1], [2]], drafter="lookup"),
    "on_token= take one": dict(input_ids=[[1], [2]], on_token=print),
    "temperature=-1": dict(temperature=-1),
    "top_k=-1": dict(top_k=-1),
    "top_p=0": dict(top_p=0),
    "repetition_penalty=0": dict(repetition_penalty=0),
    "drafter='lokup'": dict(drafter="lokup"),
    "k=-1": dict(drafter="lookup", k=-1),
    "128 token ids, the target 256": dict(drafter="small"),
}


@pytest.mark.parametrize("says", BAD)
def test_bad_requests_are_named_and_change_nothing(says):
    asked = dict(input_ids=PROMPT, max_new_tokens=4) | BAD[says]
    if asked.get("drafter") == "small":
        asked["drafter"] = drafting.ModelDrafter(models.tiny(vocab_size=128))
    generate()
    before = [list(one) for one in ENGINE.texts]
    with pytest.raises(ValueError, match=says):
        ENGINE.generate(**asked)
    assert ENGINE.texts == before


def test_the_last_place_of_the_context_can_be_used():
    new = generate(text(398), 3).tokens[0]
    assert new == greedy_by_transformers(models.tiny(), text(398), 3)
    assert generate(text(398), 3, drafter="lookup").tokens == [new]


def test_prompts_in_all_forms():
    assert prompts([1, 2]) == prompts(torch.tensor([1, 2])) == prompts(torch.tensor([[1, 2]]))
    assert prompts([[1, 2], [3]]) == [[1, 2], [3]]
    assert prompts([torch.tensor([1, 2]), torch.tensor([3])]) == [[1, 2], [3]]
    padded, mask = torch.tensor([[0, 1], [2, 0]]), torch.tensor([[0, 1], [1, 1]])
    assert prompts(padded, mask) == [[1], [2, 0]]


# Prompt lookup and its rule.


@pytest.mark.parametrize("seed", range(30))
def test_the_index_proposes_what_its_naive_twin_does(seed):
    chance, index, twin, ids = random.Random(seed), Index(), drafting.PromptLookup(), []
    for _ in range(120):
        new = [chance.randrange(2 + seed % 5) for _ in range(chance.randrange(1, 4))]
        if ids and chance.random() < 0.3:
            start = chance.randrange(len(ids))
            new = ids[start : start + 6]
        index.extend(new)
        ids += new
        for k in (0, 1, 5, 50):
            tokens, size = index.propose(k)
            assert tokens == twin.propose(ids, k).tokens
            assert size == 0 or ids[-size:] in [ids[i : i + size] for i in range(len(ids) - size)]
    index.reset()
    assert index.propose(5) == ([], 0)


@pytest.mark.parametrize("size", PRIOR)
def test_drafts_stop_on_hopeless_text_and_come_back(size):
    rule, lengths = Adaptive(), []
    for _ in range(200):
        lengths.append(rule.length(size, 15))
        rule.learn(size, lengths[-1], 0)
    late = lengths[50:]
    assert lengths[0] > 0 and 0 in late and max(late) <= 1
    assert sum(COSTS[k] for k in late) / len(late) < 1.05  # time against plain decoding
    for _ in range(100):
        rule.learn(size, rule.length(size, 15), rule.length(size, 15))
    assert rule.length(size, 15) >= 10 and rule.length(size, 2) == 2


@pytest.mark.parametrize("chance", [0.05, 0.3, 0.6, 0.9, 0.99])
def test_the_length_has_the_most_tokens_per_time(chance):
    rule = Adaptive()
    rule.chance = {2: chance}
    rates = [sum(chance**i for i in range(k + 1)) / COSTS[k] for k in range(len(COSTS))]
    assert rule.length(2, 99) == rates.index(max(rates))


def test_all_models_draft_alike():
    for name in ("seven heads share", "qwen2", "mistral"):
        made = engine(MODELS[name](), "int8")
        plain = made.generate(LOOPING, 40, eos_token_id=()).tokens
        assert made.generate(LOOPING, 40, eos_token_id=(), drafter="lookup").tokens == plain


def test_only_one_stream_at_a_time():
    """Two streams would overwrite each other's cache: the older one says so."""
    engine = Engine(models.tiny(), max_tokens=64)
    old = engine.stream([5, 6, 7], 8, eos_token_id=())
    next(old)
    new = engine.stream([8, 9], 8, eos_token_id=())
    next(new)
    with pytest.raises(RuntimeError, match="one stream at a time"):
        next(old)
    alone = engine.generate([8, 9], 8, eos_token_id=()).tokens[0]
    assert len(alone) == 8


def test_default_length_is_what_the_model_is_made_for():
    assert Engine(models.tiny(max_position_embeddings=96)).max_tokens == 96
