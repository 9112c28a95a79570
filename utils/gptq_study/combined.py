"""Two more points of unit 08: AWQ's scales (unit 07) with rounding, and with GPTQ after them.

"awq/rtn" and "awq/tokens-4096": the scales are searched on 4,096 calibration tokens and folded into
a copy of the model; its layers are then rounded, or quantized by GPTQ with Hessians of that copy.
"""

import hashlib
from functools import cached_property

from utils import ledger
from utils.gptq_study import points, recipes
from utils.quantization import activation_aware, awq, capture, gptq_model, sites
from utils.quantization.model import share

TOKENS = 4096
POINTS = ("awq/rtn", f"awq/tokens-{TOKENS}")


class Bench(points.Bench):
    """The bench of points.py, and the copy with AWQ's scales."""

    @cached_property
    def scaled(self):
        """The model with the scales folded in: the same function, other weights."""
        copy = share(self.model)
        ids = self.calibration.ids[: TOKENS // points.WINDOW]
        found = capture.collect(copy, ids, hessian=True)
        options = (4, recipes.GROUP, False)
        searches = activation_aware.search_model(copy, found, *options)
        activation_aware.Method(searches).adjust(copy)
        return copy

    def run(self, point):
        """The measurement named by `point`."""
        way, recipe = point.split("/")
        if way != "awq":
            return super().run(point)
        if recipe == "rtn":
            made = recipes.rounded(self.scaled, 4)
        else:
            ids = self.calibration.ids[: TOKENS // points.WINDOW]
            made = gptq_model.tensors(self.scaled, ids, group_size=recipes.GROUP)
        candidate = gptq_model.simulate(self.scaled, made)
        return points.compare(self._reference("text", self.ids("text")), candidate)


def code_sha256():
    """Hash of the code behind these points, beyond that of study.py."""
    parts = [ledger.file_sha256(m.__file__) for m in (awq, capture, sites, activation_aware)]
    return hashlib.sha256("".join([*parts, ledger.file_sha256(__file__)]).encode()).hexdigest()
