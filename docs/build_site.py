"""Builds the documentation as a site, without a network: `make docs`.

Pages stay where a reader of the repository finds them, with links that work there. Here they are
copied into build/docs under the addresses of the site, with their links changed accordingly;
formulas become MathML, which browsers draw by themselves, and every file of the source that a page
links to becomes a page with its code. Zensical then makes build/site from them, and `check_site`
follows every link and anchor in what it has made.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import yaml
from docs import reference
from docs.check_site import problems
from latex2mathml.converter import convert

from rl_training.algorithms import BUILT_IN

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
"""Of the site: its source in `docs`, and `site` itself."""

NAMED = {
    "README.md": "index.md",
    "docs/README.md": "documentation.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "results/benchmarks.md",
    "benchmarks/RESULTS.md": "results/index.md",
    "examples": "examples.md",
}
"""Files of the repository whose place in the site does not follow from their own."""

PROJECT = ("architecture.md", "adding_an_algorithm.md", "reliability.md")
"""Guides for those who change the package."""

FEATURES = [
    "content.code.copy",
    "navigation.footer",
    "navigation.tabs",
    "navigation.top",
    "search.highlight",
    "toc.follow",
]
EXTENSIONS = [
    "md_in_html",
    "pymdownx.highlight",
    "pymdownx.superfences",
    "tables",
    {"toc": {"permalink": True}},
]

WORKER = """\
if (location.protocol === "file:") window.Worker = class extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.documentElement.append(this.frame);
    const inner = this.frame.contentWindow, said = (to, data) => {
      const event = new MessageEvent("message", {data: structuredClone(data)});
      to.dispatchEvent(event);
      if (to === this && this.onmessage) this.onmessage(event);
    };
    inner.postMessage = data => said(this, data);
    this.ready = new Promise(done => {
      const script = inner.document.createElement("script");
      script.onload = done;
      script.src = url;
      inner.document.body.append(script);
    });
    this.postMessage = data => this.ready.then(() => said(inner, data));
  }
  terminate() { this.frame.remove(); }
};
"""
"""A worker for pages that were opened from a disk, as far as the search needs one."""

NOT_SEARCHED = ("source/", "changelog.md")
"""Pages that would stand above those that explain what a reader looks for."""

STYLE_FILE = "assets/wide.css"
STYLE = """\
.md-sidebar { width: 10.5rem }
.md-typeset pre > code { font-size: .6rem }
.md-typeset div:has(> math[display="block"]) { overflow-x: auto; overflow-y: hidden }
.md-typeset table:not([class]) { font-size: .66rem }
.md-typeset table:not([class]) :is(td, th) { padding: .5em .9em; min-width: 4rem }
.md-typeset img { border-radius: .2rem }
"""
"""Room for lines of code of 100 characters beside both columns, and for formulas on a phone."""

FENCE = re.compile(r"(^ *```.*?^ *```$)", re.M | re.S)
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")
CODE = {".py": "python", ".yaml": "yaml", ".md": "markdown", ".toml": "toml", ".cff": "yaml"}


def address(path: str) -> str:
    """Place in the site of a file of the repository."""
    if path in NAMED:
        return NAMED[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("benchmarks/results/"):
        return path.removeprefix("benchmarks/")
    return f"source/{path}.md"


class Staging:
    """Writes pages into the source of the site, and what they link to."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.results = result_anchors((ROOT / "benchmarks" / "RESULTS.md").read_text("utf-8"))
        self.linked: set[str] = set()
        self.failures: list[str] = []

    def write(self, place: str, text: str) -> None:
        path = self.source / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if place.startswith(NOT_SEARCHED):
            text = f"---\nsearch:\n  exclude: true\n---\n\n{text}"
        path.write_text(text, encoding="utf-8")

    def page(self, path: str, place: str | None = None, text: str | None = None) -> None:
        """A Markdown file of the repository, or a part of it."""
        text = (ROOT / path).read_text(encoding="utf-8") if text is None else text
        place = place or address(path)
        parts = FENCE.split(text)
        for number, part in enumerate(parts):
            fenced = number % 2 == 1
            parts[number] = formula_block(part) if fenced else self.prose(part, path, place)
        self.write(place, re.sub(r"^<!-- .*? -->\n", "", "".join(parts), flags=re.M))

    def prose(self, text: str, path: str, place: str) -> str:
        text = LINK.sub(lambda m: f"{m[1]}({self.target(m[2], path, place)})", text)
        pieces = re.split(r"(`[^`]*`)", text)
        pieces[::2] = (re.sub(r"\$([^$`]+?)\$", inline_formula, piece) for piece in pieces[::2])
        return "".join(pieces)

    def target(self, link: str, path: str, place: str) -> str:
        """A link of a page as the site needs it."""
        if re.match(r"[a-z]+:", link) or (link.startswith("#") and not path.endswith("RESULTS.md")):
            return link
        name, _, anchor = link.partition("#")
        goal = os.path.normpath(ROOT / Path(path).parent / name) if name else str(ROOT / path)
        relative = Path(goal).relative_to(ROOT).as_posix()
        if not Path(goal).exists():
            self.failures.append(f"{path} links to '{link}', which does not exist")
            return link
        new = address(relative)
        if new == "results/index.md" and anchor:
            if anchor not in self.results:
                self.failures.append(f"{path} links to '{link}', an anchor that does not exist")
            new, anchor = self.results.get(anchor, (new, anchor))
        self.linked.add(relative)
        moved = os.path.relpath(new, PurePosixPath(place).parent)
        return moved + (f"#{anchor}" if anchor else "")

    def source_files(self) -> None:
        """What pages link to and is no page: figures and reports as they are, code as a page."""
        for path in sorted(self.linked):
            place, file = address(path), ROOT / path
            if (self.source / place).exists() or file.is_dir():
                continue
            if place.startswith("source/"):
                code = file.read_text(encoding="utf-8").rstrip()
                language = CODE.get(file.suffix, "text")
                self.write(place, f"# {path}\n\n````{language}\n{code}\n````\n")
            else:
                (self.source / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, self.source / place)

    def results_pages(self) -> list[dict[str, str]]:
        """RESULTS.md with a page of its own for every suite; their titles and places."""
        text = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
        head, *sections = re.split(r"^## ", text, flags=re.M)
        self.page("benchmarks/RESULTS.md", text=head)
        entries = []
        for section in sections:
            title, _, body = section.partition("\n")
            place = f"results/{anchor_of(title)}.md"
            body = re.sub(r"^###", "##", body, flags=re.M)
            self.page("benchmarks/RESULTS.md", place, f"# {title}\n{body}")
            entries.append({title: place})
        return entries

    def examples_page(self) -> None:
        lines = ["# Examples\n", "Programs that run from a checkout, each with `--help`.\n"]
        for file in sorted((ROOT / "examples").glob("*.py")):
            path = f"examples/{file.name}"
            self.linked.add(path)
            first = file.read_text(encoding="utf-8").split('"""')[1].strip().split("\n\n")[0]
            words = " ".join(first.split())
            lines.append(f"- [{file.name}]({address(path)}): {words}")
        self.write("examples.md", "\n".join(lines) + "\n")


