"""Follows every link of a built site that stays inside it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "video": "src", "iframe": "src"}
"""What a browser fetches by itself; it has to be in the site, so that no reader needs a network."""


@dataclass
class Page(HTMLParser):
    """The anchors and links of a page."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if LOADED.get(tag) in values and values.get("rel") not in ("canonical", "next", "prev"):
            self.fetched.append(values[LOADED[tag]])


def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def problems(site: Path) -> tuple[int, list[str]]:
    """Number of pages, and a sentence for each link that leads nowhere."""
    found = []
    pages = {path: read(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        found += [
            f"{name}: the browser would fetch '{link}' from the network"
            for link in page.fetched
            if urlsplit(link).netloc
        ]
        for link in [*page.links, *page.fetched]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            goal = path
            if parts.path:
                goal = Path(os.path.normpath(path.parent / unquote(parts.path)))
                goal = goal / "index.html" if goal.is_dir() else goal
            if not goal.is_file():
                found.append(f"{name}: '{link}' leads nowhere")
            elif goal in pages and unquote(parts.fragment) not in {"", *pages[goal].anchors}:
                found.append(f"{name}: '{link}' has no such anchor")
    return len(pages), found
