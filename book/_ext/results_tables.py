"""The tables of the page of results, from records/results.json.

Each function of TABLES takes the record (its shape is in utils/results_study/summary.py) and
returns (heads, rows); a row of one cell runs across the table. Pairs and sentences are in
`results_texts`.

But: a speed that was not measured is no fault here, since it is measured apart: it is said.
"""

from bench_tables import spread

FLOOR = 1e-6  # a smaller KL is rounding of logits
NO_KERNEL = "no kernel"
NOT_TIMED = "not measured"
HOW_TO_TIME = "Not measured yet: python -m utils.results_study.speed, on a quiet machine."
GROUPS = (  # from how many bits of the layers on
    (12, "16 bits and more"),
    (7, "8 bits"),
    (5.2, "5 and 6 bits"),
    (3.8, "4 bits"),
    (0, "3 bits and fewer"),
)
BAR = 0.006  # upper end of the KL of 8 bits per channel; set before anything was measured
PLACES = {"front": "front", "near": "near", "behind": "–"}


def number(value):
    """A KL with three digits."""
    if value < FLOOR:
        return "<0.000001" if value > 0 else "0"
    digits = 6 if value < 1e-4 else 5 if value < 1e-3 else 4 if value < 0.1 else 3
    return f"{value:.{2 if value >= 1 else digits}f}"


def ends(entry, form):
    """ "value [low, high]", each by `form`; one text where all three read the same."""
    shown = [form(entry[key]) for key in ("value", "low", "high")]
    return "{} [{}, {}]".format(*shown) if len(set(shown)) > 1 else shown[0]


def ratio(value):
    """A ratio of perplexities: four digits near 1, where the good rows are."""
    return f"{value:.4f}" if value < 1.1 else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def rows(record):
    """Everything about every row, grouped by bits."""
    heads = [
        "", "bits per weight, layers", "bits per weight, model", "KL [95 %]", "flips, %",
        "perplexity", "times fp32's [95 %]", "file, MB", "in memory, MB",
        "tokens/s (fp32 = 1)", "front",
    ]  # fmt: skip
    made, last = [], None
    for name, row in record["rows"].items():
        group = next(text for least, text in GROUPS if row["bits_layers"] >= least)
        made += [[group]] if group != last else []
        made.append([name, *_cells(record, row)])
        last = group
    return heads, made


def _cells(record, row):
    return [
        f"{row['bits_layers']:.2f}",
        f"{row['bits_model']:.2f}",
        ends(row["kl"], number),
        f"{100 * row['flips']:.1f}",
        f"{row['perplexity']:,.2f}" if row["perplexity"] < 1000 else f"{row['perplexity']:,.0f}",
        ends(row["perplexity_ratio"], ratio),
        f"{row['disk_bytes'] / 1e6:.1f}",
        f"{row['memory_bytes'] / 1e6:.1f}",
        speed_of(record, row),
        PLACES[row["place"]],
    ]


def speed_of(record, row):
    """Tokens per second of the row's form and the ratio to fp32, or why there are none."""
    if not row["kernel"]:
        return NO_KERNEL
    timed = record["speed"].get("forms", {}).get(row["form"])
    if not timed:
        return NOT_TIMED
    return f"{timed['tokens_per_second']['median']:.0f} ({timed['ratio']['median']:.2f})"


def size(record):
    """Bytes to the last one, once for each form."""
    heads = ["stored as", "layers, predicted", "layers, counted", "in memory", "file",
             "of it header"]  # fmt: skip
    found = {}
    for row in record["rows"].values():
        parts = ("predicted", "packed", "memory", "disk", "header")
        found.setdefault(row["form"], [f"{row[f'{part}_bytes']:,}" for part in parts])
    return heads, [[form, *numbers] for form, numbers in found.items()]


def speed(record):
    """Tokens per second beside what the bytes alone would allow."""
    heads = ["layers as", "MB per token", "tokens/s [quartiles]", "fp32 = 1 [quartiles]",
             "by bytes alone"]  # fmt: skip
    forms = record["speed"].get("forms")
    if not forms:
        return heads, [[HOW_TO_TIME]]
    base = forms["fp32"]["bytes_per_token"]
    return heads, [
        [
            name,
            f"{form['bytes_per_token'] / 1e6:.0f}",
            spread(form["tokens_per_second"], ".0f"),
            spread(form["ratio"], ".2f"),
            f"{base / form['bytes_per_token']:.2f}",
        ]
        for name, form in forms.items()
    ]


def bars(record):
    """What was demanded before anything was measured, and what came out."""
    kl, found = record["rows"]["int8 per channel"]["kl"], record["rows"].values()
    equal = sum(row["packed_bytes"] == row["predicted_bytes"] for row in found)
    return ["demanded", "measured", "bar", ""], [
        ["KL of 8 bits, symmetric, per channel, weights only: upper end of the 95 % interval",
         number(kl["high"]), f"≤ {BAR:g}", "met" if kl["high"] <= BAR else "missed"],
        ["rows whose stored bytes are the predicted ones, to the byte",
         f"{equal} of {len(found)}", "all", "met" if equal == len(found) else "missed"],
    ]  # fmt: skip


TABLES = {"rows": rows, "size": size, "speed": speed, "bars": bars}
