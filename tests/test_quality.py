"""utils.quality against hand-made models and closed forms (field case 36)."""

import math
from types import SimpleNamespace

import pytest
import torch

from utils import models, quality


class Table(torch.nn.Module):
    """A model whose next-token logits depend on the current token alone: row `id` of a table."""

    def __init__(self, table):
        super().__init__()
        self.table = torch.nn.Parameter(torch.as_tensor(table, dtype=torch.float32))

    def forward(self, input_ids, **_):
        return SimpleNamespace(logits=self.table[input_ids])


def uniform(vocabulary=8):
    return Table(torch.zeros(vocabulary, vocabulary))


@pytest.fixture(scope="module")
def tiny():
    return models.tiny()


@pytest.fixture(scope="module")
def ids():
    return torch.randint(0, 256, (8, 24), generator=torch.Generator().manual_seed(1))


def test_perplexity_of_a_uniform_model_is_its_vocabulary():
    result = quality.perplexity(uniform(8), torch.arange(8)[None])
    assert result.value == pytest.approx(8) and result.tokens == 7


def test_perplexity_equals_the_sum_by_hand(tiny, ids):
    logprobs = tiny(ids).logits.log_softmax(-1)
    by_hand = -sum(
        logprobs[r, t, ids[r, t + 1]].item() for r in range(len(ids)) for t in range(23)
    ) / (len(ids) * 23)
    assert quality.perplexity(tiny, ids).nll == pytest.approx(by_hand, rel=1e-5)


def test_batch_size_changes_nothing(tiny, ids):
    one, eight = (quality.perplexity(tiny, ids, batch=b).nll for b in (1, 8))
    assert one == pytest.approx(eight, rel=1e-6)


def test_padding_is_neither_read_nor_scored(tiny, ids):
    """Text that contains token id 0, padded with the EOS id: same result as without padding."""
    text = ids[:2, :16].clone()
    text[0, 3] = 0
    padded = torch.full((2, 24), 2)
    mask = torch.zeros_like(padded)
    padded[:, :16], mask[:, :16] = text, 1
    plain = quality.perplexity(tiny, text)
    right = quality.perplexity(tiny, padded, attention_mask=mask)
    left = quality.perplexity(tiny, padded.roll(8, 1), attention_mask=mask.roll(8, 1))
    assert plain.tokens == right.tokens == left.tokens == 30
    assert right.nll == pytest.approx(plain.nll, rel=1e-5)
    assert left.nll == pytest.approx(plain.nll, rel=1e-5)


def test_field_case_36(tiny, ids):
    """Rows of unequal length with id 0 in them, padded with the EOS id: batch 1 equals batch 8."""
    lengths = [24, 3, 17, 9, 24, 12, 5, 20]
    text = ids.clone()
    text[:, 1] = 0
    mask = (torch.arange(24) < torch.tensor(lengths)[:, None]).long()
    padded = torch.where(mask.bool(), text, tiny.config.eos_token_id)
    one, eight = (quality.perplexity(tiny, padded, attention_mask=mask, batch=b) for b in (1, 8))
    alone = [quality.perplexity(tiny, row[None, :n]) for row, n in zip(text, lengths, strict=True)]
    total = sum(result.nll * result.tokens for result in alone)
    assert one.tokens == eight.tokens == sum(lengths) - 8
    assert one.nll == pytest.approx(eight.nll, rel=1e-6)
    assert one.nll == pytest.approx(total / one.tokens, rel=1e-5)
    assert one.protocol == eight.protocol
    for part in ("106 tokens", "context 24", "stride 24", "no BOS"):
        assert part in one.protocol


def test_pad_id_equal_to_eos_is_scored_where_it_is_text():
    text = torch.tensor([[5, 2, 2, 7]])
    assert quality.perplexity(uniform(), text).tokens == 3


def test_a_stride_scores_each_token_once_with_history(tiny):
    row = torch.arange(40)[None] % 256
    whole = quality.perplexity(tiny, row)
    disjoint = quality.perplexity(tiny, row, context=10)
    sliding = quality.perplexity(tiny, row, context=10, stride=5)
    assert whole.tokens == 39 and disjoint.tokens == 36 and sliding.tokens == 39
    assert quality.perplexity(uniform(256), row, context=10, stride=3).tokens == 39


