"""Figures of unit 08: the error ellipse with its four roundings, and eight codes in one word.

python book/figures/draw_08.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

FOLDER = Path(__file__).parent
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
H = np.array([[4.0, 2.0], [2.0, 3.0]])
WEIGHT = np.array([1.4, 2.4])


def save(figure, name):
    """Write an SVG with the same bytes each time, letters as paths."""
    plt.rcParams["svg.hashsalt"] = name
    figure.savefig(FOLDER / name, metadata={"Date": None}, facecolor="white")
    plt.close(figure)


def loss(d):
    """d^T H d."""
    return np.einsum("...i,ij,...j->...", d, H, d)


def ellipse():
    """The loss around the weight, the four grid points next to it, and GPTQ's way."""
    figure, axes = plt.subplots(figsize=(5.6, 4.4), layout="constrained")
    grid = np.stack(np.meshgrid(np.linspace(0.4, 2.6, 200), np.linspace(1.5, 3.6, 200)), axis=-1)
    levels = [0.2, 0.76, 1.76, 3.0]
    lines = axes.contour(grid[..., 0], grid[..., 1], loss(grid - WEIGHT), levels, colors=GREY,
                         linewidths=0.9)  # fmt: skip
    axes.clabel(lines, fmt="%.2f", fontsize=8)
    for point in ((1, 2), (1, 3), (2, 2), (2, 3)):
        axes.plot(*point, "o", color="black", ms=6)
        cost, below = f"{loss(np.array(point) - WEIGHT):.2f}", point == (1, 2)
        axes.annotate(cost, point, (7, -15 if below else 6), textcoords="offset points")
    axes.plot(*WEIGHT, "*", color=GREEN, ms=15)
    axes.annotate("weight (1.4, 2.4)", WEIGHT, (10, 2), textcoords="offset points", color=GREEN)
    arrow = {"arrowstyle": "->", "lw": 2}
    axes.annotate("", (1, 2), WEIGHT, arrowprops=arrow | {"color": ORANGE, "ls": "--"})
    axes.annotate("", (1, 2.667), WEIGHT, arrowprops=arrow | {"color": BLUE})
    axes.annotate("", (1, 3), (1, 2.667), arrowprops=arrow | {"color": BLUE})
    axes.text(0.48, 2.08, "nearest", color=ORANGE, fontsize=10)
    axes.text(0.48, 2.8, "round $w_0$,\nmove $w_1$,\nround $w_1$", color=BLUE, fontsize=10)
    axes.set(
        xlabel="$w_0$ (grid step 1)", ylabel="$w_1$ (grid step 1)", xticks=(1, 2), yticks=(2, 3)
    )
    axes.grid(True, color="#dddddd")
    save(figure, "08-ellipse.svg")


def words():
    """Eight 4-bit codes of one output channel in one int32."""
    figure, axes = plt.subplots(figsize=(7, 2.1), layout="constrained")
    for i, code in enumerate((1, 2, 3, 4, 5, 6, 7, 15)):
        left = 7 - i
        shade = "#cfe3f1" if i % 2 else "#f7dfc9"
        axes.add_patch(plt.Rectangle((left, 0), 1, 1, facecolor=shade, edgecolor="black"))
        axes.text(left + 0.5, 0.5, f"{code:04b}", ha="center", va="center", family="monospace")
        axes.text(left + 0.5, 1.25, f"input {i}\ncode {code}", ha="center", va="bottom", fontsize=8)
        axes.text(left + 0.5, -0.15, f"bits {4 * i + 3}–{4 * i}", ha="center", va="top", fontsize=8)
    axes.set(xlim=(-0.1, 8.1), ylim=(-0.6, 2.1))
    axes.axis("off")
    save(figure, "08-words.svg")


if __name__ == "__main__":
    plt.rcParams["svg.fonttype"] = "path"
    ellipse()
    words()
