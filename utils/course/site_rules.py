"""What a built page must and must not hold: nothing loaded from elsewhere, alt texts, real targets.

`problems(html, source)` lists what is wrong in a folder of built pages. Links that a reader may
click are allowed to leave the site; anything that a browser fetches by itself is not.
"""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml

# (tag, attribute): what the browser fetches by itself.
FETCHED = {
    ("script", "src"), ("img", "src"), ("img", "srcset"), ("iframe", "src"), ("source", "src"),
    ("source", "srcset"), ("video", "src"), ("audio", "src"), ("embed", "src"), ("object", "data"),
    ("input", "src"), ("track", "src"),
}  # fmt: skip
FETCHING_RELS = {"stylesheet", "icon", "preload", "preconnect", "modulepreload", "dns-prefetch"}
EXTERNAL = re.compile(r"(?:https?:)?//[\w.-]+\.\w", re.I)
CSS_URL = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])((?:https?:)?//[^'\")]+)", re.I)
COLAB = "https://colab.research.google.com/github/"


class _Page(HTMLParser):
    """Collects what a page fetches, its images, its links and its scripts' text."""

    def __init__(self):
        super().__init__()
        self.fetched, self.images, self.links, self.inline = [], [], [], []
        self._inside = None

    def handle_starttag(self, tag, pairs):
        attributes = dict(pairs)
        self._inside = tag if tag in ("script", "style") else None
        self.fetched += [v for k, v in pairs if (tag, k) in FETCHED and v]
        if tag == "link" and FETCHING_RELS & set(attributes.get("rel", "").split()):
            self.fetched.append(attributes.get("href", ""))
        if tag == "img":
            self.images.append((attributes.get("src", ""), attributes.get("alt") or ""))
        if tag == "a":
            self.links.append(attributes.get("href") or "")
        if attributes.get("style"):
            self.inline.append(attributes["style"])

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside:
            self.inline.append(data)


def parse(path):
    """The parsed page at `path`."""
    page = _Page()
    page.feed(Path(path).read_text(encoding="utf-8"))
    return page


def pages(html):
    """Every built page."""
    return sorted(p for p in Path(html).rglob("*.html") if "_static" not in p.parts)


def toc_files(source):
    """The documents that `_toc.yml` lists, without suffix, the root page first."""
    toc = yaml.safe_load((Path(source) / "_toc.yml").read_text(encoding="utf-8"))
    found = [toc["root"]]

    def walk(node):
        if isinstance(node, list):
            for item in node:
                walk(item)
        elif isinstance(node, dict):
            found.extend([node["file"]] if "file" in node else [])
            for key in ("parts", "chapters", "sections"):
                walk(node.get(key))

    walk(toc)
    return [re.sub(r"\.(md|ipynb)$", "", name) for name in found]


def problems(html, source):
    """Everything wrong with the built pages, one line each."""
    html, source = Path(html), Path(source)
    found = [
        f"{name} is in _toc.yml and was not built"
        for name in toc_files(source)
        if not (html / f"{name}.html").exists()
    ]
    for path in pages(html):
        name = path.relative_to(html)
        found += [f"{name}: {line}" for line in _page_problems(parse(path), path, html, source)]
    for style in html.rglob("*.css"):
        text = style.read_text(encoding="utf-8", errors="replace")
        found += [f"{style.name} loads {url}" for url in CSS_URL.findall(text)]
    return found


def _page_problems(page, path, html, source):
    for url in page.fetched:
        if EXTERNAL.match(url):
            yield f"loads {url}"
        elif not url.startswith("data:") and not _exists(url, path):
            yield f"loads {url}, which was not built"
    for text in page.inline:
        if re.search(r"(?:import|fetch|src\s*=|THEBE_JS_URL|url)\W{0,4}(?:https?:)?//\w", text):
            yield f"an inline script or style loads from elsewhere: {text.strip()[:80]!r}"
    for source_url, alt in page.images:
        if not alt.strip():
            yield f"image {source_url} has no alt text"
    for link in page.links:
        if link.startswith(COLAB) and not (source / colab_path(link)).exists():
            yield f"Colab link to {colab_path(link)}, which doesn't exist"
        elif not urlsplit(link).scheme and link and not _exists(link, path):
            yield f"link to {link}, which was not built"


def colab_path(link):
    """The repository's path in a Colab link: what follows `blob/BRANCH/`."""
    return unquote(urlsplit(link).path.partition("/blob/")[2].partition("/")[2])


def _exists(url, path):
    """True if a relative address leads to a built file (fragments and queries aside)."""
    target = unquote(urlsplit(url).path)
    return not target or target.startswith("/") or (path.parent / target).exists()
