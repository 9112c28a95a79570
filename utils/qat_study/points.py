"""What unit 10 measures at one point of its study; plain lists, so that JSON can hold them.

"ptq/RECIPE"  KL, loss, first choices by window for a recipe of unit 08, untrained
"start/RECIPE"  KL on each training window before any training, to hold the losses against
"qat/ARM"     as ptq after training, with losses by step, seconds, tokens, share of codes changed
"rate/ARM"    losses by step alone, on few tokens

Evaluation text, reference and windows are those of unit 08, so that rows stand beside each other;
training text is the calibration text of unit 08 (the first 16,384 tokens are the very ones that
GPTQ saw), cut into windows of 256, each used once: the loss of a step is on unseen text.
"""

from dataclasses import replace
from functools import cached_property

import torch

from utils import corpus
from utils.gptq_study import points, recipes
from utils.qat_study import arms
from utils.quantization import gptq_model
from utils.quantization.distillation import Trainer, kl

LENGTH, SAVE_EVERY = 256, 8
SKIPPED = slice(recipes.TOKENS // points.WINDOW, recipes.TOKENS // points.WINDOW + 8)  # "choice"
CHAT = ("rtn", "kl", "text")  # measured on text in the chat format, too


class Bench(points.Bench):
    """The bench of unit 08, with training. found: the points measured so far."""

    def __init__(self, folder, found=None):
        super().__init__(folder)
        self.found = {} if found is None else found

    @cached_property
    def training(self):
        """int64 [128, 256]: 32,768 tokens in windows that no choice and no evaluation uses."""
        rows = corpus.sample(self.tokenizer, "calibration", 32768 + 4096, points.WINDOW).ids
        kept = torch.cat([rows[: SKIPPED.start], rows[SKIPPED.stop :]])
        return kept.reshape(-1, LENGTH)

    def run(self, point):
        """The measurement named by `point`."""
        way, name = point.split("/")
        if way == "ptq":
            return self._ptq(name)
        if way == "start":
            return self._start(name)
        return self._train(name, evaluate=way == "qat")

    def _ptq(self, recipe):
        result = super().run(f"text/{recipe}")
        return result | ({"chat": super().run(f"chat/{recipe}")} if recipe in CHAT else {})

    @torch.no_grad()
    def _start(self, recipe):
        before = gptq_model.simulate(self.model, self.tensors(recipe))
        rows = self.training[: arms.Arm().tokens // LENGTH].split(1)
        both = (self.model, before)
        pairs = ([m(input_ids=row, use_cache=False).logits for m in both] for row in rows)
        return {"before": [round(float(kl(*pair)), 5) for pair in pairs]}

    def _train(self, name, evaluate):
        chosen = arms.arm(name)
        if evaluate:
            chosen = replace(chosen, plan=replace(chosen.plan, rate=self.rate(name)))
        recipe = chosen.start + ("-3" if chosen.bits == 3 else "")
        tensors = self.tensors(recipe)
        trainer = self._trainer(name, chosen, tensors)
        result = dict(
            losses=[round(x, 5) for x in trainer.losses], seconds=round(trainer.seconds, 1),
            tokens=trainer.tokens, rate=chosen.plan.rate,
            trained=arms.trained_parameters(trainer.student),
            flipped=arms.flipped(trainer.student, chosen, tensors),
        )  # fmt: skip
        if evaluate:
            result |= self._evaluate(name, trainer.student, chosen, tensors)
        self._file(name).unlink(missing_ok=True)
        return result

    def rate(self, name):
        """The rate with the lowest late loss among the arm's trials."""
        trials = arms.TRIALS[name.removesuffix("-3")]
        best = arms.best({trial: self.found[f"rate/{trial}"]["losses"] for trial in trials})
        return arms.arm(best).plan.rate

    def _evaluate(self, name, student, chosen, tensors):
        found = {}
        for kind, model in arms.results(student, chosen, self.model, tensors).items():
            one = points.compare(self._reference("text", self.ids("text")), model)
            found |= {kind: one} if kind else one
            if name in CHAT:
                found["chat"] = points.compare(self._reference("chat", self.ids("chat")), model)
        return found

    def _file(self, name):
        return self.folder / f"10-qat-{name}.pt"

    def _trainer(self, name, chosen, tensors):
        """Trained to the end; from the last checkpoint where there is one."""
        windows = self.training[: chosen.tokens // LENGTH]
        student = arms.student(self.model, chosen, tensors)
        trainer = Trainer(student, self.model, windows, chosen.plan)
        if self._file(name).exists():
            trainer.load(self._file(name))
        while trainer.done < trainer.steps:
            trainer.run(trainer.done + SAVE_EVERY)
            if trainer.done < trainer.steps:
                trainer.save(self._file(name))
        return trainer
