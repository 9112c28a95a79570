"""The target's own answers, sampled in batches and written to shards: the only training text.

sample     answers for the first prompts of `prompts.training`, shard after shard, until enough
answers    those to given prompts: the held-out ones

Each prompt has its temperature and its random numbers from (seed, number of the prompt); a shard
is always the same prompts in the same order. So a run that was stopped goes on with the next shard
and ends with the same files. (The last bits of a logit depend on how many rows share a product:
equal files need the same batch size, machine and thread count.)

Loops are cut off, short rests dropped (`answering`). `sampled` counts all tokens that were drawn,
kept or not.

The target writes, because the drafter will meet the target's own states (in DistillSpec, Zhou et
al. 2024, the drafter writes; that costs samples in each round of training). Temperature 0 has the
largest share, because the figure to be shown is greedy; the others widen what is seen.
But: samples at a temperature are drawn from the 40 most likely tokens.
"""

import hashlib
import json
import random
import time
from dataclasses import asdict, dataclass

from utils import prompts as chat
from utils.speculative.drafter import prompts, shards
from utils.speculative.drafter.answering import Work

LIMIT = 1_000_000  # tokens drawn for one drafter, at most


@dataclass(frozen=True)
class Plan:
    """What decides the samples. mix: {temperature: share}. longest: of prompt and of answer."""

    seed: int = 0
    mix: tuple = ((0.0, 0.5), (0.7, 0.3), (1.0, 0.2))
    longest_prompt: int = 224
    longest_answer: int = 192
    shortest_kept: int = 24
    per_shard: int = 256
    batch: int = 32
    top_k: int = 40

    def temperature(self, number):
        """The temperature of a prompt."""
        dice = random.Random(f"{self.seed} temperature {number}")
        return dice.choices(*zip(*self.mix, strict=True))[0]


def sample(
    model,
    tokenizer,
    folder,
    tokens=LIMIT,
    plan=None,
    minutes=None,
    texts=None,
    part=(0, 1),
    log=print,
):
    """Write shards to `folder`, as long as none could lead beyond `tokens` drawn; those drawn.

    minutes: start no shard after so long; call again to go on. texts: prompts (default: those of
    prompts.training). part: (i, n) makes every n-th shard from the i-th on, with an n-th of the
    tokens, so that n processes share the work. ValueError where `folder` holds shards of another
    plan, model or prompts.
    """
    plan, began = plan or Plan(), time.monotonic()
    if not 0 < tokens <= LIMIT:
        raise ValueError(f"tokens={tokens}: between 1 and {LIMIT:,} are drawn for one drafter")
    source, (number, step) = _Prompts(tokenizer, plan, texts), part
    shards.settle(folder, _identity(model, plan, source))
    drawn, most = 0, plan.per_shard * plan.longest_answer
    while drawn + most <= tokens / step and source.has(number * plan.per_shard):
        found = shards.load(folder, number)
        if found is None:
            if minutes and time.monotonic() - began > 60 * minutes:
                log(f"{drawn} tokens drawn before shard {number}; run again to go on")
                break
            found = _shard(model, source, plan, number)
            shards.save(folder, number, found)
            log(f"shard {number}: {json.dumps(found.counts)}")
        drawn += found.counts["sampled"]
        number += step
    return drawn


def answers(model, tokenizer, texts, plan, temperature=0.0):
    """Answers to given prompts at one temperature, loops kept: what a drafter is measured on."""
    plan = Plan(**(asdict(plan) | {"mix": ((temperature, 1.0),), "per_shard": len(texts)}))
    return _shard(model, _Prompts(tokenizer, plan, texts), plan, 0, keep_loops=True)


class _Prompts:
    """Ids of numbered prompts; those that are too long are passed over."""

    def __init__(self, tokenizer, plan, texts=None):
        self.tokenizer, self.plan, self.fixed = tokenizer, plan, texts
        self.texts = list(texts or [])

    def has(self, number):
        return self.fixed is None or number < len(self.fixed)

    def shard(self, number):
        """[(number of the prompt, ids)] of one shard."""
        first, end = number * self.plan.per_shard, (number + 1) * self.plan.per_shard
        if self.fixed is None and len(self.texts) < end:
            self.texts = prompts.training(2 * end, self.plan.seed)
        numbered = enumerate(self.texts[first:end], first)
        found = [(n, encoded(self.tokenizer, text)) for n, text in numbered]
        return [(n, ids) for n, ids in found if len(ids) <= self.plan.longest_prompt]

    def mark(self):
        """A hash of the first shard's prompts."""
        texts = self.shard(0)
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def encoded(tokenizer, text):
    """A prompt as the user's turn of a chat."""
    return chat.ids(chat.Prompt("chat", "training", text), tokenizer)


def _identity(model, plan, source):
    weight = model.model.norm.weight.detach()
    target = hashlib.sha256(weight.float().cpu().numpy().tobytes()).hexdigest()[:16]
    made = {"plan": json.loads(json.dumps(asdict(plan))), "prompts": source.mark()}
    return made | {"target": target, "numbers": str(weight.dtype)}


def _shard(model, source, plan, number, keep_loops=False):
    """One shard's answers, in the order of the prompts' numbers."""
    cpu, wall = time.process_time(), time.monotonic()
    work = Work(model, plan, source.shard(number), keep_loops)
    work.run()
    counts = work.counts | {
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "seconds": round(time.monotonic() - wall, 1),
    }
    return shards.Shard(sorted(work.done, key=lambda text: text.number), counts)
