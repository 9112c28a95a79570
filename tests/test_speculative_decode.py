"""The decoding loop on a tiny random model: exact tokens, caches, ends of text, no leaks.

Greedy output must equal plain decoding token for token, whatever is drafted: good drafts, bad ones,
none. Every count is checked against the definition in `stats`.
"""

from functools import partial

import pytest
import torch

from utils import models
from utils.speculative import decode, drafting, lawtest, sampling, zoo
from utils.speculative.cached import CachedModel, cache_keyword

TARGET = models.tiny(seed=0, num_hidden_layers=3)
PROMPT = torch.tensor([5, 9, 17, 5, 9, 33, 41, 5, 9])
generate = partial(decode.generate, eos_token_id=())


class Oracle:
    """Drafts the target's own greedy text, wrong at the given places of the output."""

    def __init__(self, text, wrong=()):
        self.text, self.wrong = text, set(wrong)

    def reset(self):
        self.resets = getattr(self, "resets", 0) + 1

    def propose(self, ids, k, warp, dice):
        start = len(ids) - len(PROMPT)
        places = range(start, min(start + k, len(self.text)))
        return drafting.Draft([(self.text[i] + (i in self.wrong)) % 256 for i in places])


def greedy(n=40, **kwargs):
    return decode.generate(TARGET, None, PROMPT, n, k=0, **{"eos_token_id": ()} | kwargs)[0]


def drafters():
    return {
        "prompt lookup": drafting.PromptLookup(),
        "another model": drafting.ModelDrafter(models.tiny(seed=1, num_hidden_layers=1)),
        "first layers": drafting.ModelDrafter(drafting.truncated(TARGET, 1)),
        "itself": drafting.ModelDrafter(TARGET),
        "half right": Oracle(greedy(64).tolist(), wrong=range(0, 64, 3)),
        "none": None,
    }


