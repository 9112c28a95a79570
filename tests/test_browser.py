"""The built book in a real browser: search, a clean console, a narrow screen, dark mode, maths.

Needs Debian's chromium (`apt-get install chromium`) or any chromium on the path. Without one the
tests are skipped with that reason, and `make test` lists them as not run.
"""

import functools
import http.server
import shutil
import threading
from pathlib import Path

import pytest

from utils.course import notebooks, site_rules

ROOT = Path(__file__).resolve().parents[1]
HTML = ROOT / "_build" / "html"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = """--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync
    --disable-background-networking --disable-component-update""".split()
NARROW, WIDE = {"width": 360, "height": 740}, {"width": 1280, "height": 900}

pytestmark = pytest.mark.browser


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def site():
    """The address of the built book, served on this machine."""
    if not (HTML / "index.html").exists():
        pytest.skip("no built book in _build/html: run `make html` first")
    handler = functools.partial(_Quiet, directory=str(HTML))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def browser():
    """A running chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next((shutil.which(name) for name in BROWSERS if shutil.which(name)), None)
    if path is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as engine:
        running = engine.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture
def page(browser, site):
    """A fresh page, and what it complained about or fetched from elsewhere."""
    context = browser.new_context(viewport=WIDE, base_url=site)
    opened = context.new_page()
    opened.complaints = []
    opened.on("console", lambda m: m.type in ("error", "warning") and _note(opened, m.text))
    opened.on("pageerror", lambda error: _note(opened, str(error)))
    opened.on("requestfailed", lambda request: _note(opened, f"failed: {request.url}"))
    opened.on("request", lambda r: _is_elsewhere(r.url, site) and _note(opened, f"left: {r.url}"))
    yield opened
    context.close()


def _note(page, text):
    page.complaints.append(text)


def _is_elsewhere(url, site):
    return not url.startswith((site, "data:", "blob:"))


def _pages():
    return [f"/{name}.html" for name in site_rules.toc_files(ROOT)] + ["/search.html"]


@pytest.mark.parametrize("address", _pages())
def test_console_is_clean_and_a_narrow_screen_needs_no_sideways_scrolling(page, address):
    page.set_viewport_size(NARROW)
    page.goto(address, wait_until="networkidle")
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= NARROW["width"], f"the page is {width} px wide"
    assert page.complaints == []


def test_search_finds_a_chapter(page):
    page.goto("/search.html?q=perplexity", wait_until="networkidle")
    page.wait_for_selector("#search-results li a")
    found = page.eval_on_selector_all("#search-results li a", "all => all.map(a => a.href)")
    assert any("/book/" in address for address in found)
    assert page.complaints == []


def test_the_search_button_leads_to_results(page):
    page.goto("/book/intro.html", wait_until="networkidle")
    page.locator(".search-button-field:visible, .search-button:visible").first.click()
    field = page.locator("input[type=search]:visible").first
    field.fill("quantization")
    field.press("Enter")
    page.wait_for_selector("#search-results li a")
    assert page.complaints == []


def test_dark_mode_can_be_switched_on_and_stays(page):
    page.goto("/book/intro.html", wait_until="networkidle")
    seen = [_theme(page)]
    for _ in range(3):
        page.locator(".theme-switch-button:visible").first.click()
        seen.append(_theme(page))
    assert {"light", "dark"} <= {theme for theme, _ in seen}
    assert len({colour for _, colour in seen}) == 2
    while _theme(page)[0] != "dark":
        page.locator(".theme-switch-button:visible").first.click()
    page.goto("/book/glossary.html", wait_until="networkidle")
    assert _theme(page)[0] == "dark"
    assert page.complaints == []


def _theme(page):
    background = "getComputedStyle(document.body).backgroundColor"
    return page.evaluate(f"[document.documentElement.dataset.theme, {background}]")


def test_maths_is_set_without_the_network(page):
    chapters = [path.stem for path in notebooks.paths() if not path.stem.startswith("00-")]
    if not chapters:
        pytest.skip("no unit with formulas yet")
    page.goto(f"/book/{chapters[0]}.html", wait_until="networkidle")
    page.wait_for_selector("mjx-container")
    assert page.locator("mjx-merror").count() == 0
    assert page.complaints == []


def test_a_solution_opens_on_click(page):
    chapters = [path.stem for path in notebooks.paths() if not path.stem.startswith("00-")]
    if not chapters:
        pytest.skip("no unit with exercises yet")
    page.goto(f"/book/{chapters[0]}.html", wait_until="networkidle")
    box = page.locator(".admonition.solution").first
    text = box.locator("p:not(.admonition-title)").first
    assert not text.is_visible()
    box.locator("p.admonition-title").click()
    text.wait_for(state="visible")
    assert page.complaints == []
