"""How many bits a quantized weight really takes: codes, scales and zero points.

    bits per weight = b + (bits of one scale + bits of one zero point) / group size

But: this is arithmetic, not measurement. `QuantizedTensor.nbytes` counts what is stored, and
`quantize_model` asserts that the two agree.
"""

from math import prod

from utils.quantization.packing import packed_bytes

PER_CHANNEL = -1
PER_TENSOR = 0


def bits_per_weight(bits, group_size, scale_bits=16, zero_bits=0):
    """True bits per weight for full groups of `group_size`.

    A scale that is itself quantized counts with its own overhead: bitsandbytes' double-quantized
    NF4 has 8-bit scales and one fp32 per 256 of them, so scale_bits = 8 + 32 / 256.
    """
    return bits + (scale_bits + zero_bits) / group_size


def groups_per_row(columns, group_size):
    """Groups along one row; the last one may be short. Per channel and per tensor: one."""
    return 1 if group_size <= 0 else -(-columns // group_size)


def grid_shape(shape, group_size):
    """Shape [rows, groups] of the scales of a weight of this shape."""
    rows, columns = prod(shape[:-1]), shape[-1]
    if group_size == PER_TENSOR:
        return 1, 1
    return rows, groups_per_row(columns, group_size)


def predicted_bytes(shape, bits, group_size, symmetric, scale_bytes=2):
    """Bytes of a packed weight: codes, scales, and zero points (packed like the codes)."""
    groups = prod(grid_shape(shape, group_size))
    zeros = 0 if symmetric else packed_bytes(groups, bits)
    return packed_bytes(prod(shape), bits) + groups * scale_bytes + zeros
