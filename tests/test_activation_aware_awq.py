"""SmoothQuant and AWQ: identities before rounding, the search's guarantee, field case 10."""

import pytest
import torch
import transformers
from torch import nn

from utils import models
from utils.quantization import activation_aware, awq, capture, quantize_model, rtn, sites
from utils.quantization.model import share


@pytest.fixture(scope="module", autouse=True)
def no_gradients():
    """For this module only: a switch at import would stay off for all tests of the process."""
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def example():
    """(model, ids, statistics with Hessians): tiny, with biased attention and loud channels."""
    model = models.tiny(attention_bias=True)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.copy_(torch.linspace(-1, 1, len(parameter)))
    for block in model.model.layers:
        block.input_layernorm.weight[5] = 12.0
    ids = torch.randint(3, 250, (4, 32), generator=torch.manual_seed(0))
    return model, ids, capture.collect(model, ids, hessian=True)


def same(a, b):
    return float((a - b).abs().max() / b.abs().max()) < 1e-5


def loud(outputs=48, inputs=64, tokens=200, seed=0):
    g = torch.manual_seed(seed)
    x, w = torch.randn(tokens, inputs, generator=g), torch.randn(outputs, inputs, generator=g)
    x[:, [3, 40]] *= 20
    return x, w


def test_smoothing_scale_by_hand():
    scale = activation_aware.smoothing_scale(
        torch.tensor([16.0, 1.0, 0.0]), torch.tensor([1.0, 4.0, 1.0])
    )
    assert scale.tolist() == [4.0, 0.5, 1.0]
    assert activation_aware.smoothing_scale(torch.tensor([16.0]), torch.tensor([5.0]), 1.0) == 16


@pytest.mark.parametrize("sources", [sites.NORMS, tuple(sites.READERS)])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_smoothing_changes_nothing_before_rounding(example, sources, alpha):
    model, ids, found = example
    before, copy = model(ids).logits, share(model)
    made = activation_aware.smooth(copy, found, alpha, sources)
    assert len(made) == 2 * len(sources)
    assert same(copy(ids).logits, before)
    assert torch.equal(model(ids).logits, before)


def test_smoothing_equalizes_the_inputs(example):
    model, ids, found = example
    copy = share(model)
    activation_aware.smooth(copy, found, 1.0)
    after = capture.collect(copy, ids)["model.layers.0.self_attn.q_proj"].absmax
    torch.testing.assert_close(after, torch.ones_like(after), rtol=1e-4, atol=1e-4)


def test_grouped_heads_share_one_scale(example):
    site = next(s for s in sites.find(example[0]) if s.heads)
    assert site.heads == (2, 2)
    tied = site.tie(torch.arange(64.0)).reshape(2, 2, 16)
    assert torch.equal(tied[:, 0], tied[:, 1]) and tied[0, 0, 0] == 8.0
    assert site.at_source(tied.reshape(-1)).tolist() == tied[:, 0].reshape(-1).tolist()


def test_unknown_models_are_refused():
    model = nn.Sequential(nn.Linear(4, 4))
    model.config = None
    with pytest.raises(ValueError, match="by hand"):
        sites.find(model)


