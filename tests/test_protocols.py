"""utils.protocols against counts by hand, a slow twin and quality.perplexity (field case 36)."""

import math

import pytest
import torch

from utils import models, protocols, quality
from utils.protocols import Protocol


@pytest.fixture(scope="module")
def tiny():
    return models.tiny()


@pytest.fixture(scope="module")
def ids():
    """A text of 53 tokens that holds id 0 and the EOS id 2."""
    text = torch.randint(3, 256, (53,), generator=torch.Generator().manual_seed(4))
    text[[5, 17]] = 0
    text[[6, 30]] = 2
    return text


def slow(model, ids, protocol):
    """{position: (nll, history)}, one window and one token at a time."""
    found, start = {}, 0
    while True:
        text = ids[start : start + protocol.room].tolist()
        window = ([] if protocol.bos is None else [protocol.bos]) + text
        complete = len(text) == protocol.room
        if complete or not protocol.whole:
            logprobs = model(torch.tensor([window])).logits[0].double().log_softmax(-1)
            for i in range(max(1, protocol.history), len(window)):
                position = start + i - (len(window) - len(text))
                loss = -logprobs[i - 1, window[i]].item()
                found.setdefault(position, (loss, i))
        if start + protocol.room >= len(ids):
            return found
        start += protocol.step


CASES = [
    Protocol("whole", 64),
    Protocol("disjoint", 16),
    Protocol("strided", 16, 4),
    Protocol("strided", 16, 15),
    Protocol("BOS", 16, bos=1),
    Protocol("BOS and stride", 16, 5, bos=1),
    Protocol("BOS on one window", 54, bos=1),
    protocols.second_half(16),
    protocols.second_half(16, bos=1),
    Protocol("late", 16, 8, history=6, whole=True),
]


@pytest.mark.parametrize("protocol", CASES, ids=str)
@pytest.mark.parametrize("batch", [1, 8])
def test_every_protocol_equals_its_slow_twin(tiny, ids, protocol, batch):
    losses = protocols.token_losses(tiny, ids, protocol, batch)
    expected = slow(tiny, ids, protocol)
    order = losses.position.argsort()
    assert losses.position[order].tolist() == sorted(expected)
    for position, nll, history in zip(
        losses.position.tolist(), losses.nll.tolist(), losses.history.tolist(), strict=True
    ):
        assert nll == pytest.approx(expected[position][0], rel=1e-4, abs=1e-6)
        assert history == expected[position][1]


def test_counts_by_hand(tiny, ids):
    def count(protocol):
        return len(protocols.token_losses(tiny, ids, protocol).nll)

    assert count(Protocol("whole", 64)) == 52
    assert count(Protocol("disjoint", 16)) == 53 - 4  # the first token of four windows
    assert count(Protocol("strided", 16, 4)) == 52
    assert count(Protocol("BOS", 17, bos=1)) == 53
    assert count(protocols.second_half(16)) == 3 * 7  # 16 - 1 - 8 of three whole windows


def test_second_half_scores_what_llama_cpp_scores():
    """255 of each 512: positions 257 to 511, counted from 0."""
    protocol = protocols.second_half(512)
    assert protocol.context - protocol.history == 255 and protocol.whole and protocol.bos is None


@pytest.mark.parametrize("stride", [None, 4])
def test_agrees_with_quality_perplexity(tiny, ids, stride):
    short = quality.perplexity(tiny, ids[None], context=16, stride=stride)
    named = protocols.perplexity(tiny, ids, Protocol("x", 16, stride))
    assert named.tokens == short.tokens and named.nll == pytest.approx(short.nll, rel=1e-6)


def test_three_protocols_three_numbers_and_each_says_how(tiny, ids):
    three = [Protocol("disjoint", 16), Protocol("strided", 16, 4), protocols.second_half(16)]
    results = [protocols.perplexity(tiny, ids, p) for p in three]
    assert len({round(r.value, 6) for r in results}) == 3
    for result, protocol in zip(results, three, strict=True):
        for part in (protocol.name, "context 16", f"stride {protocol.step}", "BOS", "of 53 tokens"):
            assert part in result.protocol


@pytest.mark.parametrize(
    "protocol, message",
    [
        (Protocol("x", 1), "context >= 2"),
        (Protocol("x", 16, 17), "stride"),
        (Protocol("x", 16, 0), "stride"),
        (Protocol("x", 16, 16, bos=1), "stride"),
        (Protocol("x", 16, history=16), "history < context"),
        (Protocol("x", 16, history=0), "history"),
        (Protocol("x", 64, history=60), "no token to score"),
        (Protocol("x", 64, whole=True), "no token to score"),
    ],
)
def test_impossible_protocols_are_refused(tiny, ids, protocol, message):
    with pytest.raises(ValueError, match=message):
        protocols.token_losses(tiny, ids, protocol)
    with pytest.raises(ValueError, match="one text"):
        protocols.token_losses(tiny, ids[None], Protocol("x", 16))
    for length in (0, 1):
        with pytest.raises(ValueError, match="no token to score"):
            protocols.token_losses(tiny, ids[:length], Protocol("x", 16))


def test_normalised_by_hand():
    """120 nats for 40 tokens and for 60 tokens of the same text: e^3 and e^2, the same bits."""
    text = "ab cd " * 20
    coarse, fine = (protocols.normalised(120, n, text) for n in (40, 60))
    assert coarse.token_perplexity == pytest.approx(math.exp(3))
    assert fine.token_perplexity == pytest.approx(math.exp(2))
    assert coarse.bits_per_byte == fine.bits_per_byte == pytest.approx(120 / math.log(2) / 120)
    assert coarse.word_perplexity == pytest.approx(math.exp(120 / 40))
    assert protocols.normalised(1, 1, "é").bytes == 2
    with pytest.raises(ValueError, match="empty text"):
        protocols.normalised(1, 1, "")
