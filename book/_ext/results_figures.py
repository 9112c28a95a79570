"""The figures of the page of results, drawn from records/results.json when the book is built.

Each function takes (pyplot, utils.plotting, record) and returns (figure, alt text). Names stand in
a column beside the axes, in the order of the points and never closer than a line, with a thin line
to each point: so they can't overlap, whatever is measured.
"""

import math

from results_tables import FLOOR, HOW_TO_TIME, number
from results_texts import on

FAMILIES = ("float", "integer", "GGUF", "table", "calibrated", "activations")
TICKS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
GAP = 0.038  # of the height of the axes, between two names


def pareto(plt, plotting, record):
    """KL against bits of the layers (left) and of the whole model (right), with the front."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.6), sharey=True)
    for axes, key in ((left, "bits_layers"), (right, "bits_model")):
        _points(axes, plotting, record, key)
        axes.set(xscale="log", yscale="log")
        axes.set_xticks(TICKS, [str(tick) for tick in TICKS])
        axes.minorticks_off()
        line = [(row[key], max(row["kl"]["value"], FLOOR)) for _, row in _seen(on(record, "front"))]
        axes.plot(*zip(*sorted(line), strict=True), color="#555555", linestyle="-", marker="",
                  linewidth=1, zorder=1)  # fmt: skip
    left.set(xlabel="bits per weight of the layers", ylabel="KL to fp32, nats per token")
    right.set(xlabel="bits per weight of the whole model")
    shown = [
        (n, r["bits_model"], max(r["kl"]["value"], FLOOR)) for n, r in _seen(on(record, "front"))
    ]
    _names(right, shown)
    left.legend(loc="lower left", fontsize=8)
    listed = "; ".join(f"{n} {r['bits_layers']:.2f} bits KL {number(r['kl']['value'])}"
                       for n, r in on(record, "front"))  # fmt: skip
    return figure, (
        "Two charts of KL divergence against bits per weight, both on logarithmic axes; left the "
        f"layers, right the whole model with its fp32 embedding. On the front: {listed}."
    )


def four(plt, plotting, record):
    """The crowd between 4 and 5.6 bits, every row named."""
    rows = [(n, r) for n, r in record["rows"].items() if 4 <= r["bits_layers"] < 5.6]
    figure, axes = plt.subplots(figsize=(8.4, 5.2))
    _points(axes, plotting, {"rows": dict(rows)}, "bits_layers", interval=True)
    axes.set(yscale="log", xlim=(3.95, 5.6))
    axes.set(xlabel="bits per weight of the layers", ylabel="KL to fp32, nats per token")
    axes.minorticks_off()
    lows = [r["kl"]["low"] for _, r in rows]
    highs = [r["kl"]["high"] for _, r in rows]
    ticks = [
        t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2) if min(lows) / 2 < t < max(highs) * 2
    ]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    _names(axes, [(n, r["bits_layers"], r["kl"]["value"]) for n, r in rows])
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.1), ncols=6, fontsize=8)
    listed = "; ".join(
        f"{n} {r['bits_layers']:.2f} bits {number(r['kl']['value'])}"
        for n, r in sorted(rows, key=lambda item: item[1]["kl"]["value"])
    )
    return (
        figure,
        f"KL divergence of all rows between 4 and 5.6 bits, from best to worst: {listed}.",
    )


def speed(plt, plotting, record):
    """Speed against bytes per token, beside the line on which bytes alone decide."""
    forms = record["speed"].get("forms")
    figure, axes = plt.subplots(figsize=(7.4, 4.2))
    if not forms:
        axes.text(0.5, 0.5, HOW_TO_TIME, ha="center", transform=axes.transAxes)
        axes.set(xticks=(), yticks=())
        return figure, HOW_TO_TIME
    points = {n: (f["bytes_per_token"] / 1e6, f["ratio"]) for n, f in forms.items()}
    base = forms["fp32"]["bytes_per_token"] / 1e6
    grid = [min(x for x, _ in points.values()) * 1.01**i for i in range(200)]
    grid = [x for x in grid if x <= base]
    axes.plot(grid, [base / x for x in grid], color="#555555", linestyle="--", marker="",
              label="by bytes alone")  # fmt: skip
    for x, ratio in points.values():
        axes.plot([x, x], [ratio["low"], ratio["high"]], color=plotting.COLOURS[0], marker="",
                  linestyle="-")  # fmt: skip
        axes.plot([x], [ratio["median"]], color=plotting.COLOURS[0], marker="o", linestyle="none")
    axes.set(xlabel="MB read per token", ylabel="speed, fp32 = 1", ylim=(0, None))
    _names(axes, [(n, x, ratio["median"]) for n, (x, ratio) in points.items()])
    axes.legend(loc="lower left")
    listed = "; ".join(f"{n} {x:.0f} MB {r['median']:.2f} times" for n, (x, r) in points.items())
    return figure, f"Speed as a ratio to fp32 against megabytes read per token: {listed}."


def _seen(rows):
    """Without the reference itself, which has no KL to draw."""
    return [(name, row) for name, row in rows if row["kl"]["value"] > 0]


def _points(axes, plotting, record, key, interval=False):
    for i, family in enumerate(FAMILIES):
        rows = [r for _, r in _seen(record["rows"].items()) if r["family"] == family]
        x = [row[key] for row in rows]
        y = [max(row["kl"]["value"], FLOOR) for row in rows]
        colour, marker = plotting.COLOURS[i], plotting.MARKERS[i]
        if rows:
            axes.plot(x, y, color=colour, marker=marker, linestyle="none", label=family)
        for at, row in zip(x, rows if interval else (), strict=False):
            ends = [max(row["kl"][end], FLOOR) for end in ("low", "high")]
            axes.plot([at, at], ends, color=colour, linestyle="-", marker="", linewidth=1)


def _names(axes, points):
    """The names [(name, x, y)] in a column to the right of the axes, lines to the points."""
    axes.figure.canvas.draw()
    into = (axes.transData + axes.transAxes.inverted()).transform
    placed = sorted(((*into((x, y)), name) for name, x, y in points), key=lambda p: p[1])
    heights = apart([y for _, y, _ in placed])
    for (x, y, name), height in zip(placed, heights, strict=True):
        axes.annotate(
            name, (x, y), xytext=(1.03, height), xycoords="axes fraction",
            textcoords="axes fraction", fontsize=8, va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.5, "shrinkB": 3},
        )  # fmt: skip


def apart(heights, gap=GAP):
    """Ascending heights moved until neighbours are `gap` apart; ones too close spread evenly."""
    groups = [[h, 1] for h in heights]  # [middle, how many]
    merged = []
    for group in groups:
        merged.append(group)
        while len(merged) > 1 and _touch(*merged[-2:], gap):
            (a, n), (b, m) = merged.pop(-2), merged.pop()
            merged.append([(a * n + b * m) / (n + m), n + m])
    return [middle + gap * (i - (n - 1) / 2) for middle, n in merged for i in range(n)]


def _touch(below, above, gap):
    room = gap * (below[1] + above[1]) / 2
    return above[0] - below[0] < room and not math.isclose(above[0] - below[0], room)


FIGURES = {"pareto": pareto, "four": four, "speed": speed}
