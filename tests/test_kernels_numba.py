"""Every Numba kernel against its naive twin in float64, on random, odd and worst-case shapes.

Bounds are derived, not tuned: a sum of K products in fp32, and for integer weights the rounding of
the activations to int16 (half a step of |x|max / 32767 for each of them).
"""

import hashlib
import os
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch
from kernel_cases import EXTREMES, extreme
from small_kernels import attend, exp, integers, product, rms_norm, rotate, rounded, swiglu

from utils.kernels import floats, layout, lookups
from utils.kernels import integers as integer_kernels
from utils.kernels.weights import FLOAT8, KINDS, Weight, encode, wrap
from utils.quantization import codebook
from utils.quantization.codebook import CodebookTensor

EPS = float(np.finfo(np.float32).eps)
OUTPUTS = (1, 15, 16, 17, 33, 100)
INPUTS = (1, 2, 7, 33, 96, 100, 576, 1000)
ROWS = 70
FORMS = (*KINDS, "int8 zero", "int4 zero")


def numbers(*shape, seed=0, size=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * size).astype(np.float32)


def stored(form, outputs, inputs):
    """A random Weight of a form; " zero": with zero points, one scale for each row."""
    if form.startswith("int"):
        return wrap(integers(outputs, inputs, int(form[3]), -1, "zero" not in form))
    return encode(torch.from_numpy(numbers(outputs, inputs, seed=inputs)), form)


def bound(weight, x, magnitude):
    """Largest error that y [rows, out] may have."""
    columns = weight.shape[1]
    allowed = (columns + 4) * EPS * magnitude
    if weight.kind.startswith("int"):
        whole_weight = weight.dequantize().double().abs().sum(1).numpy()
        largest = np.abs(x).max(1, keepdims=True).astype(np.float64)
        allowed = allowed + 0.505 / 32767 * largest * whole_weight
    return allowed


def check(weight, x, y):
    w, exact = weight.dequantize().double().numpy(), x.astype(np.float64)
    magnitude = np.abs(exact) @ np.abs(w).T
    error = np.abs(y[:, : weight.shape[0]] - exact @ w.T)
    assert np.isfinite(y).all()
    assert (error <= bound(weight, x, magnitude)).all(), (weight.kind, weight.shape)
    assert (y[:, weight.shape[0] :] == 0).all(), "the filling of the outputs must stay 0"


def check_all(weight, x=None):
    """Values, the same bits for each number of rows, the way back; returns y of all rows."""
    x = numbers(ROWS, weight.shape[1], seed=1) if x is None else x
    y = product(weight, x)
    check(weight, x, y)
    for rows in range(1, min(10, len(x))):
        assert np.array_equal(product(weight, x[:rows]), y[:rows]), (weight.shape, rows)
    back = layout.rows(layout.pack(weight), range(weight.shape[0]))
    assert np.array_equal(back[:, : weight.shape[1]], weight.dequantize().numpy())
    return y


POSSIBLE = [(f, k) for f in FORMS for k in INPUTS if f != "sparse24" or k % 4 == 0]


@pytest.mark.parametrize("form, inputs", POSSIBLE)
def test_products_of_odd_shapes(form, inputs):
    for outputs in OUTPUTS:
        check_all(stored(form, outputs, inputs))


