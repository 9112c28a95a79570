"""A quantized weight whose groups are made of scattered columns: act-order with dynamic grids.

Group k holds the columns order[k g] ... order[k g + g - 1], which come anywhere in the weight. The
other view of the same fact is g_idx [in]: the group of each column, as checkpoints store it.

But: it is not packed into a layer (linear.py): scattered groups cost a gather in every product.
"""

from dataclasses import dataclass

import torch

from utils.quantization.tensor import QuantizedTensor


@dataclass(frozen=True, eq=False)
class ReorderedTensor:
    """`tensor`: a QuantizedTensor of weight[:, order]; `order` int64 [in]."""

    tensor: QuantizedTensor
    order: torch.Tensor

    @property
    def shape(self):
        """[out, in]."""
        return self.tensor.shape

    @property
    def g_idx(self):
        """int64 [in]: the group whose scale column j of the weight uses."""
        width = self.tensor.group_size if self.tensor.group_size > 0 else self.shape[1]
        return torch.argsort(self.order) // width

    @property
    def codes(self):
        """Codes in the weight's own column order."""
        return self.tensor.codes[:, torch.argsort(self.order)]

    @property
    def nbytes(self):
        """Bytes of codes, scales and zero points, and four for each column's entry of g_idx."""
        return self.tensor.nbytes + 4 * self.shape[1]

    def to(self, device):
        """The same tensor on another device."""
        return ReorderedTensor(self.tensor.to(device), self.order.to(device))

    def dequantize(self, dtype=torch.float32):
        """The weights the codes stand for, in their own column order."""
        return self.tensor.dequantize(dtype)[:, torch.argsort(self.order)]
