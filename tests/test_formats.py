"""Number formats: every code against torch and ml_dtypes, rounding, overflow (field case 11)."""

import ml_dtypes
import numpy as np
import pytest
import torch

from utils.quantization import codebook, formats, scaled
from utils.quantization.error import sqnr_db

INF, NAN = float("inf"), float("nan")
TORCH = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
}
ML_DTYPES = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "fp4": ml_dtypes.float4_e2m1fn,
    "int4": ml_dtypes.int4,
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
}
FLOATS = [n for n, f in formats.FORMATS.items() if isinstance(f, formats.Float)]
SMALL = [n for n, f in formats.FORMATS.items() if f.bits <= 8]


def values(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def same(ours, theirs):
    """Equal numbers, NaN in the same places, zeros of the same sign."""
    ours, theirs = torch.as_tensor(ours), torch.as_tensor(theirs)
    nan = torch.isnan(ours)
    return (
        torch.equal(nan, torch.isnan(theirs))
        and torch.equal(ours[~nan], theirs[~nan])
        and torch.equal(torch.signbit(ours[~nan]), torch.signbit(theirs[~nan]))
    )


def within_range(fmt, count=20_000, seed=0):
    """Numbers of all sizes that the format holds, its numbers, and the middles between them."""
    spec, generator = formats.find(fmt), torch.Generator().manual_seed(seed)
    low = np.log2(getattr(spec, "smallest", 0.01)) - 2
    size = torch.rand(count, generator=generator) * (np.log2(spec.max) - low) + low
    sign = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
    own = formats.numbers(fmt)
    middles = (own[1:] + own[:-1]) / 2
    x = torch.cat([sign * torch.exp2(size), own, middles]).float()
    return x[x.abs() <= spec.max]


@pytest.mark.parametrize("fmt", TORCH)
def test_all_256_codes_decode_as_torch_decodes_them(fmt):
    codes = torch.arange(256)
    assert same(formats.decode(codes, fmt), codes.to(torch.uint8).view(TORCH[fmt]).float())


@pytest.mark.parametrize("fmt", [n for n in ML_DTYPES if n not in ("bf16", "fp16", "int4")])
def test_all_codes_decode_as_ml_dtypes_decodes_them(fmt):
    codes = torch.arange(1 << formats.find(fmt).bits)
    theirs = codes.numpy().astype(np.uint8).view(ML_DTYPES[fmt]).astype(np.float32)
    assert same(formats.decode(codes, fmt), torch.from_numpy(theirs))


@pytest.mark.parametrize("fmt, dtype", [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_all_65536_codes_of_the_16_bit_formats(fmt, dtype):
    codes = torch.arange(65536)
    assert same(formats.decode(codes, fmt), codes.to(torch.int16).view(dtype).float())


def test_tf32_is_fp32_with_thirteen_bits_less():
    codes = torch.randint(0, 1 << 19, (20_000,), generator=torch.Generator().manual_seed(1))
    wide = (codes << 13).to(torch.int32).view(torch.float32)
    assert same(formats.decode(codes, "tf32"), wide)
    assert same(formats.decode(codes << 13, "fp32"), wide)


@pytest.mark.parametrize("fmt", ML_DTYPES)
def test_casts_in_range_are_those_of_ml_dtypes(fmt):
    x = within_range(fmt)
    theirs = torch.from_numpy(x.numpy().astype(ML_DTYPES[fmt]).astype(np.float32))
    if fmt == "int4":  # numpy cuts off on the way to an integer; give it whole numbers
        theirs = torch.from_numpy(np.rint(x.numpy()).astype(ml_dtypes.int4).astype(np.float32))
        assert torch.equal(formats.cast(x, fmt), theirs)
    else:
        assert same(formats.cast(x, fmt), theirs)


@pytest.mark.parametrize("fmt", TORCH)
def test_casts_in_range_are_those_of_torch(fmt):
    x = within_range(fmt, seed=1)
    assert same(formats.cast(x, fmt), x.to(TORCH[fmt]).float())


@pytest.mark.parametrize("fmt", SMALL)
def test_encode_is_the_nearest_code_by_search(fmt):
    x = within_range(fmt, count=150, seed=2)
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(3))[:60]]
    naive = [formats.encode_naive(v, fmt) for v in x.tolist()]
    ours = formats.decode(formats.encode(x, fmt), fmt)
    naive = formats.decode(torch.tensor(naive), fmt)
    if fmt == "nf4":  # ties go to the lower level, not to the even code: compare distances
        assert torch.allclose((naive - x).abs(), (ours - x).abs(), rtol=1e-6)
    else:
        assert torch.equal(naive, ours)


@pytest.mark.parametrize("fmt", SMALL + ["bf16", "fp16"])
def test_every_number_keeps_its_code(fmt):
    every = formats.decode(torch.arange(1 << formats.find(fmt).bits), fmt)
    finite = torch.isfinite(every)
    codes = torch.arange(len(every))[finite]
    assert torch.equal(formats.encode(every[finite], fmt).long(), codes)


@pytest.mark.parametrize(
    "fmt, bits, bias, largest, smallest_normal, smallest",
    [
        ("fp32", 32, 127, (2 - 2**-23) * 2.0**127, 2.0**-126, 2.0**-149),
        ("tf32", 19, 127, (2 - 2**-10) * 2.0**127, 2.0**-126, 2.0**-136),
        ("fp16", 16, 15, 65504.0, 2.0**-14, 2.0**-24),
        ("bf16", 16, 127, (2 - 2**-7) * 2.0**127, 2.0**-126, 2.0**-133),
        ("e4m3", 8, 7, 448.0, 2.0**-6, 2.0**-9),
        ("e5m2", 8, 15, 57344.0, 2.0**-14, 2.0**-16),
        ("e4m3fnuz", 8, 8, 240.0, 2.0**-7, 2.0**-10),
        ("e5m2fnuz", 8, 16, 57344.0, 2.0**-15, 2.0**-17),
        ("e2m3", 6, 1, 7.5, 1.0, 0.125),
        ("e3m2", 6, 3, 28.0, 0.25, 0.0625),
        ("fp4", 4, 1, 6.0, 1.0, 0.5),
    ],
)
def test_facts_of_a_format(fmt, bits, bias, largest, smallest_normal, smallest):
    spec = formats.find(fmt)
    assert (spec.bits, spec.bias, spec.max) == (bits, bias, largest)
    assert (spec.smallest_normal, spec.smallest) == (smallest_normal, smallest)


def test_fp4_and_nf4_are_the_tables_of_the_packed_layers():
    assert same(formats.decode(torch.arange(16), "fp4"), torch.tensor(codebook.FP4))
    assert same(formats.decode(torch.arange(16), "nf4"), torch.tensor(codebook.NF4))


# Field case 11: what is too large


def test_case_11_e4m3_saturates():
    x = values(448, 449, 464, 465, 1000, -1000, INF, -INF, NAN)
    assert same(formats.cast(x, "e4m3"), torch.tensor([448.0] * 5 + [-448, 448, -448, NAN]))


def test_case_11_e4m3_without_saturation_is_nan_from_465():
    x = values(448, 449, 464, 465, 1000, -1000, INF)
    expected = torch.tensor([448, 448, 448, NAN, NAN, NAN, NAN])
    assert same(formats.cast(x, "e4m3", saturate=False), expected)


def test_case_11_e5m2():
    x = values(57344, 61439, 61440, 65504, INF, NAN)
    assert same(formats.cast(x, "e5m2"), torch.tensor([57344.0] * 5 + [NAN]))
    unsaturated = torch.tensor([57344.0, 57344, INF, INF, INF, NAN])
    assert same(formats.cast(x, "e5m2", saturate=False), unsaturated)


@pytest.mark.parametrize("fmt", [n for n in ML_DTYPES if n in TORCH or n == "fp16"])
def test_overflow_without_saturation_is_that_of_ml_dtypes(fmt):
    largest = formats.find(fmt).max
    x = (values(*np.linspace(0.9, 1.3, 200)) * largest).float()
    x = torch.cat([x, -x, torch.tensor([INF, -INF, NAN])])
    with np.errstate(over="ignore"):
        theirs = torch.from_numpy(x.numpy().astype(ML_DTYPES[fmt]).astype(np.float32))
    ours = formats.cast(x, fmt, saturate=False)
    assert torch.equal(torch.isnan(ours), torch.isnan(theirs))
    assert torch.equal(ours.nan_to_num(0.0), theirs.nan_to_num(0.0))


@pytest.mark.parametrize("fmt", ["fp4", "e2m3", "e3m2", "int8", "int4", "nf4"])
def test_formats_that_hold_numbers_only(fmt):
    largest = formats.find(fmt).max
    assert formats.cast(values(10 * largest, INF), fmt).tolist() == [largest, largest]
    with pytest.raises(ValueError, match="NaN"):
        formats.cast(values(1, NAN), fmt)
    with pytest.raises(ValueError, match="saturate=True"):
        formats.cast(values(10 * largest), fmt, saturate=False)


def test_two_complement_reaches_one_further_down():
    assert formats.cast(values(-200, -128, -127.5, 127.4), "int8").tolist() == [
        -128, -128, -128, 127,
    ]  # fmt: skip
    assert formats.encode(values(-1, -8, 7), "int4").tolist() == [15, 8, 7]


# FNUZ: one byte, two readings


def test_a_byte_read_as_fnuz_is_half_of_it():
    codes = torch.arange(0x7F)
    assert torch.equal(formats.decode(codes, "e4m3fnuz"), formats.decode(codes, "e4m3") / 2)
    codes = torch.arange(0x7C)
    assert torch.equal(formats.decode(codes, "e5m2fnuz"), formats.decode(codes, "e5m2") / 2)
    minus_zero = torch.tensor([0x80])
    assert torch.signbit(formats.decode(minus_zero, "e4m3")).item()
    assert torch.isnan(formats.decode(minus_zero, "e4m3fnuz")).item()
    assert torch.isnan(formats.decode(torch.tensor([0x7F]), "e4m3")).item()
    assert formats.decode(torch.tensor([0x7F]), "e4m3fnuz").item() == 240


def test_fnuz_has_no_minus_zero_and_one_nan():
    assert formats.encode(values(-0.0, -1e-9, NAN), "e4m3fnuz").tolist() == [0, 0, 0x80]
    assert formats.encode(values(-0.0, -1e-9), "e4m3").tolist() == [0x80, 0x80]


# Rounding


def test_ties_go_to_the_even_code():
    x = values(1.0625, 1.1875, 2.125, 0.5 * 2**-9, 1.5 * 2**-9, 2.5 * 2**-9)
    assert formats.cast(x, "e4m3").tolist() == [1, 1.25, 2, 0, 2 * 2**-9, 2 * 2**-9]


def test_a_tenth_in_every_format():
    expected = {
        "fp32": 0x3DCCCCCD, "tf32": 0x1EE66, "fp16": 0x2E66, "bf16": 0x3DCD, "e4m3": 0x1D,
        "e5m2": 0x2E, "e4m3fnuz": 0x25, "e5m2fnuz": 0x32, "e2m3": 1, "e3m2": 2, "fp4": 0,
        "int8": 0, "int4": 0, "nf4": 8,
    }  # fmt: skip
    assert {fmt: formats.encode(values(0.1), fmt).item() for fmt in expected} == expected
    assert formats.bits_text(0x1D, "e4m3") == "0 0011 101"
    assert formats.bits_text(3, "int4") == "0011"


@pytest.mark.parametrize("fmt", FLOATS)
def test_normal_numbers_are_off_by_half_a_step_at_most(fmt):
    spec = formats.find(fmt)
    size = torch.linspace(np.log2(spec.smallest_normal), np.log2(spec.max) - 0.2, 9_000).double()
    x = torch.exp2(size) * 1.001
    relative = (formats.cast(x, fmt).double() / x - 1).abs().max().item()
    assert relative <= spec.epsilon / 2
    assert relative > 0.9 * spec.epsilon / 2 / (1 + spec.epsilon) or fmt in ("fp32", "fp4")


@pytest.mark.parametrize("fmt", FLOATS)
def test_subnormals_have_even_steps(fmt):
    spec = formats.find(fmt)
    steps = torch.arange(2 ** min(spec.mantissa_bits, 6) + 1).double()
    assert torch.equal(formats.cast(steps * spec.smallest, fmt).double(), steps * spec.smallest)
    assert formats.cast(values(0.4 * spec.smallest), fmt).item() == 0


def test_stochastic_rounding_is_right_on_average():
    generator = torch.Generator().manual_seed(0)
    n = 40_000
    got = formats.cast(torch.full((n,), 1.03125), "e4m3", generator=generator)
    assert sorted(set(got.tolist())) == [1.0, 1.125]
    error = 0.125 * (0.25 * 0.75 / n) ** 0.5  # standard error of the mean of n such roundings
    assert abs(got.double().mean().item() - 1.03125) < 4 * error
    exact = formats.cast(formats.numbers("e5m2"), "e5m2", generator=generator)
    assert torch.equal(exact, formats.numbers("e5m2"))


def test_wrong_names_and_codes_are_told():
    with pytest.raises(ValueError, match="fmt='e9m9'.*known are fp32"):
        formats.cast(values(1), "e9m9")
    with pytest.raises(ValueError, match="0 ... 15"):
        formats.decode(torch.tensor([16]), "fp4")
    with pytest.raises(ValueError, match="too many"):
        formats.numbers("fp32")
    with pytest.raises(ValueError, match="known are fp32.*cast: mxfp4"):
        scaled.cast(values(1), "mxfp4")
    with pytest.raises(ValueError, match=r"view\(torch.uint8\)"):
        formats.decode(values(1).to(torch.float8_e4m3fn), "e4m3")
    with pytest.raises(ValueError, match="stochastic"):
        formats.cast(values(0.1), "nf4", generator=torch.Generator())
    assert formats.cast(values(5.1), "e2m1").item() == 6 and formats.find("e4m3fn").max == 448


@pytest.mark.parametrize("fields, word", [((4, 3, "FN"), "specials='FN'"), ((9, 3), "e is 1 to 8")])
def test_a_float_of_your_own_is_checked(fields, word):
    assert formats.Float("e3m4", 3, 4, "fn").max == 30  # 2^4 (1 + 14/16)
    with pytest.raises(ValueError, match=word):
        formats.Float("own", *fields)


def test_shapes_and_dtypes():
    x = torch.randn(3, 4, dtype=torch.bfloat16)[:, ::2]
    assert formats.encode(x, "e4m3").dtype == torch.uint8
    assert formats.encode(x, "bf16").dtype == torch.int64
    assert formats.cast(x, "e4m3").shape == (3, 2)
    assert formats.decode(torch.empty(0, dtype=torch.uint8), "e4m3").shape == (0,)


# With a scale


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "fmt, expected", [("e4m3", 31.51), ("e5m2", 25.49), ("bf16", 55.59), ("fp16", 73.65)]
)
def test_floats_on_gaussian_numbers_follow_the_formula(fmt, expected):
    """13.45 + 6.02 m dB: the noise 4^(p - m) / 12 summed over the octaves of a normal law."""
    x = gaussian(1000, 256)
    assert sqnr_db(x, formats.cast(x, fmt)) == pytest.approx(expected, abs=0.1)


