"""On the embedded model: greedy speculation equals plain decoding and transformers' own (case 30).

fp32, token for token; or the first difference is a near-tie of less than 1e-3 between two logits,
which is counted and shown.
"""

import pytest
import torch

from utils import models
from utils.speculative import agreement, decode, drafting

NEAR_TIE = 1e-3


def test_equal_texts_and_the_first_difference():
    model = models.tiny()
    assert agreement.compare(model, [1, 5], [3, 4], [3, 4]).equal
    found = agreement.compare(model, [1, 5], [3, 4, 9], [3, 7, 9])
    logits = model(torch.tensor([[1, 5, 3]])).logits[0, -1]
    assert found.place == 1 and not found.equal
    assert found.logit_gap == pytest.approx(abs(float(logits[4] - logits[7])), abs=1e-5)
    assert found.within(found.logit_gap + 1e-9) and not found.within(found.logit_gap / 2)


def test_a_text_that_stops_early_is_no_near_tie():
    found = agreement.compare(models.tiny(), [1], [3], [3, 4])
    assert found.place == 1 and not found.within(NEAR_TIE)


PROMPTS = {
    "copy": "Repeat this sentence three times: The quick brown fox jumps over the lazy dog.",
    "chat": "What is gravity?",
}


@pytest.fixture(scope="module")
def loaded():
    return models.load()


def prompt_ids(loaded, kind):
    message = [{"role": "user", "content": PROMPTS[kind]}]
    return loaded.tokenizer.apply_chat_template(
        message, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]


def transformers_text(model, ids, **kwargs):
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False, **kwargs
    )
    return out[0, ids.shape[1] :].tolist()


def check(model, ids, texts):
    """Every text equals the first one, or parts from it at a near-tie."""
    plain, *others = texts.items()
    for name, text in others:
        found = agreement.compare(model, ids[0].tolist(), plain[1], text)
        if not found.equal:
            print(f"{name}: first difference at {found.place}, logit gap {found.logit_gap:.1e}")
        assert found.within(NEAR_TIE), name


@pytest.mark.slow
def test_prompt_lookup_agrees(loaded):
    model, ids = loaded.model, prompt_ids(loaded, "copy")
    ours, stats = decode.generate(model, drafting.PromptLookup(), ids, 20, k=5)
    assert stats.accepted > 0
    texts = {
        "plain": decode.generate(model, None, ids, 20, k=0)[0].tolist(),
        "ours": ours.tolist(),
        "transformers": transformers_text(model, ids, prompt_lookup_num_tokens=5),
    }
    check(model, ids, texts)


@pytest.mark.slow
def test_early_exit_agrees(loaded):
    model, ids = loaded.model, prompt_ids(loaded, "chat")
    drafter = drafting.ModelDrafter(drafting.truncated(model, 26))
    ours, stats = decode.generate(model, drafter, ids, 20, k=3)
    assert stats.accepted > 0
    texts = {
        "transformers": transformers_text(model, ids),
        "ours": ours.tolist(),
        "transformers early exit": transformers_text(model, ids, assistant_early_exit=26),
    }
    check(model, ids, texts)
