"""What `quantize_model` did: per layer and in total, predicted and measured.

But: bytes only. Speed and quality are measured elsewhere (`utils.measure`, `utils.quality`).
"""

from dataclasses import dataclass, field

from torch import nn


@dataclass(frozen=True)
class LayerReport:
    """One quantized layer; all bytes are those of its weight alone, without the bias."""

    name: str
    kind: str
    shape: tuple
    parameters: int
    original_bytes: int
    predicted_bytes: int
    measured_bytes: int
    bits_per_weight: float


@dataclass
class Report:
    """The whole model. `skipped` says for every layer that was left alone why."""

    model: nn.Module = field(repr=False)
    method: object
    bits: int
    group_size: int
    symmetric: bool
    simulated: bool
    bytes_before: int
    layers: list = field(repr=False)
    skipped: dict = field(repr=False)

    @property
    def quantized_parameters(self):
        """Number of weights that were quantized."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def packed_bytes(self):
        """Bytes of all quantized weights: codes, scales, zero points."""
        return sum(layer.measured_bytes for layer in self.layers)

    @property
    def unquantized_bytes(self):
        """Bytes of everything else: embeddings, norms, biases, buffers."""
        return self.bytes_before - sum(layer.original_bytes for layer in self.layers)

    @property
    def predicted_bytes(self):
        """Bytes of the model from shapes alone."""
        return self.unquantized_bytes + sum(layer.predicted_bytes for layer in self.layers)

    @property
    def measured_bytes(self):
        """Bytes of the model's tensors, counted; of a simulated model what the packed one takes."""
        if self.simulated:
            return self.unquantized_bytes + self.packed_bytes
        return resident_bytes(self.model)

    @property
    def bits_per_weight(self):
        """Bits per weight over the quantized layers, scales and zero points included."""
        return 8 * self.packed_bytes / self.quantized_parameters

    def check(self):
        """Raise RuntimeError when the bytes counted are not the bytes predicted."""
        for part in [*self.layers, self]:
            if part.predicted_bytes != part.measured_bytes:
                name = getattr(part, "name", "model")
                raise RuntimeError(f"{name}: {part.predicted_bytes=} {part.measured_bytes=}")

    def __str__(self):
        groups = {-1: "per channel", 0: "per tensor"}.get(self.group_size, f"g{self.group_size}")
        grid = "symmetric" if self.symmetric else "asymmetric"
        mode = " (simulated: the model in memory keeps its size)" if self.simulated else ""
        lines = [
            f"{self.bits}-bit {grid} {groups}: {len(self.layers)} layers, "
            f"{self.quantized_parameters:,} weights, "
            f"{self.bits_per_weight:.3f} bits per weight{mode}",
            f"bytes before {self.bytes_before:,}",
            f"bytes after  {self.measured_bytes:,} = {self.packed_bytes:,} packed "
            f"+ {self.unquantized_bytes:,} left alone (predicted {self.predicted_bytes:,})",
        ]
        lines += [f"skipped {name}: {why}" for name, why in self.skipped.items()]
        return "\n".join(lines)


def resident_bytes(model):
    """Bytes of all parameters and buffers in memory; a tensor used twice (tied) counts once."""
    tensors = [*model.parameters(), *model.buffers()]
    sizes = {(t.data_ptr(), t.nbytes): t.nbytes for t in tensors if t.numel()}
    return sum(sizes.values())
