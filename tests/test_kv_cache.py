"""The quantized cache: naive twin, exact cases, bytes, transformers' public interface (case 43)."""

import pytest
import torch
from transformers import DynamicCache, QuantizedCache

from utils import architecture, models
from utils.quantization import fp8_recipes, kv_tiles
from utils.quantization import kv_cache as kv
from utils.speculative.cached import cache_keyword

RANDOM = torch.Generator().manual_seed(0)
GIB = 2**30


@pytest.fixture(scope="module", autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def model():
    return models.tiny(head_dim=32)


def random_ids(tokens, batch=1):
    return torch.randint(0, 256, (batch, tokens), generator=RANDOM)


def read(model, ids, cache):
    return model(input_ids=ids, use_cache=True, **{cache_keyword(model): cache}).logits


def shaped(tokens=64, dim=64, offset=5.0):
    return torch.randn(2, 3, tokens, dim, generator=RANDOM) * 3 + offset


@pytest.mark.parametrize("axis", kv.AXES)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_packed_tiles_equal_the_naive_twin(axis, bits):
    x = shaped()
    tiles = kv_tiles.encode(x, bits, axis, 32)
    assert torch.equal(
        kv_tiles.decode(tiles, bits, axis, 32, 64), kv_tiles.restore_naive(x, bits, axis, 32)
    )
    assert tiles.codes.nbytes == x.numel() * bits // 8
    assert tiles.step.nbytes == tiles.low.nbytes == x.numel() // 32 * 2


@pytest.mark.parametrize("axis", kv.AXES)
def test_error_within_half_a_step(axis):
    """And the rounding of minimum and step to fp16: 2^-11 of each, at both ends."""
    x = shaped()
    tiles = kv_tiles.encode(x, 4, axis, 32)
    error = (kv_tiles.decode(tiles, 4, axis, 32, 64) - x).abs().max()
    slack = 2**-11 * (float(tiles.low.abs().max()) + 15 * float(tiles.step.max()))
    assert error <= tiles.step.float().max() / 2 + slack


def test_four_numbers_by_hand():
    """Minimum 1, step (7 - 1) / 3 = 2: 1, 2.5, 4.2, 7 become codes 0, 1, 2, 3, so 1, 3, 5, 7."""
    column = torch.tensor([1.0, 2.5, 4.2, 7.0, 1.0, 1.0, 1.0, 1.0])
    x = column[None, None, :, None].expand(1, 1, 8, 8).contiguous()
    tiles = kv_tiles.encode(x, 2, "channel", 8)
    assert kv_tiles.decode(tiles, 2, "channel", 8, 8)[0, 0, :4, 5].tolist() == [1, 3, 5, 7]
    assert tiles.low.unique().item() == 1 and tiles.step.unique().item() == 2


def test_channel_with_an_offset_is_why_keys_are_grouped_by_channel():
    x = torch.randn(1, 1, 64, 64, generator=RANDOM)
    x[..., 9] += 20  # one channel far away, at every token
    error = {
        axis: float((kv_tiles.restore_naive(x, 2, axis, 32) - x).square().mean())
        for axis in kv.AXES
    }
    assert error["token"] > 5 * error["channel"]


def test_constant_groups_come_back():
    x = torch.full((1, 1, 32, 32), 0.75)
    tiles = kv_tiles.encode(x, 2, "channel", 32)
    assert torch.equal(kv_tiles.decode(tiles, 2, "channel", 32, 32), x)


@pytest.mark.parametrize("recipe", [kv.Recipe(None, None), kv.Recipe(2, 2, residual=200)])
def test_window_as_long_as_the_text_is_the_dense_cache(model, recipe):
    ids, cache, dense = random_ids(140, batch=2), kv.make(model, recipe), DynamicCache()
    for part in (ids[:, :100], *ids[:, 100:].split(1, dim=1)):
        assert torch.equal(read(model, part, cache), read(model, part, dense))


def test_prompt_in_one_piece_sees_no_error_and_the_next_token_does(model):
    ids, cache, dense = random_ids(120), kv.make(model, kv.Recipe(2, 2)), DynamicCache()
    assert torch.equal(read(model, ids[:, :119], cache), read(model, ids[:, :119], dense))
    assert not torch.allclose(read(model, ids[:, 119:], cache), read(model, ids[:, 119:], dense))


def test_error_falls_with_bits(model):
    ids, found = random_ids(161), {}
    dense = read(model, ids, DynamicCache())[0, -1].log_softmax(-1)
    for bits in (2, 4, 8):
        cache = kv.make(model, kv.Recipe(bits, bits))
        read(model, ids[:, :160], cache)
        q = read(model, ids[:, 160:], cache)[0, -1].log_softmax(-1)
        found[bits] = float((dense.exp() * (dense - q)).sum())
    assert found[2] > 4 * found[4] > 16 * found[8] >= 0 and found[8] < 0.02


@pytest.mark.parametrize("sinks", [0, 1, 4])
@pytest.mark.parametrize("residual", [0, 32, 40])
@pytest.mark.parametrize("axis", kv.AXES)
def test_token_by_token_ends_where_one_piece_ends(sinks, residual, axis):
    """The same tiles, whatever the pieces, and floats at both ends."""
    recipe = kv.Recipe(4, 2, keys=axis, sinks=sinks, residual=residual)
    keys, values = shaped(150, 32), shaped(150, 32)
    whole, pieces = kv.QuantizedLayer(recipe), kv.QuantizedLayer(recipe)
    whole.update(keys, values)
    for k, v in zip(keys.split(7, 2), values.split(7, 2), strict=True):
        pieces.update(k, v)
    first, packed, recent = recipe.split(150)
    for a, b, exact in zip(whole.halves, pieces.halves, (keys, values), strict=True):
        assert torch.equal(a.restored(), b.restored())
        assert torch.equal(a.restored()[:, :, :first], exact[:, :, :first])
        assert torch.equal(a.restored()[:, :, -recent:], exact[:, :, -recent:])
        assert not torch.equal(a.restored(), exact)
    assert residual <= recent < residual + 32 and first + packed + recent == 150
    assert whole.nbytes == pieces.nbytes


@pytest.mark.parametrize(
    "recipe",
    [kv.Recipe(8, 8), kv.Recipe(4, 2, sinks=4), kv.Recipe(None, 3, residual=0), kv.Recipe(2, 2)],
)
@pytest.mark.parametrize("length", [1, 31, 63, 64, 65, 150])
def test_measured_bytes_are_the_predicted_ones(model, recipe, length):
    cache = kv.make(model, recipe)
    read(model, random_ids(length, batch=2), cache)
    assert kv.nbytes(cache) == kv.predicted_bytes(model.config, recipe, length, 2, float_bytes=4)
    assert cache.get_seq_length() == length


def test_case_50_llama_3_8b_at_8192_tokens():
    def size(bits, **more):
        return kv.predicted_bytes("llama-3-8b", kv.Recipe(bits, bits, **more), 8192)

    assert size(None) == GIB  # 2 * 32 layers * 8 heads * 128 * 8,192 tokens * 2 bytes
    for bits in (8, 4, 2):  # two fp16 numbers for 32: one bit more
        assert size(bits, residual=0) == GIB * (bits + 1) // 16
    floats = 2 * 32 * 8 * 128 * 32 * 2  # the last 32 tokens in fp16
    assert size(2) == (GIB - floats) * 3 // 16 + floats


def test_bytes_per_token_of_the_courses_model():
    shape = architecture.read("smollm2-135m")
    assert 2 * shape.layers * shape.kv_heads * shape.head_dim * 2 == 23_040
    one = [
        kv.predicted_bytes("smollm2-135m", kv.Recipe(b, b, residual=0), 32) // 32 for b in (8, 4, 2)
    ]
    assert one == [12_960, 7_200, 4_320]


def test_case_43_generate_takes_it_through_the_public_interface(model):
    """Greedy and beams; nothing but update, lengths, masks and reordering is asked of it."""
    ids = random_ids(60, batch=2)
    shared = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None}
    shared["attention_mask"] = torch.ones_like(ids)
    for more in ({}, {"num_beams": 3}):
        plain = model.generate(ids, **shared, **more)
        option = {cache_keyword(model): kv.make(model, kv.Recipe(None, None))}
        assert torch.equal(plain, model.generate(ids, **shared, **more, **option))
    cache = kv.make(model, kv.Recipe(2, 2, residual=8))
    model.generate(ids, **shared, num_beams=2, **{cache_keyword(model): cache})
    assert all(layer.halves[0].tiles is not None for layer in cache.layers)


