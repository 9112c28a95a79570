"""One look for all figures: colour-safe, readable in greyscale and on a dark page.

Colours are Okabe and Ito's palette (Color Universal Design, 2008), ordered so that neighbours
differ in lightness; each series also gets its own marker and line style. Figures keep a white
ground on dark pages, where the book frames them.
"""

import matplotlib.pyplot as plt
from cycler import cycler

COLOURS = ["#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#CC79A7", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]
LINES = ["-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1))]
HATCHES = ["", "//", "..", "xx", "\\\\", "++", "oo"]


def style():
    """Set the course's defaults for every figure that follows."""
    plt.rcParams.update(
        {
            "axes.prop_cycle": cycler(color=COLOURS, marker=MARKERS, linestyle=LINES),
            "axes.grid": True,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlesize": "medium",
            "figure.constrained_layout.use": True,
            "figure.dpi": 110,
            "figure.facecolor": "white",
            "figure.figsize": (6.4, 3.4),
            "font.size": 10,
            "grid.color": "#dddddd",
            "grid.linewidth": 0.6,
            "legend.frameon": False,
            "lines.markersize": 5,
            "savefig.dpi": 110,
        }
    )


def save_svg(figure, path):
    """Write an SVG with the same bytes on every run, its letters as paths, and close the figure."""
    with plt.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "path"}):
        figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
