"""The engine's steps: transformers' logits, the same bits however fed, roll-back, errors.

A tiny random model with confident logits; what needs the course's model is in test_engine_model.
"""

import gc
import os
import threading
import time
import weakref

import pytest
import torch
from small_engine import MODELS, PROMPT, close, engine, greedy_by_transformers, other, text
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from utils import models
from utils.kernels import layout
from utils.kernels.weights import KINDS, encode
from utils.quantization import model as quantized
from utils.quantization import rtn

FORMS = [*KINDS, "int8 zero", "int4 zero"]


def with_form(form, model=None, **options):
    """An engine whose layers have a storage form; " zero": with zero points."""
    model = model or models.tiny()
    if "zero" not in form:
        return engine(model, form, **options)
    bits, layers = int(form[3]), models.linears(model)
    given = {n: rtn.quantize(m.weight, bits, 32, symmetric=False) for n, m in layers.items()}
    return engine(model, given, **options)


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_greedy_text_of_transformers(name):
    model, ids = MODELS[name](), text(300)
    made = engine(model)
    assert close(made.step(ids), model(torch.tensor([ids])).logits[0])
    new = made.generate(ids[:40], 20, eos_token_id=()).tokens[0]
    assert new == greedy_by_transformers(model, ids[:40], 20)


@pytest.mark.parametrize("form", FORMS)
def test_packed_weights_equal_dequantized_ones(form):
    model, ids = models.tiny(tie_word_embeddings=False), text(100)
    made = with_form(form, model)
    for name in made.spec.matrices():
        whole = made.backend.packed[name]
        shape = model.get_submodule(name).weight.shape
        dense = torch.from_numpy(layout.rows(whole, range(shape[0]))[:, : shape[1]].copy())
        model.get_submodule(name).weight.data = dense
    expected = model(torch.tensor([ids])).logits[0]
    tolerance = 1e-3 if form.startswith("int") else 1e-4  # activations of 16 bits
    assert close(made.step(ids), expected, tolerance)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_bits_for_each_way_of_feeding(form):
    made, ids = with_form(form, max_rows=70), text(290)
    whole = torch.cat([made.step([i]) for i in ids])
    for size in (2, 3, 4, 5, 6, 7, 8, 9, 64, 70, 290):
        made.crop(0)
        parts = [made.step(ids[at : at + size]) for at in range(0, len(ids), size)]
        assert torch.equal(torch.cat(parts), whole), size
    for length in (289, 257, 16, 1):
        made.crop(length)
        assert torch.equal(made.step(ids[length:]), whole[length:])
    made.crop(3)
    made.step(text(200, seed=8))
    made.crop(3)
    assert torch.equal(made.step(ids[3:], rows=5), whole[-5:])


@pytest.mark.parametrize("form", ["fp32", "int8", "int4 zero"])
@pytest.mark.parametrize("threads", [2, 3, 5])
def test_the_same_bits_for_each_number_of_threads(form, threads):
    ids = text(280)
    alone, team = with_form(form), with_form(form, threads=threads, max_rows=8)
    assert torch.equal(team.step(ids), alone.step(ids))
    assert torch.equal(team.step([7]), alone.step([7]))
    team.close()


def test_slots_are_independent_and_equal_to_one_text_alone():
    texts = [text(n, seed=n) for n in (3, 40, 261, 1)]
    made, alone = engine(batch=4), engine()
    last = [made.step(one, slot)[-1] for slot, one in enumerate(texts)]
    for turn in range(3):
        tokens = [int(row.argmax()) for row in last]
        last = list(made.decode(tokens))
        for slot, token in enumerate(tokens):
            texts[slot].append(token)
            alone.reset()
            assert torch.equal(alone.step(texts[slot])[-1], last[slot]), (turn, slot)
    rows = made.decode([4, 5], slots=[3, 1])
    alone.reset()
    assert torch.equal(alone.step([*texts[1], 5])[-1], rows[1])
    assert [made.length(slot) for slot in range(4)] == [6, 44, 264, 5]


