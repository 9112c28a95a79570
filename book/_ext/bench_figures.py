"""The figures of `{bench-figure}`, drawn from a record of `make bench` when the book is built.

Each function takes the record and returns (figure, alt text). The look is that of all figures of
the course (utils/plotting.py): it can be read in greyscale, and keeps a white ground on dark pages.
"""

import io

FLOOR = 1e-5  # of the axis of KL: what lies below is drawn at its edge
GROUPS = ("engine", "llama.cpp", "transformers")


def draw(name, record):
    """(PNG bytes, alt text) of a figure. LookupError for an unknown name or a missing value."""
    return png(FIGURES[name], record)


def png(make, record):
    """(PNG bytes, alt text) of the figure that make(pyplot, utils.plotting, record) draws."""
    import matplotlib.pyplot as plt

    from utils import plotting

    with plt.rc_context():
        plotting.style()
        figure, alt = make(plt, plotting, record)
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=160)
        plt.close(figure)
    return picture.getvalue(), alt


def quality(plt, plotting, record):
    """Speed against KL: up and to the left is better."""
    figure, axes = plt.subplots(figsize=(7.0, 4.0))
    rows = record["decode"]
    for i, group in enumerate(GROUPS):
        names = [name for name in rows if name.startswith(f"{group} ")]
        x = [max(rows[name]["kl"], FLOOR) for name in names]
        y = [rows[name]["tokens_per_second"]["median"] for name in names]
        colour, marker = plotting.COLOURS[i], plotting.MARKERS[i]
        axes.plot(x, y, marker=marker, color=colour, linestyle="none", label=group, markersize=7)
        for name, at, speed in zip(names, x, y, strict=True):
            _label(axes, name, at, speed, left=group == "llama.cpp")
    axes.set(xscale="log", xlim=(FLOOR / 2.5, 50), ylim=(0, None))
    axes.set(xlabel="KL divergence to fp32, nats per token", ylabel="tokens per second")
    ticks = [FLOOR, 1e-4, 1e-3, 1e-2, 1e-1, 1, 10]
    axes.set_xticks(ticks, ["$\\leq 10^{-5}$", *(f"{tick:g}" for tick in ticks[1:])])
    axes.minorticks_off()
    axes.legend(loc="upper left")
    listed = "; ".join(
        f"{name} {row['tokens_per_second']['median']:.0f} tokens/s at KL {row['kl']:.2g}"
        for name, row in rows.items()
    )
    return figure, f"Tokens per second against KL divergence, one point for each: {listed}."


def _label(axes, name, x, y, left):
    axes.annotate(
        name.partition(" ")[2], (x, y), textcoords="offset points", xytext=(-7 if left else 7, 3),
        ha="right" if left else "left", fontsize=8.5,
    )  # fmt: skip


def costs(plt, plotting, record):
    """Left: a step by its rows. Right: one row by what stands before it."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.6))
    panels = ((left, record["verify_ms"]), (right, record["context_ms"]))
    said = [_lines(axes, groups) for axes, groups in panels]
    left.set(xlabel="rows in one step", ylabel="ms for one step")
    right.set(xlabel="tokens before", ylabel="ms for one token")
    sizes = [int(size) for size in next(iter(record["context_ms"].values()))]
    right.set_xlim(right=1.06 * sizes[-1])
    right.set_xticks([0, *(size for size in sizes if size >= 1024)])
    for axes in (left, right):
        axes.set_ylim(0, None)
        axes.legend()
    return figure, (
        f"Two charts of milliseconds. Left, a step by its number of rows: {said[0]}. "
        f"Right, one token by the number of tokens before it: {said[1]}."
    )


def _lines(axes, groups):
    """One line with its quartiles for each name; says where each starts and ends."""
    said = []
    for name, by_size in groups.items():
        x = [int(size) for size in by_size]
        y, low, high = (
            [value[part] for value in by_size.values()] for part in ("median", "low", "high")
        )
        line = axes.plot(x, y, label=name)[0]
        axes.fill_between(x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        said.append(f"{name} from {y[0]:.1f} at {x[0]} to {y[-1]:.1f} at {x[-1]}")
    return "; ".join(said)


FIGURES = {"quality": quality, "costs": costs}
