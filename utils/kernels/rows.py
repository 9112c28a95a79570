"""Words for tiles: one vector for each of M rows of activations.

M is the length of a tuple, so that it is known when a kernel is compiled: a kernel is written once,
for all M, the M vectors stay in registers, and a row's bits are the same for each M.

Addresses are plain integers (bytes); nothing is checked here, the engine checks before it calls.
"""

import llvmlite.ir as ir
from numba import types
from numba.extending import intrinsic

from utils.kernels import llvm
from utils.kernels.llvm import F32, I16, I32, Tile


def _row(builder, address, stride, row):
    return builder.add(address, builder.mul(stride, ir.Constant(stride.type, row)))


def each(builder, tile, function):
    """A new tile: function(row number, its vector) for each row."""
    result = tile
    for row in range(tile.type.count):
        value = function(row, builder.extract_value(tile, row))
        result = builder.insert_value(result, value, row)
    return result


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
            number = llvm.load(b, llvm.FLOAT, _row(b, x, stride, m))
            return llvm.fma(b, weights, llvm.splat(b, number), total)

        return each(b, tile, row)

    return tile(tile, weights, types.int64, types.int64), emit


@intrinsic
def dot_pairs_rows(typing, tile, weights, x, stride):
    """tile[m] += w0 * x0 + w1 * x1 in int32: lane i has the pair of weights 2i and 2i + 1.

    x[m] is a pair of int16 at address x + m * stride. LLVM makes one instruction of it where there
    is one (vpmaddwd, vpdpwssd on x86).
    """
    wide = ir.VectorType(llvm.INT, 32)

    def emit(_, b, sig, args):
        tile, weights, x, stride = args

        def row(m, total):
            pair = llvm.splat(b, llvm.load(b, llvm.INT, _row(b, x, stride, m)))
            pair = b.bitcast(pair, I16.llvm)
            product = b.mul(b.sext(weights, wide), b.sext(pair, wide))
            even = b.shuffle_vector(product, product, llvm.lanes(range(0, 32, 2)))
            odd = b.shuffle_vector(product, product, llvm.lanes(range(1, 32, 2)))
            return b.add(total, b.add(even, odd))

        return each(b, tile, row)

    return tile(tile, weights, types.int64, types.int64), emit


@intrinsic
def subtract_rows(typing, tile, weights, x, stride):
    """tile[m] -= weights * x[m] in int32, x[m] the int32 number at address x + m * stride."""

    def emit(_, b, sig, args):
        tile, weights, x, stride = args

        def row(m, total):
            number = llvm.splat(b, llvm.load(b, llvm.INT, _row(b, x, stride, m)))
            return b.sub(total, b.mul(weights, number))

        return each(b, tile, row)

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
            return llvm.fma(b, new, scale, old)

        return each(b, total, row)

    return total(total, tile, scale), emit


@intrinsic
def scale_rows(typing, tile, x, stride):
    """tile[m] times the fp32 number at address x + m * stride."""

    def emit(_, b, sig, args):
        tile, x, stride = args

        def row(m, old):
            return b.fmul(old, llvm.splat(b, llvm.load(b, llvm.FLOAT, _row(b, x, stride, m))))

        return each(b, tile, row)

    return tile(tile, types.int64, types.int64), emit


@intrinsic
def multiply_rows(typing, tile, vector):
    """tile[m] * vector for each row."""

    def emit(_, b, sig, args):
        return each(b, args[0], lambda m, old: b.fmul(old, args[1]))

    return tile(tile, vector), emit


@intrinsic
def add_rows(typing, tile, other):
    """tile[m] + other[m] for each row."""

    def emit(_, b, sig, args):
        return each(b, args[0], lambda m, old: b.fadd(old, b.extract_value(args[1], m)))

    return tile(tile, other), emit


@intrinsic
def permute_fma_rows(typing, tile, weights, lanes, x, stride):
    """tile[m] += weights * x[m][lanes]: each lane picks one of the 8 fp32 numbers at x[m]."""

    def emit(_, b, sig, args):
        tile, weights, lanes, x, stride = args

        def row(m, total):
            table = llvm.load(b, ir.VectorType(llvm.FLOAT, 8), _row(b, x, stride, m))
            return llvm.fma(b, weights, llvm.permute(b, table, lanes), total)

        return each(b, tile, row)

    return tile(tile, weights, lanes, types.int64, types.int64), emit


@intrinsic
def store_rows(typing, tile, y, stride):
    """Write row m to address y + m * stride."""

    def emit(context, b, sig, args):
        tile, y, stride = args
        for m in range(tile.type.count):
            llvm.store(b, b.extract_value(tile, m), _row(b, y, stride, m))
        return context.get_dummy_value()

    return types.void(tile, types.int64, types.int64), emit


@intrinsic
def load_rows(typing, rows, y, stride):
    """A tile from addresses y + m * stride."""
    tile = Tile(F32, len(rows))

    def emit(_, b, sig, args):
        empty = ir.Constant(tile.llvm, ir.Undefined)
        return each(b, empty, lambda m, _: llvm.load(b, F32.llvm, _row(b, args[1], args[2], m)))

    return tile(rows, types.int64, types.int64), emit
