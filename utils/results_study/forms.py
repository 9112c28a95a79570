"""How one matrix is stored in each format: the bytes of the file, the numbers they stand for.

    form = FORMS["int4 asym g64"]
    form.store(weight)      Stored: parts (tensors as they go into the file), dense fp32, kernel
    form.predict(shape)     bytes, from the shape alone

    uniform     b/8 n + 2 groups + b/8 groups (zero points)       fp16 scales
    fp8         n + 4 rows                                        fp32 scales
    nf4, fp4    n/2 + 4 groups + 64                               fp32 scales, the table
    mxfp4       n/2 + n/32          nvfp4    n/2 + n/16 + 4       8-bit scales
    Q8_0 ...    n/32 blocks of 34, 24, 22, 20, 18 bytes

But: only weights. What a method does to them before is in `rows`; nothing is timed here.
"""

from dataclasses import dataclass
from functools import partial
from math import prod

import torch

from utils.kernels import weights
from utils.quantization import codebook, full_range, gguf, microscaling, rtn
from utils.quantization.packing import packed_bytes
from utils.quantization.size import PER_CHANNEL, grid_shape, predicted_bytes

NF4_GROUP = 64
MX_SCALE = {"mxfp4": (32, 0), "nvfp4": (16, 4)}  # numbers per scale byte, bytes per tensor


@dataclass(frozen=True, eq=False)
class Stored:
    """parts: {name: tensor} of the file. dense: fp32 [out, in]. kernel: for the engine, or None."""

    parts: dict
    dense: torch.Tensor
    kernel: object = None

    @property
    def nbytes(self):
        """Bytes of all parts."""
        return sum(part.numel() * part.element_size() for part in self.parts.values())


@dataclass(frozen=True)
class Form:
    """store(weight [out, in]) -> Stored.  predict(shape) -> bytes.  kernel: the engine reads it."""

    store: object
    predict: object
    kernel: bool = True


def uniform(tensor, kernel=True):
    """A QuantizedTensor, whoever chose its codes, as Stored."""
    return Stored(tensor.tensors(), tensor.dequantize(), tensor if kernel else None)


def _rtn(bits, group, symmetric=False, scale_dtype=torch.float16):
    readable = bits in (4, 8)
    scale_bytes = scale_dtype.itemsize

    def store(weight):
        tensor = rtn.quantize(weight, bits, group, symmetric, scale_dtype=scale_dtype)
        return uniform(tensor, readable)

    def predict(shape):
        return predicted_bytes(shape, bits, group, symmetric, scale_bytes)

    return Form(store, predict, readable)


def _full_range(group):
    return Form(
        lambda weight: uniform(full_range.quantize(weight, 4, group)),
        lambda shape: predicted_bytes(shape, 4, group, symmetric=True),
    )


def _float(dtype, kernel):
    def store(weight):
        kept = weight.detach().to(dtype).contiguous()
        return Stored({"weight": kept}, kept.float(), kept if kernel else None)

    return Form(store, lambda shape: prod(shape) * dtype.itemsize, kernel)


def _store_float8(weight):
    made = weights.encode(weight, "fp8_e4m3")
    return Stored(made.parts, made.dequantize(), made)


def _store_codebook(kind, weight):
    made = codebook.quantize(weight, kind, NF4_GROUP)
    parts = {"packed": made.packed, "scale": made.scale, "table": made.table}
    return Stored(parts, made.dequantize(), made)


def _predict_codebook(shape):
    groups = prod(grid_shape(shape, NF4_GROUP))
    return packed_bytes(prod(shape), 4) + 4 * groups + 4 * 16


def library_nf4(weight):
    """The same by bitsandbytes: one table for all, so it is in no file."""
    from utils.quantization import peers

    with peers.quiet():
        import bitsandbytes as bnb
    packed, state = bnb.functional.quantize_4bit(
        weight.detach().contiguous(), blocksize=NF4_GROUP, quant_type="nf4"
    )
    dense = bnb.functional.dequantize_4bit(packed, state).float().reshape(weight.shape)
    return Stored({"packed": packed, "scale": state.absmax}, dense)


def _store_blocks(kind, weight):
    made = microscaling.encode(weight, kind)
    parts = {"packed": made.packed, "scales": made.scales}
    if made.tensor_scale is not None:
        parts["tensor_scale"] = made.tensor_scale
    return Stored(parts, microscaling.decode(made))


def _predict_blocks(kind, shape):
    size, extra = MX_SCALE[kind]
    return packed_bytes(prod(shape), 4) + prod(grid_shape(shape, size)) + extra


def _store_gguf(kind, weight):
    blocks = gguf.quantize(weight, kind)
    return Stored({"blocks": blocks}, gguf.dequantize(blocks, kind, tuple(weight.shape)))


def _predict_gguf(kind, shape):
    return prod(shape) // gguf.BLOCK * gguf.block_bytes(kind)


FORMS = {
    "fp32": _float(torch.float32, True),
    "bf16": _float(torch.bfloat16, True),
    "fp16": _float(torch.float16, False),
    "int8 channel": _rtn(8, PER_CHANNEL, True),
    "int8 channel, fp32 scales": _rtn(8, PER_CHANNEL, True, torch.float32),
    "int8 g64": _rtn(8, 64, True),
    "fp8 channel": Form(_store_float8, lambda shape: prod(shape) + 4 * shape[0]),
    **{f"int4 asym g{size}": _rtn(4, size) for size in (32, 64, 192)},
    "int4 asym channel": _rtn(4, PER_CHANNEL),
    "int4 full range g32": _full_range(32),
    **{f"int3 asym g{size}": _rtn(3, size) for size in (64, 32)},
    "int2 asym g32": _rtn(2, 32),
    **{kind: Form(partial(_store_codebook, kind), _predict_codebook) for kind in codebook.TABLES},
    "nf4, library": Form(library_nf4, lambda shape: _predict_codebook(shape) - 64, False),
    **{
        kind: Form(partial(_store_blocks, kind), partial(_predict_blocks, kind), False)
        for kind in MX_SCALE
    },
    **{
        kind: Form(partial(_store_gguf, kind), partial(_predict_gguf, kind), False)
        for kind in ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")
    },
}
