"""A product that leaves the weights of idle channels unread: y = a @ rows over the kept rows only.

rows [channels, out] is `down_proj` stored by channel, so that an idle channel is one contiguous row
that is never touched. Does: the plain loop, compiled, one thread. But: it is the shape of the idea
and not a tuned kernel; compare it with itself at share 0, not with a tuned dense product.
"""

import numba
import numpy as np


@numba.njit(fastmath=True)
def _add_rows(activations, kept, rows, out):
    out[:] = 0.0
    for i in kept:
        a = activations[i]
        for j in range(rows.shape[1]):
            out[j] += a * rows[i, j]


def product(activations, rows):
    """activations [channels] @ rows [channels, out], float32: the rows of zeros are not read."""
    if activations.shape != rows.shape[:1]:
        raise ValueError(f"activations {activations.shape} do not fit rows {rows.shape}")
    out = np.empty(rows.shape[1], dtype=np.float32)
    _add_rows(activations, np.flatnonzero(activations), rows, out)
    return out
