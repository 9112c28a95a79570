"""Four-bit codes that point into a table of 16 numbers: NF4 and FP4 (E2M1).

    w_hat = scale * table[code]        scale = absmax of the group (NF4), absmax / 6 (FP4)

NF4 puts its levels at quantiles of a normal law, FP4 at the 16 values of a float with two exponent
bits and one mantissa bit. A code is the nearest level; ties go to the lower one.

But: one level of quantization (scales are stored as fp32, not quantized again), and a scale per
group of a row, where bitsandbytes cuts the flattened tensor into blocks.
Source: Dettmers et al. 2023 (arXiv:2305.14314), appendix E; OCP Microscaling formats 1.0.
"""

from dataclasses import dataclass, replace

import torch

from utils.quantization.packing import pack, row_bytes, unpack

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
TABLES = {"nf4": NF4, "fp4": FP4}


@dataclass(frozen=True, eq=False)
class CodebookTensor:
    """A weight [out, in] as 4-bit codes into `table` [16]; `scale` fp32 [out, groups]."""

    packed: torch.Tensor  # uint8, two codes a byte, low nibble first
    scale: torch.Tensor
    table: torch.Tensor
    shape: tuple
    group_size: int
    kind: str

    @property
    def codes(self):
        """uint8 [out, in]."""
        rows, columns = self.shape
        return unpack(self.packed, 4, rows * columns).reshape(self.shape)

    def dequantize(self):
        """fp32 [out, in]."""
        scale = self.scale.repeat_interleave(self.group_size, dim=1)[:, : self.shape[1]]
        return self.table[self.codes.long()] * scale

    def rows(self, start, end):
        """Rows start … end - 1 as a tensor of their own; nothing is copied."""
        return replace(
            self,
            packed=row_bytes(self.packed, 4 * self.shape[1], start, end),
            scale=self.scale[start:end],
            shape=(end - start, self.shape[1]),
        )

    @classmethod
    def stack(cls, parts):
        """Undo `rows`: the parts below each other."""
        return replace(
            parts[0],
            packed=torch.cat([part.packed for part in parts]),
            scale=torch.cat([part.scale for part in parts]),
            shape=(sum(part.shape[0] for part in parts), parts[0].shape[1]),
        )

    @property
    def nbytes(self):
        """Bytes of codes, scales and table."""
        return self.packed.nbytes + self.scale.nbytes + self.table.nbytes


def quantize(weight, kind="nf4", group_size=64):
    """weight [out, in] -> CodebookTensor. ValueError for an unknown kind, NaN or infinity."""
    if kind not in TABLES:
        raise ValueError(f"kind={kind!r}: use one of {sorted(TABLES)}")
    if weight.dim() != 2 or not torch.isfinite(weight).all():
        raise ValueError(f"{kind} needs a finite matrix [out, in], got {tuple(weight.shape)}")
    table = torch.tensor(TABLES[kind])
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -columns % group_size))
    groups = padded.reshape(rows, -1, group_size)
    scale = groups.abs().amax(dim=2, keepdim=True) / table.max()
    scale = torch.where(scale > 0, scale, 1.0)
    ordered, original = table.sort(stable=True)
    codes = original[torch.bucketize(groups / scale, (ordered[1:] + ordered[:-1]) / 2)]
    codes = codes.reshape(rows, -1)[:, :columns].contiguous()
    packed = pack(codes.to(torch.uint8), 4)
    return CodebookTensor(
        packed, scale[..., 0].contiguous(), table, (rows, columns), group_size, kind
    )
