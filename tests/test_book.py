"""The book: strict, complete, offline, with vouched numbers; and a failing cell fails the build.

The rule for numbers is told in `utils/course/prose_numbers.py`. Tests marked `book` look at
`_build/html`, which the stage before them builds.
"""

import json
import re
import shutil
from pathlib import Path

import nbformat
import pytest
import yaml

from utils.course import notebooks, site, site_rules
from utils.course.bootstrap import bootstrap
from utils.course.notebook_run import cleaned, read, write
from utils.course.prose_numbers import offenders

ROOT = Path(__file__).resolve().parents[1]
HTML = ROOT / "_build" / "html"
CHAPTERS = sorted((ROOT / "book").glob("*.md"))
UNITS = [path.stem for path in notebooks.paths()]


# Numbers in prose


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
def test_numbers_in_prose_are_measured_cited_or_derived(path):
    found = offenders(path.read_text(encoding="utf-8"))
    listed = [f"{path.name}:{o.line}: {o.number!r} in: {o.sentence}" for o in found]
    assert not listed, "\n".join(listed)


@pytest.mark.parametrize(
    "text",
    [
        "It takes 5 ms.",
        "It is 30 % faster. Another sentence {cite}`x`.",
        "The file has 98.4 MB.",
        "Perplexity rises to perplexity 22.8 here.",
        "It costs 4.5 bits per weight.",
        "We get 12 tokens/s.",
        "- a list item with 3.1× speed",
        "| a | 3 ms |",
        "```{figure} x.svg\n:alt: y\nA caption with 12 GB.\n```",
        ":::{admonition} Title\nIt takes 5 ms.\n:::",
        "It takes\n5 ms.",
        ":::{admonition} E\n:class: exercise\n5 ms.\n:::\n\nIt takes 6 ms.",
    ],
)
def test_a_bare_number_is_found(text):
    assert len(offenders(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "It takes {glue:text}`../notebooks/a.ipynb::t:.1f` ms.",
        "It is 30 % faster {cite}`x`.",
        "{cite:t}`x` found 30 %.",
        "It costs {derived}`4.5 bits per weight`, since $4 + 16/32 = 4.5$ bits.",
        "With 4 bits, 8-bit codes, 50 % sparsity and a 95 % interval; a 7B model of the 1990s.",
        "It reaches 0 % or 100 %.",
        "Use `sleep 5 s` and $5\\,\\%$.",
        "$$\n5 ms\n$$",
        "```python\nt = '5 ms'\n```",
        "# Title with 5 ms",
        ":::{admonition} 5 ms\n:class: x\nText.\n:::",
        "From {cite}`x`:\n\n| a | 3 ms |\n|---|---|",
        "About 90 minutes of your time.",
        ":::{admonition} Exercise 1\n:name: ex\n:class: exercise\nA laptop reads 100 GB/s.\n:::",
        "::::{admonition} Solution\n:class: dropdown solution\n:::{note}\n5 ms\n:::\n6 ms.\n::::",
        "<!-- 5 ms -->\n% 5 ms",
    ],
)
def test_a_vouched_number_passes(text):
    assert offenders(text) == []


def test_an_offender_names_its_line():
    assert [o.line for o in offenders("# T\n\nFine.\n\n```\n5 ms\n```\n\nIt takes 5 ms.\n")] == [9]


# Sources


def test_every_chapter_and_notebook_is_in_the_toc():
    listed = set(site_rules.toc_files(ROOT))
    there = {f"book/{p.stem}" for p in CHAPTERS} | {f"notebooks/{slug}" for slug in UNITS}
    assert there == listed


def test_each_chapter_has_the_parts_of_a_unit():
    for slug in UNITS:
        text = (ROOT / f"book/{slug}.md").read_text(encoding="utf-8")
        assert f"{{unit-links}} {slug}" in text, slug
        if not slug.startswith("00-"):
            for part in ("objectives", "carry-over", "goes-wrong", "takeaways", "solution", "quiz"):
                assert re.search(rf"^:class:.*\b{part}\b", text, re.M), f"{slug}: no {part} box"
            assert "{cite" in text and "{glue:text}" in text, slug


def test_one_address_serves_every_link():
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    for path in [*CHAPTERS, *(ROOT / "book/_ext").glob("*.py"), *(ROOT / "utils").rglob("*.py")]:
        assert config["repository"]["url"] not in path.read_text(encoding="utf-8"), path.name


