"""Draw unit 06's two sketches: `python book/figures/draw_06.py` writes the SVG files beside it.

They show definitions (the grids, the byte), not measurements; those come from the notebook.
"""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from utils.plotting import COLOURS, save_svg

HERE = Path(__file__).parent
WEIGHTS = [-0.62, 0.17, 0.44, -0.05, 1.40]
BLUE, ORANGE = COLOURS[:2]


def grid_line(ax, step, codes, zero, title):
    """One number line: grid points with their codes, the weights, and where they go."""
    points = [step * (code - zero) for code in codes]
    ax.axhline(0, color="black", linewidth=0.8, zorder=1)
    ax.plot(points, [0] * len(points), "|", color=BLUE, markersize=18, zorder=2)
    for code, x in zip(codes, points, strict=True):
        ax.text(x, -0.5, str(code), ha="center", va="top", fontsize=8, color=BLUE)
    for weight in WEIGHTS:
        goal = step * round(weight / step)
        ax.annotate(
            "", (goal, 0.12), (weight, 0.75), arrowprops={"arrowstyle": "->", "color": "black"}
        )
        ax.plot(weight, 0.8, "o", color=ORANGE, markeredgecolor="black", markersize=6)
    ax.set_title(title, fontsize=9, loc="left")
    ax.set(xlim=(-1.6, 1.6), ylim=(-1, 1.1), yticks=[])
    for side in ("left", "right", "top", "bottom"):
        ax.spines[side].set_visible(False)
    ax.tick_params(axis="x", labelsize=8)


def draw_grids():
    fig, axes = plt.subplots(2, 1, figsize=(7, 3.6), layout="constrained", facecolor="white")
    grid_line(axes[0], 0.2, range(-7, 8), 0, "symmetric: step 0.20, code 0 is the number 0")
    step = 2.02 / 15
    grid_line(axes[1], step, range(16), 5, f"asymmetric: step {step:.3f}, code 5 is the number 0")
    save_svg(fig, HERE / "06-grids.svg")


def draw_packing():
    fig, ax = plt.subplots(figsize=(6, 1.9), layout="constrained", facecolor="white")
    for start, bits, label, colour in (
        (0, "0111", "second code, 7\n(high nibble)", ORANGE),
        (4, "1000", "first code, −8\n(low nibble)", BLUE),
    ):
        for i, bit in enumerate(bits):
            box = plt.Rectangle((start + i, 0), 1, 1, facecolor="white", edgecolor=colour, lw=2)
            ax.add_patch(box)
            ax.text(start + i + 0.5, 0.5, bit, ha="center", va="center", fontsize=13)
            name = f"bit {7 - start - i}"
            ax.text(start + i + 0.5, -0.2, name, ha="center", va="top", fontsize=7)
        ax.text(start + 2, 1.15, label, ha="center", va="bottom", fontsize=9)
    ax.text(8.3, 0.5, "= 0x78", va="center", fontsize=12)
    ax.set(xlim=(-0.2, 10), ylim=(-0.6, 2.1))
    ax.axis("off")
    save_svg(fig, HERE / "06-packing.svg")


if __name__ == "__main__":
    draw_grids()
    draw_packing()
