"""Comparisons and sentences of the page of results, from records/results.json.

PAIRS are changes of one thing at a time; each function of TEXTS takes the record and returns a
paragraph. So no sentence about who is ahead of whom can be older than the record.

But: what a comparison is for is said here; what it means is said on the page.
"""

import statistics

from results_tables import HOW_TO_TIME, ends, number

PAIRS = (  # what is changed, from which row, to which
    ("16 bits: more exponent instead of more mantissa", "fp16", "bf16"),
    ("8 bits: groups of 64 instead of whole channels", "int8 per channel", "int8 g64"),
    ("8 bits: a float instead of an integer", "int8 per channel", "fp8 E4M3 per channel"),
    ("activations in int8 too", "int8 per channel", "int8 per channel, activations int8"),
    ("their outlier columns in float", "int8 per channel, activations int8", "LLM.int8()"),
    ("4 bits: groups of 32 instead of 64", "4 bit g64", "4 bit g32"),
    ("4 bits: groups of 192 instead of 64", "4 bit g64", "4 bit g192"),
    ("4.5 bits: 16 levels of a normal law instead of equal steps",
     "4 bit g32, 16 levels, symmetric", "NF4 g64"),
    ("4.5 bits: llama.cpp's bytes instead of ours", "4 bit g32, 16 levels, symmetric", "Q4_0"),
    ("4.5 bits: block floats, scales E4M3", "4 bit g32, 16 levels, symmetric", "NVFP4"),
    ("16 normal levels instead of E2M1, groups of 64", "FP4 g64", "NF4 g64"),
    ("scales that are powers of two", "NVFP4", "MXFP4"),
    ("half a bit for a minimum per block", "Q4_0", "Q4_1"),
    ("one more bit per weight", "Q4_0", "Q5_0"),
    ("AWQ instead of plain rounding", "4 bit g64", "AWQ 4 bit g64"),
    ("GPTQ instead of plain rounding", "4 bit g64", "GPTQ 4 bit g64"),
    ("GPTQ instead of AWQ", "AWQ 4 bit g64", "GPTQ 4 bit g64"),
    ("the first token counted 64 times", "GPTQ 4 bit g64", "GPTQ 4 bit g64, first token × 64"),
    ("both: AWQ's scales, then GPTQ", "GPTQ 4 bit g64", "AWQ, then GPTQ, 4 bit g64"),
    ("calibrated 4.3 bits instead of plain 5.5", "Q5_0", "GPTQ 4 bit g64, first token × 64"),
    ("AWQ at 3 bits", "3 bit g64", "AWQ 3 bit g64"),
    ("GPTQ at 3 bits", "3 bit g64", "GPTQ 3 bit g64"),
    ("calibrated 3 bits instead of plain 4 per channel", "4 bit per channel", "GPTQ 3 bit g64"),
)  # fmt: skip
STUDENT = 2.365  # 97.5 % point of Student's t with 7 degrees of freedom: 8 windows


def pairs(record):
    """One change at a time: what it costs in bits and does to KL, paired by window."""
    heads = ["change", "bits per weight", "difference of KL [95 %]", ""]
    made = []
    for what, a, b in PAIRS:
        before, after = record["rows"][a], record["rows"][b]
        gap = difference(before, after)
        bits = f"{before['bits_layers']:.2f} → {after['bits_layers']:.2f}"
        made.append([f"{what}: {a} → {b}", bits, ends(gap, signed), verdict(gap)])
    return heads, made


def difference(before, after):
    """{value, low, high} of KL after - before, by the study's own bootstrap."""
    from utils.results_study.summary import interval

    return interval(before["kl_windows"], after["kl_windows"])


def signed(value):
    """A difference with its sign."""
    return ("−" if value < 0 else "+") + number(abs(value))


def verdict(gap):
    """What the interval says."""
    if gap["value"] == 0 == gap["low"] == gap["high"]:
        return "the same"
    if gap["low"] <= 0 <= gap["high"]:
        return "not told apart"
    return "better" if gap["high"] < 0 else "worse"


