"""Draws the page's figure: `python book/figures/draw_kernels.py` writes kernels-layout.svg here."""

from pathlib import Path

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
LANES = 16
BLUE, ORANGE, GREY = "#56B4E9", "#E69F00", "#eeeeee"
plt.rcParams.update({"svg.hashsalt": "kernels", "font.size": 10, "figure.facecolor": "white"})


def vector(axes, y, texts, colour, label, note):
    """One vector: a box for each lane, what it is on the left, how it is written on the right."""
    for lane, text in enumerate(texts):
        axes.add_patch(plt.Rectangle((lane, y), 1, 0.8, fc=colour, ec="black", lw=0.8))
        axes.text(lane + 0.5, y + 0.4, text, ha="center", va="center", fontsize=8.5)
    axes.text(-0.3, y + 0.4, label, ha="right", va="center")
    axes.text(LANES + 0.3, y + 0.4, note, ha="left", va="center")


def layout():
    """A tile in memory, one step of the walk, and the accumulators below."""
    figure, axes = plt.subplots(figsize=(9, 3.9))
    outputs = [str(lane) for lane in range(LANES)]
    for row, k in enumerate((0, 1, 2)):
        colour = BLUE if k == 1 else GREY
        vector(axes, 5.0 - 0.9 * row, outputs, colour, f"k = {k}", f"$w_{{n,{k}}}$")
    axes.text(8, 2.75, "…", ha="center", va="center", fontsize=13)
    axes.text(8, 6.1, "one tile in memory: 16 outputs n side by side, then the next input k",
              ha="center")  # fmt: skip
    vector(axes, 1.5, ["$x_1$"] * LANES, ORANGE, "times", "one number, in all lanes")
    vector(axes, 0.2, outputs, "white", "added to", "16 sums $y_n$, none crosses lanes")
    axes.set(xlim=(-2.2, 24.5), ylim=(0, 6.6))
    axes.axis("off")
    figure.savefig(HERE / "kernels-layout.svg", metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)


if __name__ == "__main__":
    layout()
