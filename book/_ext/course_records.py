"""Numbers, tables and figures that a page takes from `records/*.json` when the book is built.

    {recorded}`bench::decode/engine int8/tokens_per_second/median:.0f`
        The number at a path of keys in records/bench.json, in the format after the last colon.

    ```{bench-table} decode
    ```
        A table made from records/bench.json: one of `bench_tables.TABLES`.

    ```{bench-figure} quality
    :name: fig-bench-quality
    :width: 85%
    The caption.
    ```
        A figure drawn from records/bench.json: one of `bench_figures.FIGURES`. Its alt text is
        made with it; an option `alt` replaces it.

So nothing on a page can be older than the record. What is missing or null stops the build.
"""

import json
from pathlib import Path

import bench_figures
import bench_tables
from course_book import keep_picture
from docutils import nodes
from sphinx.directives.patches import Figure
from sphinx.util.docutils import SphinxDirective, SphinxRole

PROBLEMS = (OSError, LookupError, ValueError, TypeError)


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


class BenchTable(SphinxDirective):
    """`{bench-table} NAME`: a table of the record, numbers to the right."""

    required_arguments = 1
    has_content = False

    def run(self):
        name = self.arguments[0]
        try:
            heads, rows = bench_tables.TABLES[name](load(self.env.srcdir, "bench"))
        except PROBLEMS as problem:
            raise self.error(f"bench-table {name}: {_said(problem)}") from problem
        self.env.note_dependency("records/bench.json")
        return [table(heads, rows)]


class BenchFigure(Figure, SphinxDirective):
    """`{bench-figure} NAME`: a figure of the record."""

    def run(self):
        name = self.arguments[0]
        try:
            picture, alt = bench_figures.draw(name, load(self.env.srcdir, "bench"))
        except PROBLEMS as problem:
            raise self.error(f"bench-figure {name}: {_said(problem)}") from problem
        self.env.note_dependency("records/bench.json")
        self.arguments[0] = keep_picture(Path(self.env.srcdir), picture)
        self.options.setdefault("alt", alt)
        return super().run()


def _said(problem):
    """A KeyError says only the key."""
    return f"no {problem}" if isinstance(problem, KeyError) else str(problem)


def table(heads, rows):
    """A docutils table; all columns but the first are set to the right."""
    group = nodes.tgroup(cols=len(heads))
    group += [nodes.colspec(colwidth=1) for _ in heads]
    group += nodes.thead("", _row(heads))
    group += nodes.tbody("", *[_row(row) for row in rows])
    return nodes.table("", group, classes=["bench"])


def _row(cells):
    row = nodes.row()
    for i, text in enumerate(cells):
        classes = ["text-right"] if i else []
        row += nodes.entry("", nodes.paragraph("", text), classes=classes)
    return row


def setup(app):
    app.add_role("recorded", Recorded())
    app.add_directive("bench-table", BenchTable)
    app.add_directive("bench-figure", BenchFigure)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
