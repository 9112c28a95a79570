"""Small models, texts and comparisons for the tests of the engine."""

import torch
from transformers import MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from utils import models
from utils.engine import Engine

PROMPT = [5, 9, 17, 5, 9, 33, 41, 5, 9]
LLAMA3 = dict(
    rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
    high_freq_factor=4.0, original_max_position_embeddings=32,
)  # fmt: skip
LINEAR = dict(rope_type="linear", rope_theta=10000.0, factor=4.0)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=128)


def other(kind, config, **overrides):
    """A random model of another family, with norms and biases that do something."""
    shape = dict(
        vocab_size=256, hidden_size=64, intermediate_size=112, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2,
        max_position_embeddings=512, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind(config(**(shape | overrides))).eval().requires_grad_(False)
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_(1, 0.3)
    return model


MODELS = {
    "llama": models.tiny,
    "one head each": lambda: models.tiny(num_key_value_heads=4),
    "four heads share": lambda: models.tiny(num_key_value_heads=1),
    "seven heads share": lambda: models.tiny(
        hidden_size=112, num_attention_heads=14, num_key_value_heads=2, head_dim=16
    ),
    "eight heads share": lambda: models.tiny(
        num_attention_heads=8, num_key_value_heads=1, head_dim=32
    ),
    "untied, wide heads": lambda: models.tiny(tie_word_embeddings=False, head_dim=64),
    "odd sizes": lambda: models.tiny(
        hidden_size=72,
        intermediate_size=100,
        vocab_size=251,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=16,
        rms_norm_eps=0.1,
        attention_bias=True,
        mlp_bias=True,
    ),  # fmt: skip
    "llama 3 rotation": lambda: models.tiny(rope_parameters=LLAMA3),
    "linear rotation": lambda: models.tiny(rope_parameters=LINEAR),
    "yarn rotation": lambda: models.tiny(rope_parameters=YARN),
    "qwen2": lambda: other(Qwen2ForCausalLM, Qwen2Config),
    "mistral": lambda: other(MistralForCausalLM, MistralConfig, sliding_window=None),
    "mistral, long window": lambda: other(MistralForCausalLM, MistralConfig, sliding_window=400),
}


def engine(model=None, weights="fp32", **options):
    """An engine on one thread for texts of 400 tokens, unless said otherwise."""
    options = dict(max_tokens=400, threads=1) | options
    return Engine(model or models.tiny(), weights, **options)


def text(length, seed=0, vocabulary=250):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocabulary, (length,), generator=generator).tolist()


def close(logits, expected, relative=1e-4):
    """Largest difference against the largest logit of each row."""
    largest = expected.abs().amax(-1)
    return bool(((logits - expected).abs().amax(-1) <= relative * largest).all())


def greedy_by_transformers(model, ids, count):
    ids = list(ids)
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[-count:]
