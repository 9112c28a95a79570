"""How much a changed model differs from its reference: perplexity, KL divergence, flips.

Perplexity: exp of the mean negative log-likelihood of the next token. KL: the mean over positions
of sum_v p(v) log(p(v)/q(v)), p the reference's next-token distribution, q the candidate's, in
nats. Top-1 agreement: how often both put the same token first; a flip is a disagreement.
KL and flips compare two models on the same text and need fewer tokens than perplexity to tell
them apart. All sums are float64 over float32 log-probabilities. Standard errors take windows as
the independent unit when there are MIN_WINDOWS of them, else tokens, and are then too small by a
factor of two to five: tokens of one window are hard or easy together.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

MIN_WINDOWS = 8


@dataclass(frozen=True)
class Perplexity:
    """value: exp(nll).  nll: nats per token.  tokens: how many were scored.  protocol: how."""

    value: float
    nll: float
    tokens: int
    protocol: str


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error over n positions."""

    mean: float
    standard_error: float
    n: int

    def __str__(self):
        return f"{self.mean:.4f} ± {self.standard_error:.4f}"


@dataclass(frozen=True)
class Interval:
    """A mean with a 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """One row of a quality table: a candidate against its reference on the same tokens.

    kl in nats; top1, flips as shares; *_se standard errors; tokens: positions compared.
    """

    perplexity: float
    reference_perplexity: float
    kl: float
    kl_se: float
    top1: float
    top1_se: float
    tokens: int

    @property
    def flips(self):
        return 1 - self.top1


@torch.inference_mode()
def perplexity(model, ids, context=None, stride=None, attention_mask=None, batch=4):
    """Perplexity of `ids` under a stated protocol.

    ids: int64 [rows, length]; each row is a text of its own, or one long row to be cut.
    context: tokens per window (default: the rows as they are).  stride: how far the next window
    starts; only tokens not scored before are scored, so a stride below context gives each of them
    at least context - stride tokens of history (default: context, i.e. disjoint windows).
    attention_mask: [rows, length], 0 for padding, which is neither read nor scored.
    The first token of a window has no history and is not scored.
    Raises ValueError for bad shapes, an impossible stride or nothing to score.
    """
    ids, mask = _check_ids(ids, attention_mask)
    context = ids.shape[1] if context is None else context
    stride = context if stride is None else stride
    if context < 2 or not 1 <= stride <= context:
        raise ValueError(f"need 2 <= context and 1 <= stride <= context, got {context}, {stride}")
    total, tokens = 0.0, 0
    for window, kept, scored in _windows(ids, mask, context, stride, batch):
        logprobs = _target_logprobs(model, window, kept)
        total -= logprobs[scored].double().sum().item()
        tokens += int(scored.sum())
    if not tokens:
        raise ValueError("no token to score: every window has fewer than two tokens")
    nll = total / tokens
    protocol = (
        f"{tokens:,} tokens scored, context {context}, stride {stride}, no BOS added, "
        "first token of a window not scored"
    )
    return Perplexity(float(np.exp(nll)), nll, tokens, protocol)


def _check_ids(ids, attention_mask):
    if ids.ndim != 2:
        raise ValueError(f"ids must be [rows, length], got shape {tuple(ids.shape)}")
    mask = torch.ones_like(ids) if attention_mask is None else attention_mask
    if mask.shape != ids.shape:
        raise ValueError(f"mask {tuple(mask.shape)} does not match ids {tuple(ids.shape)}")
    return ids.cpu(), mask.cpu().bool()


def _windows(ids, mask, context, stride, batch):
    """Batches of (ids, mask, scored): `scored` marks targets, shape [rows, context - 1]."""
    previous_end = 0
    for start in range(0, ids.shape[1], stride):
        end = min(start + context, ids.shape[1])
        if end - start < 2 or end <= previous_end:
            break
        new = torch.arange(start + 1, end) >= max(previous_end, 1)
        for row in range(0, len(ids), batch):
            window, kept = ids[row : row + batch, start:end], mask[row : row + batch, start:end]
            yield window, kept, kept[:, 1:] & kept[:, :-1] & new
        previous_end = end


def _target_logprobs(model, window, kept):
    """log p(next token) [rows, length - 1]; padding hidden from the model."""
    logits = _logits(model, window, kept)[:, :-1]
    targets = window[:, 1:].to(logits.device)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return -loss.view(targets.shape).cpu()


def _logits(model, window, kept=None):
    """float32 logits [rows, length, vocabulary] on the model's device."""
    device = next(model.parameters()).device
    positions = {}
    if kept is not None and not kept.all():
        numbers = (kept.long().cumsum(-1) - 1).clamp(min=0)
        positions = dict(attention_mask=kept.long().to(device), position_ids=numbers.to(device))
    return model(input_ids=window.to(device), use_cache=False, **positions).logits.float()


