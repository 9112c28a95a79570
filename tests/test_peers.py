"""The libraries: same layers replaced, bytes as computed, the original left untouched."""

import pytest
import torch

from utils import models
from utils.quantization import peers
from utils.quantization.size import bits_per_weight

IDS = torch.arange(24).reshape(2, 12)


def run(function, **options):
    """(bits per weight, mean change of the logits, whether the original stayed as it was)."""
    model = models.tiny(hidden_size=128, intermediate_size=256)
    before = model(IDS).logits
    copy, used = function(model, **options)
    weights = sum(layer.weight.numel() for layer in models.linears(model).values())
    change = (copy(IDS).logits - before).abs().mean().item()
    return 8 * used / weights, change, torch.equal(model(IDS).logits, before)


@pytest.mark.slow
def test_bitsandbytes_nf4():
    pytest.importorskip("bitsandbytes")
    bits, change, untouched = run(peers.bitsandbytes_nf4)
    assert bits == bits_per_weight(4, 64, scale_bits=32) == 4.5
    assert 0 < change and untouched
    double, _, _ = run(peers.bitsandbytes_nf4, double_quant=True)
    assert double == pytest.approx(bits_per_weight(4, 64, scale_bits=8 + 32 / 256), abs=0.01)


@pytest.mark.slow
def test_torchao_int8():
    pytest.importorskip("torchao")
    bits, change, untouched = run(peers.torchao_int8)
    assert 8 < bits < 8.3
    assert 0 < change < 0.1 and untouched
