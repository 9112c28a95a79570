"""FP8 recipes: casts against our own format, Transformer Engine's scale by hand, outliers."""

import pytest
import torch

from utils import models
from utils.quantization import activations, formats
from utils.quantization import fp8_recipes as fp8

RANDOM = torch.Generator().manual_seed(0)


def layer(tokens=64, inputs=576, outputs=32):
    x = torch.randn(tokens, inputs, generator=RANDOM)
    w = torch.randn(outputs, inputs, generator=RANDOM) / inputs**0.5
    return x, w


def relative(x_hat, x):
    return float((x_hat - x).norm() / x.norm())


def test_cast_is_our_e4m3_with_saturation():
    x = torch.cat([torch.randn(4000, generator=RANDOM) * 10.0**k for k in range(-4, 5)])
    assert torch.equal(fp8.cast(x, 1.0), formats.cast(x, "e4m3", saturate=True))


def test_scale_puts_amax_on_448():
    assert float(fp8.scale_of(torch.tensor(7.0))) == 64.0
    assert float(fp8.scale_of(torch.tensor(0.0))) == 1.0
    assert float(fp8.scale_of(torch.tensor(1e-38))) == 1.0  # 448 / 1e-38 is infinite in fp32
    assert float(fp8.Current()(torch.tensor([[7.0, 1.0]]))[0, 0]) == 7.0


def test_relative_error_of_normal_numbers_is_at_most_one_sixteenth():
    x = torch.rand(10_000, generator=RANDOM) * 446 + 2
    error = (fp8.cast(x, 1.0) - x).abs() / x
    assert error.max() <= 1 / 16 and error.max() > 0.9 / 17


def test_delayed_scaling_by_hand():
    """Cast with the old scale, then look: scale = 448 / max(history) / 2^margin."""
    made = fp8.Delayed(length=2, margin=1)
    assert made.scale == 1.0
    assert made(torch.tensor([[500.0, 3.0]])).tolist() == [[448.0, 3.0]]
    assert (made.saturated, made.scale) == (1, 448 / 500 / 2)
    made(torch.tensor([[7.0]]))
    assert made.scale == 448 / 500 / 2  # 500 is still remembered
    made(torch.tensor([[14.0]]))
    assert made.scale == 448 / 14 / 2 and made.steps == 3
    recent = fp8.Delayed(algorithm="most_recent")
    recent(torch.tensor([[500.0]]))
    recent(torch.tensor([[7.0]]))
    assert recent.scale == 64.0


def test_zeros_leave_the_scale_as_it_is():
    made = fp8.Delayed(length=1)
    made(torch.tensor([[7.0]]))
    made(torch.zeros(1, 3))
    assert made.scale == 64.0


def test_delayed_forgets_a_jump_and_clips_it_the_next_time():
    calm, jump = torch.full((1, 8), 0.5), torch.full((1, 8), 0.5)
    jump[0, 3] = 200.0
    short, long = fp8.Delayed(length=4), fp8.Delayed(length=100)
    for made in (short, long):
        for x in (jump, calm, calm, calm, calm, calm):
            made(x)
    clipped = short(jump)
    assert clipped[0, 3] == 0.5 and short.saturated == 1  # 448 / (448 / 0.5): the calm amax
    assert long(jump)[0, 3] == 200.0 and long.saturated == 0
    assert short(jump)[0, 3] == 200.0  # one step late


def test_margin_leaves_powers_of_two_free():
    calm, jump = torch.tensor([[1.0]]), torch.tensor([[16.0]])
    for margin, expected in ((4, 16.0), (3, 8.0)):
        made = fp8.Delayed(length=1, margin=margin)
        made(calm)
        assert made(jump).item() == expected