def test_reordering_moves_packed_tokens_too():
    recipe = kv.Recipe(2, 2, residual=0, sinks=1)
    keys, values = shaped(65, 32), shaped(65, 32)
    layer, other = kv.QuantizedLayer(recipe), kv.QuantizedLayer(recipe)
    layer.update(keys, values)
    layer.reorder_cache(torch.tensor([1, 0]))
    other.update(keys.flip(0), values.flip(0))
    assert torch.equal(layer.halves[0].restored(), other.halves[0].restored())
    layer.reset()
    assert layer.get_seq_length() == 0 and layer.nbytes == 0


def test_bad_input_is_named(model):
    with pytest.raises(ValueError, match="AXES|use one of"):
        kv.Recipe(keys="row")
    with pytest.raises(ValueError, match="bits=9"):
        kv.Recipe(9, 4)
    with pytest.raises(ValueError, match="group=12"):
        kv.Recipe(group=12)
    with pytest.raises(ValueError, match="finite in fp16"):
        kv_tiles.encode(torch.full((1, 1, 32, 32), 1e6), 4, "token", 32)
    with pytest.raises(ValueError, match="multiples of group=32"):
        kv_tiles.encode(torch.ones(1, 1, 33, 32), 4, "token", 32)
    with pytest.raises(ValueError, match="does not divide heads of 16"):
        kv.make(models.tiny(), kv.Recipe())
    sliding = models.tiny(head_dim=32)
    sliding.config.layer_types = ["sliding_attention", "full_attention"]
    with pytest.raises(ValueError, match="full attention"):
        kv.make(sliding, kv.Recipe())


def test_transformers_fp8_cache_is_our_cast_with_the_prompts_scale(model):
    """An outside oracle: QuantizedCache("fp8") freezes one scale per tensor at the first update."""
    keys, values = shaped(40, 32), shaped(40, 32, offset=-1.0)
    cache = QuantizedCache("fp8", model.config)
    cache.update(keys[:, :, :39], values[:, :, :39], 0)
    got = cache.update(keys[:, :, 39:], values[:, :, 39:], 0)
    for theirs, exact in zip(got, (keys, values), strict=True):
        ours = fp8_recipes.cast(exact[:, :, :39], 448 / exact[:, :, :39].abs().amax())
        same = torch.isclose(theirs[:, :, :39], ours, rtol=1e-5).float().mean()
        assert same > 0.999  # x / s and x * (1 / s) may fall to both sides of a tie