def test_three_protocols_give_three_numbers_and_say_so(tiny):
    row = torch.randint(0, 256, (1, 60), generator=torch.Generator().manual_seed(3))
    results = [
        quality.perplexity(tiny, row),
        quality.perplexity(tiny, row, context=12),
        quality.perplexity(tiny, row, context=12, stride=4),
    ]
    assert len({round(r.value, 6) for r in results}) == 3
    assert len({r.protocol for r in results}) == 3
    assert "context 12" in results[1].protocol and "stride 4" in results[2].protocol


@pytest.mark.parametrize(
    "ids, options, message",
    [
        (torch.arange(5), {}, "rows, length"),
        (torch.zeros(1, 5, dtype=torch.long), {"context": 1}, "context"),
        (torch.zeros(1, 5, dtype=torch.long), {"context": 4, "stride": 5}, "stride"),
        (torch.zeros(1, 5, dtype=torch.long), {"context": 4, "stride": 0}, "stride"),
        (torch.zeros(1, 5, dtype=torch.long), {"context": 0}, "context"),
        (torch.zeros(1, 0, dtype=torch.long), {}, "context"),
        (torch.zeros(1, 1, dtype=torch.long), {}, "context"),
        (torch.zeros(1, 5, dtype=torch.long), {"attention_mask": torch.ones(1, 4)}, "mask"),
        (
            torch.zeros(1, 5, dtype=torch.long),
            {"attention_mask": torch.zeros(1, 5, dtype=torch.long)},
            "no token",
        ),
    ],
)
def test_bad_requests_are_refused(ids, options, message):
    with pytest.raises(ValueError, match=message):
        quality.perplexity(uniform(), ids, **options)


def test_kl_of_known_distributions():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    ids = torch.tensor([[0, 1, 2, 0]])
    reference, candidate = Table(p.log().expand(3, 3)), Table(q.log().expand(3, 3))
    expected = sum(a * math.log(a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True))
    found = quality.kl_divergence(reference, candidate, ids)
    assert found.mean == pytest.approx(expected, rel=1e-5) and found.n == 3
    row = quality.compare(quality.Reference(reference, ids), candidate)
    assert row.kl == pytest.approx(expected, rel=1e-5) and row.flips == 1


def test_a_model_against_itself(tiny, ids):
    row = quality.compare(quality.Reference(tiny, ids), tiny)
    assert row.kl == pytest.approx(0, abs=1e-9) and row.top1 == 1 and row.flips == 0
    assert row.perplexity == pytest.approx(row.reference_perplexity)
    assert row.tokens == 8 * 23


def test_compare_agrees_with_perplexity(tiny, ids):
    other = models.tiny(seed=5)
    row = quality.compare(quality.Reference(tiny, ids), other)
    assert row.perplexity == pytest.approx(quality.perplexity(other, ids).value, rel=1e-5)
    assert row.reference_perplexity == pytest.approx(quality.perplexity(tiny, ids).value, rel=1e-5)
    assert row.kl > 0 and 0 < row.kl_se < row.kl


def test_nan_logits_are_loud(tiny, ids):
    with pytest.raises(ValueError, match="NaN"):
        quality.Reference(Table(torch.full((256, 256), math.nan)), ids)


def test_standard_error_covers_the_truth():
    """Windows with a shared offset: the window-wise error holds, the token-wise one would not."""
    generator = torch.Generator().manual_seed(0)
    misses = 0
    for _ in range(200):
        values = torch.randn(16, 1, generator=generator) + torch.randn(16, 50, generator=generator)
        misses += abs(values.mean().item()) > 2.5 * quality._standard_error(values.double())
    assert misses <= 12


def test_paired_bootstrap_sees_a_paired_difference():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(200, generator=generator)
    better = quality.paired_bootstrap(a, a + 0.05 + 0.01 * torch.randn(200, generator=generator))
    same = quality.paired_bootstrap(a, a)
    assert 0.04 < better.low < better.mean < better.high < 0.06
    assert same.low == same.high == 0
    with pytest.raises(ValueError, match="equal length"):
        quality.paired_bootstrap([1, 2], [1])