def test_int8_in_groups_of_32_is_q8_0():
    x = gaussian(1000, 256)
    assert sqnr_db(x, scaled.cast(x, "int8", 32)) == pytest.approx(45.47, abs=0.1)


def test_fp8_beats_int8_with_an_outlier_and_loses_without():
    x = gaussian(64, 256)
    assert sqnr_db(x, scaled.cast(x, "int8")) > sqnr_db(x, scaled.cast(x, "e4m3")) + 5
    x[0, 0] = 100
    assert sqnr_db(x, scaled.cast(x, "e4m3")) > sqnr_db(x, scaled.cast(x, "int8")) + 5


def test_scaled_groups():
    x = torch.tensor([[0.0, 0, 3, -6], [127, 1.4, 12.7, 0.05]])
    assert scaled.cast(x, "int8", -1)[1].tolist() == [127, 1, 13, 0]
    assert scaled.cast(x, "int8", 2)[1, :2].tolist() == [127, 1]
    assert scaled.cast(x, "int8", 2)[1, 2].item() == pytest.approx(12.7)
    assert scaled.cast(x, "fp4", 2)[0].tolist() == [0, 0, 3, -6]
    with pytest.raises(ValueError, match="group_size=3"):
        scaled.cast(x, "int8", 3)
    with pytest.raises(ValueError, match="finite"):
        scaled.cast(torch.tensor([1.0, INF]), "int8")
    with pytest.raises(ValueError, match=r"shape \(0, 4\)"):
        scaled.cast(torch.empty(0, 4), "int8")
