"""QuantizedTensor: codes packed into bytes, scales, zero points, and the way back to numbers.

    w_hat = scale * (code - zero_point)                      (zero_point = 0 when symmetric)

The codes and the zero points stay packed in memory; `.codes` and `.zero_point` unpack them on
request. A file holds the same bytes (safetensors), and a hash over them that `load` checks.

But: it does not choose codes (see rtn.py), and it does not multiply (see linear.py).
"""

import hashlib
import json
from dataclasses import dataclass, replace
from math import prod

import torch

from utils.quantization import storage
from utils.quantization.packing import pack, row_bytes, unpack
from utils.quantization.size import PER_TENSOR, grid_shape


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """A quantized weight [out, in]. `scale` has shape [out, groups] ([1, 1] per tensor)."""

    packed: torch.Tensor  # uint8, the codes
    scale: torch.Tensor
    packed_zero: torch.Tensor | None  # uint8, the zero points; None when symmetric
    shape: tuple
    bits: int
    group_size: int

    @classmethod
    def from_codes(cls, codes, scale, zero_point, bits, group_size, scale_dtype=torch.float16):
        """From integer codes [out, in], scale and zero point [out, groups] (None when symmetric).

        The scale must already hold values of `scale_dtype`: codes are chosen for the stored scale.
        Raises ValueError when it does not, or when the shapes do not fit each other.
        """
        expected = grid_shape(tuple(codes.shape), group_size)
        for name, grid in (("scale", scale), ("zero_point", zero_point)):
            if grid is not None and tuple(grid.shape) != expected:
                raise ValueError(
                    f"{name} has shape {tuple(grid.shape)}, but codes {tuple(codes.shape)} "
                    f"in groups of {group_size} need {expected}"
                )
        zeros = None if zero_point is None else pack(zero_point.to(torch.uint8), bits)
        stored = scale.to(scale_dtype).contiguous()
        if not torch.equal(stored.float(), scale.float()):
            raise ValueError(
                f"scale is not exact in {scale_dtype}: round it before you choose the codes, "
                "or pass another scale_dtype"
            )
        return cls(pack(codes, bits), stored, zeros, tuple(codes.shape), bits, group_size)

    @property
    def symmetric(self):
        """True when there are no zero points."""
        return self.packed_zero is None

    @property
    def codes(self):
        """Integer codes in the weight's shape: int8 when symmetric, else uint8."""
        return unpack(self.packed, self.bits, prod(self.shape), self.symmetric).reshape(self.shape)

    @property
    def zero_point(self):
        """Zero points uint8 [out, groups], or None when symmetric."""
        if self.symmetric:
            return None
        return unpack(self.packed_zero, self.bits, self.scale.numel()).reshape(self.scale.shape)

    def dequantize(self, dtype=torch.float32):
        """The weights the codes stand for: scale * (code - zero_point), in the original shape."""
        rows = self.codes.reshape(-1, self.shape[-1]).to(torch.float32)
        if not self.symmetric:
            rows -= self._spread(self.zero_point)
        return (rows * self._spread(self.scale)).reshape(self.shape).to(dtype)

    def dequantize_naive(self):
        """The twin for the tests: one weight at a time."""
        codes, zeros = self.codes.reshape(-1, self.shape[-1]), self.zero_point
        result = torch.empty(codes.shape)
        for i in range(codes.shape[0]):
            for j in range(codes.shape[1]):
                at = (0, 0) if self.group_size == PER_TENSOR else (i, j // self._width)
                zero = 0 if zeros is None else int(zeros[at])
                result[i, j] = float(self.scale[at]) * (int(codes[i, j]) - zero)
        return result.reshape(self.shape)

    @property
    def nbytes(self):
        """Bytes of the packed codes, the scales and the packed zero points."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    @property
    def bits_per_weight(self):
        """8 * nbytes / number of weights: the true figure, scales and padding included."""
        return 8 * self.nbytes / prod(self.shape)

    def tensors(self):
        """The stored tensors by name, as they go into a file."""
        named = {"packed": self.packed, "scale": self.scale, "packed_zero": self.packed_zero}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def rows(self, start, end):
        """Rows start … end - 1, with scales per row or group, as a tensor of their own.

        ValueError where `start` lies inside a byte: take a multiple of 8. Nothing is copied.
        """
        columns, groups = self.shape[1], self.scale.shape[1]
        zero = self.packed_zero
        return replace(
            self,
            packed=row_bytes(self.packed, columns * self.bits, start, end),
            scale=self.scale[start:end],
            packed_zero=None if zero is None else row_bytes(zero, groups * self.bits, start, end),
            shape=(end - start, columns),
        )

    @classmethod
    def stack(cls, parts):
        """Undo `rows`: the parts below each other. All but the last have 8 n rows."""
        named = [part.tensors() for part in parts]
        joined = {name: torch.cat([one[name] for one in named]) for name in named[0]}
        shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
        return replace(parts[0], **joined, shape=shape)

    def to(self, device):
        """The same tensor on another device."""
        moved = {name: tensor.to(device) for name, tensor in self.tensors().items()}
        moved.setdefault("packed_zero", None)
        return QuantizedTensor(
            **moved, shape=self.shape, bits=self.bits, group_size=self.group_size
        )

    @property
    def hash(self):
        """SHA-256 over layout and bytes: equal hashes mean equal weights."""
        digest = hashlib.sha256(json.dumps(self._layout()).encode())
        for name, tensor in self.tensors().items():
            digest.update(f"{name}{tensor.dtype}".encode())
            digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def save(self, path):
        """Write a safetensors file: to a temporary name, then renamed. Returns the path."""
        return storage.write(path, self.tensors(), {"layout": self._layout(), "sha256": self.hash})

    @classmethod
    def load(cls, path):
        """Read a file of `save`. Raises ValueError when a part is missing, surplus or changed."""
        tensors, about = storage.read(path, required=("layout", "sha256"))
        layout = about["layout"]
        expected = {"packed", "scale"} | (set() if layout["symmetric"] else {"packed_zero"})
        if set(tensors) != expected:
            raise ValueError(f"{path} holds {sorted(tensors)}, expected {sorted(expected)}")
        loaded = cls(
            tensors["packed"],
            tensors["scale"],
            tensors.get("packed_zero"),
            tuple(layout["shape"]),
            layout["bits"],
            layout["group_size"],
        )
        if loaded.hash != about["sha256"]:
            raise ValueError(f"{path}: the content does not match its hash; write the file again")
        return loaded

    @property
    def _width(self):
        return self.group_size if self.group_size > 0 else self.shape[-1]

    def _spread(self, grid):
        """[out, groups] -> something that broadcasts against [out, in]."""
        if grid.shape[1] == 1:
            return grid.to(torch.float32)
        return grid.to(torch.float32).repeat_interleave(self._width, dim=1)[:, : self.shape[-1]]

    def _layout(self):
        return {
            "shape": list(self.shape),
            "bits": self.bits,
            "group_size": self.group_size,
            "symmetric": self.symmetric,
        }