def on(record, place):
    """[(name, row)] of a place, from few bits to many."""
    found = [(n, r) for n, r in record["rows"].items() if r["place"] == place]
    return sorted(found, key=lambda item: item[1]["bits_layers"])


def front(record):
    """Which rows are on the front, which nearly, and how many are not."""
    listed = "; ".join(
        f"{name} ({row['bits_layers']:.2f} bits, {number(row['kl']['value'])})"
        for name, row in on(record, "front")
    )
    near = ", ".join(name for name, _ in on(record, "near"))
    behind = len(on(record, "behind"))
    nearly = f" Beaten, but not told apart from what beats them: {near}." if near else ""
    return (
        f"The front, from few bits to many, with KL: {listed}.{nearly} The other {behind} of "
        f"{len(record['rows'])} rows lie behind it: for each, another row has no more bits and "
        "a KL that is smaller beyond the noise of the text."
    )


def one_window(record):
    """How much the text decides: the smallest and largest window of one row."""
    row = record["rows"]["4 bit g64"]
    low, high = min(row["kl_windows"]), max(row["kl_windows"])
    return (
        f"The KL of plain 4 bits in groups of 64 is {number(row['kl']['value'])} on average; by "
        f"window it runs from {number(low)} to {number(high)}."
    )


def order(record, low, high):
    """Rows of low to high bits from best to worst: "<" or, if not told apart, "≈" between them."""
    found = [(n, r) for n, r in record["rows"].items() if low <= r["bits_layers"] < high]
    found.sort(key=lambda item: item[1]["kl"]["value"])
    text = f"{found[0][0]} ({number(found[0][1]['kl']['value'])})"
    for (_, one), (name, other) in zip(found, found[1:], strict=False):
        sign = "<" if verdict(difference(one, other)) == "worse" else "≈"
        text += f" {sign} {name} ({number(other['kl']['value'])})"
    return text + "."


def wider(record):
    """Which of the pairs Student's t would not tell apart, although the bootstrap does."""
    lost = []
    for what, a, b in PAIRS:
        before, after = record["rows"][a], record["rows"][b]
        if verdict(difference(before, after)) in ("better", "worse") and not _by_student(
            before["kl_windows"], after["kl_windows"]
        ):
            lost.append(what)
    listed = f"These would then be undecided: {'; '.join(lost)}." if lost else "None would change."
    return (
        "Student's t makes intervals from eight windows 1.29 times as wide as this bootstrap. "
        f"Of the {len(PAIRS)} comparisons above: {listed[0].lower()}{listed[1:]}"
    )


def _by_student(before, after):
    change = [b - a for a, b in zip(before, after, strict=True)]
    reach = STUDENT * statistics.stdev(change) / len(change) ** 0.5
    return abs(statistics.mean(change)) > reach


def fastest(record):
    """The fastest form, those not told apart from it, and those furthest behind their bytes."""
    forms = record["speed"].get("forms")
    if not forms:
        return HOW_TO_TIME
    ratio = {name: form["ratio"] for name, form in forms.items()}
    best = max(ratio, key=lambda name: ratio[name]["median"])
    ties = [n for n, r in ratio.items() if n != best and r["high"] >= ratio[best]["low"]]
    level = f" The quartiles of {', '.join(ties)} overlap with its own." if ties else ""
    base = forms["fp32"]["bytes_per_token"]
    share = {n: ratio[n]["median"] * f["bytes_per_token"] / base for n, f in forms.items()}
    last = sorted(share, key=share.get)[:3]
    listed = ", ".join(f"{name} ({share[name]:.0%})" for name in last)
    return (
        f"The highest median is that of {best}, at {ratio[best]['median']:.2f} times fp32.{level} "
        f"Furthest below what their bytes alone would allow are {listed}."
    )


TABLES = {"pairs": pairs}
TEXTS = {
    "front": front,
    "one-window": one_window,
    "eight-bits": lambda record: order(record, 7, 12),
    "four-bits": lambda record: order(record, 3.8, 5.2),
    "three-bits": lambda record: order(record, 0, 3.8),
    "wider": wider,
    "fastest": fastest,
}
