"""Draw unit 03's two sketches: `python book/figures/draw_03.py` writes the SVG files beside it.

They show definitions with round numbers (the roof, a schedule by hand), not measurements; those
come from the notebook.
"""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from utils.plotting import COLOURS, HATCHES, MARKERS, save_svg

HERE = Path(__file__).parent
BANDWIDTH, PEAK = 30.0, 120.0  # GB/s, GFLOP/s
REQUESTS = {"A": 2, "B": 4, "C": 3}  # tokens of each answer; the first comes with the prompt


def draw_roof():
    fig, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained", facecolor="white")
    ridge = PEAK / BANDWIDTH
    ax.plot([0.25, ridge, 100], [0.25 * BANDWIDTH, PEAK, PEAK], color="black", linewidth=2)
    ax.axvline(ridge, color="black", linestyle=":", linewidth=1)
    ax.annotate(f"balance:\n{ridge:.0f} FLOP/byte", (ridge * 1.06, 9), fontsize=8)
    ax.annotate("memory: 30 GB/s", (0.62, 30), rotation=36, fontsize=8)
    ax.annotate("arithmetic: 120 GFLOP/s", (7, 130), fontsize=8)
    for i, (name, bits) in enumerate((("32 bits", 32), ("8 bits", 8), ("4 bits", 4))):
        for texts in (1, 4, 16):
            intensity = 16 * texts / bits
            height = min(PEAK, BANDWIDTH * intensity)
            style = {"color": COLOURS[i], "marker": MARKERS[i], "markersize": 8}
            ax.plot(intensity, height * (1 - 0.07 * i), label=name if texts == 1 else None,
                    linestyle="", **style)  # fmt: skip
            ax.annotate(str(texts), (intensity, height * (0.8 - 0.07 * i)), fontsize=7,
                        ha="center", va="top", color=COLOURS[i])  # fmt: skip
    ax.set(xscale="log", yscale="log", xlim=(0.25, 100), ylim=(6, 220))
    ax.set_xticks([0.25, 1, 4, 16, 64], ["1/4", "1", "4", "16", "64"])
    ax.set_yticks([10, 30, 120], ["10", "30", "120"])
    ax.minorticks_off()
    ax.set(xlabel="operational intensity (FLOP per byte)", ylabel="attainable GFLOP/s")
    ax.legend(title="texts beside each mark", fontsize=8, title_fontsize=8, loc="lower right")
    save_svg(fig, HERE / "03-roof.svg")


def bar(ax, row, start, length, colour, hatch, label):
    box = plt.Rectangle((start, row - 0.4), length, 0.8, facecolor=colour, edgecolor="black",
                        hatch=hatch, linewidth=0.8)  # fmt: skip
    ax.add_patch(box)
    ax.text(start + length / 2, row, label, ha="center", va="center", fontsize=10,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2})  # fmt: skip


def draw_schedule():
    fig, axes = plt.subplots(2, 1, figsize=(6.4, 3.6), sharex=True, layout="constrained",
                             facecolor="white")  # fmt: skip
    colour = dict(zip(REQUESTS, COLOURS[:3], strict=True))
    plans = (
        ("static", [(1, 0, 1, "A"), (1, 1, 2, ""), (0, 0, 3, "B"), (1, 3, 2, "C")]),
        ("continuous", [(1, 0, 1, "A"), (1, 1, 2, "C"), (0, 0, 3, "B")]),
    )
    for ax, (title, bars) in zip(axes, plans, strict=True):
        for row, start, length, name in bars:
            if name:
                bar(ax, row, start, length, colour[name], "", name)
            else:
                bar(ax, row, start, length, "white", HATCHES[3], "padding")
        ax.set(title=title, yticks=[0, 1], ylim=(-0.6, 1.6), xlim=(0, 5.2))
        ax.set_yticklabels(["place 1", "place 2"])
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    axes[1].set_xlabel("step")
    save_svg(fig, HERE / "03-schedule.svg")


if __name__ == "__main__":
    draw_roof()
    draw_schedule()