def test_left_padded_batch_of_transformers():
    model = models.tiny()
    texts = [text(n, seed=n) for n in (3, 12, 7)]
    ids, mask = torch.zeros(2, 3, 12, dtype=torch.int64)
    for row, one in enumerate(texts):
        ids[row, -len(one) :], mask[row, -len(one) :] = torch.tensor(one), 1
    settings = dict(max_new_tokens=15, do_sample=False, eos_token_id=None, pad_token_id=0)
    expected = model.generate(ids, attention_mask=mask, **settings)[:, 12:].tolist()
    made = engine(model, batch=3)
    assert made.generate(ids, 15, attention_mask=mask, eos_token_id=()).tokens == expected
    assert made.generate(texts, 15, eos_token_id=()).tokens == expected


@pytest.mark.parametrize("batch", [2, 7, 32])
def test_batches_give_what_each_text_gives_alone(batch):
    texts = [text(1 + 7 * i % 50, seed=i) for i in range(batch)]
    made, alone = engine(batch=batch, weights="int8"), engine(weights="int8")
    together = made.generate(texts, 6, eos_token_id=()).tokens
    assert together == [alone.generate(one, 6, eos_token_id=()).tokens[0] for one in texts]


def test_follow_keeps_what_two_texts_have_in_common():
    made, fresh, ids = engine(), engine(), text(50)
    fed = []
    step, made.step = made.step, lambda new, **how: fed.append(len(new)) or step(new, **how)
    for one, rows, new in (
        (ids, 1, 50),
        ([*ids, 7, 8], 3, 3),
        (ids, 1, 1),
        ([*ids[:20], 9, 9], 2, 2),
        (ids[:5], 5, 5),
        ([3], 1, 1),
    ):
        fresh.reset()
        assert torch.equal(made.follow(one, rows=rows), fresh.step(one, rows=rows))
        assert fed[-1] == new and made.texts[0] == one
    with pytest.raises(ValueError, match="rows=2"):
        made.follow([3], rows=2)
    with pytest.raises(ValueError, match="max_tokens=400"):
        made.follow([4] * 401)
    assert made.texts[0] == [3]


def test_scratch_of_attention_has_a_row_for_each_head_that_shares():
    made = engine(MODELS["seven heads share"](), threads=2)
    assert made.backend.state.scores.shape[:2] == (2, 7)


def test_sizes_in_bytes():
    made = engine(models.tiny(tie_word_embeddings=False), batch=3, max_tokens=256)
    numbers = sum(out * into for out, into in made.spec.matrices().values())
    assert made.nbytes == 4 * numbers
    assert made.cache_nbytes == 3 * 2 * 2 * 2 * 256 * 16 * 4
    assert made.bytes_per_token(10) == made.nbytes + 10 * made.cache_nbytes / 256 / 3
    small = engine(models.tiny(tie_word_embeddings=False), "int4")
    assert small.nbytes < 0.3 * made.nbytes


@pytest.mark.parametrize("form", KINDS)
def test_all_back_ends_count_the_bytes_of_the_matrices_alone(form):
    model = models.tiny(attention_bias=True, mlp_bias=True)  # no matrix needs filling
    made, plain = engine(model, form), engine(model, form, backend="torch")
    tables = 1024 * len(made.spec.matrices()) if form.startswith("fp8") else 0
    assert plain.nbytes == made.nbytes + tables  # torch looks fp8 up, Numba computes it


def test_forms_by_matrix_and_as_the_model_holds_them():
    model, ids = models.tiny(), text(30)
    names = list(models.linears(model))
    mixed = {name: KINDS[i % len(KINDS)] for i, name in enumerate(names)}
    made = engine(model, mixed)
    assert set(made.kinds) == set(KINDS)
    assert torch.isfinite(made.step(ids)).all()
    assert engine(models.tiny().to(torch.bfloat16), None).kinds == ["bf16"]


