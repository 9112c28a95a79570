"""A small vocabulary of vector operations for Numba: what the kernels are written in.

A vector has 16 numbers of 32 bits (or the same 512 bits as 32 x int16). LLVM cuts it into what the
processor has: one AVX-512 register, two of AVX2, four of Arm's NEON. A `Tile` is a vector for each
of M rows of activations, M being the length of a tuple, so that it is known when a kernel is
compiled: a kernel is written once, for all M, and the M accumulators stay in registers.

Numbers are rounded in the order that is written: no fast-math. `fma` rounds once everywhere. So a
kernel gives the same bits for each M, on each processor.

Addresses are plain integers (bytes); nothing is checked here, the engine checks before it calls.
Portable LLVM, but for one operation: `permute`, which has a plain form beside the x86 one.
"""

import llvmlite.binding
import llvmlite.ir as ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 16
_FLOAT, _INT, _SHORT, _BYTE = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.IntType(8)
_POINTER = ir.PointerType()


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


F32 = Vector("f32x16", _FLOAT, 16)
I32 = Vector("i32x16", _INT, 16)
I16 = Vector("i16x32", _SHORT, 32)


def _has(feature):
    """Whether code is made for a processor with `feature` (NUMBA_CPU_FEATURES overrides)."""
    if config.CPU_FEATURES is not None:
        return f"+{feature}" in config.CPU_FEATURES.split(",")
    return llvmlite.binding.get_host_cpu_features().get(feature, False)


# --- helpers that emit LLVM -----------------------------------------------------------------------


def _load(builder, llvm, address, offset=0):
    where = builder.add(address, ir.Constant(address.type, offset)) if offset else address
    return builder.load(builder.inttoptr(where, _POINTER), align=1, typ=llvm)


def _store(builder, value, address):
    builder.store(value, builder.inttoptr(address, _POINTER), align=1)


def _splat(builder, value, lanes=LANES):
    vector = ir.VectorType(value.type, lanes)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _INT(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(_INT, lanes), None))


def _constant(vector, value):
    return ir.Constant(vector.llvm, [value] * vector.llvm.count)


def _call(builder, name, result, *values):
    signature = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), values)


def _fma(builder, x, y, z):
    return _call(builder, "llvm.fma.v16f32", F32.llvm, x, y, z)


def _row(builder, address, stride, row):
    return builder.add(address, builder.mul(stride, ir.Constant(stride.type, row)))


def _each(builder, tile, function):
    """A new tile: function(row number, its vector) for each row."""
    result = tile
    for row in range(tile.type.count):
        value = function(row, builder.extract_value(tile, row))
        result = builder.insert_value(result, value, row)
    return result


# --- vectors --------------------------------------------------------------------------------------


def _loader(vector):
    @intrinsic
    def load(typing, address):
        """The vector at `address`."""
        return vector(types.int64), lambda _, b, sig, args: _load(b, vector.llvm, args[0])

    return load


load_f32, load_i32, load_i16 = _loader(F32), _loader(I32), _loader(I16)


@intrinsic
def load_int(typing, address):
    """One int64 at `address`."""
    return types.int64(types.int64), lambda _, b, sig, args: _load(b, ir.IntType(64), args[0])


