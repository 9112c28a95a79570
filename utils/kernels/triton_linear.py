"""y = x W^T with the Triton kernels, on CUDA and ROCm.

Rows come in chunks of at most eight, each chunk one launch. The kernels are compiled at the first
call, once for each number of rows.

But: as `triton_kernels` says, compiled code was never run here; on a CPU the kernels run in
Triton's interpreter, which is for tests. Importing this without the package is an ImportError.
"""

try:
    import triton
except ImportError as missing:
    raise ImportError(
        "TritonLinear needs the package triton, which comes with PyTorch for CUDA and ROCm: "
        "install it, or use utils.kernels.torch_linear.TorchLinear"
    ) from missing

import torch

from utils.kernels import triton_kernels as kernels
from utils.kernels.rowwise import by_rows

# Fixed for all shapes and numbers of rows: the order of a sum must not depend on them.
BLOCK_N, BLOCK_K = 4, 512
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
KERNELS = {
    "fp32": kernels.floats,
    "bf16": kernels.floats,
    "fp8_e4m3": kernels.float8,
    "fp8_e5m2": kernels.float8,
    "int8": kernels.int8,
    "int4": kernels.int4,
    "nf4": kernels.codebook,
    "fp4": kernels.codebook,
    "sparse24": kernels.sparse24,
}


class TritonLinear:
    """A `Weight` on a device, ready to be multiplied with. ValueError for a device it can't use."""

    def __init__(self, weight, device="cuda"):
        _check(torch.device(device))
        self.rows = by_rows(weight).to(device)
        self.kernel = KERNELS[weight.kind]
        self.stored, self.numbers = _arguments(self.rows)

    @property
    def nbytes(self):
        """Bytes at rest."""
        return self.rows.nbytes

    def __call__(self, x):
        """x fp32 [M, in] -> fp32 [M, out], on the weight's device."""
        if x.dtype != torch.float32 or x.dim() != 2 or x.shape[1] != self.rows.columns:
            raise ValueError(
                f"x is {x.dtype} {tuple(x.shape)}: pass float32 [M, {self.rows.columns}]"
            )
        x = aligned(x)
        y = x.new_empty(len(x), len(self.rows))
        most = kernels.MOST_ROWS.value
        for start in range(0, len(x), most):
            self._launch(x[start : start + most], y[start : start + most])
        return y

    def _launch(self, x, y):
        outputs = len(self.rows)
        self.kernel[(triton.cdiv(outputs, BLOCK_N),)](
            y, x, *self.stored, outputs, self.rows.columns, *self.numbers,
            ROWS=len(x), BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, **OPTIONS,
        )  # fmt: skip


def aligned(x):
    """x, contiguous, at an address that 16 divides: a copy where it is not (a view of a batch).

    The compiler lays out a block by what it knows of addresses, and so the order of a sum.
    """
    x = x.contiguous()
    return x.clone() if x.data_ptr() % 16 else x


def _arguments(rows):
    """What a kernel is given: tensors in its order (None: no zero points), and group numbers."""
    parts = rows.parts
    if rows.kind == "sparse24":
        return (parts["values"], parts["metadata"]), ()
    if "values" in parts:
        return (parts["values"],), ()
    codes = parts["codes"] if "codes" in parts else parts["nibbles"]
    meaning = parts.get("zero") if rows.table is None else rows.table
    stored = codes, parts["scale"], meaning
    if rows.kind.startswith("fp8"):
        return stored, ()
    return stored, (parts["scale"].shape[1], rows.group)


def _check(device):
    compiled = isinstance(kernels.floats, triton.runtime.JITFunction)
    if compiled and device.type != "cuda":
        raise ValueError(
            f"Triton has no compiler for device {device.type!r}: use TorchLinear, or, for tests, "
            "set TRITON_INTERPRET=1 before triton is imported first"
        )
