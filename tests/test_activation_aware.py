"""INT8 activations, LLM.int8, and where they fail: by hand, naive twins, oracles, field case 12."""

import pytest
import torch

from utils import models
from utils.quantization import activation_aware, activations, capture, outliers, peers
from utils.quantization import model as quantize


@pytest.fixture(scope="module", autouse=True)
def no_gradients():
    """For this module only: a switch at import would stay off for all tests of the process."""
    with torch.no_grad():
        yield


def layer(outputs=48, inputs=64, tokens=20, seed=0):
    g = torch.manual_seed(seed)
    return torch.randn(tokens, inputs, generator=g), torch.randn(outputs, inputs, generator=g)


def error(y, exact):
    return float((y - exact).norm() / exact.norm())


def test_dynamic_by_hand():
    codes, scale = activations.dynamic(torch.tensor([[1.27, -0.5, 0.014], [0.0, 0.0, 0.0]]))
    assert codes.tolist() == [[127, -50, 1], [0, 0, 0]]
    assert scale[:, 0].tolist() == pytest.approx([0.01, 1.0])
    assert activations.dynamic(torch.tensor([[1.0, 2.0], [2.54, 0.0]]), "tensor")[1] == 0.02
    codes, scale = activations.dynamic(torch.tensor([[1e-45, 0.0]]))  # 1e-45 / 127 is 0 in fp32
    assert codes.tolist() == [[0, 0]] and scale.item() == 1.0


def test_static_by_hand():
    scale, zero_point = activations.static_grid(-1.0, 1.55)
    assert scale == pytest.approx(0.01) and zero_point == -28
    codes = activations.static(torch.tensor([-1.0, 0.0, 0.006, 1.55, 9.0]), scale, zero_point)
    assert codes.tolist() == [-128, -28, -27, 127, 127]
    assert activations.static_grid(0.0, 0.0) == (1.0, -128)
    assert activations.static_grid(0.5, 2.55) == (pytest.approx(0.01), -128)  # 0 is included


def test_integer_product_is_exact():
    g = torch.manual_seed(1)
    x = torch.randint(-127, 128, (5, 40), generator=g).to(torch.int8)
    w = torch.full((7, 40), 127, dtype=torch.int8)
    assert torch.equal(
        activations.integer_product(x, w), activations.integer_product_naive(x, w).int()
    )


@pytest.mark.parametrize("activation", [activations.Dynamic(), activations.Static.over(-3.0, 5.0)])
def test_layer_equals_its_dequantized_parts(activation):
    """The zero point is taken out again, and the bias is added once."""
    x, w = layer()
    bias = torch.arange(48.0)
    made = activations.Int8Linear(w, bias, activation)
    if isinstance(activation, activations.Static):
        codes = activations.static(x, activation.scale, activation.zero_point)
        x_hat = (codes.double() - activation.zero_point) * activation.scale
    else:
        codes, scale = activations.dynamic(x)
        x_hat = codes.double() * scale
    w_hat = made.codes.double() * made.scale[:, None]
    expected = x_hat @ w_hat.T + bias
    torch.testing.assert_close(made(x), expected.float(), rtol=1e-5, atol=1e-4)
    batched = made(x.reshape(4, 5, 64))
    assert batched.shape == (4, 5, 48)


def test_error_stays_below_the_bound():
    """|x_hat - x| <= scale / 2 for each token: every entry within half a step of its own token."""
    x, _ = layer()
    codes, scale = activations.dynamic(x)
    assert ((codes * scale - x).abs() <= scale / 2 * (1 + 1e-5)).all()


def test_field_case_12_one_channel_100_times_larger():
    """Per token as well as per tensor the outlier sets the scale; decomposed it does not."""
    x, w = layer(tokens=200)
    x[:, 7] *= 100
    exact = x @ w.T
    x[0, 7] = 40000  # and one massive token
    exact = x @ w.T
    rest = slice(1, None)
    made = {
        "tensor": activation_aware.dynamic_int8(x, w, per="tensor"),
        "token": activation_aware.dynamic_int8(x, w),
        "llm": activation_aware.llm_int8(x, w),
    }
    others = x[rest].clone()
    others[:, 7] = 0  # what the other 63 channels contribute
    small = others @ w.T
    lost = {k: float((y[rest] - exact[rest]).norm() / small.norm()) for k, y in made.items()}
    assert lost["tensor"] > 0.9  # all but the outlier channel is gone
    assert lost["llm"] < 0.1 * lost["tensor"] and lost["llm"] < lost["token"]


def test_threshold_infinity_is_per_token_and_zero_float_columns():
    x, w = layer()
    plain = activation_aware.dynamic_int8(x, w)
    assert torch.equal(activation_aware.llm_int8(x, w, threshold=float("inf")), plain)
    assert outliers.columns(x, 1e-9).all() and not outliers.columns(x, 1e9).any()
    assert outliers.columns(torch.tensor([[[1.0, -6.0]], [[0.0, 5.9]]])).tolist() == [False, True]


def test_all_columns_in_float_leaves_only_the_weights_error():
    x, w = layer()
    made = activations.Int8Linear(w, None, outliers.Decomposed(1e-9))
    expected = x @ (made.codes * made.scale[:, None]).T
    torch.testing.assert_close(made(x), expected, rtol=1e-5, atol=1e-4)


