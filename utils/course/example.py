"""The small example with which `make new-unit` fills a unit: rounding numbers to a grid.

Plain Python on lists, so that a new unit has something true to run, test and mutate before its own
module exists. Not the course's quantizer: that is `utils.quantization.rtn`, on tensors.
"""


def to_grid(x, step):
    """The multiple of `step` nearest to `x`; of two equally near ones the even multiple."""
    if step <= 0:
        raise ValueError(f"step is {step}; a grid needs a step above 0")
    return round(x / step) * step


def step_for(values, bits):
    """The step of the symmetric grid of `bits` bits that just reaches the largest magnitude."""
    largest = max(abs(value) for value in values)
    return largest / (2 ** (bits - 1) - 1)


def largest_error(values, bits):
    """The largest distance between a value and its grid point; at most half a step."""
    step = step_for(values, bits)
    return max(abs(value - to_grid(value, step)) for value in values)
