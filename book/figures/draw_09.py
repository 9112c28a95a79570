"""Figures of unit 09: a block of Q4_0 and a super-block of Q4_K, and twelve bytes of scales.

python book/figures/draw_09.py
"""

from pathlib import Path

import matplotlib.pyplot as plt

from utils import plotting

FOLDER = Path(__file__).parent
BLUE, ORANGE, GREEN, PINK, GREY = "#CFE5F3", "#FBE3B8", "#CDEBDD", "#F3D9E8", "#EEEEEE"


def box(axes, left, bottom, width, text, colour, height=0.7, size=9):
    """A labelled rectangle."""
    axes.add_patch(
        plt.Rectangle((left, bottom), width, height, facecolor=colour, edgecolor="black")
    )
    axes.text(left + width / 2, bottom + height / 2, text, ha="center", va="center", fontsize=size)


def canvas(width, height, across, up):
    """An empty figure with a drawing area of `across` by `up` units."""
    figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
    axes.set(xlim=(-0.1, across + 0.1), ylim=(0, up))
    axes.axis("off")
    return figure, axes


def blocks():
    """Bytes of a block of Q4_0 and of a super-block of Q4_K."""
    figure, axes = canvas(7.4, 2.9, 18, 5.2)
    axes.text(0, 4.75, "Q4_0: 32 weights in 18 bytes", fontsize=10)
    box(axes, 0, 3.7, 2, "step $d$\nfp16", ORANGE, 0.9)
    cells = ("16 | 0", "17 | 1", "18 | 2", "19 | 3", "…", "…", "30 | 14", "31 | 15")
    for i, text in enumerate(cells):
        box(axes, 2 + 2 * i, 3.7, 2, text, BLUE if i not in (4, 5) else GREY, 0.9)
    axes.text(2, 3.3, "16 bytes; code $i$ low, code $i + 16$ high", fontsize=9)
    axes.text(0, 2.35, "Q4_K: 256 weights in 144 bytes", fontsize=10)
    box(axes, 0, 1.3, 1.6, "$d$\nfp16", ORANGE, 0.9)
    box(axes, 1.6, 1.3, 1.6, "$d_{min}$\nfp16", ORANGE, 0.9)
    box(axes, 3.2, 1.3, 3.6, "8 scales, 8 minima\n6 bits each: 12 bytes", GREEN, 0.9)
    for i in range(4):
        text = f"codes of sub-\nblocks {2 * i}, {2 * i + 1}"
        box(axes, 6.8 + 2.8 * i, 1.3, 2.8, text, BLUE, 0.9)
    axes.text(6.8, 0.85, "4 times 32 bytes; the even sub-block in the low halves", fontsize=9)
    plotting.save_svg(figure, FOLDER / "09-blocks.svg")


def scales():
    """Which bits of the twelve bytes belong to which scale and minimum."""
    figure, axes = canvas(7.4, 3.3, 12, 5.7)
    for i in range(12):
        axes.text(i + 0.5, 5.3, f"byte {i}", ha="center", fontsize=8)
        k = i % 4
        if i < 8:
            name, colour = ("s", GREEN) if i < 4 else ("m", PINK)
            box(axes, i, 3.6, 1, f"${name}_{k + 4}$\nbits 5–4", GREY, 1.2, 8)
            box(axes, i, 0.5, 1, f"${name}_{k}$\n\nbits 5–0", colour, 3.1, 8)
        else:
            box(axes, i, 2.65, 1, f"$m_{k + 4}$\nbits 3–0", PINK, 2.15, 8)
            box(axes, i, 0.5, 1, f"$s_{k + 4}$\nbits 3–0", GREEN, 2.15, 8)
    axes.text(-0.1, 4.95, "high bits", fontsize=8)
    axes.text(-0.1, 0.15, "low bits", fontsize=8)
    plotting.save_svg(figure, FOLDER / "09-scales.svg")


if __name__ == "__main__":
    blocks()
    scales()
