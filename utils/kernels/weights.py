"""A weight matrix [out, in] in each storage form for which there are kernels.

    fp32  bf16                     the numbers themselves
    fp8_e4m3  fp8_e5m2             one byte a number, one scale per output channel
    int8  int4                     QuantizedTensor: rtn, gptq, awq, a GGUF block ...
    nf4  fp4                       CodebookTensor
    sparse24                       Compressed fp32: two of four values and where they stood

`encode` makes any of them from a float matrix, a slab of rows at a time: scales run along a row, so
rows are independent, and what rounding needs in passing stays small. `wrap` takes what other code
has made. Each form knows its `kind`, `shape`, `nbytes` and how to `dequantize`: that is the naive
twin of all kernels, on whatever back end. The order of bytes is the plain one; a back end makes its
own layout.

But: nothing is multiplied here, and there is no calibration.
"""

from dataclasses import dataclass, replace

import torch

from utils.quantization import codebook, full_range, rtn
from utils.quantization.codebook import CodebookTensor
from utils.quantization.tensor import QuantizedTensor
from utils.sparsity import semi_structured

KINDS = ("fp32", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "nf4", "fp4", "sparse24")
SLAB = 2**18  # numbers that are encoded or packed at a time
FLOAT8 = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


@dataclass(frozen=True, eq=False)
class Weight:
    """kind: one of KINDS. parts: the stored tensors by name. group_size: numbers per scale."""

    kind: str
    shape: tuple
    parts: dict
    group_size: int = -1
    source: object = None  # the object that knows how to dequantize integer and codebook forms

    @property
    def nbytes(self):
        """Bytes of all stored parts."""
        return sum(part.numel() * part.element_size() for part in self.parts.values())

    @property
    def bits_per_weight(self):
        """True bits per number, scales and metadata included."""
        return 8 * self.nbytes / (self.shape[0] * self.shape[1])

    def dequantize(self):
        """fp32 [out, in]: what a kernel multiplies with."""
        if self.source is not None:
            return self.source.dequantize()
        if self.kind == "sparse24":
            return semi_structured.decompress(self.parts["values"], self.parts["metadata"])
        if self.kind in FLOAT8:
            numbers = self.parts["codes"].view(FLOAT8[self.kind]).float()
            return numbers * self.parts["scale"]
        return self.parts["values"].float()


def encode(weight, kind, group_size=None):
    """Float matrix [out, in] -> Weight of `kind`.

    group_size: numbers per scale; default -1 (a whole channel) for int8, 32 for int4, 64 for nf4
    and fp4. int8 is rounded to nearest, symmetric; int4 too, on all 16 levels (full_range).
    sparse24 keeps the two largest of four by magnitude, unless the matrix has that pattern.
    ValueError: unknown kind, not a matrix, NaN or infinity.
    """
    _check(weight, kind)
    slabs = (weight[start:end] for start, end in slabs_of(weight.shape))
    if kind == "fp32":  # stays where it is
        for slab in slabs:
            _check_finite(slab)
        return Weight(kind, tuple(weight.shape), {"values": weight.detach().float().contiguous()})
    return stack([_encode(slab, kind, group_size) for slab in slabs])


def _encode(weight, kind, group_size):
    _check_finite(weight)
    weight = weight.detach().float()
    if kind == "int8":
        return wrap(rtn.quantize(weight, 8, group_size or -1, symmetric=True))
    if kind == "int4":
        return wrap(full_range.quantize(weight, 4, group_size or 32))
    if kind in codebook.TABLES:
        return wrap(codebook.quantize(weight, kind, group_size or 64))
    if kind in FLOAT8:
        return _float8(weight, kind)
    if kind == "sparse24":
        kept = weight
        if not semi_structured.is_semi_structured(weight):
            kept = weight * semi_structured.mask(weight)
        return wrap(semi_structured.compress(kept))
    return Weight(kind, tuple(weight.shape), {"values": weight.to(torch.bfloat16).contiguous()})


