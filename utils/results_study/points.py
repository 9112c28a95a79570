"""One row of the page measured: quality by window, and bytes counted three ways.

Text, windows, reference and calibration are those of unit 08 (`utils.gptq_study.points`), so that
equal models have equal numbers there and here. Bytes: predicted from shapes, counted in the
tensors, and of a file that is really written and then removed.

But: quality is that of fp32 arithmetic on the stored numbers (activations in int8 where the row
says so), not of a kernel's own rounding.
"""

import tempfile
from functools import cached_property
from math import prod
from pathlib import Path

import torch

from utils.awq_study.recipes import activation
from utils.gptq_study import points, recipes
from utils.quantization import activation_aware, activations, capture, gptq_model, storage
from utils.quantization.model import find, share, weight_of
from utils.quantization.report import resident_bytes
from utils.results_study.forms import FORMS, uniform

AWQ_TOKENS = 4096  # of the calibration text, as in unit 08


class Bench(points.Bench):
    """The bench of unit 08; the copy with AWQ's scales of the last row is kept."""

    _scaled = ("", None)

    @cached_property
    def awq_ids(self):
        """The windows that AWQ looks at."""
        return self.calibration.ids[: AWQ_TOKENS // points.WINDOW]

    @cached_property
    def statistics(self):
        """What the layers' inputs look like on them."""
        return capture.collect(self.model, self.awq_ids, hessian=True)

    def scaled(self, bits):
        """The model with AWQ's scales for `bits` folded in: the same function, other weights."""
        if self._scaled[0] != bits:
            copy = share(self.model)
            options = (bits, recipes.GROUP, False)
            searches = activation_aware.search_model(copy, self.statistics, *options)
            activation_aware.Method(searches).adjust(copy)
            self._scaled = (bits, copy)
        return self._scaled[1]

    @cached_property
    def reference(self):
        """fp32 on the evaluation text."""
        return self._reference("text", self.ids("text"))

    def run(self, row):
        """{"kl", "same", "nll", "nll_reference": by window; bytes} of a Row."""
        source, stored = self.store(row)
        candidate = put(source, stored)
        found = size(source, candidate, row, stored, self.folder)
        if row.recipe.startswith("activations-"):
            way = activation(row.recipe.removeprefix("activations-"), None)
            candidate = activations.int8_model(self.model, way)
        return found | points.compare(self.reference, candidate)

    def store(self, row):
        """(model whose layers are stored, {layer: Stored})."""
        form, recipe = FORMS[row.form], row.recipe
        if recipe == "round" or recipe.startswith("activations-"):
            return self.model, each(self.model, form)
        if recipe.startswith("awq-"):
            scaled = self.scaled(int(recipe[-1]))
            return scaled, each(scaled, form)
        if recipe == "awq+gptq":
            scaled = self.scaled(4)
            made = gptq_model.tensors(scaled, self.awq_ids, group_size=recipes.GROUP)
            return scaled, {name: uniform(tensor) for name, tensor in made.items()}
        made = self.tensors(recipe)
        return self.model, {n: uniform(t, t.bits in (4, 8)) for n, t in made.items()}


def each(model, form):
    """{layer: Stored} of all linear layers."""
    return {name: form.store(weight_of(layer)) for name, layer in find(model)[0].items()}


def put(model, stored):
    """A copy of the model with the numbers that the stored layers stand for."""
    copy = share(model)
    for name, layer in stored.items():
        new = torch.nn.Parameter(layer.dense, requires_grad=False)
        copy.get_submodule(name).weight = new
    return copy


def size(model, candidate, row, stored, folder):
    """Bytes of the layers, predicted and counted; of the whole model in memory and as a file."""
    layers = find(model)[0]
    weights = {name: weight_of(layer) for name, layer in layers.items()}
    own = sum(w.numel() * w.element_size() for w in weights.values())
    packed = sum(layer.nbytes for layer in stored.values())
    predicted = sum(FORMS[row.form].predict(tuple(w.shape)) for w in weights.values())
    if packed != predicted:
        raise RuntimeError(f"{row.name}: {packed} bytes are stored, {predicted} were predicted")
    disk, header = written(rest(candidate, stored), stored, folder)
    return {
        "layer_weights": sum(prod(w.shape) for w in weights.values()),
        "weights": sum(p.numel() for p in model.parameters()),
        "packed_bytes": packed,
        "predicted_bytes": predicted,
        "memory_bytes": packed + resident_bytes(model) - own,
        "disk_bytes": disk,
        "header_bytes": header,
    }


def rest(model, stored):
    """{name: tensor} of what is not quantized; a tied head is in it once."""
    named = model.named_parameters()
    return {n: p.detach() for n, p in named if n.removesuffix(".weight") not in stored}


def written(others, stored, folder):
    """(bytes of the file, bytes of its header): all tensors in one safetensors file, then gone."""
    tensors = others | {
        f"{name}.{part}": tensor
        for name, layer in stored.items()
        for part, tensor in layer.parts.items()
    }
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="results-") as scratch:
        path = storage.write(Path(scratch) / "model.safetensors", tensors, {})
        with path.open("rb") as file:
            header = 8 + int.from_bytes(file.read(8), "little")
        return path.stat().st_size, header
