"""Which code a result was made with, and what of it has changed in substance since.

A record names a state: the digests of the package's modules that its job had imported, without
comments and docstrings, kept once for all its records in `results/sources.json` with the commit.
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.process import ROOT

PACKAGE = ROOT / "src" / "rl_training"
DIGITS = 10


@dataclass(frozen=True)
class Sources:
    """One state of the modules that a job imports."""

    commit: str | None
    """None where the package differed from every commit."""
    modules: Mapping[str, str]

    @property
    def digest(self) -> str:
        return _short(json.dumps(sorted(self.modules.items())))

    def changed(self, package: Path = PACKAGE) -> list[str]:
        """Its modules that are no longer what they were."""
        now = digests(self.modules, package)
        return sorted(name for name, digest in self.modules.items() if now.get(name) != digest)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def substance(source: str) -> str:
    """A digest that comments, docstrings and the layout of the text do not change."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            # strings that are statements: docstrings, and what documents an attribute
            node.body = [part for part in body if not _is_text(part)]  # type: ignore[attr-defined]
    return _short(json.dumps(_written(tree)))


def _written(node: Any) -> Any:
    """A syntax tree in plain values, the same for every version of Python: newer ones have
    more fields, which are empty in older code."""
    if isinstance(node, ast.Constant):
        return ["Constant", repr(node.value)]
    if isinstance(node, ast.JoinedStr):  # some versions end it with an empty text
        node.values = [part for part in node.values if getattr(part, "value", None) != ""]
    if isinstance(node, ast.AST):
        filled = ((k, v) for k, v in ast.iter_fields(node) if v is not None and v != [])
        return [type(node).__name__, *([name, _written(value)] for name, value in filled)]
    return [_written(part) for part in node] if isinstance(node, list) else node


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def digests(names: Iterable[str], package: Path = PACKAGE) -> dict[str, str]:
    """Of the named modules as they are now; those that are gone have none."""
    found = {}
    for name in names:
        path = package.joinpath(*name.split(".")[1:])
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                found[name] = _digest_of(file, file.stat().st_mtime_ns)
                break
    return found


@cache
def _digest_of(file: Path, changed_at: int) -> str:
    return substance(file.read_text(encoding="utf-8"))


@cache
def commit(package: Path = PACKAGE) -> str | None:
    """The commit whose package this is; None where it was changed since, or without git."""
    try:
        changes = _git(package, "status", "--porcelain", "--", ".")
        return None if changes else _git(package, "rev-parse", "HEAD")[:DIGITS]
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class SourceBook:
    """The states of all stored results."""

    def __init__(self, root: Path, package: Path = PACKAGE) -> None:
        self.path, self.package = root / "sources.json", package
        self._lock = threading.Lock()  # jobs end in threads

    def read(self) -> dict[str, Sources]:
        try:
            stored: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return {key: Sources(**value) for key, value in stored.items()}

    def note(self, imported: Iterable[str]) -> str:
        """Keep the present state of these modules; its digest, for a record."""
        sources = Sources(commit(self.package), digests(imported, self.package))
        with self._lock:
            self.write({sources.digest: sources, **self.read()})
        return sources.digest

    def take_over(self, other: SourceBook) -> None:
        """Keep the states of another machine's results, too; of one without git the commit is
        known where its modules are those of the package here."""
        here = commit(self.package)
        states = {
            key: replace(state, commit=here)
            if state.commit is None and not state.changed(self.package)
            else state
            for key, state in other.read().items()
        }
        self.write({**states, **self.read()})

    def write(self, states: Mapping[str, Sources]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(
            f" {json.dumps(key)}: "
            + json.dumps({"commit": state.commit, "modules": dict(sorted(state.modules.items()))})
            for key, state in sorted(states.items())
        )
        draft = self.path.with_name(f".{self.path.name}.draft")
        draft.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
        draft.replace(self.path)
