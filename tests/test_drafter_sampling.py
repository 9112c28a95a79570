"""Prompts and samples of the drafter: deterministic, resumable, apart from what is held out."""

import pytest
import torch

from tests import small_drafter as small
from utils.speculative import decode
from utils.speculative.drafter import answering, prompts, sampling, shards

MODEL, TOKENIZER = small.target(), small.Tokenizer()
PASSAGES = ["A passage of some length that can be quoted.", "Another one, not much longer."]
TEXTS = [f"text {number} {'abc' * (number % 4)}" for number in range(10)]
PLAN = sampling.Plan(longest_answer=20, per_shard=4, batch=3, shortest_kept=4)


@pytest.fixture(scope="module", autouse=True)
def no_gradients():
    """For this module only."""
    with torch.no_grad():
        yield


# Prompts


def test_prompts_are_deterministic_different_and_extend():
    first = prompts.training(60, passages=PASSAGES)
    assert first == prompts.training(120, passages=PASSAGES)[:60]
    assert len(set(first)) == 60 and first != prompts.training(60, seed=1, passages=PASSAGES)


def test_there_are_enough_different_prompts():
    assert len(set(prompts.training(3000, passages=PASSAGES))) == 3000


def test_no_training_prompt_is_or_resembles_a_held_out_one():
    held = prompts.held_out("validation") + prompts.held_out("test")
    assert len(prompts.held_out("validation")) == 24 and len(prompts.held_out("test")) == 24
    assert len(set(held)) == 48
    found = prompts.training(300, passages=PASSAGES)
    assert not set(found) & set(held)
    assert max(prompts.resemblance(a, b) for a in found for b in held) < 0.5


def test_a_held_out_prompt_that_templates_make_is_passed_over(monkeypatch):
    made = iter(["What is a neural network?", "What is a neural network?", "Why do owls sing?"])
    monkeypatch.setattr(prompts, "_one", lambda dice, passages: next(made))
    assert prompts.training(1, passages=PASSAGES) == ["Why do owls sing?"]


def test_an_unknown_set_is_named():
    with pytest.raises(ValueError, match="use 'validation' or 'test'"):
        prompts.held_out("train")


# Samples


def sampled(folder, tokens=240, plan=PLAN, **options):
    options = {"texts": TEXTS, "log": lambda line: None} | options
    return sampling.sample(MODEL, TOKENIZER, folder, tokens, plan, **options)


def without_times(shard):
    return shard.texts, {k: v for k, v in shard.counts.items() if "seconds" not in k}


def test_a_stopped_run_goes_on_to_the_same_shards(tmp_path):
    whole = sampled(tmp_path / "whole", 240)
    for tokens in (79, 80, 160, 240):
        parts = sampled(tmp_path / "parts", tokens)
    assert whole == parts
    a, b = (shards.read(tmp_path / name) for name in ("whole", "parts"))
    assert without_times(a) == without_times(b)
    assert len(list((tmp_path / "whole").glob("*.npz"))) == 3


def test_two_processes_share_the_shards(tmp_path):
    whole = sampled(tmp_path / "whole")
    drawn = [sampled(tmp_path / "parts", 320, part=(i, 2)) for i in (0, 1)]
    assert sum(drawn) == whole and min(drawn) > 0
    a, b = (shards.read(tmp_path / name) for name in ("whole", "parts"))
    assert without_times(a) == without_times(b)


def test_no_more_tokens_are_drawn_than_allowed(tmp_path):
    for tokens in (79, 80, 159, 200):
        drawn = sampled(tmp_path / str(tokens), tokens)
        assert drawn <= tokens and (drawn > 0) == (tokens >= 80)


def test_time_up_starts_no_shard(tmp_path):
    said = []
    assert sampled(tmp_path, 240, minutes=1e-9, log=said.append) == 0
    assert said == ["0 tokens drawn before shard 0; run again to go on"]


def test_another_plan_in_the_same_folder_is_refused(tmp_path):
    sampled(tmp_path, 80)
    with pytest.raises(ValueError, match="another plan"):
        sampled(tmp_path, 80, sampling.Plan(seed=1))
    with pytest.raises(ValueError, match="between 1 and 1,000,000"):
        sampled(tmp_path, sampling.LIMIT + 1)


def test_greedy_answers_are_those_of_plain_decoding():
    found = sampling.answers(MODEL, TOKENIZER, TEXTS, PLAN)
    assert [text.number for text in found.texts] == list(range(10))
    for text in found.texts:
        prompt = text.ids[: text.start]
        assert prompt == sampling.encoded(TOKENIZER, TEXTS[text.number])
        expected, _ = decode.generate(MODEL, None, prompt, 20, 0)
        assert text.ids[text.start :] == expected.tolist()