def plain_without_cache(n):
    """Greedy decoding that feeds the whole text each time: the naive twin."""
    ids = PROMPT.tolist()
    for _ in range(n):
        ids.append(int(TARGET(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


def test_plain_decoding_equals_the_naive_twin():
    tokens, stats = generate(TARGET, None, PROMPT, 20, k=4)
    assert tokens.tolist() == plain_without_cache(20)
    assert tokens.dtype == torch.int64
    assert stats.target_forwards == 20 and stats.proposed == 0 and stats.tokens_per_forward == 1


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("name", drafters())
def test_greedy_equals_plain_decoding(name, k):
    tokens, stats = generate(TARGET, drafters()[name], PROMPT, 40, k)
    assert tokens.tolist() == greedy().tolist()
    assert stats.emitted == 40
    assert stats.accepted <= stats.proposed <= k * stats.target_forwards
    assert stats.emitted == stats.accepted + stats.target_forwards


def test_a_perfect_draft_gives_k_plus_one_tokens_per_forward():
    tokens, stats = generate(TARGET, drafters()["itself"], PROMPT, 40, 4)
    assert stats.target_forwards == 8 and stats.tokens_per_forward == 5
    assert stats.acceptance_rate == 1 and stats.acceptance_by_position == [1, 1, 1, 1]


# Case 27: exactly N tokens, no state between calls. Case 26: end of text inside a block.


@pytest.mark.parametrize("n", [1, 2, 5, 9])
@pytest.mark.parametrize("name", drafters())
def test_exactly_max_new_tokens_twice(name, n):
    drafter = drafters()[name]
    first = generate(TARGET, drafter, PROMPT, n, k=8)
    second = generate(TARGET, drafter, PROMPT, n, k=8)
    assert first[0].tolist() == second[0].tolist() == greedy(n).tolist()
    assert first[1] == second[1]


def test_a_call_leaves_nothing_behind_for_another_prompt():
    drafter = drafters()["another model"]
    other = torch.tensor([[200, 3, 77]])
    fresh = generate(TARGET, drafters()["another model"], other, 12, k=3)
    generate(TARGET, drafter, PROMPT, 12, k=3)
    again = generate(TARGET, drafter, other, 12, k=3)
    assert torch.equal(fresh[0], again[0]) and fresh[1] == again[1]


def test_drafter_is_reset_once_per_call():
    drafter = drafters()["half right"]
    generate(TARGET, drafter, PROMPT, 6, k=2)
    generate(TARGET, drafter, PROMPT, 6, k=2)
    assert drafter.resets == 2


@pytest.mark.parametrize("place", range(9))
def test_case_26_stops_at_the_end_of_text(place):
    text = greedy(40).tolist()
    end = text[place]
    tokens, stats = generate(TARGET, Oracle(text), PROMPT, 40, k=8, eos_token_id=end)
    expected = text[: text.index(end) + 1]
    assert tokens.tolist() == expected
    assert stats.emitted == len(expected)
    assert sum(stats.accepted_at) == stats.accepted == min(len(expected), 8)
    assert stats.examined_at == stats.accepted_at


def test_end_of_text_as_a_list_and_from_the_models_config():
    text = greedy(40).tolist()
    ends = [text[3], text[6]]
    tokens, _ = generate(TARGET, Oracle(text), PROMPT, 40, k=4, eos_token_id=ends)
    assert tokens[-1] in ends and len(tokens) <= 4
    model = models.tiny(seed=0, num_hidden_layers=3)
    model.generation_config.eos_token_id = text[2]
    tokens, _ = decode.generate(model, Oracle(text), PROMPT, 40, k=4)
    assert tokens.tolist() == text[: text.index(text[2]) + 1]


def test_end_of_text_in_the_prompt_does_not_stop():
    tokens, _ = generate(TARGET, None, PROMPT, 3, k=0, eos_token_id=int(PROMPT[-1]))
    assert len(tokens) >= 1


# Case 28: the cache after accepting none, some and all.


@pytest.mark.parametrize("accepted", [0, 2, 4])
def test_cache_after_rollback_gives_the_logits_of_a_fresh_forward(accepted):
    ids, draft = PROMPT.tolist(), [1, 2, 3, 4]
    cached = CachedModel(TARGET)
    assert cached.follow(ids + draft, rows=5).shape == (5, 256)
    assert cached.length == len(ids) + 4
    text = ids + draft[:accepted] + [77]
    logits = cached.follow(text)
    assert cached.length == len(text) and cached.ids == text
    fresh = TARGET(torch.tensor([text])).logits[0, -1:]
    torch.testing.assert_close(logits, fresh, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [0, 1, 5, 9, 20])
def test_crop_keeps_the_first_tokens(length):
    cached = CachedModel(TARGET)
    cached.follow(PROMPT.tolist())
    cached.crop(length)
    assert cached.length == len(cached.ids) == min(length, 9)
    logits = cached.follow(PROMPT.tolist(), rows=3)
    torch.testing.assert_close(logits, TARGET(PROMPT[None]).logits[0, -3:], rtol=1e-4, atol=1e-4)


def test_following_the_same_text_again_gives_the_same_logits():
    cached = CachedModel(TARGET)
    first = cached.follow(PROMPT.tolist())
    torch.testing.assert_close(cached.follow(PROMPT.tolist()), first, rtol=1e-4, atol=1e-4)


def test_the_draft_models_cache_follows_the_accepted_text():
    drafter = drafters()["first layers"]
    tokens, _ = generate(TARGET, drafter, PROMPT, 20, k=4)
    text = PROMPT.tolist() + tokens.tolist()
    assert drafter.cached.length == len(drafter.cached.ids) <= len(text)
    law = partial(sampling.warp, temperature=0)
    draft = drafter.propose(text, 3, law, sampling.Dice())
    fresh = drafters()["first layers"].propose(text, 3, law, sampling.Dice())
    assert draft.tokens == fresh.tokens


def test_case_43_both_names_of_the_cache_argument_are_known():
    class Old:
        def forward(self, input_ids, past_key_values=None):
            """The signature before the argument was renamed."""

    assert cache_keyword(Old()) == "past_key_values"


def test_the_public_cache_interface_gives_no_warning(recwarn):
    generate(TARGET, drafting.PromptLookup(), PROMPT, 4, k=2)
    assert not recwarn.list


def test_sliding_window_models_are_refused():
    model = models.tiny()
    model.config.layer_types = ["sliding_attention", "full_attention"]
    with pytest.raises(ValueError, match="full attention"):
        CachedModel(model)


# Case 29 and other input.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": torch.ones(2, 3, dtype=torch.int64)}, "batch of 2.*once per row"),
        ({"input_ids": torch.ones(0, dtype=torch.int64)}, "one prompt"),
        ({"input_ids": torch.ones(1, 1, 3, dtype=torch.int64)}, "one prompt"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"k": -1}, "k=-1"),
        ({"temperature": -0.1}, "temperature=-0.1"),
    ],
)
def test_bad_input_is_named(change, message):
    usual = {"input_ids": PROMPT, "max_new_tokens": 4, "k": 2}
    with pytest.raises(ValueError, match=message):
        generate(TARGET, drafting.PromptLookup(), **usual | change)


