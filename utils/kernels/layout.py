"""From a Weight to the bytes that the Numba kernels read: tiles of 16 outputs, k within a tile.

    fp32      [tile][k][16]                          bf16  [tile][k/2][16][2]
    fp8       [tile][k/4][16][4]                     int8  [tile][k/2][16][2]
    int4      [tile][k/8][16][2] of 16 bits: codes k, k+2, k+4, k+6 (and k+1, ...), low bits first
    nf4, fp4  [tile][k/8][16] of 32 bits: 8 codes, low bits first
    sparse24  values [tile][k/8][4][16], places [tile][k/32][16] of 32 bits: 16 times 2 bits
    scales    [tile][group][16]                      zeros [tile][group][16], int8

Outputs are filled up to a multiple of 16 and inputs to a multiple of `Packed.step` with zeros.
`rows` goes back to the dense matrix, from the packed bytes alone.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from utils.kernels.weights import rows as rows_of
from utils.kernels.weights import slabs_of

LANES = 16
PARTS = ("weights", "scales", "zeros")


@dataclass
class Packed:
    """A matrix as the kernels read it. inputs: k with filling; scale_bytes: 2 or 4."""

    kind: str
    outputs: int
    inputs: int
    group: int
    weights: np.ndarray
    scales: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    zeros: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int8))

    @property
    def tiles(self):
        return -(-self.outputs // LANES)

    def tile_size(self, part):
        """Numbers of a part in each tile; 0 for a table that all tiles share."""
        shared = part == "zeros" and self.kind in ("nf4", "fp4")
        return 0 if shared else getattr(self, part).size // self.tiles

    @property
    def nbytes(self):
        """Bytes that one product reads."""
        return self.weights.nbytes + self.scales.nbytes + self.zeros.nbytes


class Arena:
    """One block of memory for all packed parts, each on a cache line, in the order they come.

    A big block gets big pages from the system (NumPy asks for them), and reading through big
    pages is up to a third faster; many small arrays would not get any. Memory that is not
    written to is not used, so a generous `size` costs nothing.
    """

    def __init__(self, size):
        self.memory = np.empty(size + 64, np.uint8)
        self.used = -self.memory.ctypes.data % 64

    def room(self, count, dtype):
        """An array [count], not yet filled. MemoryError when the arena is full."""
        start = self.used
        end = start + count * np.dtype(dtype).itemsize
        if end > len(self.memory):
            raise MemoryError(f"the arena of {len(self.memory)} bytes is full")
        self.used = end + -end % 64
        return self.memory[start:end].view(dtype)


STEP = {
    "fp32": 1, "bf16": 2, "fp8_e4m3": 4, "fp8_e5m2": 4, "int8": 2, "int4": 8,
    "nf4": 8, "fp4": 8, "sparse24": 32,
}  # fmt: skip


def pack(weight, room=np.empty):
    """Weight -> Packed, a slab of rows at a time. room(count, dtype): where its parts are laid."""
    whole = None
    for start, end in slabs_of(weight.shape):
        slab = _pack(rows_of(weight, start, end))
        whole = whole or _with_room(slab, weight.shape[0], room)
        for name in PARTS:
            part, target = getattr(slab, name), getattr(whole, name)
            at = start // LANES * slab.tile_size(name)
            target[at : at + part.size] = part
    return whole


def _with_room(slab, outputs, room):
    """A Packed like `slab`, its first slab, with room for all outputs."""
    whole = replace(slab, outputs=outputs)
    for name in PARTS:
        size = slab.tile_size(name) * whole.tiles or getattr(slab, name).size
        setattr(whole, name, room(size, getattr(slab, name).dtype))
    return whole


def _pack(weight):
    kind = weight.kind
    if kind in ("int8", "int4"):
        return _integers(weight)
    if kind in ("nf4", "fp4"):
        return _codebook(weight)
    if kind == "sparse24":
        return _sparse24(weight)
    if kind.startswith("fp8"):
        body = _tiled(weight.parts["codes"].numpy(), STEP[kind])
        scales = _rows_in_tiles(weight.parts["scale"].numpy())
        return _packed(weight, body, scales)
    values = weight.parts["values"]
    raw = values.view(torch.int16).numpy() if kind == "bf16" else values.numpy()
    return _packed(weight, _tiled(raw, STEP[kind]))


def _packed(weight, body, scales=None, zeros=None, group=None):
    outputs, inputs = weight.shape
    inputs = _up(inputs, STEP[weight.kind])
    extra = {"scales": scales, "zeros": zeros}
    extra = {name: part for name, part in extra.items() if part is not None}
    return Packed(weight.kind, outputs, inputs, group or inputs, body, **extra)


def _up(count, step):
    return -(-count // step) * step


def _fill(matrix, rows, columns):
    """Zeros below and to the right."""
    padding = ((0, _up(matrix.shape[0], rows) - matrix.shape[0]),)
    padding += ((0, _up(matrix.shape[1], columns) - matrix.shape[1]),)
    return np.pad(matrix, padding)


def _tiled(matrix, step):
    """[out, in] -> flat [tile][in / step][16][step]."""
    matrix = _fill(matrix, LANES, step)
    tiles = matrix.reshape(-1, LANES, matrix.shape[1] // step, step)
    return np.ascontiguousarray(tiles.transpose(0, 2, 1, 3)).reshape(-1)


def _rows_in_tiles(table):
    """[out, groups] -> flat [tile][group][16]."""
    return _tiled(table, 1)


def _group(weight):
    """Inputs for each scale; a whole row counts as one group, filling included."""
    size, inputs = weight.group_size, _up(weight.shape[1], STEP[weight.kind])
    return inputs if size <= 0 or size >= weight.shape[1] else size


def _integers(weight):
    tensor, kind = weight.source, weight.kind
    middle = 0 if tensor.symmetric else 1 << (tensor.bits - 1)
    codes = (tensor.codes.to(torch.int16) - middle).to(torch.int8).numpy()
    scale = tensor.scale if tensor.scale.dtype == torch.float16 else tensor.scale.float()
    zeros = None
    if not tensor.symmetric:
        shifted = tensor.zero_point.to(torch.int16) - middle
        zeros = _rows_in_tiles(shifted.to(torch.int8).numpy())
    body = _tiled(codes, 2) if kind == "int8" else _four_codes(_tiled(codes, 8))
    return _packed(weight, body, _rows_in_tiles(scale.numpy()), zeros, _group(weight))


def _four_codes(codes):
    """flat [..][16][8] int8 -> uint16 [..][16][2]: codes n, n + 2, n + 4, n + 6 in one lane."""
    nibbles = (codes.reshape(-1, 4, 2).astype(np.uint16) & 15) << np.array(
        [[0], [4], [8], [12]], np.uint16
    )
    return np.bitwise_or.reduce(nibbles, axis=1).reshape(-1)


def _codebook(weight):
    codes = _tiled(weight.source.codes.numpy(), 8).reshape(-1, 8).astype(np.uint32)
    lanes = np.bitwise_or.reduce(codes << np.arange(0, 32, 4, dtype=np.uint32), axis=1)
    scales = _rows_in_tiles(weight.parts["scale"].float().numpy())
    table = weight.parts["table"].float().numpy()
    return _packed(weight, lanes, scales, table, _group(weight))


def _sparse24(weight):
    values = _tiled(_fill(weight.parts["values"].numpy(), LANES, 16), 4)
    values = values.reshape(-1, LANES, 4).transpose(0, 2, 1)
    places = _places(weight.parts["metadata"].numpy(), weight.shape[1])
    return _packed(weight, np.ascontiguousarray(values).reshape(-1), places)


def _places(metadata, inputs):
    """uint8 [out, in / 8] (two codes of 4 bits) -> uint32 [tile][in / 32][16]."""
    metadata = _fill(metadata[:, : -(-inputs // 8)], LANES, 4)
    lanes = np.ascontiguousarray(metadata).view("<u4")
    return _tiled(lanes, 1)


def rows(packed, indices):
    """Rows of the dense matrix, fp32 [n, inputs], from the packed bytes: an embedding's look-up."""
    index = np.asarray(indices)
    tile, lane = index // LANES, index % LANES
    step, count = STEP[packed.kind], packed.inputs // STEP[packed.kind]
    read = READERS[packed.kind]
    numbers = read(packed, tile, lane, count)
    assert numbers.shape[1] == step * count
    return numbers


