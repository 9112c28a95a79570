"""Find numbers in a chapter's prose that nobody vouches for.

The rule: a number with a unit must be measured, cited or derived, and show which. It passes if its
sentence holds a `{glue:text}`, a `{recorded}`, a `{cite}` or a `{derived}`; for a table, if the
table or the paragraph right before it does. Code and maths are left alone, and so are headings,
titles of admonitions and what names a setting rather than a finding:

- whole numbers up to 64 before bits, bytes and × ("4 bits", "2 bytes", "4×");
- a chosen sparsity ("50 % sparsity", "50 % zeros"), a confidence level ("95 % interval"), and
  none or all (0 %, 100 %);
- the learner's own time in minutes and hours;
- whatever stands in an exercise, a solution or a quiz: there numbers are given, then worked with.

It reads text, not meaning: whether a derived number is right is for the reader to redo.
"""

import re
from dataclasses import dataclass

VOUCHED = "\N{LEFT WHITE SQUARE BRACKET}vouched\N{RIGHT WHITE SQUARE BRACKET}"
SETTING_LIMIT = 64
SILENT_DIRECTIVES = (
    "math", "code-block", "code-cell", "code", "bibliography", "unit-links", "mermaid", "raw",
)  # fmt: skip

_UNIT = (
    r"%|per ?cent\b|(?:ms|µs|μs|ns)\b|s\b|seconds?\b|tok(?:ens)?/s|tokens per second"
    r"|[kKMGT]i?B(?:/s)?\b|bytes?\b|bits?\b|[MGT]?FLOP(?:/?s|S)?\b|nats?\b|[Jj]oules?\b|k?Wh?\b"
    r"|×(?!\s*\d)|x\b|times (?:faster|slower|smaller|larger)"
)
_NUMBER = re.compile(
    r"(?<![\w.,:/–-])(?P<number>\d[\d,]*(?:\.\d+)?|\.\d+)"
    rf"(?P<gap>[ \u00a0\u202f]?)(?P<unit>{_UNIT})"
)
_SCORE = re.compile(r"\b(?:perplexity|ppl|KL(?: divergence)?) (?:of |is |to |= )?\d[\d.]*")
_FENCE = re.compile(r"(`{3,}|~{3,}|:{3,})\s*(?:\{([\w:.-]+)\})?")
_TASK = (
    r"^(?P<mark>:{3,}|`{3,})\{admonition\}[^\n]*\n(?::(?!class)[\w-]+:[^\n]*\n)*"
    r":class:[^\n]*\b(?:exercise|solution|quiz)\b[^\n]*\n.*?^(?P=mark)[ ]*$"
)
_MARKUP = re.compile(r"#{1,6} |:[\w-]+:|\(\S+\)=$|---$")
_SETTING = re.compile(
    r"\s?%\s+(?:of (?:the|all) weights (?:are|is|set to) zero|(?:\S+ )?spars|zeros?\b"
    r"|(?:confidence|interval|level|bootstrap)|unstructured|magnitude|Wanda|SparseGPT)"
)


@dataclass(frozen=True)
class Offender:
    """A number without a voucher: the line its paragraph starts at, the number, the sentence."""

    line: int
    number: str
    sentence: str


def offenders(markdown):
    """Every number with a unit in the text that is neither measured, cited nor derived."""
    found, before = [], ""
    for line, block in _blocks(markdown):
        plain = _plain(block)
        if block.lstrip().startswith("|"):
            units = [] if VOUCHED in before + plain else [plain]
        else:
            units = [s for s in _sentences(plain) if VOUCHED not in s]
        found += [Offender(line, n, s.strip()) for s in units for n in _numbers(s)]
        before = plain
    return found


def _numbers(sentence):
    for match in _NUMBER.finditer(sentence):
        if not _is_setting(match, sentence):
            yield match.group(0)
    for match in _SCORE.finditer(sentence):
        yield match.group(0)


def _is_setting(match, sentence):
    number, unit = match.group("number"), match.group("unit")
    if unit == "s" and not match.group("gap"):
        return True  # "the 1990s"
    if unit.startswith(("bit", "byte", "×")):
        return number.isdigit() and int(number) <= SETTING_LIMIT
    if unit == "%" and number in ("0", "100"):
        return True
    return unit == "%" and bool(_SETTING.match(sentence, match.end("number")))


def _blocks(markdown):
    """(line number, text) of each paragraph, list item and table outside code and maths."""
    kept, start = [], 1
    for number, line in enumerate(_prose_lines(markdown), 1):
        is_item = re.match(r"\s*(?:[-*+]|\d+\.) ", line)
        if kept and (not line.strip() or is_item):
            yield start, "\n".join(kept)
            kept = []
        if line.strip():
            start = number if not kept else start
            kept.append(line)
    if kept:
        yield start, "\n".join(kept)


def _prose_lines(markdown):
    """The lines of the text, blank where they hold code, maths, a heading, a fence or an option."""
    silent, open_fences, maths = None, [], False
    for line in _without_comments(markdown).split("\n"):
        stripped = line.strip()
        fence = _FENCE.match(stripped)
        if silent:
            silent = None if stripped == silent else silent
        elif fence and not maths:
            mark, directive = fence.groups()
            if stripped == mark and mark in open_fences[-1:]:
                open_fences.pop()
            elif directive in SILENT_DIRECTIVES or (not directive and mark[0] != ":"):
                silent = mark
            else:
                open_fences.append(mark)
        elif maths or stripped.startswith("$$"):
            maths = maths != (stripped.count("$$") == 1)
        elif not _MARKUP.match(stripped):
            yield line
            continue
        yield ""


def _without_comments(text):
    """The text with comments and the boxes of exercises blanked, line for line."""
    for pattern in (r"<!--.*?-->", _TASK):
        text = re.sub(pattern, lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S | re.M)
    return re.sub(r"^%.*$", "", text, flags=re.M)


def _plain(block):
    """The block with vouchers marked and code, maths, roles and link targets taken out."""
    block = re.sub(r"\{(?:glue:\w+|recorded|cite(?::\w+)?|derived)\}`[^`]*`", VOUCHED, block)
    block = re.sub(r"\{[\w:-]+\}`([^`<]*)(?:<[^`]*>)?`", r"\1", block)
    block = re.sub(r"(`+)(?:(?!\1).)*\1", " ", block, flags=re.S)
    block = re.sub(r"\$[^$]*\$", " ", block)
    block = re.sub(r"\]\([^)]*\)", "]", block)
    return re.sub(r"[*_\[\]]|https?://\S+", "", block)


def _sentences(text):
    return re.split(rf"(?<=[.!?])\s+(?=[\"'(]?[A-Z{VOUCHED[0]}])", text)
