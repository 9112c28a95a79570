"""Words for single vectors: load, store, arithmetic, shifts, sums over lanes.

With `rows.py` this is the small vocabulary that the kernels are written in. A vector has 16
numbers; LLVM cuts it into what the processor has: one AVX-512 register, two of AVX2, four of Arm's
NEON. Numbers are rounded in the order that is written: no fast-math. `fma` rounds once everywhere.

Addresses are plain integers (bytes); nothing is checked here, the engine checks before it calls.
"""

import llvmlite.ir as ir
from numba import types
from numba.extending import intrinsic

from utils.kernels import llvm
from utils.kernels.llvm import F32, I16, I32, LANES


def _loader(vector):
    @intrinsic
    def load(typing, address):
        """The vector at `address`."""
        return vector(types.int64), lambda _, b, sig, args: llvm.load(b, vector.llvm, args[0])

    return load


load_f32, load_i32, load_i16 = _loader(F32), _loader(I32), _loader(I16)


@intrinsic
def load_i8(typing, address):
    """32 x int8 at `address`, widened to int16."""

    def emit(_, b, sig, args):
        return b.sext(llvm.load(b, ir.VectorType(llvm.BYTE, 32), args[0]), I16.llvm)

    return I16(types.int64), emit


@intrinsic
def load_small(typing, address):
    """16 x int8 at `address`, widened to int32."""

    def emit(_, b, sig, args):
        return b.sext(llvm.load(b, ir.VectorType(llvm.BYTE, LANES), args[0]), I32.llvm)

    return I32(types.int64), emit


@intrinsic
def load_f16(typing, address):
    """16 half-precision numbers at `address` (not NaN, not infinite), widened to fp32."""

    def emit(_, b, sig, args):
        if llvm.has("f16c") or llvm.has("neon"):
            return b.fpext(llvm.load(b, ir.VectorType(ir.HalfType(), LANES), args[0]), F32.llvm)
        half = b.zext(llvm.load(b, ir.VectorType(llvm.SHORT, LANES), args[0]), I32.llvm)
        sign = b.shl(b.and_(half, llvm.constant(I32, 0x8000)), llvm.constant(I32, 16))
        rest = b.shl(b.and_(half, llvm.constant(I32, 0x7FFF)), llvm.constant(I32, 13))
        number = b.bitcast(b.or_(sign, rest), F32.llvm)
        return b.fmul(number, llvm.constant(F32, 2.0**112))  # exponent bias 127 less 15

    return F32(types.int64), emit


@intrinsic
def store(typing, vector, address):
    """Write a vector to `address`."""

    def emit(context, b, sig, args):
        llvm.store(b, args[0], args[1])
        return context.get_dummy_value()

    return types.void(vector, types.int64), emit


@intrinsic
def splat(typing, number):
    """The same fp32 or int32 number in all lanes."""
    vector = F32 if number == types.float32 else I32
    return vector(number), lambda _, b, sig, args: llvm.splat(b, args[0])


@intrinsic
def add(typing, x, y):
    """x + y, lane by lane."""
    return x(x, y), lambda _, b, sig, args: (b.fadd if sig.args[0] == F32 else b.add)(*args)


@intrinsic
def sub(typing, x, y):
    """x - y, lane by lane."""
    return x(x, y), lambda _, b, sig, args: (b.fsub if sig.args[0] == F32 else b.sub)(*args)


@intrinsic
def mul(typing, x, y):
    """x * y, lane by lane."""
    return x(x, y), lambda _, b, sig, args: (b.fmul if sig.args[0] == F32 else b.mul)(*args)


@intrinsic
def div(typing, x, y):
    """x / y, lane by lane."""
    return x(x, y), lambda _, b, sig, args: b.fdiv(*args)


@intrinsic
def fma(typing, x, y, z):
    """x * y + z, rounded once."""
    return F32(x, y, z), lambda _, b, sig, args: llvm.fma(b, *args)


@intrinsic
def maximum(typing, x, y):
    """The larger of x and y, lane by lane."""
    return x(x, y), lambda _, b, sig, args: b.select(b.fcmp_ordered(">", *args), *args)


@intrinsic
def magnitude(typing, x):
    """|x|, lane by lane."""
    return x(x), lambda _, b, sig, args: llvm.call(b, "llvm.fabs.v16f32", F32.llvm, args[0])


@intrinsic
def nearest(typing, x):
    """Rounded to a whole number, half to even; still fp32."""
    return x(x), lambda _, b, sig, args: llvm.call(b, "llvm.roundeven.v16f32", F32.llvm, args[0])


@intrinsic(prefer_literal=True)
def shift_left(typing, x, bits):
    """Bits of each lane moved up by a constant."""
    count = bits.literal_value
    return x(x, bits), lambda _, b, sig, args: b.shl(args[0], llvm.constant(x, count))


@intrinsic(prefer_literal=True)
def shift_right(typing, x, bits):
    """Bits of each lane moved down by a constant, the sign bit kept (arithmetic)."""
    count = bits.literal_value
    return x(x, bits), lambda _, b, sig, args: b.ashr(args[0], llvm.constant(x, count))


@intrinsic(prefer_literal=True)
def keep_bits(typing, x, mask):
    """Bitwise and with a constant."""
    value = mask.literal_value
    return x(x, mask), lambda _, b, sig, args: b.and_(args[0], llvm.constant(x, value))


@intrinsic
def either_bits(typing, x, y):
    """Bitwise or."""
    return x(x, y), lambda _, b, sig, args: b.or_(*args)


@intrinsic
def as_f32(typing, x):
    """The bits of an int32 vector read as fp32."""
    return F32(x), lambda _, b, sig, args: b.bitcast(args[0], F32.llvm)


@intrinsic
def to_i32(typing, x):
    """fp32 whole numbers to int32."""
    return I32(x), lambda _, b, sig, args: b.fptosi(args[0], I32.llvm)


@intrinsic
def store_i16(typing, x, address):
    """Write 16 int32 numbers that fit as int16."""

    def emit(context, b, sig, args):
        llvm.store(b, b.trunc(args[0], ir.VectorType(llvm.SHORT, LANES)), args[1])
        return context.get_dummy_value()

    return types.void(x, types.int64), emit


def _halving(combine):
    """Fold a vector to one number in a fixed tree: 16 -> 8 -> 4 -> 2 -> 1."""

    def emit(_, b, sig, args):
        value = args[0]
        for width in (8, 4, 2, 1):
            halves = [
                b.shuffle_vector(value, value, llvm.lanes(range(start, start + width)))
                for start in (0, width)
            ]
            value = combine(b, *halves)
        return b.extract_element(value, llvm.INT(0))

    return emit


@intrinsic
def sum_lanes(typing, x):
    """The sum of all lanes, in a fixed order."""
    return types.float32(x), _halving(lambda b, x, y: b.fadd(x, y))


@intrinsic
def max_lanes(typing, x):
    """The largest lane."""
    return types.float32(x), _halving(lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))


@intrinsic
def pick(typing, table, index):
    """table[index]: each lane picks one of the 16 numbers of a vector (index 0 ... 15)."""
    return F32(table, index), lambda _, b, sig, args: llvm.pick(b, *args)
