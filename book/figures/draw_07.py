"""Draw unit 07's two sketches: `python book/figures/draw_07.py` writes the SVG files beside it.

They show definitions (the split, the four places where a scale folds), not measurements.
"""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from utils.plotting import COLOURS, save_svg

HERE = Path(__file__).parent
BLUE, ORANGE, GREEN = COLOURS[:3]


def matrix(ax, x, y, columns, rows, loud=(), upright=False):
    """A grid of cells; `loud` columns (rows when upright) are orange and hatched."""
    for i in range(columns):
        for j in range(rows):
            marked = (j if upright else i) in loud
            face, hatch = (ORANGE, "///") if marked else ("white", "")
            box = (x + i, y - j - 1)
            cell = plt.Rectangle(box, 1, 1, facecolor=face, edgecolor="black", hatch=hatch, lw=0.6)
            ax.add_patch(cell)


def draw_split():
    fig, ax = plt.subplots(figsize=(7, 2.5), layout="constrained", facecolor="white")
    matrix(ax, 0, 4, 6, 4, loud=(2,))
    matrix(ax, 7, 5, 3, 6, loud=(2,), upright=True)
    ax.text(3, 4.3, "x: tokens × channels", ha="center", fontsize=9)
    ax.text(8.5, 5.3, "W transposed", ha="center", fontsize=9)
    ax.text(11.2, 2, "=", fontsize=16, va="center", ha="center")
    matrix(ax, 12.2, 4, 5, 4)
    matrix(ax, 17.7, 4.5, 3, 5)
    ax.text(14.7, 4.3, "int8, a scale per token", ha="center", fontsize=9)
    ax.text(21.6, 2, "+", fontsize=16, va="center", ha="center")
    matrix(ax, 22.5, 4, 1, 4, loud=(0,))
    matrix(ax, 24, 2.5, 3, 1, loud=(0,), upright=True)
    ax.text(24.7, 4.3, "the loud column, float", ha="center", fontsize=9)
    ax.set(xlim=(-0.3, 28), ylim=(-1.2, 6), aspect="equal")
    ax.axis("off")
    save_svg(fig, HERE / "07-split.svg")


def box(ax, x, y, text, colour):
    style = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": colour, "lw": 1.6}
    ax.text(x, y, text, ha="center", va="center", fontsize=8.5, bbox=style)


def arrow(ax, start, end):
    line = {"arrowstyle": "->", "color": "black", "lw": 1}
    ax.annotate("", end, start, arrowprops=line)


def draw_sites():
    """One block: four sources (blue, divided) and their readers (green, multiplied)."""
    fig, ax = plt.subplots(figsize=(7.4, 2.7), layout="constrained", facecolor="white")
    ax.text(0, 3.05, "÷ s: outputs of", color=BLUE, fontsize=9, ha="center")
    ax.text(2.4, 3.05, "× s: columns of", color=GREEN, fontsize=9, ha="center")
    ax.text(5.0, 3.05, "÷ s", color=BLUE, fontsize=9, ha="center")
    ax.text(8.2, 3.05, "× s", color=GREEN, fontsize=9, ha="center")
    rows = (
        (2.2, "norm before\nattention", "q, k, v", "v", "o", "averages over\npositions"),
        (0.8, "norm before\nthe MLP", "gate, up", "up", "down", "times the gate"),
    )
    for y, norm, readers, source, reader, between in rows:
        box(ax, 0, y, norm, BLUE)
        box(ax, 2.4, y, readers, GREEN)
        box(ax, 5.0, y, source, BLUE)
        box(ax, 8.2, y, reader, GREEN)
        arrow(ax, (0.85, y), (1.85, y))
        arrow(ax, (5.35, y), (7.85, y))
        ax.text(6.6, y + 0.12, between, ha="center", va="bottom", fontsize=7.5)
    ax.set(xlim=(-1.2, 9.2), ylim=(0.2, 3.4))
    ax.axis("off")
    save_svg(fig, HERE / "07-sites.svg")


if __name__ == "__main__":
    draw_split()
    draw_sites()
