"""Whole models: statistics, prune_model, its report, frozen zeros (field cases 15, 16, 18, 19)."""

import io

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

from utils import models, quality
from utils.sparsity import frozen, layers, prune_model, report, statistics, storage, unstructured


def _ids(n=4, time=24, seed=0):
    return torch.randint(3, 256, (n, time), generator=torch.Generator().manual_seed(seed))


def test_norm_and_hessian_by_hand():
    layer = nn.Sequential(nn.Linear(3, 2))
    x = torch.tensor([[1.0, 0.0, 2.0], [3.0, 0.0, -1.0]])
    stats = statistics.collect(layer, x, hessian=True)["0"]
    assert stats.norm.tolist() == pytest.approx([10**0.5, 0.0, 5**0.5])
    assert stats.hessian.tolist() == [[10.0, 0.0, -1.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 5.0]]
    assert stats.tokens == 2


def test_same_data_as_one_row_or_eight():
    layer = nn.Sequential(nn.Linear(16, 4))
    x = torch.randn(1, 8, 16, generator=torch.Generator().manual_seed(0))
    row, column = (statistics.collect(layer, v)["0"].norm for v in (x, x.reshape(8, 1, 16)))
    assert torch.equal(row, column)
    masks = [unstructured.mask(layer[0].weight, 0.5, "wanda", norm) for norm in (row, column)]
    assert torch.equal(*masks)


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_not_counted(side):
    model, lengths = models.tiny(), [5, 8, 3]
    rows = [_ids(1, n, seed=n)[0] for n in lengths]
    padded, mask = torch.full((3, 8), 2), torch.zeros(3, 8, dtype=torch.int64)
    for i, row in enumerate(rows):
        where = slice(0, len(row)) if side == "right" else slice(8 - len(row), 8)
        padded[i, where], mask[i, where] = row, 1
    together = statistics.collect(model, padded, mask)
    alone = [statistics.collect(model, row[None]) for row in rows]
    for name, module in models.linears(model).items():
        squares = sum(part[name].sum_squares for part in alone)
        torch.testing.assert_close(together[name].sum_squares, squares, rtol=1e-5, atol=1e-7)
        assert together[name].tokens == sum(lengths)
        norms = (together[name].norm, squares.sqrt())
        assert torch.equal(*(unstructured.mask(module.weight, 0.5, "wanda", n) for n in norms))


def test_batching_changes_nothing_and_hooks_are_gone():
    model = models.tiny()
    whole, single = (statistics.collect(model, _ids(), hessian=True, batch=b) for b in (8, 1))
    for name in whole:
        torch.testing.assert_close(
            whole[name].sum_squares, single[name].sum_squares, rtol=1e-5, atol=1e-6
        )
        torch.testing.assert_close(whole[name].hessian, single[name].hessian, rtol=1e-4, atol=1e-3)
    assert whole.keys() == models.linears(model).keys()
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_layers_with_one_input_share_their_sums():
    stats = statistics.collect(models.tiny(), _ids())
    first = "model.layers.0.self_attn."
    assert stats[first + "q_proj"] is stats[first + "k_proj"] is stats[first + "v_proj"]
    assert stats[first + "o_proj"] is not stats[first + "q_proj"]


def test_mask_of_another_size_is_refused():
    layer = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(ValueError, match="0: 6 input rows for a mask of 4"):
        statistics.collect(layer, torch.randn(2, 3, 4), torch.ones(2, 2))


@pytest.mark.parametrize("method", ["magnitude", "wanda", "sparsegpt"])
@pytest.mark.parametrize("pattern", [None, "2:4"])
def test_prune_model_report(method, pattern):
    model = models.tiny(num_hidden_layers=3)
    head = model.lm_head.weight.clone()
    done = prune_model(model, method, 0.5, pattern, calibration=_ids())
    assert len(done.layers) == 21 and done.achieved == pytest.approx(0.5, abs=1e-3)
    assert torch.equal(model.lm_head.weight, head)
    for layer in done.layers:
        weight = model.get_submodule(layer.name).weight
        assert layer.zeros == int((weight == 0).sum())
        per_row = method == "wanda"
        rows = weight.shape[0] if per_row else 1
        assert layer.zeros == rows * unstructured.zero_count(0.5, weight.numel() // rows)
        measured = storage.measured_bytes(weight)
        assert {form: layer.bytes(form) for form in report.FORMS} == measured
    assert (done.bytes("2:4") is None) == (pattern is None)


def test_pruning_twice_gives_the_same_bits():
    first, second = models.tiny(), models.tiny()
    for model in (first, second):
        prune_model(model, "sparsegpt", 0.5, calibration=_ids())
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_later_blocks_see_pruned_inputs():
    """The second block's norms must be those of a model whose first block is pruned already."""
    model, twin = models.tiny(), models.tiny()
    prune_model(model, "wanda", 0.5, calibration=_ids())
    first = {n: m for n, m in models.linears(twin).items() if ".layers.0." in n}
    for name, module in first.items():
        module.weight.copy_(model.get_submodule(name).weight)
    name = "model.layers.1.self_attn.q_proj"
    norm = statistics.collect(twin, _ids())[name].norm
    keep = unstructured.mask(twin.get_submodule(name).weight, 0.5, "wanda", norm)
    assert torch.equal(model.get_submodule(name).weight != 0, keep)


@pytest.mark.parametrize("method", ["wanda", "sparsegpt"])
def test_padded_calibration_prunes_like_the_rows_alone(method):
    rows, (plain, other) = _ids(16, 32), [models.tiny(), models.tiny()]
    padded = torch.cat((rows, torch.full((16, 5), 2)), 1)
    mask = torch.cat((torch.ones(16, 32), torch.zeros(16, 5)), 1).long()
    prune_model(plain, method, 0.5, calibration=rows)
    prune_model(other, method, 0.5, calibration=padded, attention_mask=mask)
    pairs = list(zip(plain.parameters(), other.parameters(), strict=True))
    differ = sum(int(((a == 0) != (b == 0)).sum()) for a, b in pairs)
    assert differ <= (0 if method == "wanda" else 20)  # of 86,016: near-ties in fp32


def test_order_of_quality_on_a_model_with_structure():
    """SparseGPT's outputs stay nearer to the dense ones than magnitude's."""
    dense, ids = models.tiny(), _ids(8, 32)
    with torch.no_grad():
        target = dense(ids).logits
        gaps = {}
        for method in ("magnitude", "sparsegpt"):
            model = models.tiny()
            prune_model(model, method, 0.5, calibration=ids)
            gaps[method] = float((model(ids).logits - target).square().mean())
    assert gaps["sparsegpt"] < gaps["magnitude"]


def test_conv1d_is_pruned_along_its_inputs():
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=64, n_positions=32)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config).eval()
    ids = _ids(2, 8) % 64
    done = prune_model(model, "wanda", pattern="2:4", calibration=ids)
    assert [layer.shape for layer in done.layers[:4]] == [(48, 16), (16, 16), (64, 16), (16, 64)]
    stored = model.transformer.h[0].attn.c_attn.weight  # [in, out]
    assert ((stored.T.reshape(48, 4, 4) != 0).sum(2) == 2).all()
    assert layers.matrix(model.transformer.h[0].attn.c_attn).shape == (48, 16)


