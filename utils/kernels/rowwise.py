"""A `Weight` row by row, for the torch and Triton back ends: each output starts on its own byte.

The neutral form packs 4-bit codes over the flattened matrix, so in a matrix with an odd number of
inputs every second row starts in the middle of a byte. Here each row has ceil(in / 2) bytes, low
nibble first, and what several forms need is laid ready: zero points as bytes, and the numbers that
codes point to as a table of 16 (nf4, fp4) or 256 (fp8, whose dtype not every device has).

`dense` is the way back to numbers with plain torch operators on any device; `take` keeps some rows,
so that the embedding of a few tokens does not unpack the whole matrix.

But: no multiplication, and no reordering for one kind of hardware.
"""

from dataclasses import dataclass, replace

import torch

from utils.kernels.weights import FLOAT8
from utils.quantization.packing import pack, unpack
from utils.sparsity import semi_structured


@dataclass(frozen=True, eq=False)
class Rowwise:
    """parts: tensors with one row per output channel, by name. table: fp32, or None.

    kind: as in `Weight`. columns: inputs per row. group: columns per scale.
    """

    kind: str
    columns: int
    group: int
    parts: dict
    table: torch.Tensor | None = None

    def __len__(self):
        return len(next(iter(self.parts.values())))

    @property
    def nbytes(self):
        """Bytes of all parts and of the table."""
        tables = [] if self.table is None else [self.table]
        return sum(tensor.nbytes for tensor in [*self.parts.values(), *tables])

    def to(self, device):
        """The same rows on another device."""
        moved = {name: part.to(device).contiguous() for name, part in self.parts.items()}
        table = None if self.table is None else self.table.to(device)
        return replace(self, parts=moved, table=table)

    def take(self, rows):
        """Only these rows: a slice, or int64 indices on the same device."""
        return replace(self, parts={name: part[rows] for name, part in self.parts.items()})

    def dense(self):
        """The numbers, fp32 [rows, columns]."""
        parts = self.parts
        if self.kind == "sparse24":
            return semi_structured.decompress(parts["values"], parts["metadata"])
        if "values" in parts:
            return parts["values"].float()
        codes = parts["codes"] if "codes" in parts else self._unpacked()
        numbers = codes.float() if self.table is None else self._looked_up(codes)
        if "zero" in parts:
            numbers -= self._spread(parts["zero"])
        return numbers * self._spread(parts["scale"])

    def _unpacked(self):
        """4-bit codes, one a byte: int8 where they are signed, else uint8."""
        pairs = self.parts["nibbles"]
        codes = torch.stack((pairs & 15, pairs >> 4), dim=2).flatten(1)[:, : self.columns]
        signed = self.table is None and "zero" not in self.parts
        return (codes ^ 8).to(torch.int8) - 8 if signed else codes

    def _looked_up(self, codes):
        """The table's numbers; index_select is several times faster here than indexing."""
        return self.table.index_select(0, codes.flatten().int()).view(codes.shape)

    def _spread(self, grid):
        """[rows, groups] -> fp32 that broadcasts against [rows, columns]."""
        if grid.shape[1] == 1:
            return grid.float()
        return grid.float().repeat_interleave(self.group, dim=1)[:, : self.columns]


def by_rows(weight):
    """Weight -> Rowwise, where its parts are. Only odd 4-bit rows and zero points are copied."""
    outputs, columns = weight.shape
    group = weight.group_size if weight.group_size > 0 else columns
    parts = dict(weight.parts)
    table = parts.pop("table", None)
    if weight.kind in FLOAT8:
        every_code = torch.arange(256, dtype=torch.uint8)
        table = every_code.view(FLOAT8[weight.kind]).float()
    if weight.kind == "int8":
        codes = parts.pop("packed").reshape(outputs, columns)
        parts["codes"] = codes if "packed_zero" in parts else codes.view(torch.int8)
    if "packed" in parts:
        parts["nibbles"] = nibble_rows(parts.pop("packed"), outputs, columns)
    if "packed_zero" in parts:
        bits, grid = int(weight.kind[3:]), parts["scale"].shape
        parts["zero"] = unpack(parts.pop("packed_zero"), bits, grid.numel()).reshape(grid)
    return Rowwise(weight.kind, columns, group, parts, table)


def nibble_rows(packed, outputs, columns):
    """4-bit codes packed over the whole matrix -> uint8 [outputs, ceil(columns / 2)]."""
    if columns % 2 == 0:
        return packed.reshape(outputs, columns // 2)
    codes = unpack(packed, 4, outputs * columns).reshape(outputs, columns)
    return pack(torch.nn.functional.pad(codes, (0, 1)), 4).reshape(outputs, -1)


def rows(weight, ids):
    """The rows `ids` (int64 [n]) of a Weight as fp32 [n, in]: the embeddings of these tokens."""
    return by_rows(weight).take(ids).dense()