@pytest.mark.parametrize("skip", [("lm_head",), ("o_proj",)])
def test_a_quantized_model_keeps_its_codes(skip):
    model, ids = models.tiny(tie_word_embeddings=False), text(30)
    quantized.quantize_model(model, bits=8, group_size=32, skip=skip)
    made = engine(model, None)
    assert made.kinds == ["fp32", "int8"]
    assert close(made.step(ids), model(torch.tensor([ids])).logits[0], 1e-3)


# Errors: before any work, with the name of what is wrong.


def broken(name, value=float("nan")):
    model = models.tiny(tie_word_embeddings=False, attention_bias=True)
    parameter = dict(model.named_parameters())[name]
    parameter.view(-1)[3] = value
    return model


Q = "model.layers.0.self_attn.q_proj"
UNSUPPORTED = {
    f"{Q}: the weight holds NaN": lambda: engine(broken(f"{Q}.weight")),
    "lm_head: the weight holds NaN": lambda: engine(broken("lm_head.weight", float("inf")), "int4"),
    f"bias of {Q} holds NaN": lambda: engine(broken(f"{Q}.bias")),
    "final norm holds NaN": lambda: engine(broken("model.norm.weight")),
    r"shape \(3, 64\) was given": lambda: engine(None, {Q: torch.ones(3, 64)}),
    "'model.layers.9.x' is not a matrix": lambda: engine(None, {"model.layers.9.x": "int8"}),
    "weights='int3': use one of": lambda: engine(None, "int3"),
    f"{Q}: weights='int3'": lambda: engine(None, {Q: "int3"}),
    f"{Q}: no kernel reads 3 bits": lambda: engine(None, {Q: rtn.quantize(torch.ones(64, 64), 3)}),
    "group_size=0": lambda: engine(None, {Q: rtn.quantize(torch.ones(64, 64), 8, group_size=0)}),
    "model_type='gpt2'": lambda: engine(
        GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2))
    ),
    "model_type='qwen3'": lambda: engine(other(Qwen3ForCausalLM, Qwen3Config)),
    "sliding_window=399": lambda: engine(
        other(MistralForCausalLM, MistralConfig, sliding_window=399)
    ),
    "rope_type='dynamic'": lambda: engine(
        models.tiny(rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=2.0))
    ),
    "hidden_act='gelu'": lambda: engine(models.tiny(hidden_act="gelu")),
    "head_dim=8": lambda: engine(models.tiny(head_dim=8)),
    "max_tokens=513": lambda: engine(None, max_tokens=513),
    "max_tokens=0": lambda: engine(None, max_tokens=0),
    "batch=0": lambda: engine(None, batch=0),
    "threads=0": lambda: engine(None, threads=0),
    "max_rows=0": lambda: engine(None, max_rows=0),
    "backend='cuda'": lambda: engine(None, backend="cuda"),
}


@pytest.mark.parametrize("says", UNSUPPORTED)
def test_what_cannot_be_run_is_refused_by_name(says):
    with pytest.raises(ValueError, match=says):
        UNSUPPORTED[says]()


@pytest.mark.parametrize("weights", [None, "int8"])
def test_settings_are_checked_before_any_weight_is_touched(monkeypatch, weights):
    monkeypatch.setattr("utils.kernels.select.each", lambda *_: pytest.fail("work was done"))
    for options in (dict(backend="cuda"), dict(max_tokens=513), dict(batch=0)):
        with pytest.raises(ValueError):
            engine(None, weights, **options)
    with pytest.raises(ValueError):
        engine(models.tiny(head_dim=8), weights)


BAD_STEPS = {
    "max_tokens=400": lambda e: e.step([4] * 398),
    "token id 256": lambda e: e.step([1, 256]),
    "token id -1": lambda e: e.step([-1]),
    "token id 1.5": lambda e: e.step([1.5]),
    "at least one token": lambda e: e.step([]),
    "slot 2": lambda e: e.step([1], slot=2),
    "slot -1": lambda e: e.step([1], slot=-1),
    "rows=0": lambda e: e.step([1, 2], rows=0),
    "rows=3": lambda e: e.step([1, 2], rows=3),
    "crop to 4": lambda e: e.crop(4),
    "crop to -1": lambda e: e.crop(-1),
    "no slot twice": lambda e: e.decode([1, 2], slots=[0, 0]),
    "2 tokens for slots": lambda e: e.decode([1, 2], slots=[0]),
    "token id 300": lambda e: e.decode([1, 300]),
}