def test_bibliography_keys_are_unique_and_used():
    keys = re.findall(r"^@\w+\{([^,\s]+),", (ROOT / "book/references.bib").read_text("utf-8"), re.M)
    assert len(keys) == len(set(keys))
    text = "\n".join(path.read_text(encoding="utf-8") for path in CHAPTERS)
    text = re.sub(r"``.+?``(?!`)", "", text)  # quoted as code
    cited = " ".join(re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", text)).replace(",", " ")
    assert set(cited.split()) <= set(keys)


# A small book of its own: the build is strict


@pytest.fixture
def small_book(tmp_path):
    """A book of one page and one notebook that has been run, with the course's own settings."""
    shutil.copytree(ROOT / "book/_ext", tmp_path / "book/_ext")
    shutil.copytree(ROOT / "book/_static", tmp_path / "book/_static")
    shutil.copy(ROOT / "_config.yml", tmp_path)
    (tmp_path / "book/references.bib").write_text("")
    toc = {"format": "jb-book", "root": "book/intro", "chapters": [{"file": "notebooks/06-x"}]}
    (tmp_path / "_toc.yml").write_text(yaml.safe_dump(toc))
    (tmp_path / "book/intro.md").write_text("# A title\n\nSome text.\n")
    cells = [nbformat.v4.new_markdown_cell("# A notebook", id="x-00")]
    cells += [nbformat.v4.new_code_cell(bootstrap(), id="x-01", execution_count=1)]
    notebook = cleaned(nbformat.v4.new_notebook(cells=cells))
    write(notebook, tmp_path / "notebooks/06-x.ipynb")
    return tmp_path


def _append(book, code, **fields):
    notebook = read(book / "notebooks/06-x.ipynb")
    notebook.cells.append(nbformat.v4.new_code_cell(code, id="x-02", **fields))
    write(notebook, book / "notebooks/06-x.ipynb")


@pytest.mark.slow
def test_a_clean_book_is_built(small_book):
    html = site.build(small_book, small_book)
    assert (html / "book/intro.html").exists() and (html / "notebooks/06-x.html").exists()


FAULTS = {  # each makes a warning, and every warning stops the build
    "See {ref}`nowhere`.": "undefined label: 'nowhere'",
    "{glue:text}`../notebooks/06-x.ipynb::absent:.2f`": "'absent' not found",
    "{cite}`nobody2020`": "nobody2020",
    "```{unit-links} 99-nothing\n```": "99-nothing.ipynb does not exist",
    "```{notebook-figure} 06-x::x-09\n```": "no cell has the id 'x-09'",
    "{verdict}`perhaps`": "'perhaps' is none of",
}
PAGE_FAULTS = {  # these are found in the built pages
    "![](../book/_static/favicon.svg)": "no alt text",
    '<img src="https://example.org/x.png" alt="x">': "loads https://example.org/x.png",
    "<script>import('https://example.org/x.js')</script>": "loads from elsewhere",
    f"[Colab]({site_rules.COLAB}a/b/blob/main/x.ipynb)": "x.ipynb, which doesn't exist",
}


@pytest.mark.slow
@pytest.mark.parametrize("faults", [FAULTS, PAGE_FAULTS], ids=["warnings", "pages"])
def test_each_fault_stops_the_build(small_book, faults):
    text = "\n\n".join(["# A title", *faults, ""])
    (small_book / "book/intro.md").write_text(text)
    with pytest.raises(site.BuildFailed) as stopped:
        site.build(small_book, small_book)
    assert not [said for said in faults.values() if said not in str(stopped.value)]


@pytest.mark.slow
def test_a_page_of_the_toc_that_is_not_there_stops_the_build(small_book):
    (small_book / "notebooks/06-x.ipynb").unlink()
    with pytest.raises(site.BuildFailed):
        site.build(small_book, small_book)


@pytest.mark.slow
def test_make_book_fails_on_a_failing_cell(small_book, monkeypatch, capsys):
    """Field case 44: copies are run first, and the tracked file stays as it is."""
    _append(small_book, "1/0")
    before = (small_book / "notebooks/06-x.ipynb").read_bytes()
    monkeypatch.setattr(site, "ROOT", small_book)
    monkeypatch.setattr(site.stage, "__defaults__", (small_book,))
    assert site.main(["book"]) == 1
    assert "06-x.ipynb, cell 3 (x-02): ZeroDivisionError" in capsys.readouterr().err
    assert (small_book / "notebooks/06-x.ipynb").read_bytes() == before


def test_make_html_refuses_unrun_cells_and_stored_errors(small_book, monkeypatch, capsys):
    error = nbformat.v4.new_output("error", ename="ZeroDivisionError", evalue="x", traceback=[])
    _append(small_book, "1/0", execution_count=2, outputs=[error])
    monkeypatch.setattr(notebooks.paths, "__defaults__", ((), small_book / "notebooks"))
    assert site.main(["html"]) == 1
    assert "stores an error" in capsys.readouterr().err


# The built book

book = pytest.mark.book


@pytest.fixture(scope="module")
def pages():
    """The parsed pages of the built book by name."""
    if not (HTML / "index.html").exists():
        pytest.skip("no built book in _build/html: run `make html` first")
    found = site_rules.pages(HTML)
    return {str(p.relative_to(HTML).with_suffix("")): site_rules.parse(p) for p in found}


@book
def test_all_pages_were_built(pages):
    expected = set(site_rules.toc_files(ROOT)) | {"index", "genindex", "search"}
    assert set(pages) == expected


@book
def test_no_page_loads_anything_from_elsewhere_and_all_links_lead_somewhere(pages):
    assert site_rules.problems(HTML, ROOT) == []


@book
def test_every_unit_has_its_colab_links(pages):
    """Field case 46: each leads to a notebook that exists at that path."""
    for slug in UNITS:
        chapter = {site_rules.colab_path(x) for x in pages[f"book/{slug}"].links}
        assert f"notebooks/{slug}.ipynb" in chapter
        if not slug.startswith("00-"):
            assert f"labs/release/{slug}/{slug}.ipynb" in chapter
        page = {site_rules.colab_path(x) for x in pages[f"notebooks/{slug}"].links}
        assert f"notebooks/{slug}.ipynb" in page


@book
def test_figures_come_with_chapters(pages):
    for slug in UNITS:
        assert pages[f"book/{slug}"].images, f"{slug} shows no figure"


@book
def test_maths_and_search_are_local(pages):
    assert (HTML / "_static/mathjax/tex-mml-chtml.js").exists()
    index = (HTML / "searchindex.js").read_text(encoding="utf-8")
    terms = json.loads(index[index.index("(") + 1 : index.rindex(")")])["terms"]
    assert {"perplex", "quantiz"} <= set(terms)
