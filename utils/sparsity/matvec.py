"""y = W x for one vector, in the forms that a decoder could read W in; one thread for all alike.

    Matvec(weight, "fp32")       the engine's dense kernel
    Matvec(weight, "sparse24")   the engine's 2:4 kernel
    csr(weight)                  torch's product with compressed sparse rows
Does: a fair single product, and its bytes. But: a step of a model has more in it (`Engine`).
"""

import numpy as np
import torch

from utils.device import one_torch_thread
from utils.kernels import blocks, entries, layout
from utils.kernels.weights import encode
from utils.machine import compiled
from utils.sparsity import storage

FILL = 64  # numbers of a row of activations, a multiple of so many


def _call(kernel, job, first, last):
    blocks.call(kernel, job, first, last)


class Matvec:
    """A matrix [out, in] as the engine packs it; calling it multiplies it with `x`.

    kind: a storage form of the engine without rounded activations ("fp32", "bf16", "sparse24").
    """

    def __init__(self, weight, kind, x):
        if len(x) != weight.shape[1]:
            raise ValueError(f"x has {len(x)} numbers, the matrix {tuple(weight.shape)}")
        if kind in ("int8", "int4"):
            raise ValueError(f"kind={kind!r} needs rounded activations; use step_costs.Product")
        self.packed, self.outputs = layout.pack(encode(weight, kind)), len(weight)
        self.x = np.zeros((1, -(-self.packed.inputs // FILL) * FILL), np.float32)
        self.x[0, : len(x)] = x
        self.y = np.zeros((1, 16 * self.packed.tiles), np.float32)
        self.scale, self.sums = np.ones(1, np.float32), np.zeros((1, 1), np.int32)
        self.kernel, self.job = entries.address(kind), self._job()
        self.run = compiled(_call)

    @property
    def nbytes(self):
        """Bytes that one product reads."""
        return self.packed.nbytes

    def _job(self):
        packed = self.packed
        job = blocks.Job(
            weights=packed.weights.ctypes.data, scales=packed.scales.ctypes.data,
            zeros=packed.zeros.ctypes.data if packed.zeros.size else 0,
            inputs=packed.inputs, group=packed.group, scale_bytes=packed.scales.itemsize,
            x=self.x.ctypes.data, x_stride=self.x.strides[0], x_scale=self.scale.ctypes.data,
            x_sum=self.sums.ctypes.data, x_sum_stride=self.sums.strides[0],
            y=self.y.ctypes.data, y_stride=self.y.strides[0], rows=1, accumulate=0,
        )  # fmt: skip
        return np.array(job, np.int64)

    def __call__(self):
        """fp32 [out]; the same memory every time."""
        self.run(self.kernel, self.job.ctypes.data, 0, self.packed.tiles)
        return self.y[0, : self.outputs]


def csr(weight, x):
    """(a function that multiplies by torch's CSR on one thread, the bytes that it reads)."""
    sparse = storage.to_csr(weight)
    vector = torch.as_tensor(x)

    def run():
        with one_torch_thread():
            return torch.mv(sparse, vector)

    size = storage.csr_bytes(weight.shape, sparse.values().numel(), weight.element_size())
    return run, size
