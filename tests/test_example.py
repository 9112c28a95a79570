"""The scaffold's small example against its definition and the bound error <= step / 2."""

import random

import pytest

from utils.course.example import largest_error, step_for, to_grid

DRAW = random.Random(0)
VALUES = [DRAW.gauss(0, 1) for _ in range(200)]


@pytest.mark.parametrize(("x", "point"), [(0.8, 1.0), (-0.7, -0.5), (1.25, 1.0), (0.0, 0.0)])
def test_the_nearest_point(x, point):
    assert to_grid(x, 0.5) == point


def test_the_step_reaches_the_largest_magnitude():
    assert step_for([-3.5, 1.0], 4) == 0.5


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_the_error_is_at_most_half_a_step(bits):
    assert 0 < largest_error(VALUES, bits) <= step_for(VALUES, bits) / 2 * (1 + 1e-12)


def test_a_step_of_zero_is_refused():
    with pytest.raises(ValueError, match="step above 0"):
        to_grid(1.0, 0)
