"""y = x W^T with torch operators: unpack some rows, multiply, forget them. Runs on any device.

At rest the weights stay in their storage form. For a product they are turned into fp32, some rows
at a time, so that even the head of a large model needs little extra memory. A CPU gets small
blocks, which stay in its cache and in memory that the process already has; others get large ones,
since each operator costs them a launch.

But: the numbers make a round trip through memory, so a product moves more bytes than with an
unpacked matrix; this back end is for where there is no kernel (MPS), and for comparing with. And
the order of a sum is the library's: a row computed alone may differ from the same row among
others in the last bits.
"""

import torch

from utils.kernels.rowwise import by_rows

BLOCK_BYTES = {"cpu": 2**20}
LARGE_BLOCK_BYTES = 64 * 2**20


class TorchLinear:
    """A `Weight` on a device, ready to be multiplied with."""

    def __init__(self, weight, device="cpu"):
        self.rows = by_rows(weight).to(device)

    @property
    def nbytes(self):
        """Bytes at rest."""
        return self.rows.nbytes

    def __call__(self, x):
        """x fp32 [M, in] -> fp32 [M, out], on the weight's device."""
        block_bytes = BLOCK_BYTES.get(x.device.type, LARGE_BLOCK_BYTES)
        step = max(1, block_bytes // (4 * self.rows.columns))
        starts = range(0, len(self.rows), step)
        blocks = [x @ self.rows.take(slice(i, i + step)).dense().T for i in starts]
        return torch.cat(blocks, dim=1) if len(blocks) > 1 else blocks[0]