def anchor_of(title: str) -> str:
    """Anchor of a heading, as code-hosting sites make it."""
    return re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-")


def result_anchors(text: str) -> dict[str, tuple[str, str]]:
    """Anchor in RESULTS.md to the page and the anchor in the site; repeated ones are numbered."""
    found: dict[str, tuple[str, str]] = {}
    counts: dict[str, int] = {}
    place = "results/index.md"
    for level, title in re.findall(r"^(##+) (.+)$", FENCE.sub("", text), re.M):
        anchor = anchor_of(title)
        counts[anchor] = counts.get(anchor, -1) + 1
        numbered = f"{anchor}-{counts[anchor]}" if counts[anchor] else anchor
        if level == "##":
            place = f"results/{anchor}.md"
        found[numbered] = (place, "" if level == "##" else anchor)
    return found


def formula_block(fence: str) -> str:
    """A fenced formula as MathML; other blocks as they are."""
    lines = fence.split("\n")
    if lines[0].strip() != "```math":
        return fence
    return f"<div>{mathml(' '.join(lines[1:-1]), 'block')}</div>"


def inline_formula(found: re.Match[str]) -> str:
    return f"<span>{mathml(found[1], 'inline')}</span>"


def mathml(formula: str, display: str) -> str:
    # on one line, and with no character that Markdown would read as its own
    made = convert(" ".join(formula.split()), display=display).replace("\n", " ")
    return made.replace("*", "&#42;").replace("_", "&#95;").replace("|", "&#124;")


