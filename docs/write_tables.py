"""Writes the tables of algorithms into README.md and docs/README.md: `make generated`.

What a table says of an algorithm stands on its own page: the title, and the line `For: ...`. Its
actions come from its class, and the order from the registry.
"""

from __future__ import annotations

import re
from pathlib import Path

from rl_training.algorithms import BUILT_IN
from rl_training.envs.spaces import ACTION_NAMES
from rl_training.experiment.registry import algorithm_class

DOCS = Path(__file__).resolve().parent
PLACES = {
    DOCS.parent
    / "README.md": "| {name} | {use} | {actions} | [{algo}](docs/algorithms/{algo}.md) |",
    DOCS / "README.md": "- [{name}](algorithms/{algo}.md): {use} ({actions} actions)",
}
"""Files with a table, and how a line of it is written."""

BEGIN, END = "<!-- algorithms, written by `make generated` -->\n", "<!-- end of algorithms -->\n"


def lines(form: str) -> str:
    """One line per algorithm."""
    written = []
    for algo in BUILT_IN:
        page = (DOCS / "algorithms" / f"{algo}.md").read_text(encoding="utf-8")
        title, use = re.match(r"# ([^:\n]+)", page), re.search(r"^For: (.+)\.$", page, re.M)
        if title is None or use is None:
            raise ValueError(f"docs/algorithms/{algo}.md lacks its title or its line 'For: ...'")
        kinds = sorted(ACTION_NAMES[kind] for kind in algorithm_class(algo).action_kinds)
        named = {"algo": algo, "name": title[1], "use": use[1], "actions": ", ".join(kinds)}
        written.append(form.format(**named) + "\n")
    return "".join(written)


def with_table(text: str, form: str) -> str:
    """A page with its table written anew."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the marks {BEGIN.strip()} and {END.strip()} are missing")
    head = "| name | for | actions | page |\n|---|---|---|---|\n" if form.startswith("|") else ""
    return f"{before}{begin}{head}{lines(form)}{end}{after}"


if __name__ == "__main__":
    for place, form in PLACES.items():
        place.write_text(with_table(place.read_text(encoding="utf-8"), form), encoding="utf-8")