def test_a_text_does_not_depend_on_its_neighbours(tmp_path):
    plan = sampling.Plan(mix=((1.0, 1.0),), longest_answer=12, per_shard=10, batch=3)
    one = sampling.Plan(mix=((1.0, 1.0),), longest_answer=12, per_shard=10, batch=1)
    together, alone = tmp_path / "together", tmp_path / "alone"
    sampled(together, 120, plan)
    sampled(alone, 120, one)
    assert shards.read(together).texts == shards.read(alone).texts


def test_an_answer_ends_at_its_first_token_if_that_ends_the_text(monkeypatch):
    said = {0: [2], 1: [9, 8, 2], 2: [2], 3: [7, 2]}
    told = lambda logits, texts, top_k: [said[t.number][len(t.tokens)] for t in texts]  # noqa: E731
    monkeypatch.setattr(answering, "drawn", told)
    work = answering.Work(MODEL, PLAN, [(n, [5, 6, 7 + n]) for n in said], False)
    work.run()
    found = {text.number: text.ids[text.start :] for text in work.done}
    assert found == said and work.counts["sampled"] == 7


def test_counts_add_up(tmp_path):
    sampled(tmp_path, 240)
    shard = shards.read(tmp_path)
    kept = sum(len(text.ids) - text.start for text in shard.texts)
    assert shard.counts["kept"] == kept <= shard.counts["sampled"]
    assert shard.counts["prompts"] == 10 == len(shard.texts) + shard.counts["dropped"]
    assert {text.temperature for text in shard.texts} <= {0.0, 0.7, 1.0}


def test_draws_follow_the_law_of_the_most_likely_tokens():
    class Text:
        temperature = 2.0

        class dice:
            turn = iter([0.0, 0.4, 0.99999])

            @classmethod
            def random(cls):
                return next(cls.turn)

    logits = torch.tensor([[0.0, 2.0, 1.0, -9.0]])
    law = (torch.tensor([2.0, 1.0]) / 2).softmax(0)  # the best two, most likely first
    assert law[0] > 0.4
    found = [answering.drawn(logits, [Text], 2)[0] for _ in range(3)]
    assert found == [1, 1, 2]


@pytest.mark.parametrize(
    ("tokens", "start"),
    [
        ([1, 2, 3] + [7, 8] * 20, 5),
        (list(range(50)), None),
        ([4] * 30, 1),
        ([1, 2] + [9] * 20, None),
        (list(range(30)) * 3, 30),
        (list(range(30)) * 2, None),
    ],
)
def test_where_a_loop_begins(tokens, start):
    assert answering.loop_start(tokens) == start


def test_loops_are_cut_off_and_what_is_short_is_dropped(monkeypatch):
    looping = lambda logits, texts, top_k: [3 + len(t.tokens) % 2 for t in texts]  # noqa: E731
    monkeypatch.setattr(answering, "drawn", looping)
    plan = sampling.Plan(longest_answer=64, per_shard=4, batch=2, shortest_kept=2)
    work = answering.Work(MODEL, plan, [(0, [5, 6, 7]), (1, [5, 6, 8])], False)
    work.run()
    assert [text.ids[text.start :] for text in work.done] == [[3, 4], [3, 4]]
    assert work.counts["looping"] == 2 and work.counts["sampled"] < 100
    strict = sampling.Plan(longest_answer=64, shortest_kept=24)
    work = answering.Work(MODEL, strict, [(0, [5, 6, 7])], False)
    work.run()
    assert work.done == [] and work.counts["dropped"] == 1


# Files


def test_the_export_holds_the_same_texts(tmp_path):
    sampled(tmp_path / "shards", 240)
    size = shards.export(tmp_path / "shards", tmp_path / "all.npz")
    assert size == (tmp_path / "all.npz").stat().st_size
    one, many = shards.read(tmp_path / "all.npz"), shards.read(tmp_path / "shards")
    assert one == many and len(many.texts) > 4


def test_no_samples_and_too_large_ids_are_named(tmp_path):
    with pytest.raises(ValueError, match="no samples in"):
        shards.read(tmp_path)
    big = shards.Shard([shards.Text(0, 0.0, [70_000], 0)], {})
    with pytest.raises(ValueError, match="16-bit"):
        shards.save(tmp_path, 0, big)
    assert shards.load(tmp_path, 0) is None
