"""Natural sparsity: causal part only, relative thresholds, dropping the smallest activations."""

import pytest
import torch
from torch import nn

from utils import models
from utils.sparsity import natural


@pytest.fixture
def ids():
    return torch.randint(3, 256, (2, 16), generator=torch.Generator().manual_seed(0))


def test_attention_counts_the_causal_part_only(ids):
    shares = natural.attention(models.tiny(), ids, (1e-3, 2.0))
    assert shares.entries == 2 * 4 * 16 * 17 // 2  # rows, heads, causal pairs
    assert shares.below.shape == (2, 2)
    assert (shares.zeros == 0).all()  # softmax in fp32 gives no exact zero here
    assert (shares.below[:, 1] == 1).all()
    assert shares.carried[:, 1].tolist() == pytest.approx([1.0, 1.0])


def test_the_masked_half_would_add_its_zeros(ids):
    whole = natural.attention(models.tiny(), ids, (1e-3,), causal_only=False)
    assert whole.entries == 2 * 4 * 16 * 16
    assert whole.zeros.tolist() == pytest.approx([15 / 32] * 2)  # (T - 1) / 2T


def test_attention_against_the_model_by_hand(ids):
    model = models.tiny(attn_implementation="eager")
    with torch.no_grad():
        layers = model.model(ids, output_attentions=True).attentions
    index = torch.ones(16, 16).tril().bool()
    expected = [float((p[..., index] < 0.05).double().mean()) for p in layers]
    assert natural.attention(models.tiny(), ids, (0.05,)).below[:, 0].tolist() == expected


def test_attention_implementation_is_restored(ids):
    model = models.tiny()
    before = model.config._attn_implementation
    natural.attention(model, ids)
    assert model.config._attn_implementation == before != "eager"


class _Toy(nn.Module):
    """Passes its input to a layer called down_proj."""

    def __init__(self):
        super().__init__()
        self.down_proj = nn.Linear(4, 4, bias=False)

    def forward(self, x, **_):
        return self.down_proj(x)


def test_mlp_by_hand():
    x = torch.tensor([[[10.0, -0.5, 0.0, 0.05], [0.1, 0.1, -0.1, 0.1]]])
    shares = natural.mlp(_Toy(), x, (0.1, 0.01))
    assert shares.below.tolist() == [[3 / 8, 2 / 8]]
    assert shares.zeros.tolist() == [1 / 8]
    total = 100 + 0.25 + 0.0025 + 0.04
    assert shares.carried[0].tolist() == pytest.approx([0.2525 / total, 0.0025 / total])
    assert shares.mean()[0.1][0] == 3 / 8


def test_dropping_the_smallest(ids):
    toy, x = _Toy(), torch.tensor([[[3.0, -0.5, 2.0, 0.05]]])
    with natural.drop_smallest(toy, 0.5):
        dropped = toy(x)
    assert torch.equal(dropped, toy(torch.tensor([[[3.0, 0.0, 2.0, 0.0]]])))
    model = models.tiny()
    before = model(ids).logits
    with natural.drop_smallest(model, 0.0):
        assert torch.equal(model(ids).logits, before)
    assert torch.equal(model(ids).logits, before)


def test_unknown_layer_is_named(ids):
    with pytest.raises(ValueError, match="fc9"):
        natural.mlp(models.tiny(), ids, ending="fc9")
