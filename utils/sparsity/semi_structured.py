"""2:4 sparsity: at most two non-zeros in every four consecutive weights of a row, and its storage.

Does: masks, the compressed form (two values and a 4-bit code for each group of four), the way back.
Does not: run fast. That needs hardware or a kernel that reads this form; here it is storage.
Policy for in-features that are no multiple of four: a ValueError, never silent padding.

Codes as NVIDIA's sparse tensor cores read them and torch.sparse._semi_structured_conversions
writes them: the low two bits are the position of the first kept value, the high two of the second.
Two codes make a byte, low nibble first; no reordering for a particular kernel.
"""

from typing import NamedTuple

import torch

# Code for each pattern of non-zeros; bit 3 of the key is the leftmost weight of the group.
# Groups with fewer than two non-zeros borrow a zero, so that every group stores two values.
CODES = {
    0b1100: 0b0100, 0b1010: 0b1000, 0b0110: 0b1001, 0b1001: 0b1100, 0b0101: 0b1101, 0b0011: 0b1110,
    0b0000: 0b1110, 0b0001: 0b1110, 0b0010: 0b1110, 0b0100: 0b1001, 0b1000: 0b1000,
}  # fmt: skip


class Compressed(NamedTuple):
    """values [out, in/2] in the weight's dtype; metadata uint8 [out, ceil(in/8)]."""

    values: torch.Tensor
    metadata: torch.Tensor

    @property
    def nbytes(self):
        """Bytes of both parts."""
        return self.values.nbytes + self.metadata.nbytes


def groups_of_four(weight):
    """View [out, in] as [out, in/4, 4]; ValueError if in is no multiple of four."""
    if weight.dim() != 2:
        raise ValueError(f"2:4 needs a matrix [out, in], not a tensor {tuple(weight.shape)}")
    if weight.shape[1] % 4:
        raise ValueError(
            f"2:4 needs in-features divisible by 4, not {weight.shape[1]}; "
            "skip this layer or pad it yourself"
        )
    return weight.reshape(weight.shape[0], -1, 4)


def mask(weight, scores=None):
    """Boolean mask [out, in], True for the two weights kept in each group of four along `in`.

    Ranked by |weight|, or by `scores` of the same shape (Wanda's, for one). Of equal scores the
    earlier one is dropped first, as in `unstructured`.
    """
    ranked = weight.detach().abs() if scores is None else scores
    groups = groups_of_four(ranked)
    if not torch.isfinite(groups).all():
        raise ValueError("the weights or scores hold NaN or infinity; find their source first")
    order = groups.argsort(dim=2, stable=True)
    keep = torch.ones_like(groups, dtype=torch.bool).scatter(2, order[:, :, :2], False)
    return keep.reshape(weight.shape)


def is_semi_structured(weight):
    """True if no group of four holds more than two non-zeros."""
    return bool(((groups_of_four(weight) != 0).sum(2) <= 2).all())


def compress(weight):
    """Pack a 2:4 matrix [out, in]: `Compressed(values, metadata)`; in % 4 == 0.

    Lossless (a negative zero comes back as zero). ValueError if a group holds over two non-zeros.
    """
    groups = groups_of_four(weight.detach())
    nonzero = groups != 0
    crowded = int((nonzero.sum(2) > 2).sum())
    if crowded:
        raise ValueError(
            f"{crowded} groups of four hold more than two non-zeros; apply mask() first"
        )
    codes = _code_table(weight.device)[(nonzero * _place_values(weight.device)).sum(2)]
    positions = torch.stack((codes & 3, codes >> 2), dim=2).long()
    values = groups.gather(2, positions).reshape(weight.shape[0], -1)
    return Compressed(values, _pack_nibbles(codes))


def decompress(values, metadata):
    """Dense [out, in] from values [out, in/2] and metadata uint8 [out, ceil(in/8)]."""
    rows, half = values.shape
    if half % 2 or metadata.shape != (rows, -(-half // 4)):
        raise ValueError(
            f"values {tuple(values.shape)} and metadata {tuple(metadata.shape)} "
            "do not belong together"
        )
    codes = torch.stack((metadata & 15, metadata >> 4), dim=2).reshape(rows, -1)[:, : half // 2]
    positions = torch.stack((codes & 3, codes >> 2), dim=2).long()
    dense = values.new_zeros(rows, half // 2, 4)
    return dense.scatter(2, positions, values.reshape(rows, -1, 2)).reshape(rows, 2 * half)


def _place_values(device):
    return torch.tensor([8, 4, 2, 1], device=device)


def _code_table(device):
    table = torch.zeros(16, dtype=torch.uint8, device=device)
    table[list(CODES)] = torch.tensor(list(CODES.values()), dtype=torch.uint8, device=device)
    return table


def _pack_nibbles(codes):
    if codes.shape[1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return codes[:, 0::2] | (codes[:, 1::2] << 4)
