"""The documentation as a site: it is built without a network, and its links lead somewhere."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from docs import build_site
from docs.check_site import problems

from rl_training import ManagedAlgorithm

ROOT = Path(__file__).resolve().parents[1]


def test_the_site_is_built_with_every_page_a_reference_and_a_search(tmp_path: Path) -> None:
    """One test, because it takes seconds: the build fails where a link leads nowhere."""
    build_site.main(tmp_path)
    site = tmp_path / "site"
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    wanted = {build_site.address(p.relative_to(ROOT).as_posix()) for p in ROOT.glob("docs/**/*.md")}
    wanted |= {"index.md", "changelog.md", "results/online-learning.md", "examples.md"}
    assert {place.replace(".md", ".html") for place in wanted} <= pages
    index = (site / "search.json").read_text(encoding="utf-8")
    assert "Implicit" in index
    assert '"changelog.html' not in index  # would stand above the pages that explain
    assert '"source/' not in index
    check_in_a_browser(site)

    # from docstrings
    python = (site / "reference" / "python.html").read_text(encoding="utf-8")
    assert (ManagedAlgorithm.predict.__doc__ or "?").split("\n")[0].split("`")[0] in python
    assert "soft_update" in (site / "reference" / "extend.html").read_text(encoding="utf-8")
    assert "--checkpoint" in (site / "reference" / "command_line.html").read_text(encoding="utf-8")
    assert "target_entropy" in (site / "reference" / "algorithms.html").read_text(encoding="utf-8")

    # formulas need no script
    page = (site / "algorithms" / "sac.html").read_text(encoding="utf-8")
    assert page.count("<math") > 4
    assert "```" not in page
    assert not re.search(r"\$[^$<]*\\[^$<]*\$", page)


def check_in_a_browser(site: Path) -> None:
    """Opened from the disk: nothing in the console, no request, no scrolling aside, and the search
    finds pages."""
    chromium = shutil.which("chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    if chromium is None:
        return
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 400, "height": 800})
        page.set_default_timeout(120_000)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text))
        page.on("requestfailed", lambda request: problems.append(request.url))
        for place in ("algorithms/iql.html", "index.html"):
            page.goto((site / place).as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= 400, place
        page.set_viewport_size({"width": 1200, "height": 800})
        page.keyboard.press("Control+k")
        page.get_by_placeholder("Search").first.fill("expectile")
        found = page.get_by_text(re.compile(r"^[1-9]\d* results?$"))
        playwright.expect(found).to_be_visible(timeout=120_000)
        browser.close()
    assert not problems, problems


def test_broken_links_anchors_and_requests_are_found(tmp_path: Path) -> None:
    """In a small site; the test above fails where the real one has any."""
    good = (
        '<h2 id="a">A</h2><a href="#a">x</a><a href="b.html#a">x</a><a href="https://a.org">x</a>'
    )
    bad = '<a href="#c">x</a><a href="gone.html">x</a><img src="none.png">'
    (tmp_path / "a.html").write_text(good, encoding="utf-8")
    (tmp_path / "b.html").write_text(good, encoding="utf-8")
    assert problems(tmp_path) == (2, [])
    text = f'{good}{bad}<script src="https://example.org/a.js"></script>'
    (tmp_path / "b.html").write_text(text, encoding="utf-8")
    pages, found = problems(tmp_path)
    assert pages == 2
    assert len(found) == 4
    for words in ("#c", "gone.html", "none.png", "example.org"):
        assert any(words in line and line.startswith("b.html") for line in found), words


def test_a_link_to_nothing_in_a_page_is_refused(tmp_path: Path) -> None:
    staging = build_site.Staging(tmp_path)
    staging.page("docs/data.md", text="[a](gone.md) [b](../benchmarks/RESULTS.md#nothing) [c](x:y)")
    assert len(staging.failures) == 2


def test_the_images_for_training_and_serving_copy_files_that_exist() -> None:
    for name in ("Dockerfile", "Dockerfile.train"):
        text = (ROOT / name).read_text(encoding="utf-8")
        copied = [
            word for line in re.findall(r"^COPY (.+) \S+$", text, re.M) for word in line.split()
        ]
        missing = [p for p in copied if "$" not in p and not (ROOT / p).exists()]
        assert copied, name
        assert not missing, name