def test_bitsandbytes_agrees_with_our_decomposition():
    """Its activations are cast to fp16 before they are rounded: some codes differ by one step."""
    bnb = pytest.importorskip("bitsandbytes")
    x, w = layer(tokens=32, seed=3)
    x[:, [3, 50]] *= 30
    theirs = bnb.nn.Linear8bitLt(64, 48, bias=False, has_fp16_weights=False, threshold=6.0)
    theirs.weight = bnb.nn.Int8Params(w.clone(), requires_grad=False, has_fp16_weights=False)
    with peers.quiet():
        y = theirs.to("cpu").eval()(x)
    ours = activation_aware.llm_int8(x, w)
    exact = x @ w.T
    assert error(y, ours) < 0.5 * error(ours, exact)


def test_ranges_by_hand():
    x = torch.arange(1000.0) - 300
    assert capture.ends(x) == (-300, 699)
    assert capture.ends(x, 99.9) == (-299, 698)
    assert capture.ends(x, 99.0) == (-290, 689)
    with pytest.raises(ValueError, match="percentile"):
        capture.ends(x, 40.0)


def test_statistics_equal_those_of_the_kept_inputs():
    model = models.tiny()
    ids = torch.randint(3, 250, (3, 16), generator=torch.manual_seed(0))
    found = capture.collect(model, ids, hessian=True, percentiles=(100.0, 99.0))
    name = "model.layers.1.mlp.down_proj"
    x = capture.inputs(model, ids, [name])[name]
    about = found[name]
    assert about.tokens == len(x) == 48
    torch.testing.assert_close(about.mean_abs, x.abs().mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(about.hessian, x.T @ x, rtol=1e-4, atol=1e-4)
    assert torch.equal(about.absmax, x.abs().amax(0))
    assert about.range() == (x.min().item(), x.max().item())
    windows = [capture.ends(part, 99.0) for part in x.split(16)]
    assert about.range(99.0)[1] == pytest.approx(sum(high for _, high in windows) / 3)
    later = capture.collect(model, ids, skip_first=1)[name]
    assert later.tokens == 45


def test_static_ranges_miss_what_calibration_did_not_see():
    x, w = layer()
    low, high = capture.ends(x)
    x[0, 0] = 20 * high
    seen = activation_aware.static_int8(x[1:], w, low, high)
    unseen = activation_aware.static_int8(x[:1], w, low, high)
    assert error(seen, x[1:] @ w.T) < 0.05 < 0.5 < error(unseen, x[:1] @ w.T)


def test_a_whole_model_and_its_original():
    model = models.tiny()
    ids = torch.randint(3, 250, (2, 16), generator=torch.manual_seed(0))
    before = model(ids).logits
    copy = activations.int8_model(model, activations.Dynamic())
    changed = [m for m in copy.modules() if isinstance(m, activations.Int8Linear)]
    assert len(changed) == 14 == len(quantize.find(model)[0])
    assert error(copy(ids).logits, before) < 0.1
    assert torch.equal(model(ids).logits, before)


def test_one_token_alone_and_no_token():
    """A layer takes what nn.Linear takes: a vector, any batch shape, an empty batch."""
    x, w = layer()
    for made in (activations.Dynamic(), activations.Static.over(-4, 4), outliers.Decomposed(2.0)):
        linear = activations.Int8Linear(w, None, made)
        torch.testing.assert_close(linear(x[3]), linear(x[3:4])[0])
        assert linear(x[:0]).shape == (0, 48)


def test_views_give_the_same_as_copies():
    """Field case 5: strided tokens and a transposed weight."""
    x, w = layer()
    for made in (activations.Dynamic(), activations.Static.over(-4, 4), outliers.Decomposed(2.0)):
        plain = activations.Int8Linear(w, None, made)(x[::2].contiguous())
        assert torch.equal(activations.Int8Linear(w.T.contiguous().T, None, made)(x[::2]), plain)


def nan_beside_an_outlier(x):
    """Column 3 holds NaN and 9.0: a float column, which no int8 code ever sees."""
    x[0, 3], x[1, 3] = float("nan"), 9.0
    return x


@pytest.mark.parametrize("call, says", [
    (lambda x, w: activation_aware.dynamic_int8(x, w, per="channel"), "token"),
    (lambda x, w: activation_aware.dynamic_int8(x * float("nan"), w), "NaN"),
    (lambda x, w: activation_aware.dynamic_int8(x.double() * 1e300, w), "infinity"),
    (lambda x, w: activation_aware.dynamic_int8(x[:, :-1], w), "64 inputs"),
    (lambda x, w: activations.dynamic(x[:, :0]), "channels"),
    (lambda x, w: activation_aware.static_int8(x, w, 0.0, float("inf")), "finite"),
    (lambda x, w: activation_aware.static_int8(x, w, 5.0, -5.0), "exchanged"),
    (lambda x, w: activations.Static(0.0, 0).product(x, w, 1.0), "static_grid"),
    (lambda x, w: activations.Static(1.0, 300).product(x, w, 1.0), "static_grid"),
    (lambda x, w: activation_aware.llm_int8(x, w, threshold=0.0), "above 0"),
    (lambda x, w: activation_aware.llm_int8(nan_beside_an_outlier(x), w), "NaN"),
    (lambda x, w: capture.ends(x[:0]), "at least one"),
    (lambda x, w: capture.ends(x * float("inf")), "finite"),
    (lambda x, w: capture.collect(models.tiny(), torch.ones(1, 4).long(), skip_first=4), "nothing"),
])  # fmt: skip
def test_bad_input_is_named(call, says):
    with pytest.raises(ValueError, match=says):
        call(*layer())