def test_massive_token_hurts_one_scale_for_all_and_not_one_per_token():
    """2705 at one token, 0.06 at the others: 448 / 2705 * 0.06 = 0.0099 is below 2^-6."""
    x, _ = layer()
    x *= 0.06
    x[0, 5] = 2705.0
    others = slice(1, None)
    error = {
        kind: relative(made(x)[others], x[others])
        for kind, made in (
            ("tensor", fp8.Current()),
            ("token", fp8.Token()),
            ("block", fp8.Block()),
        )
    }
    assert error["tensor"] > 2 * error["token"]
    assert error["token"] < 0.03 and error["block"] < 0.03
    alone = fp8.Static(0.3)(x)
    assert alone[0, 5] == pytest.approx(0.3) and relative(alone[others], x[others]) < 0.03


def test_case_12_one_loud_channel_ruins_int8_and_not_e4m3():
    """Channel times 100: INT8's step is absolute, E4M3's relative; per token adds nothing."""
    x, _ = layer(inputs=64)
    x[:, 7] *= 100
    quiet = torch.arange(64) != 7
    codes, step = activations.dynamic(x, "tensor")
    assert relative((codes * step)[:, quiet], x[:, quiet]) > 0.5
    for made in (fp8.Current(), fp8.Token()):
        assert 0.02 < relative(made(x)[:, quiet], x[:, quiet]) < 1 / 16 / 3**0.5


def test_block_of_1_by_128_keeps_an_outlier_to_itself():
    x = torch.full((2, 576), 3e-4)  # 448 / 300 of it: below half of the smallest code, 2^-9
    x[:, 130] = 300.0
    token, block = fp8.Token()(x), fp8.Block()(x)
    assert token[0, 0] == 0 and torch.allclose(block[:, :128], x[:, :128])
    assert block[0, 131] == 0 and torch.allclose(block[:, 256:], x[:, 256:])


def test_short_last_block_and_how_many_scales():
    """576 = 4 * 128 + 64: five blocks a row, the last one half as wide."""
    x, w = layer()
    parts = [fp8.Token()(p) for p in x.split([128, 128, 128, 128, 64], dim=-1)]
    assert torch.equal(fp8.Block()(x), torch.cat(parts, dim=-1))
    assert fp8.scales(576, 576, "block") == 25 and fp8.scales(192, 576, "block") == 10
    assert fp8.scales(192, 576, "channel") == 192 and fp8.scales(192, 576, "tensor") == 1


def test_weight_blocks_against_the_naive_twin():
    w = torch.randn(200, 300, generator=RANDOM)
    w[5, 7] = 900.0
    expected = torch.empty_like(w)
    for i in range(0, 200, 128):
        for j in range(0, 300, 128):
            block = w[i : i + 128, j : j + 128]
            s = 448.0 / block.abs().max()
            expected[i : i + 128, j : j + 128] = formats.cast(block * s, "e4m3") / s
    assert torch.equal(fp8.weight(w, "block"), expected)
    assert relative(fp8.weight(w, "channel"), w) < 0.05


def test_a_layer_and_a_model():
    x, w = layer()
    bias = torch.randn(32, generator=RANDOM)
    made = fp8.FP8Linear(w, bias, "tensor", fp8.Current())
    expected = fp8.Current()(x) @ fp8.weight(w, "tensor").T + bias
    torch.testing.assert_close(made(x), expected)
    model = models.tiny()
    ids = torch.randint(0, 256, (1, 16), generator=RANDOM)
    with torch.no_grad():
        before = model(input_ids=ids).logits
        copy = fp8.fp8_model(model, lambda _n: fp8.Delayed(), "tensor")
        after = copy(input_ids=ids).logits
        assert torch.equal(before, model(input_ids=ids).logits)
    histories = {id(m.activation) for m in copy.modules() if isinstance(m, fp8.FP8Linear)}
    assert len(histories) == 14 and 0 < relative(after, before) < 0.5


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="NaN or infinity"):
        fp8.Current()(torch.tensor([[float("nan")]]))
    with pytest.raises(ValueError, match="calibrate"):
        fp8.Static(0.0)
    with pytest.raises(ValueError, match="most_recent"):
        fp8.Delayed(algorithm="mean")
    with pytest.raises(ValueError, match="length=0"):
        fp8.Delayed(length=0)
    with pytest.raises(ValueError, match='"block"'):
        fp8.weight(torch.ones(2, 2), "row")