def test_a_draft_model_with_another_vocabulary_is_refused():
    drafter = drafting.ModelDrafter(models.tiny(vocab_size=128))
    with pytest.raises(ValueError, match="128 token ids, the target 256"):
        generate(TARGET, drafter, PROMPT, 4, k=2)


def test_nan_logits_of_target_or_draft_raise():
    broken = models.tiny(seed=3)
    broken.model.norm.weight.data[0] = float("nan")
    for temperature in (0.0, 1.0):
        with pytest.raises(ValueError, match="logits"):
            generate(broken, None, PROMPT, 2, k=1, temperature=temperature)
        with pytest.raises(ValueError, match="logits"):
            drafter = drafting.ModelDrafter(broken)
            generate(TARGET, drafter, PROMPT, 3, k=1, temperature=temperature)


# Sampling (case 24).


def first_tokens(drafter, n, k=2, **settings):
    """The first two sampled tokens of n runs on a model with few likely tokens."""
    generator = torch.Generator().manual_seed(0)
    runs = (
        generate(TARGET, drafter, PROMPT, 2, k, generator=generator, **settings) for _ in range(n)
    )
    return [tuple(tokens.tolist()) for tokens, _ in runs]


def exact_law(**settings):
    """Law of the first two tokens of plain sampling, from two uncached forwards per token."""
    ids = PROMPT.tolist()
    law = {}
    first = sampling.warp(TARGET(torch.tensor([ids])).logits[0, -1], **settings)
    for a in first.nonzero().flatten().tolist():
        second = sampling.warp(TARGET(torch.tensor([ids + [a]])).logits[0, -1], **settings)
        for b in second.nonzero().flatten().tolist():
            law[a, b] = float(first[a] * second[b])
    return law


def pooled(law, n):
    """Function from outcome to itself or "rare", where the law expects fewer than 5 of n."""
    return lambda text: text if law.get(text, 0) * n >= lawtest.SMALLEST_EXPECTED else "rare"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prompt lookup", "another model"])
def test_sampling_at_07_top_p_09_has_the_targets_law(name):
    settings, n = {"temperature": 0.7, "top_p": 0.9}, 1000
    law = exact_law(**settings)
    drawn = first_tokens(drafters()[name], n, **settings)
    assert set(drawn) <= set(law)  # nothing outside the target's nucleus
    pool, merged = pooled(law, n), {}
    for text, weight in law.items():
        merged[pool(text)] = merged.get(pool(text), 0.0) + weight
    assert lawtest.p_value([pool(text) for text in drawn], merged) > 1e-3


def test_the_same_seed_gives_the_same_text_and_another_seed_another():
    def run(seed):
        generator = torch.Generator().manual_seed(seed)
        drafter = drafters()["another model"]
        return generate(TARGET, drafter, PROMPT, 12, 3, temperature=1.5, generator=generator)[0]

    assert torch.equal(run(1), run(1)) and not torch.equal(run(1), run(2))


def test_the_global_generator_is_left_alone_when_one_is_given():
    drafter, generator = drafters()["itself"], torch.Generator().manual_seed(0)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    generate(TARGET, drafter, PROMPT, 4, 2, temperature=1.0, generator=generator)
    assert torch.equal(state, torch.get_rng_state())


