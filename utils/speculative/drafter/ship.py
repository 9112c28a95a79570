"""The files that the course ships, and how they are loaded: weights, samples, log, card, hashes.

    drafter.safetensors   trained weights in fp16, scales and draft ids; no target weights
    samples.npz           all ids that it was trained on: the training can be repeated from them
    training.jsonl        the log of the run
    card.md               what it is, how it was made, what it measured, what it can't do
    hashes.json           SHA-256 of each of the others, and the mark of the target

`load` refuses a file whose hash isn't the noted one, and another target.
"""

import hashlib
import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from utils import cache, ledger
from utils.speculative.drafter import shards
from utils.speculative.drafter.head import Head, parameters

FOLDER = Path(__file__).parents[2] / "data" / "drafter" / "shipped"
WEIGHTS, SAMPLES, LOG, CARD = "drafter.safetensors", "samples.npz", "training.jsonl", "card.md"
LARGEST = 16_000_000  # bytes of the weights
SCALES = ("mean", "spread")  # these stay fp32


def save(head, folder, samples, log, facts):
    """Write all files to `folder`; the hashes. head: with the weights to be shipped.

    samples: folder of shards or exported file. log: the training's log. facts: {what: text or
    number} for the card. ValueError where the weights take more than 16 MB.
    """
    with cache.write_atomically(folder) as scratch:
        scratch.mkdir()
        save_file(_tensors(head), scratch / WEIGHTS, {"shape": json.dumps(_shape(head))})
        size = (scratch / WEIGHTS).stat().st_size
        if size > LARGEST:
            raise ValueError(f"the weights take {size:,} bytes; at most {LARGEST:,} are shipped")
        shards.export(samples, scratch / SAMPLES)
        shutil.copyfile(log, scratch / LOG)
        (scratch / CARD).write_text(card(head, size, facts), "utf-8")
        names = (WEIGHTS, SAMPLES, LOG, CARD)
        hashes = {name: ledger.file_sha256(scratch / name) for name in names}
        hashes["target"] = mark(head)
        (scratch / "hashes.json").write_text(json.dumps(hashes, indent=1) + "\n", "utf-8")
    return hashes


def load(model, folder=FOLDER):
    """The shipped head for `model`, the target that it was trained for; in eval mode."""
    path = checked(WEIGHTS, folder)
    with safe_open(path, "pt") as held:
        shape = json.loads(held.metadata()["shape"])
    tensors = load_file(path)
    head = Head(model, tensors["draft_ids"].tolist(), shape["layers"], shape["intermediate"])
    expected = _hashes(folder)["target"]
    if mark(head) != expected or list(head.layers) != shape["layers"]:
        raise ValueError(
            "this drafter was trained for another target: it belongs to the course's default "
            "model as `models.load()` gives it, with its channels in the shuffled order"
        )
    head.load_state_dict({name: tensor.to(_kind(head, name)) for name, tensor in tensors.items()})
    return head.eval().requires_grad_(False)


def checked(name, folder=FOLDER):
    """The path of a shipped file whose hash is as noted, or ValueError."""
    path, expected = Path(folder) / name, _hashes(folder)[name]
    if not path.exists():
        raise ValueError(f"{path} is missing: restore it from the repository")
    found = ledger.file_sha256(path)
    if found != expected:
        raise ValueError(
            f"{path} has SHA-256 {found[:12]}…, not {expected[:12]}…: it was changed or cut off; "
            "restore it from the repository"
        )
    return path


def mark(head):
    """A hash that tells the target: of its final head's rows for the draft ids."""
    return hashlib.sha256(head.rows.float().cpu().numpy().tobytes()).hexdigest()


def card(head, size, facts):
    """The model card, in Markdown."""
    lines = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    return f"""# Drafter for the course's default model

A draft head in the manner of EAGLE-3: one decoder layer over the token embedding and the target's
states after layers {", ".join(map(str, head.layers))}. {parameters(head) / 1e6:.2f} million trained
numbers, {size / 1e6:.1f} MB in fp16, {len(head.draft_ids):,} draft ids. Embedding and head are the
target's and are not in the file.

| | |
|---|---|
{lines}

**Use:** `ship.load(model)`, then `drafting.HeadDrafter(head, Engine(model, states=head.layers))`.
The output is the target's, in law and when greedy token for token; the drafter decides only how
fast it comes.

**Made with:** `python -m utils.speculative.drafter sample`, `states`, `train`, `ship`. Prompts are
made from templates (`prompts.py`); answers are the target's own samples, in `samples.npz`.

**Limits:** English chat of one turn, answers up to 192 tokens, positions up to about 420. Other
text is drafted worse. Ids outside the draft ids are never proposed. It fits no other target, and
no other order of the target's channels.

**Licence:** Apache-2.0, as the target's.
"""


def _tensors(head):
    exact = (*SCALES, "draft_ids")
    return {name: _stored(tensor, name in exact) for name, tensor in head.state_dict().items()}


def _stored(tensor, exact):
    tensor = tensor.detach().cpu().contiguous()
    if tensor.is_floating_point():
        return tensor.clone() if exact else tensor.half()
    return tensor.to(torch.int32)


def _kind(head, name):
    return head.state_dict()[name].dtype


def _shape(head):
    return {"layers": list(head.layers), "intermediate": head.intermediate}


def _hashes(folder):
    path = Path(folder) / "hashes.json"
    if not path.exists():
        raise ValueError(
            f"no drafter in {folder}: train one with `python -m utils.speculative.drafter`"
        )
    return json.loads(path.read_text("utf-8"))
