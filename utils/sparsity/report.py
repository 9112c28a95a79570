"""What pruning left: requested and achieved sparsity, exact zeros, and bytes in four forms.

Does: count. Does not: promise. A sparse form's bytes are what the matrix would take if stored so;
the model itself stays dense (and as large as before) until somebody packs it.
"""

from dataclasses import dataclass

from utils.sparsity import layers as layer_tools
from utils.sparsity import semi_structured, storage

FORMS = ("dense", "csr", "bitmap", "2:4")


@dataclass(frozen=True)
class LayerReport:
    """One layer: shape (out, in), requested fraction, zeros, value_bytes, whether it is 2:4."""

    name: str
    shape: tuple
    requested: float
    zeros: int
    value_bytes: int
    semi_structured: bool

    @property
    def size(self):
        """Number of weights."""
        return self.shape[0] * self.shape[1]

    @property
    def achieved(self):
        """Fraction of exact zeros."""
        return self.zeros / self.size

    def bytes(self, form, value_bytes=None):
        """Predicted bytes as "dense", "csr", "bitmap" or "2:4" (None without the pattern)."""
        width, nonzeros = value_bytes or self.value_bytes, self.size - self.zeros
        if form == "2:4":
            return (
                storage.semi_structured_bytes(self.shape, width) if self.semi_structured else None
            )
        return {
            "dense": storage.dense_bytes(self.shape, width),
            "csr": storage.csr_bytes(self.shape, nonzeros, width),
            "bitmap": storage.bitmap_bytes(self.shape, nonzeros, width),
        }[form]


@dataclass(frozen=True)
class Report:
    """All pruned layers; `print(report)` shows the totals, `report.table()` every layer."""

    method: str
    pattern: str | None
    layers: tuple

    @property
    def zeros(self):
        """Exact zeros over all pruned layers."""
        return sum(layer.zeros for layer in self.layers)

    @property
    def size(self):
        """Weights over all pruned layers."""
        return sum(layer.size for layer in self.layers)

    @property
    def achieved(self):
        """Fraction of exact zeros over all pruned layers."""
        return self.zeros / self.size

    def bytes(self, form, value_bytes=None):
        """Predicted bytes of all pruned layers in one form; None if a layer can't take it."""
        parts = [layer.bytes(form, value_bytes) for layer in self.layers]
        return None if None in parts else sum(parts)

    def table(self):
        """One line for each layer."""
        head = f"{'layer':44} {'shape':>12} {'asked':>6} {'zeros':>9} {'got':>7}"
        return "\n".join([head, *(_line(layer) for layer in self.layers)])

    def __str__(self):
        kind = self.pattern or "unstructured"
        counts = f"{self.zeros:,} zeros of {self.size:,} ({self.achieved:.2%})"
        first = f"{self.method}, {kind}: {len(self.layers)} layers, {counts}"
        sizes = {form: self.bytes(form) for form in FORMS}
        rest = [
            f"  {form:7} {size:>13,} bytes {size / sizes['dense']:8.2%}"
            for form, size in sizes.items()
            if size
        ]
        return "\n".join([first, *rest])


def _line(layer):
    shape = "x".join(map(str, layer.shape))
    return (
        f"{layer.name:44} {shape:>12} {layer.requested:6.2f} {layer.zeros:9,} {layer.achieved:7.2%}"
    )


def inspect(layers, requested, method="as found", pattern=None):
    """Count what is in `layers` (name -> module) now: a `Report`."""
    rows = [
        _inspect_layer(name, layer_tools.matrix(module), requested)
        for name, module in layers.items()
    ]
    return Report(method, pattern, tuple(rows))


def _inspect_layer(name, weight, requested):
    fits = weight.shape[1] % 4 == 0 and semi_structured.is_semi_structured(weight)
    zeros = int((weight == 0).sum())
    return LayerReport(name, tuple(weight.shape), requested, zeros, weight.element_size(), fits)
