"""Draws the chapter's figures: `python book/figures/draw_02.py` writes 02-*.svg beside itself."""

from pathlib import Path

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
BLUE, ORANGE, GREEN, GREY, LIGHT = "#0072B2", "#E69F00", "#009E73", "#bbbbbb", "#dddddd"
plt.rcParams.update({"svg.hashsalt": "02", "font.size": 10, "figure.facecolor": "white"})


def save(figure, name):
    """Write an SVG without a date, so that a second run gives the same file."""
    figure.savefig(HERE / name, metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)


def bar(axes, start, end, y, text, colour):
    """A stretch of time with a label inside."""
    box = plt.Rectangle((start, y), end - start, 0.7, fc=colour, ec="black", lw=1)
    axes.add_patch(box)
    axes.text((start + end) / 2, y + 0.35, text, ha="center", va="center", fontsize=9)


def span(axes, start, end, y, text, colour="black"):
    """An arrow from start to end with a label above."""
    axes.annotate(
        "", (end, y), (start, y), arrowprops={"arrowstyle": "<->", "color": colour, "lw": 1.3}
    )
    axes.text((start + end) / 2, y + 0.08, text, ha="center", va="bottom", color=colour, fontsize=9)


def queue():
    """Launching and working are two rows; the timer that doesn't wait sees the upper one."""
    figure, axes = plt.subplots(figsize=(7.6, 2.9))
    for i in range(4):
        bar(axes, 0.5 + 0.35 * i, 0.85 + 0.35 * i, 1.5, str(i + 1), LIGHT)
        bar(axes, 0.9 + 1.8 * i, 2.7 + 1.8 * i, 0.4, f"job {i + 1}", "#9ecae1")
    bar(axes, 1.9, 8.1, 1.5, "synchronize: wait", "white")
    span(axes, 0.5, 1.9, 2.5, "read before waiting")
    span(axes, 0.5, 8.1, 3.0, "read after waiting: the work", BLUE)
    for y, text in ((1.85, "program"), (0.75, "device")):
        axes.text(0.3, y, text, ha="right", va="center")
    axes.annotate("", (8.6, 0.15), (0.3, 0.15), arrowprops={"arrowstyle": "->"})
    axes.text(8.6, 0.0, "time", ha="right", va="top")
    axes.set(xlim=(-0.9, 8.8), ylim=(-0.3, 3.5))
    axes.axis("off")
    save(figure, "02-queue.svg")


def stream():
    """One answer of five tokens on a time line, with TTFT, ITL, TPOT and end to end."""
    figure, axes = plt.subplots(figsize=(7.6, 2.7))
    arrivals = [3.0, 3.9, 4.6, 6.2, 7.0]
    axes.annotate("", (8.0, 0.5), (-0.2, 0.5), arrowprops={"arrowstyle": "->"})
    axes.text(8.0, 0.35, "time", ha="right", va="top")
    axes.plot([0, 0], [0.3, 0.7], color="black")
    axes.text(0, 0.2, "request", ha="center", va="top", fontsize=9)
    for i, at in enumerate(arrivals, start=1):
        axes.plot(at, 0.5, "o", color=ORANGE, markeredgecolor="black", markersize=9)
        axes.text(at, 0.2, f"$t_{i}$", ha="center", va="top")
    span(axes, 0, arrivals[0], 0.95, "TTFT", BLUE)
    for i, (a, b) in enumerate(zip(arrivals, arrivals[1:], strict=False)):
        span(axes, a, b, 0.95, "ITL" if i != 2 else "ITL, the largest", GREEN)
    span(axes, arrivals[0], arrivals[-1], 1.5, "4 gaps; TPOT is their mean", GREEN)
    span(axes, 0, arrivals[-1], 2.05, "end to end = TTFT + 4 TPOT")
    axes.set(xlim=(-0.6, 8.2), ylim=(-0.2, 2.5))
    axes.axis("off")
    save(figure, "02-stream.svg")


if __name__ == "__main__":
    queue()
    stream()
