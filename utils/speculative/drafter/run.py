"""Long runs: training with checkpoints and a log. What `__main__` and the notebook call.

`go` trains until the recipe is done or time is up, writes a checkpoint every ten minutes, and goes
on from the last one when called again. The log has one JSON object for each line: "start", every
50th "step", each "check" (figures on the validation prompts, with the averaged weights), "end".
"""

import json
import time
from pathlib import Path

import torch

from utils import cache

CHECKPOINT, LOG = "checkpoint.pt", "training.jsonl"


def go(trainer, folder=None, minutes=None, every=10, check=None, show=print):
    """Train; True when the recipe is done.

    folder: for checkpoint and log (None: neither). minutes: of this call, checks not counted.
    every: minutes between checkpoints. check: function of the head to a dict of figures.
    """
    log = _Log(folder, show)
    if folder and (Path(folder) / CHECKPOINT).exists():
        trainer.restore(torch.load(Path(folder) / CHECKPOINT, weights_only=True))
    log.line("start", trainer, texts=len(trainer.texts), total=trainer.total)
    first, saved = trainer.seconds, time.monotonic()
    while not trainer.finished and not (minutes and trainer.seconds - first > 60 * minutes):
        found = trainer.step()
        if trainer.done in (1, 10) or trainer.done % 50 == 0:
            parts = [[round(float(v), 4) for v in part] for part in found["parts"]]
            log.line("step", trainer, loss=round(found["loss"], 4), parts=parts)
        if time.monotonic() - saved > 60 * every:
            _keep(trainer, folder, check, log)
            saved = time.monotonic()
    _keep(trainer, folder, check, log)
    log.line("end", trainer, finished=trainer.finished)
    return trainer.finished


def _keep(trainer, folder, check, log):
    if folder:
        with cache.write_atomically(Path(folder) / CHECKPOINT) as scratch:
            torch.save(trainer.state(), scratch)
    if check:
        with trainer.averaged() as head:
            log.line("check", trainer, **check(head))


class _Log:
    def __init__(self, folder, show):
        self.path, self.show = Path(folder) / LOG if folder else None, show
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)

    def line(self, what, trainer, **more):
        """Write and show one line."""
        counted = {
            "what": what, "step": trainer.done, "places": trainer.places,
            "seconds": round(trainer.seconds, 1), "cpu_seconds": round(trainer.cpu_seconds, 1),
        }  # fmt: skip
        text = json.dumps(counted | more)
        self.show(text)
        if self.path:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text + "\n")