@intrinsic
def call(typing, function, job, first, last):
    """Call the kernel at address `function` (see blocks.SIGNATURE)."""

    def emit(context, b, sig, args):
        word = ir.IntType(64)
        signature = ir.FunctionType(ir.VoidType(), [word] * 3)
        b.call(b.inttoptr(args[0], signature.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit


@intrinsic
def load_i8(typing, address):
    """32 x int8 at `address`, widened to int16."""

    def emit(_, b, sig, args):
        return b.sext(_load(b, ir.VectorType(_BYTE, 32), args[0]), I16.llvm)

    return I16(types.int64), emit


@intrinsic
def load_small(typing, address):
    """16 x int8 at `address`, widened to int32."""

    def emit(_, b, sig, args):
        return b.sext(_load(b, ir.VectorType(_BYTE, LANES), args[0]), I32.llvm)

    return I32(types.int64), emit


@intrinsic
def load_f16(typing, address):
    """16 half-precision numbers at `address` (not NaN, not infinite), widened to fp32."""

    def emit(_, b, sig, args):
        if _has("f16c") or _has("neon"):
            return b.fpext(_load(b, ir.VectorType(ir.HalfType(), LANES), args[0]), F32.llvm)
        half = b.zext(_load(b, ir.VectorType(_SHORT, LANES), args[0]), I32.llvm)
        sign = b.shl(b.and_(half, _constant(I32, 0x8000)), _constant(I32, 16))
        rest = b.shl(b.and_(half, _constant(I32, 0x7FFF)), _constant(I32, 13))
        number = b.bitcast(b.or_(sign, rest), F32.llvm)
        return b.fmul(number, _constant(F32, 2.0**112))  # exponent bias 127 less 15

    return F32(types.int64), emit


@intrinsic
def store(typing, vector, address):
    """Write a vector to `address`."""

    def emit(context, b, sig, args):
        _store(b, args[0], args[1])
        return context.get_dummy_value()

    return types.void(vector, types.int64), emit


@intrinsic
def splat(typing, number):
    """The same fp32 or int32 number in all lanes."""
    vector = F32 if number == types.float32 else I32
    return vector(number), lambda _, b, sig, args: _splat(b, args[0])


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
    return F32(x, y, z), lambda _, b, sig, args: _fma(b, *args)


@intrinsic
def maximum(typing, x, y):
    """The larger of x and y, lane by lane."""
    return x(x, y), lambda _, b, sig, args: b.select(b.fcmp_ordered(">", *args), *args)


@intrinsic
def magnitude(typing, x):
    """|x|, lane by lane."""
    return x(x), lambda _, b, sig, args: _call(b, "llvm.fabs.v16f32", F32.llvm, args[0])


@intrinsic
def nearest(typing, x):
    """Rounded to a whole number, half to even; still fp32."""
    return x(x), lambda _, b, sig, args: _call(b, "llvm.roundeven.v16f32", F32.llvm, args[0])


@intrinsic(prefer_literal=True)
def shift_left(typing, x, bits):
    """Bits of each lane moved up by a constant."""
    count = bits.literal_value
    return x(x, bits), lambda _, b, sig, args: b.shl(args[0], _constant(x, count))


@intrinsic(prefer_literal=True)
def shift_right(typing, x, bits):
    """Bits of each lane moved down by a constant, the sign bit kept (arithmetic)."""
    count = bits.literal_value
    return x(x, bits), lambda _, b, sig, args: b.ashr(args[0], _constant(x, count))


@intrinsic(prefer_literal=True)
def keep_bits(typing, x, mask):
    """Bitwise and with a constant."""
    value = mask.literal_value
    return x(x, mask), lambda _, b, sig, args: b.and_(args[0], _constant(x, value))


@intrinsic
def either_bits(typing, x, y):
    """Bitwise or."""
    return x(x, y), lambda _, b, sig, args: b.or_(*args)


@intrinsic
def as_f32(typing, x):
    """The bits of an int32 vector read as fp32."""
    return F32(x), lambda _, b, sig, args: b.bitcast(args[0], F32.llvm)


@intrinsic
def to_f32(typing, x):
    """int32 to the nearest fp32."""
    return F32(x), lambda _, b, sig, args: b.sitofp(args[0], F32.llvm)


@intrinsic
def to_i32(typing, x):
    """fp32 whole numbers to int32."""
    return I32(x), lambda _, b, sig, args: b.fptosi(args[0], I32.llvm)


@intrinsic
def store_i16(typing, x, address):
    """Write 16 int32 numbers that fit as int16."""

    def emit(context, b, sig, args):
        _store(b, b.trunc(args[0], ir.VectorType(_SHORT, LANES)), args[1])
        return context.get_dummy_value()

    return types.void(x, types.int64), emit


def _halving(combine):
    """Fold a vector to one number in a fixed tree: 16 -> 8 -> 4 -> 2 -> 1."""

    def emit(_, b, sig, args):
        value = args[0]
        for width in (8, 4, 2, 1):
            halves = [
                b.shuffle_vector(value, value, _lanes(range(start, start + width)))
                for start in (0, width)
            ]
            value = combine(b, *halves)
        return b.extract_element(value, _INT(0))

    return emit


def _lanes(numbers):
    numbers = list(numbers)
    return ir.Constant(ir.VectorType(_INT, len(numbers)), numbers)


@intrinsic
def sum_lanes(typing, x):
    """The sum of all lanes, in a fixed order."""
    return types.float32(x), _halving(lambda b, x, y: b.fadd(x, y))


@intrinsic
def max_lanes(typing, x):
    """The largest lane."""
    return types.float32(x), _halving(lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))


# --- tiles: one vector for each row of activations ------------------------------------------------


def _zeros(vector):
    @intrinsic
    def zeros(typing, rows):
        """A tile of zeros with as many rows as the tuple `rows` has items."""
        tile = Tile(vector, len(rows))
        return tile(rows), lambda *_: ir.Constant(tile.llvm, None)

    return zeros


zeros_f32, zeros_i32 = _zeros(F32), _zeros(I32)


@intrinsic
def fma_rows(typing, tile, weights, x, stride):
    """tile[m] += weights * x[m], where x[m] is the fp32 number at address x + m * stride."""

    def emit(_, b, sig, args):
        tile, weights, x, stride = args

        def row(m, total):
            number = _load(b, _FLOAT, _row(b, x, stride, m))
            return _fma(b, weights, _splat(b, number), total)

        return _each(b, tile, row)

    return tile(tile, weights, types.int64, types.int64), emit


@intrinsic
def dot_pairs_rows(typing, tile, weights, x, stride):
    """tile[m] += w0 * x0 + w1 * x1 in int32: lane i has the pair of weights 2i and 2i + 1.

    x[m] is a pair of int16 at address x + m * stride. LLVM makes one instruction of it where there
    is one (vpmaddwd, vpdpwssd on x86).
    """
    wide = ir.VectorType(_INT, 32)

    def emit(_, b, sig, args):
        tile, weights, x, stride = args

        def row(m, total):
            pair = _splat(b, _load(b, _INT, _row(b, x, stride, m)))
            pair = b.bitcast(pair, I16.llvm)
            product = b.mul(b.sext(weights, wide), b.sext(pair, wide))
            even = b.shuffle_vector(product, product, _lanes(range(0, 32, 2)))
            odd = b.shuffle_vector(product, product, _lanes(range(1, 32, 2)))
            return b.add(total, b.add(even, odd))

        return _each(b, tile, row)

    return tile(tile, weights, types.int64, types.int64), emit


@intrinsic
def subtract_rows(typing, tile, weights, x, stride):
    """tile[m] -= weights * x[m] in int32, x[m] the int32 number at address x + m * stride."""

    def emit(_, b, sig, args):
        tile, weights, x, stride = args

        def row(m, total):
            number = _splat(b, _load(b, _INT, _row(b, x, stride, m)))
            return b.sub(total, b.mul(weights, number))

        return _each(b, tile, row)

    return tile(tile, weights, types.int64, types.int64), emit


@intrinsic
def add_scaled_rows(typing, total, tile, scale):
    """total[m] += scale * tile[m]; an int32 tile is turned into fp32 first."""

    def emit(_, b, sig, args):
        total, tile, scale = args

        def row(m, old):
            new = b.extract_value(tile, m)
            if sig.args[1].vector == I32:
                new = b.sitofp(new, F32.llvm)
            return _fma(b, new, scale, old)

        return _each(b, total, row)

    return total(total, tile, scale), emit


@intrinsic
def scale_rows(typing, tile, x, stride):
    """tile[m] times the fp32 number at address x + m * stride."""

    def emit(_, b, sig, args):
        tile, x, stride = args

        def row(m, old):
            return b.fmul(old, _splat(b, _load(b, _FLOAT, _row(b, x, stride, m))))

        return _each(b, tile, row)

    return tile(tile, types.int64, types.int64), emit


@intrinsic
def multiply_rows(typing, tile, vector):
    """tile[m] * vector for each row."""

    def emit(_, b, sig, args):
        return _each(b, args[0], lambda m, old: b.fmul(old, args[1]))

    return tile(tile, vector), emit


@intrinsic
def add_rows(typing, tile, other):
    """tile[m] + other[m] for each row."""

    def emit(_, b, sig, args):
        return _each(b, args[0], lambda m, old: b.fadd(old, b.extract_value(args[1], m)))

    return tile(tile, other), emit


@intrinsic
def permute_fma_rows(typing, tile, weights, lanes, x, stride):
    """tile[m] += weights * x[m][lanes]: each lane picks one of the 8 fp32 numbers at x[m]."""

    def emit(_, b, sig, args):
        tile, weights, lanes, x, stride = args

        def row(m, total):
            table = _load(b, ir.VectorType(_FLOAT, 8), _row(b, x, stride, m))
            return _fma(b, weights, _permute(b, table, lanes), total)

        return _each(b, tile, row)

    return tile(tile, weights, lanes, types.int64, types.int64), emit


@intrinsic
def pick(typing, table, index):
    """table[index]: each lane picks one of the 16 numbers of a vector (index 0 ... 15)."""
    return F32(table, index), lambda _, b, sig, args: _pick(b, *args)


@intrinsic
def store_rows(typing, tile, y, stride):
    """Write row m to address y + m * stride."""

    def emit(context, b, sig, args):
        tile, y, stride = args
        for m in range(tile.type.count):
            _store(b, b.extract_value(tile, m), _row(b, y, stride, m))
        return context.get_dummy_value()

    return types.void(tile, types.int64, types.int64), emit


@intrinsic
def load_rows(typing, rows, y, stride):
    """A tile from addresses y + m * stride."""
    tile = Tile(F32, len(rows))

    def emit(_, b, sig, args):
        empty = ir.Constant(tile.llvm, ir.Undefined)
        return _each(b, empty, lambda m, _: _load(b, F32.llvm, _row(b, args[1], args[2], m)))

    return tile(rows, types.int64, types.int64), emit


# --- the one operation with an x86 form -----------------------------------------------------------


def _pick(builder, table, index):
    if _has("avx512f"):
        return _call(builder, "llvm.x86.avx512.permvar.sf.512", F32.llvm, table, index)
    low, high = (
        builder.shuffle_vector(table, table, _lanes(range(start, start + 8))) for start in (0, 8)
    )
    seven = ir.Constant(I32.llvm, [7] * LANES)
    is_high = builder.icmp_unsigned(">", index, seven)
    small = builder.and_(index, seven)
    return builder.select(is_high, _permute(builder, high, small), _permute(builder, low, small))


def _permute(builder, table, index):
    """Each of 16 lanes picks one of the 8 numbers of `table` by the low 3 bits of its index."""
    if _has("avx512f"):
        both = builder.shuffle_vector(table, table, _lanes([*range(8), *range(8)]))
        return _call(builder, "llvm.x86.avx512.permvar.sf.512", F32.llvm, both, index)
    halves = [
        builder.shuffle_vector(index, index, _lanes(range(start, start + 8))) for start in (0, 8)
    ]
    picked = [_permute8(builder, table, half) for half in halves]
    return builder.shuffle_vector(*picked, _lanes(range(16)))


def _permute8(builder, table, index):
    if _has("avx2"):
        return _call(builder, "llvm.x86.avx2.permps", table.type, table, index)
    result = ir.Constant(table.type, ir.Undefined)
    for lane in range(8):
        where = builder.and_(builder.extract_element(index, _INT(lane)), _INT(7))
        number = builder.extract_element(table, where)
        result = builder.insert_element(result, number, _INT(lane))
    return result
