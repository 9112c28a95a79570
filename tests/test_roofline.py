"""Decode costs against counters, cache tensors, the engine and published arithmetic."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from utils import architecture, models, roofline
from utils.quantization import size
from utils.speculative.cached import cache_keyword

GIB, GB = 2**30, 1e9


def counted(model, tokens, context=0, batch=1, **options):
    """FLOPs that torch counts for a step after `context` tokens (attention as matrix products)."""
    with torch.no_grad():
        cache = None
        if context:
            cache = model(torch.zeros(batch, context, dtype=torch.long)).past_key_values
        with FlopCounterMode(display=False) as counter:
            model(
                torch.zeros(batch, tokens, dtype=torch.long),
                **{cache_keyword(model): cache},
                **options,
            )
    return counter.get_total_flops()


def small(kind, **shape):
    """A small model of transformers with attention written as matrix products."""
    from transformers import AutoConfig, AutoModelForCausalLM

    common = dict(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, vocab_size=128)
    config = AutoConfig.for_model(kind, **(common | shape))
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def dense():
    return small("llama", num_key_value_heads=2, head_dim=24, intermediate_size=100)


def latent():
    return small(
        "deepseek_v3", num_key_value_heads=4, intermediate_size=96, moe_intermediate_size=32,
        n_routed_experts=8, num_experts_per_tok=2, first_k_dense_replace=1, n_group=1,
        topk_group=1, q_lora_rank=24, kv_lora_rank=40, qk_nope_head_dim=16, qk_rope_head_dim=8,
        v_head_dim=12,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("tokens", "context", "batch"), [(1, 0, 1), (1, 9, 3), (7, 0, 2), (5, 4, 2)]
)
def test_flops_equal_torchs_count(tokens, context, batch):
    model = dense()
    parts = roofline.flops(model.config, tokens, context, batch, causal=False)
    assert sum(parts.values()) == counted(model, tokens, context, batch)


def test_flops_with_logits_of_the_last_token_only():
    model = dense()
    parts = roofline.flops(model.config, 7, causal=False, logits=1)
    assert sum(parts.values()) == counted(model, 7, logits_to_keep=1)
    assert parts["head"] == 2 * 128 * 64


@pytest.mark.parametrize(("tokens", "context"), [(6, 0), (1, 5)])
def test_flops_of_latent_attention_and_experts(tokens, context):
    model = latent()
    parts = roofline.flops(model.config, tokens, context, causal=False, absorbed=False)
    assert sum(parts.values()) - parts["experts"] == without_experts(model, tokens, context)


def without_experts(model, tokens, context):
    """Torch's count with the routed experts' products left out (they run in many ways)."""
    for layer in model.model.layers[1:]:
        layer.mlp.experts.forward = lambda hidden, *_: torch.zeros_like(hidden)
    return counted(model, tokens, context)


def test_experts_work_is_that_of_the_selected_ones():
    parts = roofline.flops("mixtral-8x7b", 1)
    assert parts["experts"] == 2 * 32 * 2 * 3 * 4096 * 14336
    assert parts["router"] == 2 * 32 * 8 * 4096


def test_decode_flops_by_hand():
    """SmolLM2-135M, one token, 100 cached: 2 x 134,479,872 for matrices and the pairs."""
    parts = roofline.flops("smollm2-135m", 1, context=100)
    assert parts["projections"] == 30 * 2 * (2 * 576 * 576 + 2 * 192 * 576)
    assert parts["mlp"] == 30 * 2 * 3 * 576 * 1536
    assert parts["head"] == 2 * 576 * 49152
    assert parts["scores"] == parts["mixing"] == 2 * 30 * 9 * 64 * 101


def test_pairs_of_a_prompt_count_the_triangle():
    assert roofline.query_key_pairs(4) == 1 + 2 + 3 + 4
    assert roofline.query_key_pairs(4, context=10) == 11 + 12 + 13 + 14
    assert roofline.query_key_pairs(4, context=10, causal=False) == 4 * 14
    whole = sum(roofline.flops("llama-3-8b", 40).values())
    steps = [sum(roofline.flops("llama-3-8b", 1, context=i).values()) for i in range(40)]
    assert whole == sum(steps), "a prompt in one piece or token by token is the same work"


def test_case_49_units_are_named():
    parameters = architecture.read("llama-3-8b").total
    assert round(parameters * 2 / GB, 2) == 16.06
    assert round(parameters * 2 / GIB, 2) == 14.96


def test_case_50_cache_of_llama_3_8b():
    assert roofline.kv_cache_bytes("llama-3-8b", 8192) == GIB
    without_groups = architecture.presets()["llama-3-8b"]["config"] | {"num_key_value_heads": 32}
    assert roofline.kv_cache_bytes(without_groups, 8192) == 4 * GIB


def test_case_51_true_bits_per_weight():
    assert size.bits_per_weight(4, 32) == 4.5
    assert size.bits_per_weight(4, 64, zero_bits=16) == 4.5
    assert size.bits_per_weight(4, 128, zero_bits=4) == pytest.approx(4.156, abs=5e-4)
    double = 8 + 32 / 256  # an 8-bit scale per block, one fp32 for 256 of them
    assert size.bits_per_weight(4, 64, scale_bits=double) == pytest.approx(4.127, abs=5e-4)


@pytest.mark.parametrize("make", [dense, latent])
def test_cache_bytes_equal_the_tensors_of_transformers(make):
    model = make()
    with torch.no_grad():
        cache = model(torch.zeros(3, 11, dtype=torch.long)).past_key_values
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert roofline.kv_cache_bytes(model.config, 11, bytes_per_value=4, batch=3) == held


def test_cache_and_weights_equal_the_engines():
    from utils.engine import Engine

    model = models.tiny()
    engine = Engine(model, max_tokens=256, batch=2, threads=1)  # it keeps blocks of 256 positions
    assert roofline.kv_cache_bytes(model.config, 256, 4, batch=2) == engine.cache_nbytes
    parts = roofline.decode_bytes(model.config, 30, bits_per_weight=32, bytes_per_value=4)
    assert parts["weights"] == engine.nbytes
    assert parts["weights"] + parts["cache_read"] == engine.bytes_per_token(30)


def test_decode_bytes_hold_every_parameter_once():
    for model in (models.tiny(), models.tiny(tie_word_embeddings=False, attention_bias=True)):
        parts = roofline.decode_bytes(model.config, 0, bits_per_weight=32, bytes_per_value=4)
        a = architecture.read(model.config)
        row = 4 * a.hidden if a.tied else 0  # read once more, as a row of the embedding
        assert sum(parts.values()) - parts["cache_write"] == 4 * a.active + row


def test_batch_shares_weights_but_not_the_cache():
    one, many = (roofline.decode_bytes("llama-3-8b", 1000, batch=n) for n in (1, 16))
    assert many["weights"] == one["weights"]
    assert many["cache_read"] == 16 * one["cache_read"]
    assert many["cache_write"] == 16 * one["cache_write"]
    assert many["embedding"] == 16 * one["embedding"]


def test_attention_intensity_is_query_heads_per_key_value_head():
    """2 heads / kv_heads FLOPs per value read, whatever batch and context."""
    for name, ratio in (("llama-2-7b", 1), ("llama-3-8b", 4), ("gemma-2b", 8)):
        for batch, context in ((1, 500), (32, 5000)):
            work = roofline.flops(name, 1, context - 1, batch)
            read = roofline.decode_bytes(name, context, batch=batch)["cache_read"]
            assert roofline.intensity(work["scores"] + work["mixing"], read) == ratio, name


def test_latent_attention_reads_little_and_computes_much():
    work = roofline.flops("deepseek-v3", 1, 999)
    read = roofline.decode_bytes("deepseek-v3", 1000)["cache_read"]
    assert roofline.intensity(work["scores"] + work["mixing"], read) == pytest.approx(
        128 * (576 + 512) / 576
    )


def test_cache_per_token_of_four_kinds_of_attention():
    values = {n: architecture.read(n).cache_values for n in ("llama-2-7b", "llama-3-8b")}
    assert values == {"llama-2-7b": 2 * 32 * 128, "llama-3-8b": 2 * 8 * 128}
    assert architecture.read("gemma-2b").cache_values == 2 * 256
    assert architecture.read("deepseek-v3").cache_values == 512 + 64


def test_crossover_is_where_the_cache_weighs_as_much():
    tokens = roofline.crossover_tokens("llama-3-8b")
    assert roofline.kv_cache_bytes("llama-3-8b", tokens) == pytest.approx(2 * 8_030_261_248)
    quarter = roofline.crossover_tokens("llama-3-8b", bits_per_weight=4)
    assert quarter == tokens / 4


def test_distinct_experts_against_enumeration():
    """3 experts, 2 per token, 2 tokens: of the 9 pairs of choices 3 are equal."""
    assert roofline.distinct_experts(3, 2, 2) == pytest.approx((3 * 2 + 6 * 3) / 9)
    assert roofline.distinct_experts(128, 8, 1) == pytest.approx(8)
    assert roofline.distinct_experts(8, 8, 5) == 8
    assert 127 < roofline.distinct_experts(128, 8, 100) < 128


def test_batch_makes_more_experts_active():
    one, many = (roofline.decode_bytes("mixtral-8x7b", 0, batch=n)["weights"] for n in (1, 8))
    a = architecture.read("mixtral-8x7b")
    assert one == pytest.approx(2 * (a.active - a.norms - a.hidden))
    experts = a.parameters()["experts"] * 2
    used = roofline.distinct_experts(8, 2, 8)
    assert many - one == pytest.approx(experts * (used - 2) / 8)


def test_ceiling_intensity_and_step_time():
    parts = {"weights": 16e9, "cache_read": 1e9}
    assert roofline.decode_ceiling(parts, 3.4e12) == 200
    assert roofline.decode_ceiling(17e9, 3.4e12) == 200
    assert roofline.intensity({"a": 30, "b": 10}, 20) == 2
    assert roofline.step_seconds(parts, 1e12, bandwidth=17e9, flops_per_second=1e13) == 1
    assert roofline.step_seconds(17e9, {"a": 4e13}, 17e9, 1e13, fixed=0.5) == 4.5


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: roofline.flops("llama-3-8b", 0), "new_tokens=0"),
        (lambda: roofline.flops("llama-3-8b", 4, logits=5), "logits=5"),
        (lambda: roofline.flops("llama-3-8b", 4, context=-1), "context=-1"),
        (lambda: roofline.kv_cache_bytes("llama-3-8b", -1), "tokens=-1"),
        (lambda: roofline.decode_bytes("llama-3-8b", 1, batch=0), "batch=0"),
        (lambda: roofline.decode_ceiling(0, 1e9), "above 0"),
        (lambda: roofline.intensity(1, {}), "needs bytes"),
        (lambda: roofline.step_seconds(1, 1, 0, 1), "bandwidth=0"),
        (lambda: roofline.distinct_experts(8, 9, 1), "9 experts per token of 8"),
        (lambda: roofline.kv_cache_bytes("gpt-5", 1), "unknown preset"),
        (lambda: roofline.kv_cache_bytes("llama-3-8b", "8192"), "tokens='8192'"),
        (lambda: roofline.kv_cache_bytes("llama-3-8b", float("nan")), "tokens=nan"),
        (lambda: roofline.flops("llama-3-8b", 2.5), "new_tokens=2.5"),
        (lambda: roofline.query_key_pairs(-1), "new_tokens=-1"),
        (lambda: roofline.distinct_experts(8, 2, -1), "tokens=-1"),
        (lambda: roofline.crossover_tokens("llama-3-8b", 16, 0), "bytes_per_value=0"),
        (lambda: roofline.crossover_tokens("llama-3-8b", -4), "bits_per_weight=-4"),
        (lambda: roofline.decode_ceiling(float("nan"), 1e9), "above 0"),
        (lambda: roofline.step_seconds(-1, 1, 1, 1), "bytes_moved=-1"),
        (lambda: roofline.intensity({"a": -5}, 1), "flops=-5"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.slow
def test_the_course_model_is_counted_exactly():
    model = models.load(dtype=torch.float32).model
    model.set_attn_implementation("eager")
    for tokens, context in ((16, 0), (1, 16)):
        parts = roofline.flops(model.config, tokens, context, causal=False)
        assert sum(parts.values()) == counted(model, tokens, context)
