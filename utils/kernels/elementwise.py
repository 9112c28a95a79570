"""What lies between the products: norms, rounding of activations, rotation, SwiGLU.

Each works on one row, so that a row's numbers never depend on how many others there are. Sums run
in 16 lanes and are folded in a fixed tree. Buffers are filled up with zeros to a multiple of 64
numbers, so that vectors need no rest.

    rms_norm   y = x / sqrt(mean(x^2) + eps) * weight          Zhang & Sennrich 2019
    rotate     (a, b) -> (a cos - b sin, b cos + a sin)         Su et al. 2021, halves apart
    swiglu     gate / (1 + exp(-gate)) * up                     Shazeer 2020
    exp        2^n * 2^f, |f| <= 1/2, by a polynomial of degree 6; relative error below 2e-7
"""

import numpy as np

from utils.kernels.blocks import inner
from utils.kernels.vectors import (
    add,
    as_f32,
    div,
    fma,
    load_f32,
    magnitude,
    max_lanes,
    maximum,
    mul,
    nearest,
    shift_left,
    splat,
    store,
    store_i16,
    sub,
    sum_lanes,
    to_i32,
)

F = np.float32
ZERO, ONE, LOWEST = F(0), F(1), F(-87)
LOG2_E, LN2_HIGH, LN2_LOW = F(1.4426950408889634), F(-0.693359375), F(2.12194440e-4)
P0, P1, P2 = F(1.9875691500e-4), F(1.3981999507e-3), F(8.3334519073e-3)
P3, P4, P5 = F(4.1665795894e-2), F(1.6666665459e-1), F(5.0000001201e-1)
BIAS = np.int32(127)
LARGEST = F(32767)


@inner
def exp(x):
    """e^x for 16 numbers x <= 88; below -87 the result is that of -87 (1.6e-38)."""
    x = maximum(x, splat(LOWEST))
    n = nearest(mul(x, splat(LOG2_E)))
    f = fma(n, splat(LN2_LOW), fma(n, splat(LN2_HIGH), x))
    p = fma(splat(P0), f, splat(P1))
    p = fma(p, f, splat(P2))
    p = fma(p, f, splat(P3))
    p = fma(p, f, splat(P4))
    p = fma(p, f, splat(P5))
    p = add(fma(mul(p, f), f, f), splat(ONE))
    return mul(p, as_f32(shift_left(add(to_i32(n), splat(BIAS)), 23)))


@inner
def rms_norm(x, weight, y, size, eps):
    """y = x / sqrt(mean(x^2) + eps) * weight; addresses; size: the true number."""
    total = splat(ZERO)
    for j in range(0, 4 * size, 64):
        v = load_f32(x + j)
        total = fma(v, v, total)
    scale = splat(ONE / np.sqrt(sum_lanes(total) / F(size) + eps))
    for j in range(0, 4 * size, 64):
        store(mul(mul(load_f32(x + j), scale), load_f32(weight + j)), y + j)


@inner
def round_row(x, whole, size):
    """x (fp32) -> int16 numbers at `whole`; returns the scale: x ~ scale * whole."""
    largest = splat(ZERO)
    for j in range(0, 4 * size, 64):
        largest = maximum(magnitude(load_f32(x + j)), largest)
    top = max_lanes(largest)
    inverse = splat(LARGEST / top if top > ZERO else ZERO)
    for j in range(0, 4 * size, 64):
        store_i16(to_i32(nearest(mul(load_f32(x + j), inverse))), whole + j // 2)
    return top / LARGEST


@inner
def swiglu(gate, up, y, size):
    """y = gate / (1 + exp(-gate)) * up; addresses."""
    one, zero, lowest = splat(ONE), splat(ZERO), splat(LOWEST)
    for j in range(0, 4 * size, 64):
        g = load_f32(gate + j)
        e = exp(sub(zero, maximum(g, lowest)))  # exp goes up to 88
        store(mul(div(g, add(one, e)), load_f32(up + j)), y + j)


@inner
def rotate(x, cos, sin, half, y):
    """Rotate one head: x, y arrays of 2 * half numbers, cos and sin of this position."""
    for j in range(half):
        a, b = x[j], x[j + half]
        y[j] = a * cos[j] - b * sin[j]
        y[j + half] = b * cos[j + half] + a * sin[j + half]
