"""One number in few bits: binary floats, two's complement integers, tables of levels.

A float code is sign | exponent field E | mantissa field M with e exponent and m mantissa bits:

    E = 0   (subnormal)   value = (-1)^sign * 2^(1 - bias) * M / 2^m
    E > 0   (normal)      value = (-1)^sign * 2^(E - bias) * (1 + M / 2^m)

Without the sign, codes count the representable magnitudes from zero upwards. So with x between
2^p and 2^(p+1) and p no smaller than p_min = 1 - bias, rounding is one line for all of them:

    code = (p - p_min) * 2^m + round(|x| / 2^(p - m))        ties to the even code

A carry into the next exponent and subnormals need no case of their own. What is beyond the largest
code has overflowed; `specials` says which codes stand for infinity and NaN.

But: this is a reference in float64 on the CPU, not a kernel, and it knows no scale (see `scaled`
and `microscaling`). Sources: IEEE 754-2019, section 3.4; Micikevicius et al. 2022
(arXiv:2209.05433) for E4M3 and E5M2; Noune et al. 2022 (arXiv:2206.02915) for the FNUZ forms.
"""

from dataclasses import dataclass

import torch

# ieee: the highest exponent holds infinity and NaN.   fn: only its last code is no number, NaN.
# fnuz: the code of -0 is NaN, the bias is one more.   finite: every code is a number.
SPECIALS = ("ieee", "fn", "fnuz", "finite")


@dataclass(frozen=True)
class Float:
    """sign, `exponent_bits`, `mantissa_bits`; `specials` is one of SPECIALS."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    specials: str = "ieee"

    def __post_init__(self):
        if self.specials not in SPECIALS:
            raise ValueError(f"specials={self.specials!r}: use one of {', '.join(SPECIALS)}")
        if not (1 <= self.exponent_bits <= 8 and 1 <= self.mantissa_bits <= 23):
            raise ValueError(f"{self.name}: codes decode to fp32, so e is 1 to 8 and m 1 to 23")

    @property
    def bits(self):
        """Bits of a code."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self):
        """What is subtracted from the exponent field."""
        return 2 ** (self.exponent_bits - 1) - 1 + (self.specials == "fnuz")

    @property
    def sign_bit(self):
        """The code of the sign bit alone."""
        return 1 << (self.bits - 1)

    @property
    def largest_code(self):
        """The code of the largest finite number."""
        if self.specials == "ieee":
            return ((1 << self.exponent_bits) - 1 << self.mantissa_bits) - 1
        return self.sign_bit - (2 if self.specials == "fn" else 1)

    @property
    def infinity_code(self):
        """The code of +infinity, None where there is none."""
        return self.largest_code + 1 if self.specials == "ieee" else None

    @property
    def nan_code(self):
        """The code that NaN gets, None where there is none."""
        quiet = self.largest_code + 1 + (1 << self.mantissa_bits >> 1)
        codes = {"ieee": quiet, "fn": self.largest_code + 1, "fnuz": self.sign_bit}
        return codes.get(self.specials)

    @property
    def max(self):
        """The largest finite number."""
        return self.decode(torch.tensor(self.largest_code)).item()

    @property
    def smallest_normal(self):
        """The smallest number with the full relative precision."""
        return 2.0 ** (1 - self.bias)

    @property
    def smallest(self):
        """The smallest number above zero, a subnormal."""
        return self.smallest_normal * 2.0**-self.mantissa_bits

    @property
    def epsilon(self):
        """The step between 1 and the next number: 2^-m. Rounding is off by half of it at most."""
        return 2.0**-self.mantissa_bits

    def fields(self, code):
        """(sign, E, M) of one code as integers."""
        magnitude = code & (self.sign_bit - 1)
        sign = code >> (self.bits - 1)
        return sign, magnitude >> self.mantissa_bits, magnitude & ((1 << self.mantissa_bits) - 1)

    def encode(self, x, saturate=True, generator=None):
        """Tensor -> int64 codes. With a generator rounding is stochastic. See formats.encode."""
        wide = x.detach().cpu().double()
        finite = torch.where(torch.isfinite(wide), wide, 0.0).abs()
        magnitude = self._magnitude(finite, generator)
        over = (magnitude > self.largest_code) | torch.isinf(wide)
        if not saturate and self.specials == "finite" and over.any():
            raise ValueError(f"{self.name} has no code beyond {self.max}: use saturate=True")
        beyond = self.infinity_code or self.nan_code
        magnitude = torch.where(over, self.largest_code if saturate else beyond, magnitude)
        codes = torch.where(torch.signbit(wide), magnitude | self.sign_bit, magnitude)
        if self.specials == "fnuz":  # zero has no sign, and NaN keeps its only code
            codes = torch.where((magnitude == 0) | (magnitude == self.nan_code), magnitude, codes)
        return self._with_nan(codes, torch.isnan(wide))

    def _magnitude(self, x, generator):
        """Codes without the sign for finite x >= 0, as if there were no largest one."""
        lowest = 1 - self.bias
        power = (torch.frexp(x).exponent.long() - 1).clamp(min=lowest)
        power = torch.where(x == 0, lowest, power)
        steps = round_steps(x * power_of_two(self.mantissa_bits - power), generator)
        return ((power - lowest) << self.mantissa_bits) + steps.long()

    def _with_nan(self, codes, nan):
        if nan.any() and self.nan_code is None:
            raise ValueError(f"{self.name} has no code for NaN: repair the {int(nan.sum())} values")
        return torch.where(nan, self.nan_code or 0, codes)

    def decode(self, codes):
        """Integer codes -> fp32."""
        codes = codes.cpu().long()
        sign, exponent, mantissa = self.fields(codes)
        normal = exponent > 0
        whole = torch.where(normal, mantissa + (1 << self.mantissa_bits), mantissa)
        power = exponent.clamp(min=1) - self.bias - self.mantissa_bits
        value = whole * power_of_two(power) * (1 - 2 * sign)
        value = torch.where((sign == 1) & (whole == 0), -0.0, value)
        return self._specials(codes, value).float()

    def _specials(self, codes, value):
        magnitude = codes & (self.sign_bit - 1)
        if self.specials == "fnuz":
            return torch.where(codes == self.nan_code, torch.nan, value)
        if self.specials == "ieee":
            infinite = torch.copysign(torch.full_like(value, torch.inf), value)
            value = torch.where(magnitude == self.infinity_code, infinite, value)
        last = self.infinity_code or self.largest_code
        return torch.where(magnitude > last, torch.nan, value)


