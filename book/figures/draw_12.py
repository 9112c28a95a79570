"""Figure of unit 12: one channel is a row of gate, a row of up and a column of down.

python book/figures/draw_12.py
"""

from pathlib import Path

import matplotlib.pyplot as plt

from utils import plotting

FOLDER = Path(__file__).parent
BLUE, ORANGE = "#CFE5F3", "#E69F00"
HIDDEN, CHANNELS, GONE = 5, 7, 2


def matrix(axes, left, bottom, rows, columns, gone_row=None, gone_column=None):
    """A grid of cells; the cells of one row or column are marked."""
    for r in range(rows):
        for c in range(columns):
            marked = r == gone_row or c == gone_column
            colour = ORANGE if marked else BLUE
            hatch = "///" if marked else None
            place = (left + c, bottom + rows - 1 - r)
            axes.add_patch(plt.Rectangle(place, 1, 1, facecolor=colour, edgecolor="black", lw=0.6))
            if hatch:
                axes.add_patch(plt.Rectangle(place, 1, 1, fill=False, hatch=hatch, lw=0))


def label(axes, x, y, text):
    """A centred line of text."""
    axes.text(x, y, text, ha="center", va="center", fontsize=9)


def channel():
    """Before above, after below."""
    figure, axes = plt.subplots(figsize=(7, 4.4), layout="constrained")
    axes.set(xlim=(-0.5, 23.5), ylim=(-0.3, 17.5), aspect="equal")
    axes.axis("off")
    starts = (0, 8, 16)
    for left, name in zip(starts, ("gate", "up"), strict=False):
        matrix(axes, left, 9, CHANNELS, HIDDEN, gone_row=GONE)
        matrix(axes, left, 1, CHANNELS - 1, HIDDEN)
        label(axes, left + HIDDEN / 2, 16.8, f"{name}  [channels, hidden]")
    matrix(axes, starts[2], 10, HIDDEN, CHANNELS, gone_column=GONE)
    matrix(axes, starts[2], 1.5, HIDDEN, CHANNELS - 1)
    label(axes, starts[2] + CHANNELS / 2, 16.8, "down  [hidden, channels]")
    label(axes, 12, 8.0, "cut out: three smaller matrices, nothing masked")
    plotting.save_svg(figure, FOLDER / "12-channel.svg")


if __name__ == "__main__":
    plotting.style()
    channel()