def navigation(results: list[dict[str, str]]) -> list[object]:
    """The tree of pages; titles come from the pages."""

    def group(title: str, *places: str) -> dict[str, object]:
        return {title: list(places)}

    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"\(((?:tutorials/)?\w+\.md)\)", index)
    tutorials = [place for place in listed if place.startswith("tutorials/")]
    guides = [place for place in listed if place not in {*tutorials, *PROJECT, "gallery.md"}]
    algorithms = [f"algorithms/{algo}.md" for algo in BUILT_IN]
    return [
        {"Home": "index.md"},
        group("Tutorials", *tutorials),
        group("Guides", "documentation.md", *guides),
        group("Algorithms", *algorithms),
        {"Results": [{"Overview": "results/index.md"}, *results, "results/benchmarks.md"]},
        group("Gallery", "gallery.md", "examples.md"),
        group("Reference", *reference.pages()),
        group("Project", *PROJECT, "contributing.md", "changelog.md"),
    ]


def settings(results: list[dict[str, str]]) -> dict[str, object]:
    """For Zensical, which reads MkDocs' format."""
    palette = [
        {
            "media": f"(prefers-color-scheme: {scheme})",
            "scheme": name,
            "toggle": {"icon": icon, "name": f"Switch to {other} mode"},
        }
        for scheme, name, icon, other in (
            ("light", "default", "lucide/sun", "dark"),
            ("dark", "slate", "lucide/moon", "light"),
        )
    ]
    return {
        "site_name": "rl-training",
        "docs_dir": "docs",
        "site_dir": "site",
        "use_directory_urls": False,
        "theme": {
            "name": "material",
            "font": False,
            "palette": palette,
            "features": FEATURES,
        },
        "plugins": ["search"],
        "markdown_extensions": EXTENSIONS,
        "extra_css": [STYLE_FILE],
        "nav": navigation(results),
    }


def stage(build: Path) -> None:
    """Write the source of the site anew."""
    for name in ("docs", "site"):
        shutil.rmtree(build / name, ignore_errors=True)
    staging = Staging(build / "docs")
    for path in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md"):
        staging.page(path)
    for file in sorted((ROOT / "docs").rglob("*.md")):
        staging.page(file.relative_to(ROOT).as_posix())
    results = staging.results_pages()
    for place, text in reference.pages().items():
        staging.write(place, text)
    staging.examples_page()
    staging.source_files()
    if staging.failures:
        raise SystemExit("\n".join(staging.failures))
    staging.write(STYLE_FILE, STYLE)
    config = yaml.safe_dump(settings(results), sort_keys=False)
    (build / "mkdocs.yml").write_text(config, encoding="utf-8")


def write_search_for_files(site: Path) -> None:
    """Make the search work for a reader who opens the pages from a disk.

    Browsers then refuse to fetch the index and to start a worker, but they load programs: the index
    becomes one, and a hidden frame takes the place of the worker.
    """
    index = (site / "search.json").read_text(encoding="utf-8")
    (site / "search.js").write_text(f"var __index = {index};\n", encoding="utf-8")
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        if "</head>" in text and "assets/javascripts/bundle" in text:
            text = text.replace("</head>", f"<script>{WORKER}</script></head>", 1)
            page.write_text(text, encoding="utf-8")


def main(build: Path = BUILD) -> None:
    """Build the site in a folder and follow all its links."""
    stage(build)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run([*command, "--config-file", build / "mkdocs.yml"], check=False)
    if done.returncode:
        raise SystemExit("zensical could not build the site: the reasons stand above")
    site = build / "site"
    write_search_for_files(site)
    pages, found = problems(site)
    if found:
        raise SystemExit("\n".join([*found, f"{len(found)} problems in {pages} pages"]))
    print(f"{pages} pages in {site}, every link and anchor leads somewhere")
    print(f"Look at it with: {sys.executable} -m http.server --directory {site}")


if __name__ == "__main__":
    main()