def test_an_identical_draft_model_is_always_accepted_when_sampling():
    generator = torch.Generator().manual_seed(0)
    drafter = drafters()["itself"]
    _, stats = generate(TARGET, drafter, PROMPT, 40, 4, temperature=1.0, generator=generator)
    assert stats.acceptance_rate > 0.99  # not exactly 1: one row and five rows round differently


def test_the_loop_takes_another_rule():
    """With the target's own sample as rule a certain draft is accepted just as often."""
    text = greedy(40).tolist()
    tokens, stats = generate(TARGET, Oracle(text), PROMPT, 40, 4, verify=zoo.target_sample)
    assert tokens.tolist() == text and stats.acceptance_rate == 1


# Drafters.


def lookup(ids, k=3, **kwargs):
    return drafting.PromptLookup(**kwargs).propose(ids, k).tokens


def test_prompt_lookup_copies_what_followed_the_last_occurrence():
    assert lookup([1, 2, 3, 9, 1, 2, 3, 8, 7, 1, 2, 3]) == [8, 7, 1]
    assert lookup([1, 2, 3, 4]) == []
    assert lookup([4, 4]) == [4]
    assert lookup([4]) == []


def test_prompt_lookup_prefers_the_longest_ngram():
    ids = [1, 2, 3, 50, 9, 3, 60, 1, 2, 3]
    assert lookup(ids, k=1) == [50]
    assert lookup(ids, k=1, max_ngram=1) == [60]
    assert lookup([5, 3, 60, 3], min_ngram=2) == []


@pytest.mark.parametrize("sizes", [(0, 0), (2, 3), (3, 0)])
def test_prompt_lookup_sizes_are_checked(sizes):
    with pytest.raises(ValueError, match="1 <= min_ngram <= max_ngram"):
        drafting.PromptLookup(max_ngram=sizes[0], min_ngram=sizes[1])


def test_a_draft_model_draws_from_the_law_that_it_reports():
    class Last(sampling.Dice):
        def uniform(self):
            return 1 - 2**-53

    warp = partial(sampling.warp, temperature=1.0, top_k=4)
    draft = drafters()["another model"].propose(PROMPT.tolist(), 3, warp, Last())
    for token, law in zip(draft.tokens, draft.laws, strict=True):
        assert token == int(law.nonzero()[-1]) and int((law > 0).sum()) == 4
    assert torch.equal(draft.q_draft(256), torch.stack(draft.laws))


def test_a_draft_without_laws_is_one_hot():
    assert drafting.Draft([2, 0]).q_draft(3).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert drafting.Draft([]).q_draft(3).shape == (0, 3)


def test_truncated_shares_weights_and_equals_the_first_layers():
    draft = drafting.truncated(TARGET, 2)
    assert draft.config.num_hidden_layers == 2 and TARGET.config.num_hidden_layers == 3
    assert {p.data_ptr() for p in draft.parameters()} <= {p.data_ptr() for p in TARGET.parameters()}
    hidden = TARGET.model(PROMPT[None], output_hidden_states=True).hidden_states[2]
    expected = TARGET.lm_head(TARGET.model.norm(hidden))
    torch.testing.assert_close(draft(PROMPT[None]).logits, expected)


@pytest.mark.parametrize("layers", [0, 4])
def test_truncated_checks_the_number_of_layers(layers):
    with pytest.raises(ValueError, match="choose 1 to 3"):
        drafting.truncated(TARGET, layers)


# Agreement with transformers (greedy, fp32).


def theirs(**kwargs):
    return TARGET.generate(
        PROMPT[None],
        attention_mask=torch.ones_like(PROMPT[None]),
        max_new_tokens=40,
        min_new_tokens=40,
        do_sample=False,
        pad_token_id=2,
        **kwargs,
    )[0, len(PROMPT) :].tolist()


def test_agrees_with_transformers_prompt_lookup_and_assisted_generation():
    ours = greedy(40).tolist()
    if 2 in ours:
        pytest.fail("choose a prompt without the end token: min_new_tokens would forbid it")
    assert theirs() == ours
    assert theirs(prompt_lookup_num_tokens=4) == ours
    assert theirs(assistant_model=models.tiny(seed=1, num_hidden_layers=1)) == ours
    assert theirs(assistant_early_exit=1) == ours