def _lanes(array, tile, lane, *shape):
    """array as [tile][...][16][...]: what belongs to each (tile, lane)."""
    return array.reshape(*shape)[tile, :, lane]


def _read_plain(packed, tile, lane, count):
    step = STEP[packed.kind]
    return _lanes(packed.weights, tile, lane, -1, count, LANES, step).reshape(len(tile), -1)


def _read_bf16(packed, tile, lane, count):
    raw = _read_plain(packed, tile, lane, count).view(np.uint16).astype(np.uint32)
    return (raw << 16).view(np.float32)


def _read_fp8(packed, tile, lane, count):
    dtype = torch.float8_e4m3fn if packed.kind == "fp8_e4m3" else torch.float8_e5m2
    codes = torch.from_numpy(np.ascontiguousarray(_read_plain(packed, tile, lane, count)))
    return codes.view(dtype).float().numpy() * packed.scales.reshape(-1, LANES)[tile, lane][:, None]


def _scaled(packed, codes, tile, lane):
    """(codes - zero) * scale, group by group."""
    groups = -(-packed.inputs // packed.group)
    table = (-1, groups, LANES)
    scale = _lanes(packed.scales, tile, lane, *table).astype(np.float32)
    scale = np.repeat(scale, packed.group, axis=1)[:, : packed.inputs]
    if packed.zeros.dtype == np.int8 and packed.zeros.size:
        zeros = _lanes(packed.zeros, tile, lane, *table).astype(np.float32)
        codes = codes - np.repeat(zeros, packed.group, axis=1)[:, : packed.inputs]
    return codes * scale


def _read_int8(packed, tile, lane, count):
    return _scaled(packed, _read_plain(packed, tile, lane, count).astype(np.float32), tile, lane)


def _read_int4(packed, tile, lane, count):
    pairs = _lanes(packed.weights, tile, lane, -1, count, LANES, 2)
    shifts = np.array([0, 4, 8, 12], np.uint16)[:, None]
    codes = ((pairs[:, :, None, :] >> shifts) & 15).astype(np.int8)
    codes = np.where(codes > 7, codes - 16, codes).reshape(len(tile), -1)
    return _scaled(packed, codes.astype(np.float32), tile, lane)


def _read_codebook(packed, tile, lane, count):
    lanes = _lanes(packed.weights, tile, lane, -1, count, LANES)
    codes = (lanes[:, :, None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15
    return _scaled(packed, packed.zeros[codes].reshape(len(tile), -1), tile, lane)


def _read_sparse24(packed, tile, lane, count):
    kept = packed.weights.reshape(-1, packed.inputs // 8, 4, LANES)[tile, :, :, lane]
    places = _lanes(packed.scales, tile, lane, -1, count, LANES)
    where = (places[:, :, None] >> np.arange(0, 32, 2, dtype=np.uint32)) & 3
    where = where.reshape(len(tile), -1, 2).astype(np.int64)
    dense = np.zeros((len(tile), packed.inputs // 4, 4), np.float32)
    values = kept.reshape(len(tile), -1, 2)
    np.put_along_axis(dense, where, values, axis=2)
    return dense.reshape(len(tile), -1)


READERS = {
    "fp32": _read_plain, "bf16": _read_bf16, "fp8_e4m3": _read_fp8, "fp8_e5m2": _read_fp8,
    "int8": _read_int8, "int4": _read_int4, "nf4": _read_codebook, "fp4": _read_codebook,
    "sparse24": _read_sparse24,
}  # fmt: skip
