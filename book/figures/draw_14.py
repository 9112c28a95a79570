"""Draws the chapter's figures: `python book/figures/draw_14.py` writes 14-*.svg beside itself."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

HERE = Path(__file__).parent
P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#dddddd"
plt.rcParams.update({"svg.hashsalt": "14", "font.size": 10, "figure.facecolor": "white"})


def save(figure, name):
    """Write an SVG without a date, so that a second run gives the same file."""
    figure.savefig(HERE / name, metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)


def maximal():
    """The joint law of (draft, output) under the rejection rule."""
    joint = np.diag(np.minimum(P, Q))
    excess, surplus = np.maximum(P - Q, 0), np.maximum(Q - P, 0)
    return joint + np.outer(surplus, excess) / excess.sum()


def couplings():
    """Both exact samplers as tables: rows are drafts, columns are outputs, the diagonal is kept."""
    figure, both = plt.subplots(1, 2, figsize=(7, 3.3))
    titles = ("rejection rule: 0.70 on the diagonal", "target's own sample: 0.31")
    for axes, joint, title in zip(both, (maximal(), np.outer(Q, P)), titles, strict=True):
        axes.imshow(np.where(np.eye(3) > 0, 0.45, 0.0), cmap="Blues", vmin=0, vmax=1)
        for (row, column), weight in np.ndenumerate(joint):
            axes.text(column, row, f"{weight:.2f}", ha="center", va="center")
        axes.set(title=title, xlabel="token that comes out", ylabel="token drafted")
        axes.set_xticks(range(3), [f"{i}\n({p:.1f})" for i, p in enumerate(P)])
        axes.set_yticks(range(3), [f"{i} ({q:.1f})" for i, q in enumerate(Q)])
    figure.tight_layout()
    save(figure, "14-couplings.svg")


def box(axes, x, y, text, colour, style="-"):
    """One token as a box."""
    patch = plt.Rectangle((x, y), 0.9, 0.7, fc=colour, ec="black", ls=style, lw=1.2)
    axes.add_patch(patch)
    axes.text(x + 0.45, y + 0.35, text, ha="center", va="center")


def block():
    """A block of four drafts of which two pass."""
    figure, axes = plt.subplots(figsize=(7.4, 3.1))
    rows = {
        2.2: ("text", ["the", "cat"], [GREY] * 2, 0),
        1.1: ("drafted", ["sat", "on", "a", "mat"], [ORANGE] * 4, 2),
        0.0: ("comes out", ["sat", "on", "the"], ["white", "white", "#56B4E9"], 2),
    }
    for y, (label, words, colours, start) in rows.items():
        axes.text(-0.2, y + 0.35, label, ha="right", va="center")
        for i, (word, colour) in enumerate(zip(words, colours, strict=True)):
            box(axes, start + i, y, word, colour, "--" if y == 1.1 and i > 1 else "-")
    for i, mark in enumerate(["passes", "passes", "rejected", "void"]):
        axes.text(2.45 + i, 1.97, mark, ha="center", fontsize=9)
    axes.text(5.1, 0.35, "from the residual at the place\nof the first rejection", va="center")
    axes.set(xlim=(-1.6, 8), ylim=(-0.2, 3.1))
    axes.axis("off")
    save(figure, "14-block.svg")


if __name__ == "__main__":
    couplings()
    block()