@pytest.mark.parametrize("scale_dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [8, 32, 64, 96, 192, 264, 520, -1])
@pytest.mark.parametrize("bits", [8, 4])
def test_integers_in_groups(bits, group, symmetric, scale_dtype):
    for outputs, inputs in ((17, 96), (33, 100), (1, 7), (15, 577), (16, 1000)):
        check_all(wrap(integers(outputs, inputs, bits, group, symmetric, scale_dtype)))


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("group", [8, 32, 64, 96, 192])
def test_codebooks_in_groups(kind, group):
    for outputs, inputs in ((17, 96), (33, 100), (1, 7), (15, 577), (16, 1000)):
        check_all(encode(torch.from_numpy(numbers(outputs, inputs)), kind, group))


@pytest.mark.parametrize("form", FORMS)
def test_extreme_weights(form):
    for kind in EXTREMES:
        check_all(extreme(form, kind))


@pytest.mark.parametrize("form", FORMS)
def test_extreme_activations(form):
    weight = stored(form, 17, 100)
    x = numbers(5, 100)
    x[0] = 0
    x[1, 99] = 1e4
    x[2] *= 1e-30
    x[3] *= 1e25
    x[4] = -1
    y = check_all(weight, x)
    assert (y[0] == 0).all()


@pytest.mark.parametrize("size", [1e-36, 1e-42])
def test_tiny_activations_give_no_nan(size):
    y = product(stored("int8", 17, 100), numbers(2, 100, size=size))
    assert np.isfinite(y).all() and np.abs(y).max() < 1e-30


@pytest.mark.parametrize("form", FORMS)
def test_adding_and_splitting_between_threads(form):
    weight, x, before = stored(form, 100, 96), numbers(6, 96), numbers(6, 112, seed=2)
    before[:, 100:] = 0
    y = product(weight, x)
    assert np.array_equal(product(weight, x, cuts=[1, 1, 4]), y)
    assert np.array_equal(product(weight, x, before), before + y)


@pytest.mark.parametrize("inputs", [256, 1536, 4096])
@pytest.mark.parametrize("bits, symmetric", [(8, True), (8, False), (4, True), (4, False)])
def test_worst_case_codes_do_not_overflow(bits, symmetric, inputs):
    ends = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if symmetric else (0, 2**bits - 1)
    for code in ends:
        for zero in (None,) if symmetric else (0, 2**bits - 1):
            tensor = integers(16, inputs, bits, -1, True, codes=torch.zeros(16, inputs))
            tensor = type(tensor).from_codes(
                torch.full((16, inputs), code).to(torch.int8 if symmetric else torch.uint8),
                tensor.scale.float(),
                None if symmetric else torch.full((16, 1), zero),
                bits,
                -1,
            )
            signs = np.ones((3, inputs), np.float32)
            signs[1], signs[2, ::2] = -1, -1
            check_all(wrap(tensor), signs)


@pytest.mark.parametrize("kind", FLOAT8)
def test_every_code_of_8_bit_floats(kind):
    codes = torch.arange(256, dtype=torch.uint8)
    finite = torch.isfinite(codes.view(FLOAT8[kind]).float())
    codes = torch.where(finite, codes, torch.zeros((), dtype=torch.uint8)).repeat(16, 1)
    scale = torch.linspace(0.5, 3, 16)[:, None].contiguous()
    weight = Weight(kind, (16, 256), {"codes": codes.contiguous(), "scale": scale})
    y = check_all(weight, np.eye(256, dtype=np.float32))
    assert np.array_equal(y.T, weight.dequantize().numpy())  # one product each: exact


@pytest.mark.parametrize("kind", codebook.TABLES)
def test_every_code_of_a_codebook(kind):
    codes = torch.arange(16, dtype=torch.uint8).repeat(16, 3)
    packed = codebook.pack(codes, 4)
    scale = torch.linspace(0.5, 3, 48).reshape(16, 3).contiguous()
    table = torch.tensor(codebook.TABLES[kind])
    tensor = CodebookTensor(packed, scale, table, (16, 48), 16, kind)
    y = check_all(wrap(tensor), np.eye(48, dtype=np.float32))
    assert np.array_equal(y.T, tensor.dequantize().numpy())


def test_sparse24_places_of_all_kinds():
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    matrix = torch.zeros(6, 64)
    for row in range(6):
        for block in range(16):
            for place in pairs[(row + block) % 6]:
                matrix[row, 4 * block + place] = 1 + row + block
    y = check_all(encode(matrix, "sparse24"), np.eye(64, dtype=np.float32))
    assert np.array_equal(y[:, :6].T, matrix.numpy())


def test_what_no_kernel_reads_is_refused():
    for bits, group in ((8, 12), (8, 33), (4, 12), (8, 4), (8, 0), (4, 0)):
        if group == 0:
            tensor = integers(16, 100, bits, -1, True)
            tensor = type(tensor)(tensor.packed, tensor.scale[:1], None, tensor.shape, bits, group)
        else:
            tensor = integers(16, 100, bits, group, True)
        with pytest.raises(ValueError, match=f"group_size={group}"):
            wrap(tensor)
    with pytest.raises(ValueError, match="3 bits"):
        wrap(integers(16, 100, 3, -1, True))
    for kind in codebook.TABLES:
        with pytest.raises(ValueError, match="group_size=12"):
            encode(torch.ones(16, 100), kind, 12)
    with pytest.raises(ValueError, match="float16_"):
        encode(torch.ones(2, 2), "float16_")
    with pytest.raises(ValueError, match="QuantizedTensor"):
        wrap(torch.ones(2, 2, dtype=torch.int8))
    with pytest.raises(ValueError, match="matrix"):
        encode(torch.ones(2), "fp32")
    for bad in (float("nan"), float("inf")):
        for kind in KINDS:
            with pytest.raises(ValueError, match="NaN or infinity"):
                encode(torch.tensor([[bad] * 4]), kind)


def test_stored_scales_must_be_finite():
    tensor = integers(16, 32, 8, -1, True)
    tensor.scale[3] = float("inf")
    with pytest.raises(ValueError, match="NaN or infinity"):
        wrap(tensor)
    book = codebook.quantize(torch.ones(2, 64))
    book.scale[0] = float("nan")
    with pytest.raises(ValueError, match="NaN or infinity"):
        wrap(book)


def test_functions_written_once_have_names_of_their_own():
    """Numba links code from its disk cache by name: equal names would mix up two kernels."""
    names = [
        function.py_func.__qualname__
        for module in (floats, integer_kernels, lookups)
        for name, function in vars(module).items()
        if name.startswith("run_")
    ]
    assert len(names) == len(set(names)) == 8
    assert not [name for name in names if "<locals>" in name]


def test_exp():
    x = np.linspace(-87, 0, 1 << 20, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(exp(x) - exact) / exact).max() < 2e-7
    x = np.array([-1e30, -200, -88, 0, 1, 87, 88, -0.0] * 2, np.float32)
    exact = np.exp(np.maximum(x, -87).astype(np.float64))
    assert (np.abs(exp(x) - exact) <= 2e-7 * exact).all()


@pytest.mark.parametrize("size", [1, 15, 16, 17, 100, 576])
def test_rms_norm(size):
    for seed, scale in enumerate((1.0, 1e-6, 1e8)):
        x, weight = numbers(size, seed=seed, size=scale), numbers(size, seed=9)
        exact = x.astype(np.float64)
        exact = exact / np.sqrt((exact**2).mean() + np.float32(1e-5)) * weight
        y = rms_norm(x, weight, 1e-5)
        assert np.abs(y[:size] - exact).max() <= (size + 8) * EPS * np.abs(exact).max()
        assert (y[size:] == 0).all()


def test_rounding_of_rows():
    x = numbers(4, 100)
    x[1, 7], x[2] = 1e6, 0
    whole, scale = rounded(x)
    largest = np.abs(x).max(1, keepdims=True)
    assert np.abs(whole).max() == 32767 and (whole[:, 100:] == 0).all()
    assert np.abs(whole * scale[:, None].astype(np.float64))[2].max() == 0
    error = np.abs(whole[:, :100] * scale[:, None].astype(np.float64) - x)
    assert (error <= 0.505 * largest / 32767).all()


def test_swiglu():
    gate = np.linspace(-88, 88, 4096, dtype=np.float32)
    up = numbers(4096)
    exact = gate.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64))) * up
    assert (np.abs(swiglu(gate, up) - exact) <= 1e-6 * np.abs(exact) + 1e-35).all()


