"""Vector types for Numba, and the LLVM that is written in more than one word of the vocabulary.

A `Vector` has 16 numbers of 32 bits (or the same 512 bits as 32 x int16). A `Tile` is a vector for
each of M rows of activations. The functions take an IR builder and values, and add instructions;
`vectors.py` and `rows.py` make Numba functions of them.

`permute` and `pick` are the one operation that has an x86 form beside a plain one: everything else
is portable LLVM.
"""

import llvmlite.binding
import llvmlite.ir as ir
from numba import config, types
from numba.core import cgutils
from numba.extending import models, register_model

LANES = 16
FLOAT, INT, SHORT, BYTE = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.IntType(8)
POINTER = ir.PointerType()


class Vector(types.Type):
    """`lanes` numbers of one LLVM element type."""

    def __init__(self, name, element, lanes):
        self.llvm = ir.VectorType(element, lanes)
        super().__init__(name)


class Tile(types.Type):
    """One vector for each of `rows` rows."""

    def __init__(self, vector, rows):
        self.vector, self.rows = vector, rows
        self.llvm = ir.ArrayType(vector.llvm, rows)
        super().__init__(f"{vector.name}*{rows}")


@register_model(Vector)
@register_model(Tile)
class _Plain(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, kind.llvm)


F32 = Vector("f32x16", FLOAT, 16)
I32 = Vector("i32x16", INT, 16)
I16 = Vector("i16x32", SHORT, 32)


def has(feature):
    """Whether code is made for a processor with `feature` (NUMBA_CPU_FEATURES overrides)."""
    if config.CPU_FEATURES is not None:
        return f"+{feature}" in config.CPU_FEATURES.split(",")
    return llvmlite.binding.get_host_cpu_features().get(feature, False)


def load(builder, kind, address):
    """The value of an LLVM type at an address, which may be odd."""
    return builder.load(builder.inttoptr(address, POINTER), align=1, typ=kind)


def store(builder, value, address):
    """Write a value to an address, which may be odd."""
    builder.store(value, builder.inttoptr(address, POINTER), align=1)


def splat(builder, value):
    """The same value in all lanes."""
    vector = ir.VectorType(value.type, LANES)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, INT(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(INT, LANES), None))


def constant(vector, value):
    """The same constant in all lanes of a `Vector`."""
    return ir.Constant(vector.llvm, [value] * vector.llvm.count)


def lanes(numbers):
    """A constant vector of lane numbers, for a shuffle."""
    numbers = list(numbers)
    return ir.Constant(ir.VectorType(INT, len(numbers)), numbers)


def call(builder, name, result, *values):
    """Call the function `name`, one of LLVM's own for the most part."""
    signature = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), values)


def fma(builder, x, y, z):
    """x * y + z, rounded once."""
    return call(builder, "llvm.fma.v16f32", F32.llvm, x, y, z)


def pick(builder, table, index):
    """Each lane picks one of the 16 numbers of `table` (index 0 ... 15)."""
    if has("avx512f"):
        return call(builder, "llvm.x86.avx512.permvar.sf.512", F32.llvm, table, index)
    low, high = (
        builder.shuffle_vector(table, table, lanes(range(start, start + 8))) for start in (0, 8)
    )
    seven = ir.Constant(I32.llvm, [7] * LANES)
    is_high = builder.icmp_unsigned(">", index, seven)
    small = builder.and_(index, seven)
    return builder.select(is_high, permute(builder, high, small), permute(builder, low, small))


def permute(builder, table, index):
    """Each of 16 lanes picks one of the 8 numbers of `table` by the low 3 bits of its index."""
    if has("avx512f"):
        both = builder.shuffle_vector(table, table, lanes([*range(8), *range(8)]))
        return call(builder, "llvm.x86.avx512.permvar.sf.512", F32.llvm, both, index)
    halves = [
        builder.shuffle_vector(index, index, lanes(range(start, start + 8))) for start in (0, 8)
    ]
    picked = [_permute8(builder, table, half) for half in halves]
    return builder.shuffle_vector(*picked, lanes(range(16)))


def _permute8(builder, table, index):
    if has("avx2"):
        return call(builder, "llvm.x86.avx2.permps", table.type, table, index)
    result = ir.Constant(table.type, ir.Undefined)
    for lane in range(8):
        where = builder.and_(builder.extract_element(index, INT(lane)), INT(7))
        number = builder.extract_element(table, where)
        result = builder.insert_element(result, number, INT(lane))
    return result