class Reference:
    """A reference model's log-probabilities on a text, computed once and kept.

    ids: int64 [windows, length], complete windows without padding.  Keeps float32
    [windows, length - 1, vocabulary]: 0.2 MB per token at a vocabulary of 49,152.
    """

    def __init__(self, model, ids, batch=4):
        self.ids, _ = _check_ids(ids, None)
        self.batch = batch
        with torch.inference_mode():
            parts = [_logprobs(model, rows).cpu() for rows in self.ids.split(batch)]
        self.logprobs = torch.cat(parts)


def _logprobs(model, ids):
    logits = _logits(model, ids)[:, :-1]
    if not torch.isfinite(logits).all():
        raise ValueError("the model's logits hold NaN or infinity: check its weights and dtype")
    return F.log_softmax(logits, dim=-1)


def compare(reference, candidate):
    """Compare a model with a `Reference` on the reference's text; returns a Comparison."""
    kl, same, nll, nll_reference = _per_token(reference, candidate)
    return Comparison(
        perplexity=float(nll.mean().exp()),
        reference_perplexity=float(nll_reference.mean().exp()),
        kl=kl.mean().item(),
        kl_se=_standard_error(kl),
        top1=same.mean().item(),
        top1_se=_standard_error(same),
        tokens=kl.numel(),
    )


def kl_divergence(reference, candidate, ids=None):
    """Mean KL(reference || candidate) in nats per token, with its standard error.

    reference: a model (then `ids` [windows, length] are needed) or a Reference.
    """
    if not isinstance(reference, Reference):
        if ids is None:
            raise ValueError("ids are needed when the reference is a model")
        reference = Reference(reference, ids)
    kl = _per_token(reference, candidate)[0]
    return Estimate(kl.mean().item(), _standard_error(kl), kl.numel())


def per_token(reference, candidate):
    """{"kl", "same", "nll", "nll_reference"}: float64 [windows, length - 1], for paired tests."""
    names = ("kl", "same", "nll", "nll_reference")
    return dict(zip(names, _per_token(reference, candidate), strict=True))


@torch.inference_mode()
def _per_token(reference, candidate):
    batch = reference.batch
    rows = zip(reference.ids.split(batch), reference.logprobs.split(batch), strict=True)
    parts = [_compare_rows(candidate, ids, p) for ids, p in rows]
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def _compare_rows(candidate, ids, p):
    """Per position: KL, same top token, candidate's and reference's NLL; float64."""
    q = _logprobs(candidate, ids).to(p.device)
    target = ids[:, 1:, None]
    kl = (p.exp() * (p - q)).sum(-1, dtype=torch.float64)
    same = (p.argmax(-1) == q.argmax(-1)).double()
    return kl, same, -q.gather(-1, target)[..., 0].double(), -p.gather(-1, target)[..., 0].double()


def _standard_error(values):
    """Standard error of the mean of [windows, positions].

    With MIN_WINDOWS windows or more the spread of the windows' means is used. Otherwise tokens
    are taken as independent; measured on this course's texts that is 2 to 5 times too small.
    """
    units = values.mean(-1) if len(values) >= MIN_WINDOWS else values.flatten()
    return (units.std() / len(units) ** 0.5).item()


def paired_bootstrap(a, b, resamples=2000, seed=0):
    """Mean of b - a over items scored by both, with a 95 % percentile interval.

    a, b: equally long sequences of numbers (or booleans), one per independent item: a question,
    or the mean of a window of text. Single tokens of a few windows are not independent.
    """
    a, b = (np.asarray(x, dtype=np.float64).ravel() for x in (a, b))
    if a.shape != b.shape or not len(a):
        raise ValueError(f"need two non-empty sequences of equal length, got {len(a)}, {len(b)}")
    difference = b - a
    generator = np.random.Generator(np.random.PCG64(seed))
    picks = generator.integers(len(a), size=(resamples, len(a)))
    low, high = np.quantile(difference[picks].mean(axis=1), [0.025, 0.975])
    return Interval(float(difference.mean()), float(low), float(high))