def slabs_of(shape):
    """(start, end) of slabs of rows: 16 n rows each, SLAB numbers or a little less."""
    step = max(1, SLAB // (16 * max(shape[1], 1))) * 16
    return [(start, min(start + step, shape[0])) for start in range(0, shape[0], step)]


def rows(weight, start, end):
    """Rows start … end - 1 of a Weight as a Weight; start is 16 n."""
    if weight.source is not None:
        return wrap(weight.source.rows(start, end))
    parts = {name: part[start:end] for name, part in weight.parts.items()}
    return replace(weight, shape=(end - start, weight.shape[1]), parts=parts)


def stack(weights):
    """Undo `rows`: Weights of one kind below each other."""
    first = weights[0]
    if len(weights) == 1:
        return first
    if first.source is not None:
        return wrap(type(first.source).stack([weight.source for weight in weights]))
    parts = {name: torch.cat([weight.parts[name] for weight in weights]) for name in first.parts}
    return replace(first, shape=(sum(w.shape[0] for w in weights), first.shape[1]), parts=parts)


def wrap(stored):
    """QuantizedTensor, CodebookTensor, Compressed or a float tensor -> Weight.

    ValueError where no kernel reads the form: other bit widths than 8 and 4, per-tensor scales,
    groups that are no multiple of 8; and for scales or values that are NaN or infinite.
    """
    if isinstance(stored, QuantizedTensor):
        return _integers(stored)
    if isinstance(stored, CodebookTensor):
        _check_groups(stored, "4-bit codes")
        _check_finite(stored.scale)
        parts = {"packed": stored.packed, "scale": stored.scale, "table": stored.table}
        return Weight(stored.kind, stored.shape, parts, stored.group_size, stored)
    if isinstance(stored, semi_structured.Compressed):
        _check_finite(stored.values)
        rows, half = stored.values.shape
        parts = {"values": stored.values.float(), "metadata": stored.metadata}
        return Weight("sparse24", (rows, 2 * half), parts)
    if isinstance(stored, torch.Tensor) and stored.is_floating_point():
        return encode(stored, "bf16" if stored.dtype == torch.bfloat16 else "fp32")
    raise ValueError(
        f"no kernel reads a {type(stored).__name__}: pass a QuantizedTensor of 8 or 4 bits, a "
        "CodebookTensor, a 2:4 Compressed or a float tensor"
    )


def _integers(tensor):
    if tensor.bits not in (4, 8):
        raise ValueError(
            f"no kernel reads {tensor.bits} bits: the engine has 8 and 4; quantize to one of "
            "these, or run the model with PackedLinear layers in transformers"
        )
    _check_groups(tensor, f"{tensor.bits} bits")
    _check_finite(tensor.scale)
    return Weight(f"int{tensor.bits}", tensor.shape, tensor.tensors(), tensor.group_size, tensor)


def _float8(weight, kind):
    largest = torch.finfo(FLOAT8[kind]).max
    scale = weight.abs().amax(dim=1, keepdim=True) / largest
    scale = torch.where(scale > 0, scale, 1.0)
    codes = (weight / scale).clamp(-largest, largest).to(FLOAT8[kind]).view(torch.uint8)
    return Weight(kind, tuple(weight.shape), {"codes": codes.contiguous(), "scale": scale})


def _check(weight, kind):
    if kind not in KINDS:
        raise ValueError(f"weights={kind!r}: the engine reads {', '.join(KINDS)}")
    if weight.dim() != 2:
        raise ValueError(f"a weight must be a matrix [out, in], not {tuple(weight.shape)}")
    if 0 in weight.shape:
        raise ValueError(f"a weight of shape {tuple(weight.shape)} holds nothing")


def _check_finite(numbers):
    if not torch.isfinite(numbers).all():
        bad = int((~torch.isfinite(numbers)).sum())
        raise ValueError(f"the weight holds NaN or infinity ({bad} values): repair the checkpoint")


def _check_groups(tensor, what):
    """A kernel reads 8 neighbours at a time, all with one scale."""
    size = tensor.group_size
    if size == 0 or (0 < size < tensor.shape[1] and size % 8):
        raise ValueError(
            f"no kernel reads group_size={size} with {what}: use -1 or a multiple of 8"
        )
