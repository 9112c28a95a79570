"""Codes into bytes and back: exact, little-endian, every width."""

import pytest
import torch

from utils.quantization.packing import pack, pack_naive, packed_bytes, unpack
from utils.quantization.size import bits_per_weight, predicted_bytes


def codes(bits, count, signed, seed=0):
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(low, high, (count,), generator=generator)
    return drawn.to(torch.int8 if signed else torch.uint8)


def test_low_nibble_first():
    assert pack(torch.tensor([-8, 7]), 4).tolist() == [0x78]


def test_unsigned_nibbles():
    assert pack(torch.tensor([1, 2, 15]), 4).tolist() == [0x21, 0x0F]


def test_three_bit_codes_by_hand():
    # codes 1, 2, 3 -> bits 001, 010, 011 from the right: 0 11 010 001 | rest 0
    assert pack(torch.tensor([1, 2, 3]), 3).tolist() == [0b11010001, 0]


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 64, 101])
def test_round_trip_and_naive_twin(bits, count, signed):
    original = codes(bits, count, signed)
    packed = pack(original, bits)
    assert packed.dtype == torch.uint8
    assert packed.numel() == packed_bytes(count, bits) == -(-count * bits // 8)
    assert torch.equal(packed, pack_naive(original, bits))
    assert torch.equal(unpack(packed, bits, count, signed), original)


def test_every_value_of_every_width():
    for bits in range(1, 9):
        values = torch.arange(2**bits)
        assert torch.equal(unpack(pack(values, bits), bits, 2**bits).long(), values)


def test_padding_bits_are_zero():
    assert pack(torch.tensor([7, 7, 7]), 4).tolist() == [0x77, 0x07]


@pytest.mark.parametrize(
    "bad, bits, names",
    [
        (torch.tensor([16]), 4, "16 do not fit in 4 bits"),
        (torch.tensor([-9]), 4, "-9"),
        (torch.tensor([-1, 15]), 4, "from -1 to 15"),
        (torch.tensor([0.5]), 4, "float32"),
        (torch.tensor([], dtype=torch.uint8), 4, "no codes"),
        (torch.tensor([1]), 9, "bits=9"),
        (torch.tensor([1]), 0, "bits=0"),
    ],
)
def test_refuses_what_does_not_fit(bad, bits, names):
    with pytest.raises(ValueError, match=names):
        pack(bad, bits)


def test_unpack_needs_the_right_count():
    with pytest.raises(ValueError, match="7 codes of 4 bits need 4 bytes, got 2"):
        unpack(torch.zeros(2, dtype=torch.uint8), 4, 7)


@pytest.mark.parametrize(
    "bits, group_size, scale_bits, zero_bits, expected",
    [
        (4, 32, 16, 0, 4.5),
        (4, 64, 16, 16, 4.5),  # scale and bias, as MLX stores them
        (4, 128, 16, 4, 4.15625),
        (4, 64, 8 + 32 / 256, 0, 4.126953125),  # NF4, double-quantized
        (8, 32, 16, 0, 8.5),  # Q8_0
        (4, 32, 16, 16, 5.0),  # Q4_1
    ],
)
def test_true_bits_per_weight(bits, group_size, scale_bits, zero_bits, expected):
    assert bits_per_weight(bits, group_size, scale_bits, zero_bits) == expected


def test_predicted_bytes_by_hand():
    # 100 x 100 at 4 bits, groups of 64: 5,000 bytes of codes, 200 scales of 2 bytes
    assert predicted_bytes((100, 100), 4, 64, symmetric=True) == 5_400
    # asymmetric: and 200 zero points of 4 bits
    assert predicted_bytes((100, 100), 4, 64, symmetric=False) == 5_500
    assert predicted_bytes((100, 100), 4, -1, symmetric=True) == 5_200
    assert predicted_bytes((100, 100), 4, 0, symmetric=True) == 5_002
