"""Numbers, tables and figures that a page takes from `records/*.json` when the book is built.

    {recorded}`bench::decode/engine int8/tokens_per_second/median:.0f`
        The number at a path of keys in records/bench.json, in the format after the last colon.

    ```{record-table} results::rows
    ```
        A table made from records/results.json: one of the TABLES of `MAKERS["results"]`.

    ```{record-text} results::front
    ```
        A paragraph made from it: one of its TEXTS.

    ```{record-figure} results::pareto
    :name: fig-results-pareto
    :width: 85%
    The caption.
    ```
        A figure drawn from it: one of its FIGURES. Its alt text is made with it; an option `alt`
        replaces it.

`{bench-table} decode` and `{bench-figure} costs` are short for `bench::decode`, `bench::costs`.

So nothing on a page can be older than the record. What is missing or null stops the build.
"""

import json
from pathlib import Path

import bench_figures
import bench_tables
import results_figures
import results_tables
import results_texts
from course_book import keep_picture
from docutils import nodes
from sphinx.directives.patches import Figure
from sphinx.util.docutils import SphinxDirective, SphinxRole

PROBLEMS = (OSError, LookupError, ValueError, TypeError)
MAKERS = {  # record: (tables, paragraphs, figures)
    "bench": (bench_tables.TABLES, {}, bench_figures.FIGURES),
    "results": (
        results_tables.TABLES | results_texts.TABLES,
        results_texts.TEXTS,
        results_figures.FIGURES,
    ),
}
TABLES, TEXTS, FIGURES = range(3)


def load(source, name):
    """The record `records/NAME.json` of the book's sources. Raises LookupError."""
    path = Path(source) / "records" / f"{name}.json"
    if not path.exists():
        raise LookupError(f"records/{name}.json does not exist")
    return json.loads(path.read_text(encoding="utf-8"))


def find(record, path):
    """The value at a path of keys separated by "/". Raises LookupError that names what is amiss."""
    value, seen = record, []
    for key in path.split("/"):
        if not isinstance(value, dict) or key not in value:
            where = "/".join(seen) or "the record"
            raise LookupError(f"{where} has no key {key!r}")
        value, seen = value[key], [*seen, key]
    if value is None:
        reason = record.get("reasons", {}).get(seen[-1], "no reason is given")
        raise LookupError(f"{path} is null: {reason}")
    return value


def recorded(source, text):
    """What the role prints for `RECORD::PATH:FORMAT`."""
    name, _, rest = text.partition("::")
    path, colon, form = rest.rpartition(":")
    if not colon:
        raise ValueError("write RECORD::PATH:FORMAT, such as bench::bandwidth_gb_s/median:.0f")
    return format(find(load(source, name), path), form).replace("%", "\N{NO-BREAK SPACE}%")


class Recorded(SphinxRole):
    """`{recorded}`: a number of a record."""

    def run(self):
        try:
            text = recorded(self.env.srcdir, self.text)
        except PROBLEMS as problem:
            message = f"recorded: {self.text}: {problem}"
            report = self.inliner.reporter.error(message, line=self.lineno)
            return [self.inliner.problematic(self.rawtext, self.rawtext, report)], [report]
        self.env.note_dependency(f"records/{self.text.partition('::')[0]}.json")
        return [nodes.inline(text, text, classes=["pasted-text", "recorded"])], []


def make(source, argument, kind):
    """(record's name, record, maker) of `RECORD::NAME`, or of `NAME` in the bench's record."""
    name, _, what = argument.rpartition("::")
    name = name or "bench"
    if name not in MAKERS:
        raise LookupError(f"tables and figures are made from {', '.join(MAKERS)}, not {name!r}")
    return name, load(source, name), MAKERS[name][kind][what]


class RecordTable(SphinxDirective):
    """`{record-table} RECORD::NAME`: a table of a record, numbers to the right."""

    required_arguments = 1
    has_content = False
    kind = TABLES

    def run(self):
        try:
            name, record, maker = make(self.env.srcdir, self.arguments[0], self.kind)
            made = self.nodes(maker(record))
        except PROBLEMS as problem:
            raise self.error(f"{self.name} {self.arguments[0]}: {_said(problem)}") from problem
        self.env.note_dependency(f"records/{name}.json")
        return [made]

    def nodes(self, made):
        """What the page shows."""
        return table(*made)


class RecordText(RecordTable):
    """`{record-text} RECORD::NAME`: a paragraph of a record."""

    kind = TEXTS

    def nodes(self, made):
        """The paragraph, marked as recorded."""
        return nodes.paragraph("", made, classes=["recorded"])


class RecordFigure(Figure, SphinxDirective):
    """`{record-figure} RECORD::NAME`: a figure of a record."""

    def run(self):
        argument = self.arguments[0]
        try:
            name, record, maker = make(self.env.srcdir, argument, FIGURES)
            picture, alt = bench_figures.png(maker, record)
        except PROBLEMS as problem:
            raise self.error(f"{self.name} {argument}: {_said(problem)}") from problem
        self.env.note_dependency(f"records/{name}.json")
        self.arguments[0] = keep_picture(Path(self.env.srcdir), picture)
        self.options.setdefault("alt", alt)
        return super().run()


def _said(problem):
    """A KeyError says only the key."""
    return f"no {problem}" if isinstance(problem, KeyError) else str(problem)


def table(heads, rows):
    """A docutils table; all columns but the first are set to the right, a lone cell spans all."""
    group = nodes.tgroup(cols=len(heads))
    group += [nodes.colspec(colwidth=1) for _ in heads]
    group += nodes.thead("", _row(heads))
    group += nodes.tbody("", *[_row(row, len(heads)) for row in rows])
    wide = ["wide"] if len(heads) > 6 else []
    return nodes.table("", group, classes=["bench", *wide])


def _row(cells, columns=0):
    row = nodes.row()
    if len(cells) == 1 < columns:
        across = nodes.entry("", nodes.paragraph("", cells[0]), morecols=columns - 1)
        return nodes.row("", across, classes=["across"])
    for i, text in enumerate(cells):
        classes = ["text-right"] if i else []
        row += nodes.entry("", nodes.paragraph("", text), classes=classes)
    return row


def setup(app):
    app.add_role("recorded", Recorded())
    for name in ("record", "bench"):
        app.add_directive(f"{name}-table", RecordTable)
        app.add_directive(f"{name}-figure", RecordFigure)
    app.add_directive("record-text", RecordText)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
