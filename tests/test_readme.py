"""The README's examples run as they stand, and it stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .blocks import LANGUAGES, blocks, run_page
from .conftest import Command

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"


def test_the_examples_run_and_print_what_stands_below_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Command
) -> None:
    run_page(README, tmp_path, monkeypatch, cli)
    assert (tmp_path / "awr.ckpt" / "manifest.json").is_file()


def test_the_first_result_is_far_better_than_its_data() -> None:
    """The figures that the test above has compared with a run."""
    first, printed = [block for block in blocks(README) if block.language in {"python", "text"}][:2]
    assert first.runs
    assert not first.values  # with the budget that a reader has
    (data,) = re.findall(r"mean return (\d+)", first.code)
    last, held_out = (float(number) for number in re.findall(r"(\d+\.\d)\b", printed.code)[:2])
    assert min(last, held_out) > 4 * float(data)


def test_it_is_short_and_every_program_in_it_says_whether_it_runs() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) < 150
    programs = [block for block in blocks(README) if block.language in LANGUAGES]
    unmarked = [block.where for block in programs if not (block.runs or block.not_run_because)]
    assert not unmarked


def test_make_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([\w-]+)", README.read_text(encoding="utf-8"), re.MULTILINE):
        assert f"\n{target}:" in makefile