def test_untied_head_is_pruned_when_asked_for():
    model = models.tiny(tie_word_embeddings=False)
    done = prune_model(model, "wanda", 0.5, calibration=_ids(), skip=())
    assert done.layers[-1].name == "lm_head" and done.layers[-1].achieved == 0.5


def _broken(value):
    model = models.tiny()
    model.model.layers[1].mlp.up_proj.weight[0, 0] = value
    return model


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda: prune_model(_broken(float("nan")), "magnitude"),
            "layers.1.mlp.up_proj: the weights",
        ),
        (
            lambda: prune_model(_broken(float("inf")), "magnitude"),
            "layers.1.mlp.up_proj: the weights",
        ),
        (
            lambda: prune_model(_broken(1e30), "wanda", calibration=_ids()),
            "down_proj: the input act",
        ),
        (lambda: prune_model(models.tiny(), "wanda"), "calibration"),
        (lambda: prune_model(models.tiny(), "best"), "unknown method"),
        (lambda: prune_model(models.tiny(), "magnitude", pattern="4:8"), "unknown pattern"),
        (lambda: prune_model(models.tiny(), "magnitude", 50), "between 0 and 1"),
        (
            lambda: prune_model(nn.Sequential(nn.Linear(10, 4)), "magnitude", pattern="2:4"),
            "^0: 2:4 .* 10",
        ),
    ],
)
def test_errors_name_the_layer_and_the_remedy(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_odd_layers_can_be_skipped():
    model = nn.Sequential(nn.Linear(10, 8), nn.Linear(8, 8))
    done = prune_model(model, "magnitude", pattern="2:4", skip=("0",))
    assert [layer.name for layer in done.layers] == ["1"]


def test_baseline_first_then_perplexity_survives_save_and_reload(tmp_path):
    model, ids = models.tiny(), _ids(4, 32)
    dense = quality.perplexity(model, ids).value
    assert dense == pytest.approx(quality.perplexity(models.tiny(), ids).value, rel=1e-6)
    prune_model(model, "wanda", 0.5, calibration=_ids(seed=1))
    before = quality.perplexity(model, ids).value
    model.save_pretrained(tmp_path)
    again = LlamaForCausalLM.from_pretrained(tmp_path).eval()
    assert quality.perplexity(again, ids).value == before != dense
    assert (
        report.inspect(models.linears(again), 0.5).zeros
        == report.inspect(models.linears(model), 0.5).zeros
    )


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    lambda p: torch.optim.AdamW(p, lr=0.01),
])  # fmt: skip
@pytest.mark.parametrize("freeze", [True, False])
def test_warm_momentum_does_not_revive_pruned_weights(make, freeze):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    optimizer = make(model.parameters())
    x, y = torch.randn(64, 16), torch.randn(64, 8)
    _train(model, optimizer, x, y)
    prune_model(model, "magnitude", 0.5)
    zeros = report.inspect(models.linears(model), 0.5).zeros
    held = frozen.FrozenZeros(model, optimizer) if freeze else None
    before = _loss(model, x, y)
    _train(model, optimizer, x, y)
    assert (report.inspect(models.linears(model), 0.5).zeros == zeros) is freeze
    if freeze:
        assert held.zeros == zeros and _loss(model, x, y) < before
        held.remove()
        _train(model, optimizer, x, y)
        assert report.inspect(models.linears(model), 0.5).zeros < zeros


@torch.no_grad()
def _loss(model, x, y):
    return float((model(x) - y).square().mean())


def _train(model, optimizer, x, y):
    for _ in range(5):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()


def test_report_prints_counts_and_bytes():
    model = models.tiny()
    text = str(prune_model(model, "magnitude", pattern="2:4"))
    assert "2:4: 14 layers" in text and "50.00%" in text and "53.12%" in text
    assert (
        io.StringIO(report.inspect(models.linears(model), 0.5).table())
        .readline()
        .startswith("layer")
    )
