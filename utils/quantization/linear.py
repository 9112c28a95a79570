"""PackedLinear: a linear layer whose weight stays packed; it is unpacked for each use.

    y = x W_hat^T + bias,   W_hat = scale * (code - zero_point)

It is smaller than nn.Linear and NOT faster: the forward pass writes W_hat out in full and then
multiplies as before, so it moves more bytes than the original layer. A layer that is also faster
has to unpack inside the multiplication; that is a kernel, and the subject of the engine.

But: it has no gradient for the weight, and it does not quantize activations.
"""

import torch
from torch import nn

from utils.quantization.tensor import QuantizedTensor


class PackedLinear(nn.Module):
    """Linear layer over a QuantizedTensor [out, in] and an optional bias [out]."""

    def __init__(self, weight, bias=None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bits, self.group_size = weight.bits, weight.group_size
        for name in ("packed", "scale", "packed_zero"):
            self.register_buffer(name, getattr(weight, name))
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    @classmethod
    def empty(cls, about):
        """A layer with the right shapes and no content yet, for loading (see checkpoint.py)."""
        shape, bits = (about["out_features"], about["in_features"]), about["bits"]
        tensors = {
            k: torch.empty(size, dtype=getattr(torch, dtype))
            for k, (size, dtype) in about["tensors"].items()
        }
        bias = tensors.pop("bias", None)
        tensors.setdefault("packed_zero", None)
        weight = QuantizedTensor(**tensors, shape=shape, bits=bits, group_size=about["group_size"])
        return cls(weight, bias)

    def about(self):
        """What `empty` needs to rebuild this layer, ready for JSON."""
        tensors = {
            name: [list(t.shape), str(t.dtype).removeprefix("torch.")]
            for name, t in self.named_buffers()
        }
        return {
            "out_features": self.out_features,
            "in_features": self.in_features,
            "bits": self.bits,
            "group_size": self.group_size,
            "tensors": tensors,
        }

    @property
    def weight(self):
        """The QuantizedTensor (a view of this layer's buffers; nothing is copied)."""
        shape = (self.out_features, self.in_features)
        return QuantizedTensor(
            self.packed, self.scale, self.packed_zero, shape, self.bits, self.group_size
        )

    def _apply(self, fn, recurse=True):
        """model.to(dtype) must not touch the scales: the codes were chosen for exactly these."""
        scale = self.scale
        super()._apply(fn, recurse)
        if self.scale.dtype != scale.dtype:
            self.scale = scale.to(self.scale.device)
        return self

    def forward(self, x):
        """x [..., in] -> [..., out]; the weight is unpacked to x's dtype for this one call."""
        return nn.functional.linear(x, self.weight.dequantize(x.dtype), self.bias)

    def forward_naive(self, x):
        """The twin for the tests: one output channel at a time, the scale applied per group."""
        weight = self.weight
        codes = weight.codes.to(torch.float32)
        zeros = torch.zeros_like(weight.scale) if weight.symmetric else weight.zero_point
        width = self.group_size if self.group_size > 0 else self.in_features
        scale, zeros = (g.float().expand(self.out_features, -1) for g in (weight.scale, zeros))
        y = torch.zeros(*x.shape[:-1], self.out_features)
        for i in range(self.out_features):
            for g, start in enumerate(range(0, self.in_features, width)):
                part = slice(start, start + width)
                y[..., i] += scale[i, g] * (x[..., part].float() @ (codes[i, part] - zeros[i, g]))
        return y if self.bias is None else y + self.bias

    def extra_repr(self):
        return f"{self.in_features}, {self.out_features}, bits={self.bits}, group={self.group_size}"
