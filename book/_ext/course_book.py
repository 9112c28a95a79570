"""What the book adds to MyST: a unit's links, notebook figures, marked numbers, offline pages.

In a chapter:

    ```{unit-links} 06-rounding
    ```
        A box with the links of the unit: its notebook's page, the notebook and the lab in Colab,
        and how to open both in JupyterLab. Only files that exist are linked; every address derives
        from `repository.url` and `repository.branch` of `_config.yml`.

    ```{notebook-figure} 06-rounding::rounding-12
    :name: fig-rounding-error
    :width: 80%
    The caption.
    ```
        The figure that cell `rounding-12` of that notebook drew, with the cell's own alt text
        (metadata `mystnb: image: alt`). An option `alt` replaces it. `{numref}` works on the name.

    {derived}`4.5 bits per weight`
        A number that the page itself derives: shown with a thin underline and a tooltip.

    {verdict}`measured`   {verdict}`computed`   {verdict}`cited`   {verdict}`open`
        A badge that says how a claim was checked.

Numbers, tables and figures from `records/*.json` come with it: see `course_records.py`.

It does not execute anything and adds no script of its own.
"""

import base64
import hashlib
import json
from pathlib import Path
from urllib.parse import urlsplit

from docutils import nodes
from sphinx import addnodes
from sphinx.directives.patches import Figure
from sphinx.util.docutils import SphinxDirective

VERDICTS = {
    "measured": "measured in a notebook or record of this course",
    "computed": "computed from a formula on the page",
    "cited": "taken from the source named next to it",
    "open": "not settled here",
}


def colab_url(repository, branch, path):
    """Address that opens a notebook of the repository in Colab, or None if it isn't on GitHub."""
    parts = urlsplit(repository)
    if parts.netloc != "github.com":
        return None
    return f"https://colab.research.google.com/github{parts.path.rstrip('/')}/blob/{branch}/{path}"


class UnitLinks(SphinxDirective):
    """`{unit-links} SLUG`: where the notebook and the lab of a unit are, and how to open them."""

    required_arguments = 1
    has_content = False

    def run(self):
        slug = self.arguments[0]
        notebook = f"notebooks/{slug}.ipynb"
        lab = f"labs/release/{slug}/{slug}.ipynb"
        if not self._exists(notebook):
            raise self.error(f"unit-links: {notebook} does not exist")
        box = nodes.container(classes=["unit-links"])
        links = nodes.paragraph()
        links += self._page(f"/notebooks/{slug}", "Notebook of this chapter")
        links += self._colab(notebook, "Notebook in Colab")
        if self._exists(lab):
            links += self._colab(lab, "Lab in Colab")
        box += links
        box += self._local(notebook, lab if self._exists(lab) else None)
        return [box]

    def _exists(self, path):
        self.env.note_dependency(path)
        return (Path(self.env.srcdir) / path).exists()

    def _page(self, target, text):
        link = addnodes.pending_xref(
            "",
            refdomain="std",
            reftype="doc",
            reftarget=target,
            refexplicit=True,
            refdoc=self.env.docname,
            refwarn=True,
            classes=["unit-link"],
        )
        link += nodes.inline(text, text, classes=["unit-link"])
        return [link]

    def _colab(self, path, text):
        options = self.config.html_theme_options
        url = colab_url(options["repository_url"], options["repository_branch"], path)
        if url is None:
            return []
        link = nodes.reference(text, text, refuri=url, internal=False, classes=["unit-link"])
        return [nodes.Text(" "), link]

    def _local(self, notebook, lab):
        line = nodes.paragraph(classes=["unit-local"])
        line += [nodes.Text("On your own machine: "), nodes.literal("make lab", "make lab")]
        line += [nodes.Text(", then open "), nodes.literal(notebook, notebook)]
        if lab:
            line += [nodes.Text(" or "), nodes.literal(lab, lab)]
        line += nodes.Text(".")
        return line


class NotebookFigure(Figure, SphinxDirective):
    """`{notebook-figure} SLUG::CELL`: the picture a notebook's cell drew, with its alt text."""

    def run(self):
        slug, _, cell_id = self.arguments[0].partition("::")
        try:
            picture, alt = read_figure(Path(self.env.srcdir), slug, cell_id)
        except (OSError, LookupError) as problem:
            raise self.error(f"notebook-figure {self.arguments[0]}: {problem}") from problem
        self.env.note_dependency(f"notebooks/{slug}.ipynb")
        self.arguments[0] = keep_picture(Path(self.env.srcdir), picture)
        self.options.setdefault("alt", alt)
        return super().run()


def read_figure(source, slug, cell_id):
    """The first PNG of a cell's stored outputs as bytes, and the cell's alt text."""
    notebook = json.loads((source / f"notebooks/{slug}.ipynb").read_text(encoding="utf-8"))
    cell = next((c for c in notebook["cells"] if c.get("id") == cell_id), None)
    if cell is None:
        raise LookupError(f"no cell has the id {cell_id!r}")
    alt = cell["metadata"].get("mystnb", {}).get("image", {}).get("alt", "")
    if not alt:
        raise LookupError("the cell's metadata has no alt text (mystnb: image: alt)")
    for output in cell.get("outputs", ()):
        if "image/png" in output.get("data", {}):
            return base64.b64decode("".join(output["data"]["image/png"])), alt
    raise LookupError("the cell has no stored PNG; run the notebook")


def keep_picture(source, picture):
    """Write the picture where Sphinx can copy it from; its address relative to the sources."""
    name = f"_build/figures/{hashlib.sha256(picture).hexdigest()[:16]}.png"
    (source / name).parent.mkdir(parents=True, exist_ok=True)
    (source / name).write_bytes(picture)
    return f"/{name}"


def derived_role(name, rawtext, text, lineno, inliner, options=None, content=None):
    """`{derived}`: a number that the page derives."""
    tip = nodes.abbreviation(text, text, explanation="derived on this page", classes=["derived"])
    return [tip], []


def verdict_role(name, rawtext, text, lineno, inliner, options=None, content=None):
    """`{verdict}`: measured, computed, cited or open."""
    if text not in VERDICTS:
        choices = ", ".join(VERDICTS)
        message = inliner.reporter.error(f"verdict: {text!r} is none of {choices}", line=lineno)
        return [inliner.problematic(rawtext, rawtext, message)], [message]
    classes = ["verdict", f"verdict-{text}"]
    badge = nodes.abbreviation(text, text, explanation=VERDICTS[text], classes=classes)
    return [badge], []


def drop_thebe(app, pagename, templatename, context, doctree):
    """Take out sphinx-thebe's script and the address it writes on every page even when it's off."""
    context["script_files"] = [
        script for script in context.get("script_files", ()) if not _mentions_thebe(script)
    ]


def _mentions_thebe(script):
    body = getattr(script, "attributes", {}).get("body") or ""
    return "thebe" in f"{getattr(script, 'filename', script)} {body}".lower()


def setup(app):
    app.setup_extension("course_records")
    app.add_directive("unit-links", UnitLinks)
    app.add_directive("notebook-figure", NotebookFigure)
    app.add_role("derived", derived_role)
    app.add_role("verdict", verdict_role)
    app.connect("html-page-context", drop_thebe, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
