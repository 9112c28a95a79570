"""Removal of channels, head groups and blocks: the rest computes what it did; tensors shrink."""

import pytest
import torch

from utils import models, quality
from utils.engine import Engine
from utils.sparsity import structured

IDS = torch.randint(3, 250, (3, 24), generator=torch.Generator().manual_seed(0))
WIDE, GROUPS, HEAD = 128, 2, 16


@pytest.fixture(scope="module", autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def model():
    return models.tiny(intermediate_size=WIDE)


def chosen(count, total, seed=1):
    """Rising indices, different ones for each of two blocks."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randperm(total, generator=generator)[:count].sort().values for _ in range(2)]


def silenced(ending, columns):
    """A fresh model whose matrices `ending` have zero columns, one set for each block."""
    model = models.tiny(intermediate_size=WIDE)
    found = [m for name, m in models.linears(model).items() if name.endswith(ending)]
    for module, gone in zip(found, columns, strict=True):
        module.weight[:, gone] = 0
    return model


def others(keep, total):
    gone = torch.ones(total, dtype=torch.bool)
    gone[keep] = False
    return gone


def test_channels_that_stay_compute_what_they_did(model):
    keep = chosen(90, WIDE)
    small = structured.keep_channels(model, keep)
    twin = silenced("down_proj", [others(k, WIDE) for k in keep])
    torch.testing.assert_close(small(IDS).logits, twin(IDS).logits, rtol=0, atol=1e-5)
    block = structured.decoder_blocks(small)[1].mlp
    shapes = [tuple(m.weight.shape) for m in (block.gate_proj, block.up_proj, block.down_proj)]
    assert shapes == [(90, 64), (90, 64), (64, 90)] and small.config.intermediate_size == 90
    assert torch.equal(block.up_proj.weight, model.model.layers[1].mlp.up_proj.weight[keep[1]])


def test_a_group_takes_its_queries_along(model):
    keep = [torch.tensor([1]), torch.tensor([0])]
    small = structured.keep_groups(model, keep)
    gone = [others(structured.spans(k, 2 * HEAD), 4 * HEAD) for k in keep]
    twin = silenced("o_proj", gone)
    torch.testing.assert_close(small(IDS).logits, twin(IDS).logits, rtol=0, atol=1e-5)
    heads = small.config.num_attention_heads, small.config.num_key_value_heads
    assert heads == (2, 1) and small.config.head_dim == HEAD
    assert structured.decoder_blocks(small)[0].self_attn.q_proj.weight.shape == (2 * HEAD, 64)
    assert structured.decoder_blocks(small)[0].self_attn.k_proj.weight.shape == (HEAD, 64)


def test_single_query_heads_would_shift_the_pairing(model):
    """Why groups: 4 query heads over 2 keys; without query 0, query 2 would move to key 0."""
    wrong = structured.keep_groups(model, [torch.tensor([0, 1])] * 2)
    attention = structured.decoder_blocks(wrong)[0].self_attn
    before = wrong(IDS).logits
    order = torch.tensor([1, 2, 0, 3])
    rows = structured.spans(order, HEAD)
    attention.q_proj.weight.copy_(attention.q_proj.weight[rows])
    attention.o_proj.weight.copy_(attention.o_proj.weight[:, rows])
    assert not torch.allclose(wrong(IDS).logits, before, atol=1e-2)


def test_a_block_left_out_is_the_identity(model):
    small = structured.keep_blocks(model, [1])
    twin = models.tiny(intermediate_size=WIDE)
    first = structured.decoder_blocks(twin)[0]
    first.self_attn.o_proj.weight.zero_()
    first.mlp.down_proj.weight.zero_()
    torch.testing.assert_close(small(IDS).logits, twin(IDS).logits, rtol=0, atol=1e-5)
    assert small.config.num_hidden_layers == 1 == len(small.model.layers)
    assert len(model.model.layers) == 2 and model.config.num_hidden_layers == 2


def test_blocks_that_stay_take_the_first_cache_slots(model):
    small = structured.keep_blocks(model, [1])
    slots = [
        [block.self_attn.layer_idx for block in structured.decoder_blocks(m)]
        for m in (small, model)
    ]
    assert slots == [[0], [0, 1]]


def test_the_dense_model_is_untouched_and_shares_the_rest(model):
    before = models.weights_sha256(model)
    small = structured.keep_channels(model, chosen(32, WIDE))
    assert small.model.embed_tokens.weight is model.model.embed_tokens.weight
    assert small.lm_head.weight is small.model.embed_tokens.weight  # still tied
    structured.keep_groups(model, [torch.tensor([1])] * 2)
    assert models.weights_sha256(model) == before and model.config.intermediate_size == WIDE


def test_bytes_by_hand(model):
    """Per block 4 x 64 x 64 of queries and output, half of it keys and values, 3 x 64 x 128."""
    attention = 2 * 64 * 64 + 2 * 32 * 64
    dense = 4 * (256 * 64 + 2 * (attention + 3 * 64 * WIDE))
    assert structured.weight_bytes(model) == dense
    half = structured.keep_channels(model, chosen(64, WIDE))
    assert structured.weight_bytes(half) == dense - 4 * 2 * 3 * 64 * 64


def test_the_engine_and_generation_run_the_smaller_models(model):
    for small in (
        structured.keep_channels(model, chosen(80, WIDE)),
        structured.keep_groups(model, chosen(1, GROUPS)),
        structured.keep_blocks(model, [1]),
    ):
        engine = Engine(small, max_tokens=32, threads=1)
        torch.testing.assert_close(engine.step(IDS[0]), small(IDS[:1]).logits[0], rtol=0, atol=2e-4)
        engine.close()
        cached = small.generate(IDS[:1], max_new_tokens=3, do_sample=False)
        plain = small.generate(IDS[:1], max_new_tokens=3, do_sample=False, use_cache=False)
        assert torch.equal(cached, plain)


@pytest.mark.parametrize("cut", ["channels", "groups", "blocks"])
def test_perplexity_survives_save_and_reload(model, cut, tmp_path):
    keep = {"channels": chosen(96, WIDE), "groups": chosen(1, GROUPS), "blocks": [1]}[cut]
    small = getattr(structured, f"keep_{cut}")(model, keep)
    dense, before = quality.perplexity(model, IDS), quality.perplexity(small, IDS)
    small.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert quality.perplexity(again, IDS).value == pytest.approx(before.value, rel=1e-6)
    assert dense.value != pytest.approx(before.value, rel=1e-3)


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        ([torch.arange(4)], "names 1 layers"),
        ([torch.arange(4), torch.arange(5)], "equally long"),
        ([torch.arange(0), torch.arange(0)], "none empty"),
        ([torch.tensor([3, 1])] * 2, "rising indices"),
        ([torch.tensor([1, 1])] * 2, "rising indices"),
        ([torch.tensor([0, WIDE])] * 2, f"below {WIDE}"),
    ],
)
def test_bad_choices_are_named(model, keep, words):
    with pytest.raises(ValueError, match=words):
        structured.keep_channels(model, keep)


def test_other_architectures_are_refused():
    with pytest.raises(ValueError, match="Llama-shaped"):
        structured.decoder_blocks(torch.nn.Sequential(torch.nn.Linear(4, 4)))
