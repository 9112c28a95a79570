"""Draw unit 04's two sketches: `python book/figures/draw_04.py` writes the SVG files beside it.

They show definitions (which tokens a protocol scores, which items a paired test uses), not
measurements; those come from the notebook.
"""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from utils.plotting import COLOURS, save_svg

HERE = Path(__file__).parent
BLUE, ORANGE, GREEN = COLOURS[:3]
LENGTH, CONTEXT = 16, 8


def window(ax, start, row, scored):
    """One window: a box per token, filled where it is scored."""
    for i in range(CONTEXT):
        at = start + i
        if at >= LENGTH:
            break
        face = BLUE if at in scored else "white"
        ax.add_patch(plt.Rectangle((at, row), 0.9, 0.8, facecolor=face, edgecolor="black", lw=0.8))


def draw_protocols():
    fig, axes = plt.subplots(3, 1, figsize=(7, 4.4), layout="constrained", facecolor="white")
    half = CONTEXT // 2
    rules = [
        ("disjoint: context 8", [(0, 0, range(1, 8)), (8, 0, range(9, 16))]),
        (
            "strided: context 8, stride 4",
            [(0, 2, range(1, 8)), (4, 1, range(8, 12)), (8, 0, range(12, 16))],
        ),
        (
            "second half: context 8",
            [(0, 0, range(half + 1, 8)), (8, 0, range(8 + half + 1, 16))],
        ),
    ]
    for ax, (title, windows) in zip(axes, rules, strict=True):
        for start, row, scored in windows:
            window(ax, start, row, set(scored))
        total = sum(len(scored) for _, _, scored in windows)
        ax.set_title(f"{title}; scored: {total} of {LENGTH}", fontsize=9, loc="left")
        top = max(row for _, row, _ in windows) + 1
        ax.set(xlim=(-0.3, LENGTH + 0.3), ylim=(-0.2, top))
        ax.axis("off")
    save_svg(fig, HERE / "04-protocols.svg")


def draw_pairs():
    fig, ax = plt.subplots(figsize=(6, 2.6), layout="constrained", facecolor="white")
    cells = [
        (1, 1, "both right\n85", "white"),
        (2, 1, "only a right\n6", ORANGE),
        (1, 0, "only b right\n4", GREEN),
        (2, 0, "both wrong\n5", "white"),
    ]
    for x, y, text, colour in cells:
        ax.add_patch(plt.Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="black", alpha=0.55))
        ax.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=11)
    for x, y, text in (
        (1.5, 2.1, "b right"),
        (2.5, 2.1, "b wrong"),
        (0.6, 1.5, "a right"),
        (0.6, 0.5, "a wrong"),
    ):
        ax.text(x, y, text, ha="center", va="center", fontsize=10)
    ax.text(3.2, 1, "a: 91 %\nb: 89 %\ndiscordant: 10 %", va="center", fontsize=11)
    ax.set(xlim=(0.2, 4.6), ylim=(-0.1, 2.3))
    ax.axis("off")
    save_svg(fig, HERE / "04-pairs.svg")


if __name__ == "__main__":
    draw_protocols()
    draw_pairs()
