"""The documentation as a site: it is built without a network, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs import build_site
from docs.check_site import problems

from rl_training import ManagedAlgorithm

ROOT = Path(__file__).resolve().parents[1]


def test_the_site_is_built_with_every_page_a_reference_and_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test, because it takes seconds: the build fails where a link leads nowhere."""
    monkeypatch.setattr(build_site, "SOURCE", tmp_path / "docs")
    monkeypatch.setattr(build_site, "SITE", tmp_path / "site")
    build_site.main()
    site = tmp_path / "site"
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    wanted = {build_site.address(p.relative_to(ROOT).as_posix()) for p in ROOT.glob("docs/**/*.md")}
    wanted |= {"index.md", "changelog.md", "results/online-learning.md", "examples.md"}
    assert {place.replace(".md", ".html") for place in wanted} <= pages
    assert "Implicit" in (site / "search.json").read_text(encoding="utf-8")

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


def test_a_link_to_nothing_in_a_page_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    staging = build_site.Staging()
    monkeypatch.setattr(staging, "write", lambda place, text: None)
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
