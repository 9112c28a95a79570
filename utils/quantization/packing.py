"""Pack integer codes of 1 to 8 bits into bytes, and unpack them again.

The codes are laid end to end, lowest bits first: code i fills the bits i*b ... i*b + b - 1 of one
long little-endian bit string. With b = 4 that is "low nibble first": (-8, 7) becomes the byte
0x78. Negative codes are stored in two's complement. A last, incomplete byte is filled up with
zero bits; the caller keeps the number of codes, and `unpack` needs it.

But: there is no padding per row or per group, and no reordering for a fast kernel.
"""

from math import gcd

import torch


def packed_bytes(count, bits):
    """Bytes that `count` codes of `bits` bits take: ceil(count * bits / 8)."""
    return (count * bits + 7) // 8


def pack(codes, bits):
    """Codes (any shape, any integer dtype) -> uint8 [ceil(n * bits / 8)].

    A code may be signed (-2^(b-1) ... 2^(b-1)-1) or unsigned (0 ... 2^b-1); only its low b bits
    are kept. Raises ValueError for codes outside both ranges and for bits outside 1 ... 8.
    """
    _check_width(bits)
    flat = codes.reshape(-1)
    _check_range(flat, bits)
    per_unit, unit_bytes, word = _unit(bits)
    size = packed_bytes(flat.numel(), bits)
    flat = _pad(flat.to(word) & (2**bits - 1), per_unit).view(-1, per_unit)
    words = torch.zeros_like(flat[:, 0])
    for i in range(per_unit):
        words |= flat[:, i] << (i * bits)
    lanes = [((words >> (8 * j)) & 255).to(torch.uint8) for j in range(unit_bytes)]
    return torch.stack(lanes, dim=1).reshape(-1)[:size].clone()


def unpack(packed, bits, count, signed=False):
    """uint8 bytes -> `count` codes, int8 when `signed`, else uint8.

    Raises ValueError when the number of bytes does not fit `count` codes of `bits` bits.
    """
    _check_width(bits)
    if packed.numel() != packed_bytes(count, bits):
        raise ValueError(
            f"{count} codes of {bits} bits need {packed_bytes(count, bits)} bytes, "
            f"got {packed.numel()}: pass the count that was packed"
        )
    per_unit, unit_bytes, word = _unit(bits)
    lanes = _pad(packed.reshape(-1), unit_bytes).view(-1, unit_bytes)
    words = lanes[:, 0].to(word)
    for j in range(1, unit_bytes):
        words |= lanes[:, j].to(word) << (8 * j)
    fields = [((words >> (i * bits)) & (2**bits - 1)).to(torch.uint8) for i in range(per_unit)]
    codes = torch.stack(fields, dim=1).reshape(-1)[:count]
    return _sign_extend(codes, bits) if signed else codes


def row_bytes(packed, bits, start, end):
    """The bytes of rows start … end - 1, of `bits` bits each. ValueError inside a byte."""
    if start * bits % 8:
        raise ValueError(f"row {start} starts inside a byte: cut at a multiple of 8 rows")
    return packed[start * bits // 8 : packed_bytes(end * bits, 1)]


def pack_naive(codes, bits):
    """The same as `pack`, bit by bit: the twin that the tests compare with."""
    text = "".join(format(int(c) & (2**bits - 1), f"0{bits}b")[::-1] for c in codes.reshape(-1))
    chunks = [text[i : i + 8].ljust(8, "0")[::-1] for i in range(0, len(text), 8)]
    return torch.tensor([int(chunk, 2) for chunk in chunks], dtype=torch.uint8)


def _unit(bits):
    """The smallest whole unit: so many codes fill so many bytes; and a dtype that holds one."""
    common = gcd(8, bits)
    unit_bytes = bits // common
    return 8 // common, unit_bytes, torch.uint8 if unit_bytes == 1 else torch.int64


def _pad(flat, multiple):
    short = -flat.numel() % multiple
    return torch.nn.functional.pad(flat, (0, short)) if short else flat


def _sign_extend(codes, bits):
    half = 2 ** (bits - 1)
    return ((codes.to(torch.int16) ^ half) - half).to(torch.int8)


def _check_width(bits):
    if bits not in range(1, 9):
        raise ValueError(f"bits={bits}: codes have 1 to 8 bits")


def _check_range(flat, bits):
    if flat.dtype.is_floating_point:
        raise ValueError(f"codes are {flat.dtype}: round them and convert them to integers first")
    if flat.numel() == 0:
        raise ValueError("there are no codes to pack")
    low, high = int(flat.min()), int(flat.max())
    if low < -(2 ** (bits - 1)) or high > 2**bits - 1 or (low < 0 and high > 2 ** (bits - 1) - 1):
        raise ValueError(f"codes from {low} to {high} do not fit in {bits} bits: clamp them first")
