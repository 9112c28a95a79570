"""Draws the chapter's figures: `python book/figures/draw_01.py` writes 01-*.svg beside itself."""

from pathlib import Path

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
BLUE, ORANGE, SKY, GREY = "#0072B2", "#E69F00", "#56B4E9", "#dddddd"
plt.rcParams.update({"svg.hashsalt": "01", "font.size": 10, "figure.facecolor": "white"})


def save(figure, name):
    """Write an SVG without a date, so that a second run gives the same file."""
    figure.savefig(HERE / name, metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)


def box(axes, x, y, width, height, colour, text=""):
    """A rectangle with a word in it."""
    axes.add_patch(plt.Rectangle((x, y), width, height, fc=colour, ec="black", lw=1))
    dark = colour == BLUE
    colour = "white" if dark else "black"
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", color=colour)


def shapes():
    """The same matrix times a prompt of n columns, and times one column."""
    figure, both = plt.subplots(1, 2, figsize=(7.4, 2.9))
    for axes, columns, title in zip(
        both,
        (5, 1),
        ("prefill: n tokens, each weight is used n times", "decode: 1 token, each weight once"),
        strict=True,
    ):
        box(axes, 0, 0, 3, 3, BLUE, "weights\nm × k")
        axes.text(3.35, 1.5, "×", ha="center", va="center", fontsize=14)
        for i in range(columns):
            box(axes, 3.7 + 0.45 * i, 0, 0.4, 3, ORANGE)
        axes.text(3.97 + 0.45 * columns, 1.5, "=", ha="center", va="center", fontsize=14)
        for i in range(columns):
            box(axes, 4.3 + 0.45 * (columns + i), 0, 0.4, 3, SKY)
        axes.set_title(title, fontsize=10)
        axes.set(xlim=(-0.2, 9.2), ylim=(-0.2, 3.2))
        axes.axis("off")
    figure.tight_layout()
    save(figure, "01-shapes.svg")


def groups():
    """Eight query heads and the key-value heads they share, in four designs."""
    figure, four = plt.subplots(1, 4, figsize=(7.6, 2.5))
    designs = (("MHA", 8), ("GQA, 4 groups", 4), ("MQA", 1), ("MLA", 0))
    for axes, (title, kv) in zip(four, designs, strict=True):
        for head in range(8):
            box(axes, head, 2.2, 0.8, 0.8, BLUE)
            target = 4.0 if kv < 2 else (head * kv // 8 + 0.5) * 8 / kv - 0.1
            axes.plot([head + 0.4, target], [2.2, 1.2], color="grey", lw=1)
        for i in range(kv):
            width = 0.8 if kv > 1 else 1.2
            box(axes, (i + 0.5) * 8 / kv - 0.1 - width / 2, 0.4, width, 0.8, ORANGE)
        if not kv:
            box(axes, 2.4, 0.4, 3.2, 0.8, SKY, "latent")
        axes.set_title(title, fontsize=10)
        axes.set(xlim=(-0.3, 8.2), ylim=(0, 3.2))
        axes.axis("off")
    four[0].text(-0.9, 2.6, "queries", ha="right", va="center")
    four[0].text(-0.9, 0.8, "cached", ha="right", va="center")
    figure.tight_layout()
    save(figure, "01-groups.svg")


if __name__ == "__main__":
    shapes()
    groups()
