"""The channel shuffle keeps the model's function, and undoes itself exactly."""

import copy

import pytest
import torch

from utils import models, permutation

IDS = torch.arange(40)[None]


@pytest.mark.parametrize("heads, kv_heads", [(4, 2), (4, 4), (6, 1)])
@pytest.mark.parametrize("tied", [True, False])
def test_outputs_stay_the_same(heads, kv_heads, tied):
    shape = dict(num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=tied)
    model = models.tiny(hidden_size=16 * heads, **shape)
    before = model(IDS).logits
    original = copy.deepcopy(model.state_dict())
    permutation.apply(model, permutation.draw(model.config, seed=3))
    after = model(IDS).logits
    assert (after - before).abs().max() <= 1e-4 * before.abs().max()
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    moved = [k for k, v in model.state_dict().items() if not torch.equal(v, original[k])]
    assert len([k for k in moved if k.endswith("proj.weight")]) == 14


def test_the_inverse_restores_every_bit():
    model = models.tiny()
    digest = models.weights_sha256(model)
    drawn = permutation.draw(model.config, seed=3)
    permutation.apply(model, drawn)
    assert models.weights_sha256(model) != digest
    permutation.apply(model, drawn.inverse())
    assert models.weights_sha256(model) == digest


def test_a_wrong_head_order_would_be_noticed():
    """The test above can fail: shuffling the value heads without their readers changes outputs."""
    model = models.tiny()
    before = model(IDS).logits
    layer = model.model.layers[0].self_attn.v_proj
    layer.weight.data = layer.weight.data.flip(0)
    assert (model(IDS).logits - before).abs().max() > 1e-2 * before.abs().max()


def test_the_same_seed_draws_the_same_permutation():
    config = models.tiny().config
    one, two, other = (permutation.draw(config, seed) for seed in (1, 1, 2))
    assert torch.equal(one.hidden, two.hidden) and not torch.equal(one.hidden, other.hidden)
    assert torch.equal(one.hidden.sort().values, torch.arange(config.hidden_size))


def test_biases_are_refused():
    model = models.tiny(attention_bias=True)
    with pytest.raises(ValueError, match="biases"):
        permutation.apply(model, permutation.draw(model.config, 0))
