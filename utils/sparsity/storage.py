"""Bytes of a sparse matrix in four forms: dense, CSR, bitmap, 2:4; predicted and really packed.

Does: the arithmetic, the packing, the break-even with dense. Does not: multiply with it.
With n = rows * columns weights of v bytes, z of them non-zero:
    dense   v n
    csr     (v + 4) z + 4 (rows + 1)              int32 column indices and row pointers
    bitmap  v z + ceil(n / 8)                     one bit for each position
    2:4     v n / 2 + rows * ceil(columns / 8)    two values and 4 bits for each group of four
"""

import warnings

import torch

from utils.sparsity import semi_structured

INDEX_BYTES = 4


def dense_bytes(shape, value_bytes):
    """Bytes of all weights, zeros included."""
    return shape[0] * shape[1] * value_bytes


def csr_bytes(shape, nonzeros, value_bytes):
    """Bytes as compressed sparse rows with int32 indices."""
    return nonzeros * (value_bytes + INDEX_BYTES) + (shape[0] + 1) * INDEX_BYTES


def bitmap_bytes(shape, nonzeros, value_bytes):
    """Bytes as the non-zeros plus one bit for each position."""
    return nonzeros * value_bytes + -(-shape[0] * shape[1] // 8)


def semi_structured_bytes(shape, value_bytes):
    """Bytes as 2:4 values and metadata; in-features divisible by four."""
    return shape[0] * shape[1] // 2 * value_bytes + shape[0] * -(-shape[1] // 8)


def break_even_sparsity(form, value_bytes):
    """Sparsity from which `form` ("csr" or "bitmap") is smaller than dense; row pointers left out.

    csr:    (1 - s)(v + 4) = v   ->  s = 4 / (v + 4)
    bitmap: (1 - s) v + 1/8 = v  ->  s = 1 / (8 v)
    """
    if form == "csr":
        return INDEX_BYTES / (value_bytes + INDEX_BYTES)
    if form == "bitmap":
        return 1 / (8 * value_bytes)
    raise ValueError(f"no break-even for {form!r}; one of csr, bitmap")


def to_csr(weight):
    """torch CSR tensor with int32 indices."""
    with warnings.catch_warnings():  # torch calls its CSR tensors "beta" on first use
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        csr = weight.detach().to_sparse_csr()
    rows, columns = csr.crow_indices().int(), csr.col_indices().int()
    return torch.sparse_csr_tensor(rows, columns, csr.values(), weight.shape, check_invariants=True)


def to_bitmap(weight):
    """(non-zero values [z], bits uint8 [ceil(n / 8)]), row-major, lowest bit first."""
    kept = (weight.detach() != 0).flatten()
    bits = torch.nn.functional.pad(kept, (0, -kept.numel() % 8)).reshape(-1, 8).to(torch.uint8)
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return weight.detach().flatten()[kept], (bits << shifts).sum(1, dtype=torch.uint8)


def from_bitmap(values, bits, shape):
    """The dense matrix [rows, columns] again."""
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    kept = ((bits[:, None] >> shifts) & 1).bool().flatten()[: shape[0] * shape[1]]
    dense = values.new_zeros(shape[0] * shape[1])
    dense[kept] = values
    return dense.reshape(shape)


def measured_bytes(weight):
    """Bytes of the really packed matrix by form; "2:4" is None without the pattern."""
    csr, (values, bits) = to_csr(weight), to_bitmap(weight)
    index = csr.crow_indices().nbytes + csr.col_indices().nbytes
    fits = weight.shape[1] % 4 == 0 and semi_structured.is_semi_structured(weight)
    return {
        "dense": weight.nbytes,
        "csr": csr.values().nbytes + index,
        "bitmap": values.nbytes + bits.nbytes,
        "2:4": semi_structured.compress(weight).nbytes if fits else None,
    }