FAMILY = dict(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, head_dim=8,
    num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2,
    bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip


@pytest.mark.parametrize("family, says", [
    ("Gemma", "follow its weight"), ("Phi", "post_attention"), ("Olmo2", "input_layernorm"),
    ("Mixtral", "gate_proj"), ("Phi3", "q_proj"), ("Llama", None), ("Qwen2", None),
])  # fmt: skip
def test_only_models_that_keep_their_function_are_folded(family, says):
    """Gemma's gain is 1 + w; in Phi the MLP reads the same norm; Olmo2's norms come after."""
    config = getattr(transformers, f"{family}Config")(**FAMILY)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    ids = torch.randint(3, 60, (2, 8), generator=torch.manual_seed(0))
    before, found = model(ids).logits, capture.collect(model, ids)
    if says is None:
        activation_aware.smooth(model, found)
    else:
        with pytest.raises(ValueError, match=says):
            activation_aware.smooth(model, found)
    assert same(model(ids).logits, before)  # refused: nothing was changed


def test_scales_by_hand():
    assert awq.scales(torch.tensor([4.0, 1.0]), 0.5).tolist() == pytest.approx([2**0.5, 0.5**0.5])
    assert awq.scales(torch.tensor([4.0, 1.0]), 0.0).tolist() == [1.0, 1.0]
    assert awq.scales(torch.zeros(2), 0.5).tolist() == [1.0, 1.0]
    for size in (1e-25, 1e25):  # the product of the two ends is 0 or infinity in float32
        assert awq.scales(torch.tensor([4 * size, size]), 1.0).tolist() == pytest.approx([2, 0.5])
    assert (
        awq.scales(torch.tensor([4.0, 0.0, 1.0]), 0.5)[1]
        == awq.scales(torch.tensor([4.0, 1.0]), 0.5)[1]
    )


def test_loss_from_the_hessian_equals_the_sum_over_tokens():
    x, w = loud()
    change = rtn.quantize(w, 3, 32, False).dequantize() - w
    assert awq.output_loss(change, x.T @ x) == pytest.approx(
        awq.output_loss_naive(change, x), rel=1e-4
    )


def test_search_protects_loud_channels():
    x, w = loud()
    found = activation_aware.awq(w, x, 4, 32)
    plain = found.losses[found.ratios.index(0)].item()
    best = found.losses[found.ratios.index(found.ratio)].item()
    assert found.ratio > 0 and best < 0.5 * plain
    restored = awq.scaled_rtn(w, found.scale, 4, 32)
    assert awq.output_loss_naive(restored - w, x) == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize("bits", [3, 4])
def test_never_worse_than_rtn_on_any_layer(example, bits):
    """On the calibration loss: ratio 0 is RTN, and always a candidate (field case 10)."""
    model, _, found = example
    for site, result in activation_aware.search_model(model, found, bits, 32).items():
        for name in site.readers:
            w, h = model.get_submodule(name).weight, found[name].hessian
            plain = awq.output_loss(rtn.quantize(w, bits, 32, False).dequantize() - w, h)
            scaled = awq.output_loss(awq.scaled_rtn(w, result.scale, bits, 32) - w, h)
            assert scaled <= plain * (1 + 1e-6), (name, result.ratio)


def test_a_ratio_that_harms_one_layer_is_not_taken():
    """Layer a dominates the sum and gains; layer b has its largest weights in the loud columns."""
    x, w = loud()
    a, b = 100 * w, w.flip(0).clone()
    b[:, [3, 40]] *= 30
    x[:, [3, 40]] /= 10
    found = awq.search([a, b], x.abs().mean(0), x.T @ x, 4, 32)
    tempting = found.losses[found.losses.sum(1).argmin()]
    chosen = found.losses[found.ratios.index(found.ratio)]
    assert tempting[1] > found.losses[0, 1]
    assert (chosen <= found.losses[0]).all()


def test_ratio_zero_is_added_when_it_is_left_out():
    x, w = loud()
    assert 0.0 in activation_aware.awq(w, x, ratios=(0.5, 1.0)).ratios
    assert len(activation_aware.awq(w, x, ratios=(i / 4 for i in range(4))).ratios) == 4
    quiet = torch.ones_like(x)  # all channels alike: nothing to protect
    assert activation_aware.awq(w, quiet, ratios=(0.5,)).ratio == 0


def test_field_case_10_dead_channel_and_bias(example):
    model, ids, _ = example
    copy = share(model)
    gain = copy.model.layers[0].input_layernorm.weight.clone()
    gain[9] = 0  # a channel that never speaks
    copy.model.layers[0].input_layernorm.weight = nn.Parameter(gain, requires_grad=False)
    before = copy(ids).logits
    report = quantize_model(copy, "awq", 8, 32, False, calibration=ids)
    after = report.model(ids).logits
    assert torch.isfinite(after).all()
    assert float((after - before).norm() / before.norm()) < 0.05


def test_the_method_folds_and_leaves_the_original_alone(example):
    model, ids, found = example
    before = model(ids).logits
    report = quantize_model(
        model, "awq", 4, 32, False, inplace=False, simulate=True, statistics=found
    )
    folded = report.model.model.layers[0].input_layernorm.weight
    assert not torch.equal(folded, model.model.layers[0].input_layernorm.weight)
    assert torch.equal(model(ids).logits, before)
    plain = quantize_model(model, "rtn", 4, 32, False, inplace=False, simulate=True)
    gap = [float((m.model(ids).logits - before).norm()) for m in (report, plain)]
    assert gap[0] < gap[1]
    assert report.measured_bytes == plain.measured_bytes  # not one byte more


def test_folded_equals_effective_weights(example):
    """Q(W s) on x / s and Q(W s) / s on x are one function, where the scales fold into a norm."""
    model, ids, found = example
    site, result = next(iter((s, r) for s, r in
                             activation_aware.search_model(model, found, 4, 32).items()
                             if s.source.endswith("input_layernorm")))  # fmt: skip
    folded, effective = share(model), share(model)
    sites.fold(folded, site, result.scale)
    for name in site.readers:
        w = model.get_submodule(name).weight
        new = rtn.quantize(folded.get_submodule(name).weight, 4, 32, False).dequantize()
        folded.get_submodule(name).weight = nn.Parameter(new, requires_grad=False)
        new = awq.scaled_rtn(w, result.scale, 4, 32)
        effective.get_submodule(name).weight = nn.Parameter(new, requires_grad=False)
    assert same(folded(ids).logits, effective(ids).logits)


def test_clip_never_worsens_a_groups_own_error():
    x, w = loud()
    w[:, 7] *= 6  # an outlier weight in a quiet channel
    x[:, 7] *= 0.01
    hessian = x.T @ x
    blocks = torch.block_diag(*(hessian[i : i + 32, i : i + 32] for i in (0, 32)))
    cut = awq.clip(w, hessian, 3, 32)
    assert not torch.equal(cut, w)
    losses = [
        awq.output_loss(rtn.quantize(v, 3, 32, False).dequantize() - w, blocks) for v in (cut, w)
    ]
    assert losses[0] < 0.8 * losses[1]


NAN = float("nan")


@pytest.mark.parametrize("call, says", [
    (lambda m, x, w: activation_aware.awq(w, x * NAN), "NaN"),
    (lambda m, x, w: activation_aware.awq(w, x[:0]), "empty"),
    (lambda m, x, w: activation_aware.awq(w, x[:, :32]), "64 inputs"),
    (lambda m, x, w: activation_aware.awq(w, x, ratios=(0.0, 1.5)), "ratios"),
    (lambda m, x, w: awq.scales(x[0].abs() * NAN, 0.5), "finite"),
    (lambda m, x, w: awq.scales(-x[0].abs(), 0.5), "negative"),
    (lambda m, x, w: awq.search([w], x[0].abs(), x.T @ x * NAN), "Hessian holds NaN"),
    (lambda m, x, w: awq.search([w], x[0].abs(), None), "hessian=True"),
    (lambda m, x, w: awq.search([w], x[0, :1].abs(), x.T @ x), "1 mean magnitudes"),
    (lambda m, x, w: activation_aware.smoothing_scale(x[0], w[0], 1.5), "alpha"),
    (lambda m, x, w: activation_aware.smoothing_scale(x[0] * NAN, w[0]), "NaN"),
    (lambda m, x, w: quantize_model(m, "awq", symmetric=False), "calibration"),
    (lambda m, x, w: awq.clip(w, x.T @ x, 4, 48), "divide"),
    (lambda m, x, w: awq.clip(w, (x.T @ x)[:32, :32], 4, 32), "Hessian"),
    (lambda m, x, w: awq.clip(w, x.T @ x, 4, 32, shares=(0.0,)), "share"),
    (lambda m, x, w: sites.fold(m, sites.find(m)[0], torch.zeros(64)), "above 0"),
    (lambda m, x, w: sites.fold(m, sites.find(m)[0], torch.ones(32)), "64 scales"),
    (lambda m, x, w: sites.fold(m, next(s for s in sites.find(m) if s.heads),
                                torch.linspace(1, 2, 64)), "heads"),
])  # fmt: skip
def test_bad_input_is_named(example, call, says):
    with pytest.raises(ValueError, match=says):
        call(example[0], *loud())
