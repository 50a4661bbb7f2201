"""Code blocks of README.md and of the pages under docs/, and how they run.

The line above a block says what happens to it:

- `<!-- runs -->`: it runs in the tests as it stands. The blocks of a page run in order, in one
  folder; each starts from fresh names. A Python block whose first line is `# name.py` is written
  to a file of that name. Every line of a shell block is a command of `rl-training`.
- `<!-- runs, in tests with total_updates=20 hidden_sizes=[8] -->`: likewise, with these values in
  the place of the ones in the block, so that it takes little time.
- `<!-- not run: reason -->`: it does not run.
- `<!-- prints -->`: it is what the block above prints, with `...` for what may vary. Numbers may be
  any numbers once a block of the page has run with other values.
- `<!-- prints, numbers within 80 -->`: numbers may differ by as much, from machine to machine.

A comment `# prints: text` in a Python block is a line of what that block prints.
"""

from __future__ import annotations

import contextlib
import glob
import io
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from .conftest import Command

RUN = re.compile(r"<!-- runs(?:, in tests with (?P<values>.+))? -->")
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.{8,}) -->")
PRINTS = re.compile(r"<!-- prints(?:, numbers within (?P<within>[\d.]+))? -->")
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
LANGUAGES = frozenset({"python", "sh", "shell", "bash"})
"""Of blocks that are programs; others are data, formulas and what a program prints."""


@dataclass(frozen=True)
class Block:
    """A fenced block with the mark above it."""

    page: Path
    line: int
    language: str
    mark: str
    code: str

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def runs(self) -> bool:
        return RUN.fullmatch(self.mark) is not None

    @property
    def not_run_because(self) -> str | None:
        found = NOT_RUN.fullmatch(self.mark)
        return found["reason"] if found else None

    @property
    def values(self) -> dict[str, str]:
        """Name to the value that it has in tests."""
        found = RUN.fullmatch(self.mark)
        text = found["values"] if found and found["values"] else ""
        return dict(pair.split("=", 1) for pair in text.split())

    @property
    def module(self) -> str | None:
        """The name of the file that a Python block is, if it is one."""
        found = re.match(r"# (\w+\.py)\n", self.code)
        return found[1] if found else None

    def with_values(self) -> str:
        """The code as tests run it."""
        code = self.code
        for name, value in self.values.items():
            pattern = rf"\b{re.escape(name)}( ?= ?)(?:\[[^\]]*\]|[\w.]+)"
            code, count = re.subn(pattern, lambda m, to=value, of=name: f"{of}{m[1]}{to}", code)
            assert count, f"{self.where}: '{name}' has no value in the block"
        return code


def blocks(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found, number = [], 0
    while number < len(lines):
        opened = re.fullmatch(r"```(\w*)", lines[number])
        if opened:
            end = lines.index("```", number + 1)
            mark = lines[number - 1] if number and lines[number - 1].startswith("<!--") else ""
            code = "\n".join(lines[number + 1 : end]) + "\n"
            found.append(Block(page, number + 1, opened[1], mark, code))
            number = end
        number += 1
    return found


def run_page(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, cli: Command) -> None:
    """Run a page's blocks and compare what they print."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    shown, last, shortened = "", None, False
    for block in blocks(page):
        if PRINTS.fullmatch(block.mark):
            assert last is not None, f"{block.where}: no block that runs above it"
            check_output(block, block.code, shown, any_number=shortened)
        if not block.runs:
            continue
        last, shortened = block, shortened or bool(block.values)
        if block.language == "python":
            shown = run_python(block, folder, monkeypatch)
            lines = re.findall(r"# prints: (.+)$", block.code, re.M)
            if lines:
                check_output(block, "\n".join(lines), shown, any_number=shortened)
        else:
            shown = "".join(run_commands(block, cli))


def run_python(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the block prints; of a module, that of importing it."""
    code, out = block.with_values(), io.StringIO()
    example = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", example)  # where its classes are found again
    if block.module:
        name = block.module.removesuffix(".py")
        (folder / block.module).write_text(code, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)
        code = f"import {name}"
    with contextlib.redirect_stdout(out):
        exec(compile(code, block.where, "exec"), vars(example))
    return out.getvalue()


def run_commands(block: Block, cli: Command) -> Iterator[str]:
    """What every line prints."""
    for line in block.with_values().replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert words[0] == "rl-training", f"{block.where}: '{line}' is no command of rl-training"
        paths = (path for word in words[1:] for path in sorted(glob.glob(word)) or [word])
        outcome = cli(*paths)
        assert outcome.code == 0, f"{block.where}: {line}\n{outcome.err}"
        yield outcome.out


def check_output(block: Block, expected: str, shown: str, any_number: bool) -> None:
    """What was shown is what the page says."""
    found = PRINTS.fullmatch(block.mark)
    within = float(found["within"] or 0) if found else 0.0
    text, pattern, stated, end = expected.strip(), "", list[float](), 0
    for token in re.finditer(rf"\.\.\.|{NUMBER.pattern}", text):
        pattern += re.escape(text[end : token.start()])
        if token[0] == "...":
            pattern += ".*?"
        elif any_number or within:
            pattern += f"({NUMBER.pattern})"
            stated.append(as_number(token[0]))
        else:
            pattern += re.escape(token[0])
        end = token.end()
    match = re.fullmatch(pattern + re.escape(text[end:]), shown.strip(), re.S)
    assert match, f"{block.where}: printed\n{shown}\ninstead of\n{text}"
    if not any_number:
        for one, other in zip(stated, map(as_number, match.groups()), strict=True):
            assert abs(one - other) <= within, f"{block.where}: {other} instead of {one}"


def as_number(text: str) -> float:
    return float(text.replace(",", ""))
