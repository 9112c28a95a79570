"""The torch back end as a whole model: transformers' logits, slots, rollback, errors."""

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from utils import models
from utils.kernels import spec as specs
from utils.kernels.torch_step import TorchStep
from utils.kernels.weights import encode


def llama(**overrides):
    shape = dict(hidden_size=32, intermediate_size=48, vocab_size=100, max_position_embeddings=64)
    return models.tiny(**(shape | overrides))


def other(kind, config):
    shape = dict(
        vocab_size=100, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2,
        max_position_embeddings=64, sliding_window=None, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind(config(**shape))
    return model.eval().requires_grad_(False)


MODELS = {
    "llama": llama,
    "llama untied, biases": lambda: llama(
        tie_word_embeddings=False, attention_bias=True, mlp_bias=True, rms_norm_eps=0.1
    ),
    "llama one kv head, wide heads": lambda: llama(num_key_value_heads=1, head_dim=16),
    "llama 3 rotation": lambda: llama(
        rope_parameters=dict(
            rope_type="llama3",
            rope_theta=10000.0,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=16,
        )  # fmt: skip
    ),
    "qwen2": lambda: other(Qwen2ForCausalLM, Qwen2Config),
    "mistral": lambda: other(MistralForCausalLM, MistralConfig),
}


def engine(model, slots=2, max_tokens=32, kind="fp32"):
    spec = specs.read(model, max_tokens)
    state = model.state_dict()
    weights = {name: encode(state[f"{name}.weight"], kind) for name in spec.matrices()}
    return TorchStep(spec, weights, slots, max_tokens), weights


def text(length, seed=0):
    return torch.randint(3, 100, (length,), generator=torch.Generator().manual_seed(seed))


def close(logits, expected, relative=1e-4):
    return float((logits - expected).abs().max()) <= relative * float(expected.abs().max())


@pytest.mark.parametrize("name", MODELS)
def test_logits_of_transformers(name):
    model, ids = MODELS[name](), text(24)
    for parameter in model.parameters():
        if parameter.dim() == 1:  # norms and biases, which start as ones and zeros
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    step, _ = engine(model)
    expected = model(ids[None]).logits[0]
    assert close(step.step(ids, [1] * 24, range(24), range(24)), expected)


@pytest.mark.parametrize("kind", ["int4", "nf4", "fp8_e4m3", "sparse24"])
def test_logits_with_packed_weights(kind):
    model, ids = llama(tie_word_embeddings=False), text(10)
    step, weights = engine(model, kind=kind)
    for name, weight in weights.items():
        model.get_submodule(name).weight.data = weight.dequantize()
    expected = model(ids[None]).logits[0]
    assert close(step.step(ids, [0] * 10, range(10), range(10)), expected)


def test_mixed_rows_equal_single_runs():
    model = llama()
    step, _ = engine(model, slots=3)
    texts = [text(n, seed=n) for n in (9, 1, 6)]
    rows = [(t, slot, at) for slot, one in enumerate(texts) for at, t in enumerate(one.tolist())]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    tokens, slots, positions = zip(*(rows[i] for i in order), strict=True)
    last = [order.index(8), order.index(15), order.index(9)]
    logits = step.step(tokens, slots, positions, last)
    for row, one in zip(logits, (texts[0], texts[2], texts[1]), strict=True):
        assert close(row, model(one[None]).logits[0, -1])


def test_prompt_then_token_by_token():
    model, ids = llama(), text(12)
    step, _ = engine(model)
    step.step(ids[:5], [0] * 5, range(5), [])
    step.step(ids[5:9], [0] * 4, range(5, 9), [])
    for at in (9, 10, 11):
        logits = step.step([ids[at]], [0], [at], [0])
        assert close(logits[0], model(ids[None, : at + 1]).logits[0, -1])


def test_positions_are_taken_back_by_writing_again():
    model, ids, wrong = llama(), text(10), text(10, seed=5)
    step, _ = engine(model)
    step.step(ids[:6], [0] * 6, range(6), [])
    step.step(wrong[:4], [0] * 4, range(6, 10), [])
    logits = step.step(ids[6:8], [0] * 2, [6, 7], [1])
    assert close(logits[0], model(ids[None, :8]).logits[0, -1])


def test_what_stands_after_a_position_is_not_seen():
    step, _ = engine(llama())
    ids = text(8)
    clean = step.step(ids, [0] * 8, range(8), [7])
    step.keys[:, 0, 8:], step.values[:, 0, 8:] = 1e4, 1e4
    step.keys[:, 1], step.values[:, 1] = 1e4, 1e4
    assert torch.equal(step.step(ids, [0] * 8, range(8), [7]), clean)


def test_wanted_rows_in_their_order_or_none():
    step, _ = engine(llama())
    ids = text(4)
    every = step.step(ids, [0] * 4, range(4), range(4))
    assert close(step.step(ids, [0] * 4, range(4), [3, 1]), every[[3, 1]], 1e-5)
    assert step.step(ids, [0] * 4, range(4), []).shape == (0, 100)
    assert step.step([], [], [], []).shape == (0, 100)


def test_bytes():
    model = llama(attention_bias=True)
    step, _ = engine(model, slots=2, max_tokens=32)
    assert step.nbytes_weights == 4 * sum(p.numel() for p in model.parameters() if p.dim() == 2)
    assert step.nbytes_cache == 2 * 4 * 2 * 2 * 32 * 2 * 8  # k, v; fp32; layers, slots, tokens


@pytest.mark.parametrize(
    "rows, says",
    [
        (([1, 2], [0], [0, 1], []), "2 tokens, 1 slots"),
        (([100], [0], [0], []), "token 100"),
        (([1], [2], [0], []), "slot 2"),
        (([1], [0], [32], []), "position 32"),
        (([1], [0], [-1], []), "position -1"),
        (([1], [0], [0], [1]), "wanted row 1"),
        (([1, 2], [0, 0], [3, 3], []), "same slot and position"),
    ],
)
def test_errors_name_the_row(rows, says):
    step, _ = engine(llama())
    with pytest.raises(ValueError, match=says):
        step.step(*rows)


def test_errors_name_the_weight():
    model = llama()
    spec = specs.read(model, 16)
    _, weights = engine(model)
    name = spec.name(0, "q")
    with pytest.raises(ValueError, match=name):
        TorchStep(spec, {n: w for n, w in weights.items() if n != name}, 1, 16)
    with pytest.raises(ValueError, match=name):
        TorchStep(spec, weights | {name: encode(torch.ones(3, 4), "fp32")}, 1, 16)
    with pytest.raises(ValueError, match="max_tokens=17"):
        TorchStep(spec, weights, 1, 17)