@pytest.mark.parametrize("says", BAD_STEPS)
def test_a_refused_step_changes_nothing(says):
    made = engine(batch=2)
    made.step(PROMPT[:3])
    with pytest.raises(ValueError, match=says):
        BAD_STEPS[says](made)
    assert made.texts == [PROMPT[:3], []]
    assert torch.equal(made.step(PROMPT[3:])[-1], engine().step(PROMPT)[-1])


def test_the_context_can_be_filled_to_the_last_place():
    made, ids = engine(max_tokens=300), text(300)
    whole = made.step(ids)
    made.crop(299)
    assert torch.equal(made.step(ids[299:])[0], whole[299])
    with pytest.raises(ValueError, match="300 tokens are held and 1 would follow"):
        made.step([5])


# Threads: closed, collected, forked, several engines.


def new_threads(before):
    return set(threading.enumerate()) - before


def test_a_closed_engine_has_no_threads_and_says_so():
    before = set(threading.enumerate())
    made = engine(threads=3)
    made.step(PROMPT)
    mine = new_threads(before)
    made.close()
    made.close()
    for thread in mine:
        thread.join(timeout=10)
    assert len(mine) == 2 and not any(thread.is_alive() for thread in mine)
    with pytest.raises(RuntimeError, match="closed"):
        made.step([1])


def test_an_engine_that_nobody_holds_is_collected_with_its_threads():
    before = set(threading.enumerate())
    made = engine(threads=3)
    made.step(PROMPT)
    mine, gone = new_threads(before), weakref.ref(made)
    del made
    gc.collect()
    for thread in mine:
        thread.join(timeout=10)
    assert gone() is None
    assert len(mine) == 2 and not any(thread.is_alive() for thread in mine)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_goes_on():
    made = engine(threads=2)
    made.step(PROMPT)
    expected = made.step([7])
    made.crop(len(PROMPT))
    time.sleep(0.05)  # one thread sleeps by now
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(made.step([7]), expected) else 3)
    end = time.monotonic() + 60
    while (done := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.01)
    if done[0] == 0:
        os.kill(child, 9)
    assert done[0] == child and os.waitstatus_to_exitcode(done[1]) == 0
    assert torch.equal(made.step([7]), expected)


def test_two_engines_in_two_python_threads():
    alone = {w: engine(weights=w).generate(PROMPT, 60, eos_token_id=()) for w in ("fp32", "int8")}
    teams, found = {w: engine(weights=w, threads=2) for w in alone}, {}

    def run(weights):
        made = teams[weights]
        found[weights] = [made.generate(PROMPT, 60, eos_token_id=()) for _ in range(3)]

    workers = [threading.Thread(target=run, args=[w]) for w in alone]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
    for weights, expected in alone.items():
        assert [one.tokens for one in found[weights]] == [expected.tokens] * 3


def test_steps_after_a_pause_and_in_quick_succession():
    made, expected = engine(threads=3), engine().step(text(120))
    parts = []
    for i, token in enumerate(text(120)):
        if i % 17 == 0:
            time.sleep(0.003 * (i % 3))
        parts.append(made.step([token]))
    assert torch.equal(torch.cat(parts), expected)


def test_the_model_is_not_kept():
    model = models.tiny()
    made, gone = engine(model), weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None and made.step(PROMPT).shape == (9, 256)


def test_weights_may_be_given_ready_made():
    model = models.tiny()
    given = {Q: encode(model.get_submodule(Q).weight, "fp32")}
    assert torch.equal(engine(model, given).step(PROMPT), engine(model).step(PROMPT))
