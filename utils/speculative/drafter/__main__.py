"""Make the shipped drafter: python -m utils.speculative.drafter STAGE [options]

    sample     the target's answers to the training prompts, and the held-out ones' answers
    states     the target's states for all samples, on disk
    train      the head; --tokens N: on the first N answer tokens only (a trial)
    evaluate   --on validation (settings) or test (once, at the end); --engine fp32: timed there
    ship       weights, samples, log, card and hashes to utils/data/drafter/shipped

Everything lies in --folder (default _build/drafter) and goes on where it stopped.
"""

import argparse
import json
from dataclasses import asdict, fields
from pathlib import Path

import torch

from utils import cache, models
from utils.device import detect
from utils.speculative.drafter import (
    data,
    evaluate,
    prompts,
    run,
    sampling,
    shards,
    ship,
    start,
    train,
)  # fmt: skip
from utils.speculative.drafter.drafting import Copies
from utils.speculative.drafter.head import Head
from utils.speculative.drafter.watch import depths

ROOT = Path(__file__).resolve().parents[3]
VOCABULARY = 8192
HELD_OUT = ("validation", "test")


def main(arguments=None):
    """Run the stage that the command line names."""
    options = _parser().parse_args(arguments)
    loaded = models.load()
    STAGES[options.stage](options, loaded.model, loaded.tokenizer)


def sample(options, model, tokenizer):
    """Held-out answers in fp32; training answers in the fastest native format with --fast."""
    plan = sampling.Plan(batch=options.batch or 32)
    for name in HELD_OUT:
        if shards.load(options.folder / name, 0) is None:
            texts = prompts.held_out(name)
            found = sampling.answers(model, tokenizer, texts, plan)
            shards.save(options.folder / name, 0, found)
    if options.fast:
        model = model.to(getattr(torch, detect().dtypes[-1]))
    folder, part = options.folder / "samples", tuple(map(int, options.part.split("/")))
    limits = {"tokens": options.tokens or sampling.LIMIT, "minutes": options.minutes}
    drawn = sampling.sample(model, tokenizer, folder, plan=plan, part=part, **limits)
    print(f"{drawn:,} tokens drawn in this part; all: {json.dumps(shards.read(folder).counts)}")


def states(options, model, _tokenizer):
    """Files of states beside the samples."""
    data.store(model, _texts(options.folder), depths(model), options.folder / "states")


def train_head(options, model, _tokenizer):
    """Ridge start, or the checkpoint; then the recipe."""
    trainer = _trainer(options, model)
    held = _held_out(options.folder, "validation", model)
    folder = options.folder / options.name
    done = run.go(trainer, folder, options.minutes, check=lambda head: evaluate.summary(head, held))
    if done:
        print(f"done; `evaluate --name {options.name}`, then `ship --name {options.name}`")


def evaluate_head(options, model, tokenizer):
    """Figures of the averaged weights on a held-out set."""
    with _trainer(options, model, restore=True).averaged() as head:
        held = _held_out(options.folder, options.on, model)
        found = evaluate.summary(head, held)
        for name, k, copies in (
            ("chain3", 3, None),
            ("chain4", 4, None),
            ("lookup+3", 3, Copies()),
        ):
            result = evaluate.measure(head, held, k, copies)
            found[name] = [round(result.tokens_per_forward, 3), round(result.error, 3)]
        if options.engine:
            found["engine"] = _timed(options, model, tokenizer, head)
    print(json.dumps(found, indent=1))
    with cache.write_atomically(options.folder / options.name / f"{options.on}.json") as scratch:
        scratch.write_text(json.dumps(found, indent=1), "utf-8")


def ship_head(options, model, _tokenizer):
    """Write the shipped files; `evaluate --on test --engine fp32` must have run."""
    folder = options.folder / options.name
    figures = json.loads((folder / "test.json").read_text("utf-8"))
    counts = shards.read(options.folder / "samples").counts
    trainer = _trainer(options, model, restore=True)
    facts = {f"samples: {name}": value for name, value in counts.items()}
    facts |= {f"test: {name}": json.dumps(value) for name, value in figures.items()}
    facts |= {f"recipe: {name}": value for name, value in asdict(trainer.recipe).items()}
    facts |= {"training: seconds": round(trainer.seconds), "training: steps": trainer.done}
    with trainer.averaged() as head:
        log = folder / run.LOG
        print(json.dumps(ship.save(head, ship.FOLDER, options.folder / "samples", log, facts)))