def test_swiglu_far_out():
    gate = np.array([-1e30, -1e4, -1000, -200, -100, -90, -89.5, -88.8] * 2, np.float32)
    assert np.abs(swiglu(gate, np.ones(16, np.float32))).max() < 1e-7
    assert np.array_equal(swiglu(-gate, np.ones(16, np.float32)), -gate)


@pytest.mark.parametrize("size", [2, 16, 64, 96])
def test_rotation(size):
    x, angle = numbers(size), numbers(size // 2, seed=1)
    cos, sin = (np.tile(f(angle), 2).astype(np.float32) for f in (np.cos, np.sin))
    y, half = np.zeros(size, np.float32), size // 2
    rotate(x, cos, sin, y)
    turned = np.concatenate([-x[half:], x[:half]]).astype(np.float64)
    assert np.abs(y - (x * cos.astype(np.float64) + turned * sin)).max() <= 4 * EPS * 4


def naive_attention(q, keys, values):
    scores = q.astype(np.float64) @ keys.T.astype(np.float64)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights @ values / weights.sum(1, keepdims=True)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 255, 256, 257, 700])
@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 7, 8])
def test_attention(count, heads):
    for size in (16, 64):
        q, keys = numbers(heads, size, size=0.3), numbers(count, size, seed=1)
        values = numbers(count, size, seed=2)
        y = attend(q, keys, values)
        assert np.abs(y - naive_attention(q, keys, values)).max() <= 3e-6


def test_attention_to_one_position_in_another_block():
    q, keys, values = np.ones((3, 32), np.float32), numbers(600, 32), numbers(600, 32, seed=1)
    keys[300] = 30
    assert np.abs(attend(q, keys, values) - values[300]).max() <= EPS


# The same bits on each processor: code is made for older ones in processes of their own.

OLDER = {
    "avx2": ("haswell", "+sse2,+sse4.1,+sse4.2,+avx,+avx2,+fma,+f16c,+bmi2"),
    "generic": ("generic", ""),
}


def digests():
    """{name: hash of the bits}: a product of each form, and one step of a small model."""
    from utils import models
    from utils.engine import Engine

    found = {}
    for form in FORMS:
        y = product(stored(form, 33, 100), numbers(5, 100))
        found[form] = hashlib.sha256(y.tobytes()).hexdigest()
    found["exp"] = hashlib.sha256(exp(np.linspace(-90, 80, 1600, dtype=np.float32))).hexdigest()
    q, keys, values = numbers(3, 32), numbers(300, 32, seed=1), numbers(300, 32, seed=2)
    found["attention"] = hashlib.sha256(attend(q, keys, values)).hexdigest()
    engine = Engine(models.tiny(), "int8", max_tokens=512, threads=1)
    logits = engine.step([i % 256 for i in range(300)], rows=2)
    found["step"] = hashlib.sha256(logits.numpy().tobytes()).hexdigest()
    return found


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="x86 features")
@pytest.mark.parametrize("name", OLDER)
def test_the_same_bits_on_older_processors(name):
    cpu, features = OLDER[name]
    chosen = {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": features}
    code = "import test_kernels_numba as t; print(t.digests())"
    folders = os.pathsep.join([os.path.dirname(__file__), os.getcwd()])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | chosen | {"PYTHONPATH": folders},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    here, there = digests(), eval(done.stdout.strip().splitlines()[-1])
    assert there == here, [name for name in here if here[name] != there[name]]