@dataclass(frozen=True)
class Integer:
    """Two's complement of `bits` bits: -2^(b-1) ... 2^(b-1) - 1."""

    name: str
    bits: int

    @property
    def max(self):
        """The largest number; scales are made for it, so that w and -w fit alike."""
        return float(2 ** (self.bits - 1) - 1)

    def encode(self, x, saturate=True, generator=None):
        """Tensor -> int64 codes 0 ... 2^b - 1."""
        wide = without_nan(self.name, x)
        whole = torch.copysign(round_steps(wide.abs(), generator), wide)
        held = whole.clamp(-self.max - 1, self.max)
        if not saturate and not torch.equal(held, whole):
            raise ValueError(f"{self.name} holds no more than ±{self.max:.0f}: use saturate=True")
        return held.long() & (2**self.bits - 1)

    def decode(self, codes):
        """Integer codes -> fp32."""
        codes = codes.cpu().long()
        return torch.where(codes > self.max, codes - 2**self.bits, codes).float()


@dataclass(frozen=True)
class Table:
    """A code is the index of the nearest of `levels` (ascending); ties go to the lower one."""

    name: str
    levels: tuple

    @property
    def bits(self):
        """Bits of a code."""
        return (len(self.levels) - 1).bit_length()

    @property
    def max(self):
        """The largest level."""
        return self.levels[-1]

    def encode(self, x, saturate=True, generator=None):
        """Tensor -> int64 codes."""
        wide = without_nan(self.name, x)
        if generator is not None:
            raise ValueError(f"{self.name} has no stochastic rounding: its steps are unequal")
        if not saturate and (wide.abs() > self.max).any():
            raise ValueError(f"{self.name} ends at ±{self.max}: use saturate=True")
        levels = torch.tensor(self.levels).double()
        return torch.bucketize(wide, (levels[1:] + levels[:-1]) / 2)

    def decode(self, codes):
        """Integer codes -> fp32."""
        return torch.tensor(self.levels)[codes.cpu().long()]


def round_steps(steps, generator=None):
    """Round to whole steps: half to even, or up with the probability of the fraction."""
    if generator is None:
        return torch.round(steps)
    return torch.floor(steps + torch.rand(steps.shape, generator=generator, dtype=steps.dtype))


def power_of_two(exponent):
    """2.0^exponent in float64, exactly: the exponent goes straight into its field."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)


def without_nan(name, x):
    """x in float64 on the CPU; ValueError if it holds NaN."""
    wide = x.detach().cpu().double()
    if torch.isnan(wide).any():
        raise ValueError(f"{name} has no code for NaN: repair the {int(wide.isnan().sum())} values")
    return wide
