"""The quantized models that unit 08 compares, by name; and the Hessians that they share.

"rtn", "plain" (act-order, 16,384 tokens, damping 0.01, static groups, position 0 counted once), and
variants that change one thing: "natural" (no act-order), "dynamic", "natural-dynamic",
"tokens-4096", "damping-0.1", "first-16" (position 0 counted 16 times in q, k, v; 0: left out),
"sequential-4096", "first-16-sequential-4096". With "-3" at the end: 3 bits instead of 4.
"""

import re

from safetensors.torch import load_file, save_file

from utils import cache, models
from utils.quantization import gptq_model, hessian, rtn
from utils.quantization.model import weight_of

GROUP, TOKENS, WINDOW = 64, 16384, 512


class Hessians:
    """Plain Hessians of 16,384 calibration tokens, kept in a file, and those of first tokens."""

    def __init__(self, model, ids, file):
        self.model, self.ids, self.file = model, ids, file
        self._plain = self._first = None

    def plain(self):
        """{name: H}; from the file where there is one."""
        if self._plain is None and not self.file.exists():
            found = hessian.collect(self.model, self.ids)
            kept = {n: h for n, h in found.items() if n == owner(n)}
            with cache.write_atomically(self.file) as scratch:
                save_file(kept, scratch)
        if self._plain is None:
            kept = load_file(self.file)
            self._plain = {n: kept[owner(n)] for n in models.linears(self.model)}
        return self._plain

    def first(self, factor):
        """{name: H} with position 0 counted `factor` times in q, k and v."""
        self._first = self._first or hessian.collect(self.model, self.ids[:, :1])
        return hessian.emphasise(self.plain(), self._first, hessian.Emphasis(factor))


def owner(name):
    """The layer whose Hessian `name` shares: q for k and v, gate for up."""
    return re.sub("up_proj$", "gate_proj", re.sub("[kv]_proj$", "q_proj", name))


def parse(recipe):
    """The options of a recipe: bits, act_order, groups, damping, factor, tokens, sequential."""
    name, bits = (recipe[:-2], 3) if recipe.endswith("-3") else (recipe, 4)

    def number(pattern, default):
        found = re.search(pattern, name)
        return float(found[1]) if found else default

    return dict(
        bits=bits,
        act_order="natural" not in name,
        groups="dynamic" if "dynamic" in name else "static",
        damping=number(r"damping-([\d.]+)", 0.01),
        factor=number(r"first-([\d.]+)", 1.0),
        tokens=int(number(r"(?:tokens|sequential)-(\d+)", TOKENS)),
        sequential="sequential" in name,
    )


def make(recipe, model, hessians):
    """{layer: QuantizedTensor} of one recipe."""
    if recipe in ("rtn", "rtn-3"):
        return rounded(model, 3 if recipe == "rtn-3" else 4)
    options = parse(recipe) | dict(group_size=GROUP)
    factor, tokens = options.pop("factor"), options.pop("tokens")
    if options["sequential"] or tokens != TOKENS:
        some = hessians.ids[: tokens // WINDOW]
        return gptq_model.tensors(model, some, hessian.Emphasis(factor), **options)
    chosen = hessians.plain() if factor == 1 else hessians.first(factor)
    return gptq_model.tensors(model, hessians=chosen, **options)


def rounded(model, bits):
    """Every layer rounded to nearest, asymmetric."""
    layers = models.linears(model)
    return {n: rtn.quantize(weight_of(m), bits, GROUP, False) for n, m in layers.items()}
