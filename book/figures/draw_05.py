"""Draw unit 05's two sketches: `python book/figures/draw_05.py` writes the SVG files beside it.

They show definitions (the fields of a code, the layout of a block), not measurements; those come
from the notebook. The widths of the fields are read from `utils.quantization.formats`.
"""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from utils.plotting import COLOURS, save_svg
from utils.quantization import formats

HERE = Path(__file__).parent
BLUE, ORANGE, GREEN = COLOURS[:3]
SHOWN = ("fp32", "tf32", "fp16", "bf16", "e4m3", "e5m2", "e3m2", "e2m3", "fp4")
NAMES = {"fp4": "FP4 (E2M1)", "e4m3": "FP8 E4M3", "e5m2": "FP8 E5M2", "e3m2": "FP6 E3M2"}
NAMES |= {"e2m3": "FP6 E2M3"}


def box(ax, x, y, width, colour, hatch, text=""):
    """One field: `width` bits from x on."""
    patch = plt.Rectangle((x, y), width, 0.72, facecolor="white", edgecolor=colour, lw=1.6)
    patch.set_hatch(hatch)
    ax.add_patch(patch)
    if text:
        note = ax.text(x + width / 2, y + 0.36, text, ha="center", va="center", fontsize=9)
        note.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})


def draw_bits():
    fig, ax = plt.subplots(figsize=(8, 4), layout="constrained", facecolor="white")
    for row, name in enumerate(SHOWN):
        spec, y = formats.find(name), -row
        box(ax, 0, y, 1, COLOURS[6], "")
        box(ax, 1, y, spec.exponent_bits, ORANGE, "//", str(spec.exponent_bits))
        start = 1 + spec.exponent_bits
        box(ax, start, y, spec.mantissa_bits, BLUE, "..", str(spec.mantissa_bits))
        label = NAMES.get(name, name.upper())
        ax.text(-0.4, y + 0.36, label, ha="right", va="center", fontsize=10)
        ax.text(start + spec.mantissa_bits + 0.4, y + 0.36, f"{spec.bits} bits", va="center")
    for x, text in ((0.5, "sign"), (5, "exponent field E"), (20, "mantissa field M")):
        ax.text(x, 0.95, text, ha="center", fontsize=9)
    ax.set(xlim=(-5.5, 36), ylim=(-len(SHOWN) + 0.8, 1.5))
    ax.axis("off")
    save_svg(fig, HERE / "05-bits.svg")


def draw_blocks():
    fig, ax = plt.subplots(figsize=(8, 2.6), layout="constrained", facecolor="white")
    rows = (
        (1.4, "MXFP4", 32, 8, "E8M0: 2^(byte − 127)", ""),
        (0.0, "NVFP4", 16, 8, "E4M3", "and one fp32 for the whole tensor"),
    )
    for y, name, count, scale_bits, scale, also in rows:
        ax.text(-1, y + 0.36, name, ha="right", va="center", fontsize=10)
        box(ax, 0, y, scale_bits, GREEN, "", f"{scale_bits} bits")
        ax.text(scale_bits / 2, y + 0.85, f"scale, {scale}", ha="center", fontsize=8)
        for i in range(count):
            box(ax, scale_bits + 1 + i * 1.6, y, 1.6, BLUE, "")
        middle = scale_bits + 1 + count * 0.8
        ax.text(middle, y + 0.85, f"{count} numbers of 4 bits (E2M1)", ha="center", fontsize=8)
        ax.text(scale_bits + 2.5 + count * 1.6, y + 0.36, also, va="center", fontsize=8)
    ax.set(xlim=(-7, 64), ylim=(-0.3, 2.6))
    ax.axis("off")
    save_svg(fig, HERE / "05-blocks.svg")


if __name__ == "__main__":
    draw_bits()
    draw_blocks()
