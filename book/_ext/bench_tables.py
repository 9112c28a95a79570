"""The tables of `{bench-table}`: from a record of `make bench` to lines of text.

Each function takes the record (a dict, its shape is in utils/bench/schema.py) and returns
(heads, rows). A value that is missing or null raises LookupError.

But: the bars stand here and in no record, because they were set before anything was measured.
"""

import math

FLOOR = 1e-5  # a smaller KL is rounding of logits
BASELINE, PLAIN, LOOKUP = "transformers fp32", "engine int8", "engine int8 + lookup"
# ratio: (what is compared, the bar). A time has a bar from above, written as a negative number.
RATIOS = {
    "fp32_vs_llamacpp_f32": ("engine fp32 / llama.cpp F32", 1.0),
    "bf16_vs_llamacpp_f16": ("engine bf16 / llama.cpp F16", 1.25),
    "q8_vs_llamacpp_q8_0": ("engine int8 / llama.cpp Q8_0", 1.8),
    "q4_vs_llamacpp_q4_0": ("engine int4 / llama.cpp Q4_0", 1.8),
    "q8_vs_own_fp32": ("engine int8 / engine fp32", 3.2),
    "q4_vs_own_fp32": ("engine int4 / engine fp32", 5.5),
    "sparse24_vs_own_fp32": ("engine sparse24 / engine fp32", 1.5),
    "q8_vs_transformers_fp32": ("engine int8 / transformers fp32", 10.0),
    "q4_vs_transformers_fp32": ("engine int4 / transformers fp32", 15.0),
    "verify4_vs_1_fp32": ("time of 4 rows / 1 row, fp32", -1.25),
    "verify4_vs_1_int8": ("time of 4 rows / 1 row, int8", -1.45),
    "stack_grounded_vs_transformers_fp32": (
        "int8 + lookup / transformers fp32, grounded prompts",
        15.7,
    ),
    "stack_chat_vs_q8": ("int8 + lookup / int8, chat", 0.97),
}


def spread(value, form):
    """ "median [low, high]" of a spread."""
    return f"{value['median']:{form}} [{value['low']:{form}}, {value['high']:{form}}]"


def kl(row):
    """KL with its standard error, with no more digits than it has."""
    value, error = row["kl"], row["kl_se"]
    if value == 0:
        return "0"
    if value < FLOOR:
        return f"below {FLOOR:.5f}"
    known = -math.floor(math.log10(error)) if error > 0 else 0
    digits = min(5, max(3 if value < 1 else 2, known))
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def decode(record):
    """Speed, bytes and quality of all contenders."""
    heads = [
        "", "bits per weight", "MB per token", "tokens/s [quartiles]", "of bandwidth, %",
        "KL ± s.e.", "flips, %",
    ]  # fmt: skip
    rows = [
        [
            name,
            f"{row['bits_per_weight']:.2f}",
            f"{row['bytes_per_token'] / 1e6:.0f}",
            spread(row["tokens_per_second"], ".0f"),
            f"{100 * row['bandwidth_share']['median']:.0f}",
            kl(row),
            f"{100 * row['flips']:.1f}",
        ]
        for name, row in record["decode"].items()
    ]
    return heads, rows


def roofline(record):
    """Predicted and measured speed of the engine, and where the time of a token goes."""
    bandwidth = 1e9 * record["bandwidth_gb_s"]["median"]
    heads = [
        "", "predicted tokens/s", "measured tokens/s", "ms per token", "reading bytes, ms",
        "the rest, ms",
    ]  # fmt: skip
    rows = []
    for name, row in record["decode"].items():
        if name.startswith("engine "):
            measured = row["tokens_per_second"]["median"]
            reading = 1e3 * row["bytes_per_token"] / bandwidth
            numbers = (1e3 / reading, measured)
            times = (1e3 / measured, reading, 1e3 / measured - reading)
            rows.append([name, *(f"{n:.0f}" for n in numbers), *(f"{t:.2f}" for t in times)])
    return heads, rows


def fastest_reading(record):
    """The most bytes per second that anybody was seen to read in the run."""
    rates = [
        row["bytes_per_token"] * row["tokens_per_second"]["median"]
        for row in record["decode"].values()
    ]
    return max(*rates, 1e9 * record["bandwidth_gb_s"]["median"])


def ceiling(record, a, b):
    """How much faster than b anybody can be who reads the bytes of a."""
    rows = record["decode"]
    rate = fastest_reading(record) / rows[a]["bytes_per_token"]
    return rate / rows[b]["tokens_per_second"]["median"]


def ratios(record):
    """Each ratio with its bar, and the most that memory allows where both sides are read once."""
    heads = ["", "measured [quartiles]", "most that memory allows", "bar", ""]
    rows = []
    for key, (what, bar) in RATIOS.items():
        ratio = record["ratios"][key]
        if ratio is None:
            reason = record.get("reasons", {}).get(key, "no reason is given")
            raise LookupError(f"ratios/{key} is null: {reason}")
        met = ratio["median"] >= bar if bar > 0 else ratio["median"] <= -bar
        sides = what.split(" / ")
        known = all(side in record["decode"] for side in sides)
        most = f"{ceiling(record, *sides):.2f}" if known else "–"
        wanted = f"≥ {bar:g}" if bar > 0 else f"≤ {-bar:g}"
        rows.append([what, spread(ratio, ".2f"), most, wanted, "met" if met else "missed"])
    return heads, rows


def verify(record):
    """Milliseconds of a step by its rows."""
    return _grid(record["verify_ms"], "rows", ".1f", "ms")


def context(record):
    """Milliseconds of a one-row step by the tokens before it."""
    return _grid(record["context_ms"], "tokens", ".1f", "ms")


def prompt(record):
    """Prompt tokens per second by the length of the prompt."""
    return _grid(record["prompt"], "tokens", ".0f", "tokens/s")


def _grid(groups, what, form, unit):
    """One line for each name, one column for each size: medians."""
    sizes = list(next(iter(groups.values())))
    heads = [f"{unit}, median", *(f"{size} {what if size != '1' else what[:-1]}" for size in sizes)]
    rows = [
        [name, *(f"{sizes_of[size]['median']:{form}}" for size in sizes)]
        for name, sizes_of in groups.items()
    ]
    return heads, rows


def stack(record):
    """Whole answers with and without drafts. LookupError unless the drafts changed no token."""
    if record["stack"]["identical"] is not True:
        raise LookupError("stack/identical is not true: the page says that drafts change no token")
    heads = [
        "", "prompts", "transformers fp32, tokens/s", "int8, tokens/s", "int8 + lookup, tokens/s",
        "tokens per step", "repeated, %",
    ]  # fmt: skip
    rows = []
    for kind in ("copying", "summarising", "editing", "grounded", "chat"):
        ways = record["stack"][kind]
        drafted, base = ways[LOOKUP], ways.get(BASELINE)
        rows.append(
            [
                "all grounded" if kind == "grounded" else kind,
                f"{drafted['prompts']}",
                f"{base['tokens_per_second']:.1f}" if base else "–",
                f"{ways[PLAIN]['tokens_per_second']:.0f}",
                f"{drafted['tokens_per_second']:.0f}",
                f"{drafted['tokens_per_forward']:.2f}",
                f"{100 * drafted['looping']:.0f}",
            ]
        )
    return heads, rows


TABLES = {
    "decode": decode, "roofline": roofline, "ratios": ratios, "verify": verify,
    "context": context, "prompt": prompt, "stack": stack,
}  # fmt: skip