def _texts(folder):
    return data.usable(shards.read(folder / "samples").texts)


def _trainer(options, model, restore=False):
    """A Trainer on the stored states; its head has the ridge start or the last checkpoint."""
    path = options.folder / options.name / run.CHECKPOINT
    if restore and not path.exists():
        raise ValueError(f"{path} is missing: train first, with the same --folder and --name")
    options = _settled(options)
    texts = _texts(options.folder)
    seen = data.stored(texts, options.folder / "states")
    limit = _first(texts, options.tokens)
    chosen = start.draft_vocabulary(texts[:limit], VOCABULARY, model.config.vocab_size)
    head, seen = Head(model, chosen, intermediate=options.width), seen[:limit]
    if not path.exists():
        print(f"ridge start: {json.dumps(start.ridge_start(head, model, _mixed(seen)))}")
    trainer = train.Trainer(head, seen, _recipe(options))
    if restore:
        trainer.restore(torch.load(path, weights_only=True))
    return trainer


def _settled(options):
    """The options of a training as they were at its first start, which are kept beside it."""
    path, given = options.folder / options.name / "settings.json", vars(options)
    if path.exists():
        given = given | json.loads(path.read_text("utf-8"))
    else:
        names = ("tokens", "width", *(f.name for f in fields(train.Recipe)))
        kept = {name: given[name] for name in names if name in given}
        with cache.write_atomically(path) as scratch:
            scratch.write_text(json.dumps(kept), "utf-8")
    return argparse.Namespace(**given)


def _mixed(seen):
    """Texts from all over the samples, for the least-squares start."""
    return seen[:: max(1, len(seen) // 200)]


def _first(texts, tokens):
    """How many texts have `tokens` answer tokens; all of them without a limit."""
    count = 0
    for number, text in enumerate(texts):
        if tokens and count >= tokens:
            return number
        count += len(text.ids) - text.start
    return len(texts)


def _recipe(options):
    given = {f.name: getattr(options, f.name, None) for f in fields(train.Recipe)}
    return train.Recipe(**{name: value for name, value in given.items() if value is not None})


def _held_out(folder, name, model):
    return data.attach(model, shards.read(folder / name).texts, depths(model))


def _timed(options, model, tokenizer, head):
    from utils.engine import Engine

    engine = Engine(model, "fp32", max_tokens=512, states=head.layers)
    ids = [sampling.encoded(tokenizer, text) for text in prompts.held_out(options.on)]
    return evaluate.in_engine(engine, head, ids, 64, weights=options.engine)


def _parser():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--folder", type=Path, default=ROOT / "_build" / "drafter")
    parser.add_argument("--name", default="head", help="which training: a folder in --folder")
    parser.add_argument("--minutes", type=float, help="stop after so long; run again to go on")
    parser.add_argument("--tokens", type=int, help="to draw in all, or to train on")
    parser.add_argument("--batch", type=int, help="texts at a time")
    parser.add_argument("--part", default="0/1", help="i/n: the i-th of n processes that sample")
    parser.add_argument("--fast", action="store_true", help="sample in the fastest native format")
    parser.add_argument("--width", type=int, help="of the head's feed-forward (default: target's)")
    parser.add_argument("--on", choices=HELD_OUT, default="validation")
    parser.add_argument("--engine", choices=("fp32", "int8"), help="time it; the head's weights")
    for name in ("epochs", "rate", "feature", "overlap", "negatives", "noise", "heat"):
        parser.add_argument(f"--{name}", type=float, help="see train.Recipe")
    return parser


STAGES = {
    "sample": sample, "states": states, "train": train_head, "evaluate": evaluate_head,
    "ship": ship_head,
}  # fmt: skip

if __name__ == "__main__":
    main()
