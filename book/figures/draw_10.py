"""Figures of unit 10: a weight that bounces at its threshold, and where training may start.

python book/figures/draw_10.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

FOLDER = Path(__file__).parent
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
TARGET, RATE, STEPS = 0.3, 0.07, 60


def save(figure, name):
    """Write an SVG with the same bytes each time, letters as paths."""
    plt.rcParams["svg.hashsalt"] = name
    figure.savefig(FOLDER / name, metadata={"Date": None}, facecolor="white")
    plt.close(figure)


def walk(weight=0.9):
    """The weight at each step, trained straight through."""
    path = []
    for _ in range(STEPS):
        path.append(weight)
        weight -= RATE * 2 * (round(weight) - TARGET)
    return np.array(path)


def bounce():
    """The true loss and the one that the estimate follows; the weight over the steps."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.1), layout="constrained")
    w = np.linspace(-0.45, 1.45, 800)
    left.plot(w, (np.round(w) - TARGET) ** 2, color=BLUE, lw=2, label="true loss")
    left.plot(w, (w - TARGET) ** 2 + 1 / 12, color=ORANGE, ls="--", label="smoothed loss")
    left.annotate("", (0.5, 0.3), (0.2, 0.3), arrowprops={"arrowstyle": "->", "lw": 2})
    left.text(0.6, 0.17, "the estimate pushes\nover the edge, uphill", fontsize=9)
    left.set(xlabel="weight w", ylabel="loss", ylim=(0, 1))
    left.legend(fontsize=9, loc="upper left")
    path = walk()
    right.plot(path, color=BLUE, label="w")
    right.plot(np.round(path), ".", color=ORANGE, label="rounded w")
    right.axhline(0.5, color="black", lw=0.8)
    right.set(xlabel="step", ylabel="value")
    right.legend(fontsize=9, loc="center right", bbox_to_anchor=(1, 0.75))
    save(figure, "10-bounce.svg")


def cells():
    """Three ways to start from other codes: the middle, the original weight, the edge."""
    figure, axes = plt.subplots(figsize=(7, 2.2), layout="constrained")
    for edge in (-0.5, 0.5, 1.5, 2.5):
        axes.axvline(edge, color=GREY, lw=1)
    for code in range(3):
        axes.plot(code, 0, "o", color="black", ms=6)
        axes.text(code, -0.36, f"code {code}", ha="center")
    axes.plot(1, 0.45, "s", color=ORANGE, ms=8)
    axes.text(0.6, 0.62, "middle: half a step\nfrom every change", color=ORANGE, fontsize=9)
    axes.plot(-0.12, 0.45, "D", color=GREEN, ms=7)
    axes.text(-0.46, 0.62, "original weight,\nsame code: stays", color=GREEN, fontsize=9)
    axes.plot(1.9, 0.12, "^", color=BLUE, ms=8, alpha=0.4)
    axes.annotate("", (1.49, 0.12), (1.86, 0.12), arrowprops={"arrowstyle": "->", "color": BLUE})
    axes.text(1.53, 0.24, "GPTQ chose code 1:\nmoved just inside", color=BLUE, fontsize=9)
    axes.set(xlim=(-0.6, 2.6), ylim=(-0.5, 1.05), yticks=(), xlabel="w / s")
    save(figure, "10-cells.svg")


if __name__ == "__main__":
    bounce()
    cells()
