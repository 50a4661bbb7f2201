"""The README's examples run as they stand."""

from __future__ import annotations

import glob
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Command

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- runs -->\n```(\w+)\n(.*?)```", README, flags=re.DOTALL)


NAMES = [re.match(r"# (\w+\.py)\n", code) for _, code in BLOCKS]
MODULES = {name[1]: code for name, (_, code) in zip(NAMES, BLOCKS, strict=True) if name}
EXAMPLES = [(language, code) for language, code in BLOCKS if code not in MODULES.values()]


def run_python(code: str, folder: Path) -> str:
    """Output of an example in a process of its own."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def commands(code: str) -> list[list[str]]:
    """The words of every line, as a shell splits them."""
    words = (shlex.split(line, comments=True) for line in code.splitlines())
    return [line for line in words if line]


def shortened(word: str) -> str:
    """The same with a small budget."""
    word = re.sub(r"^total_updates=\d+$", "total_updates=200", word)
    return re.sub(r"^total_timesteps=\d+$", "total_timesteps=1010", word)


def expanded(word: str) -> list[str]:
    """The paths that a shell puts in the place of a pattern."""
    return sorted(glob.glob(word)) or [word]


def test_the_python_example_returns_what_it_says(tmp_path: Path) -> None:
    """Better than its data by far, and near the figure that stands beside it."""
    (code,) = (code for language, code in EXAMPLES if language == "python")
    (data,) = re.findall(r"mean return (-\d+)", code)
    stated = [float(number) for number in re.findall(r"# about (-\d+)", code)]
    shown = re.findall(r"^(?:return )?(-\d+\.\d+)", run_python(code, tmp_path), re.M)
    printed = [float(number) for number in shown]
    assert len(printed) == len(stated) == 2
    # other versions and machines round differently, which in 10,000 updates makes another policy
    assert max(abs(one - other) for one, other in zip(printed, stated, strict=True)) < 150
    assert min(printed) > float(data) + 200
    assert (tmp_path / "awr.ckpt" / "manifest.json").is_file()


def test_the_shell_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Command
) -> None:
    """One after the other, the second with the environment of a module in the current folder."""
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    outputs = []
    for code in (code for language, code in EXAMPLES if language == "shell"):
        output = ""
        for program, *words in commands(code):
            assert program == "rl-training"
            outcome = cli(*(path for word in words for path in expanded(shortened(word))))
            assert outcome.code == 0, outcome.err
            output += outcome.out + outcome.err
        outputs.append(output)
    assert len(outputs) == 2
    assert "budget of 200 updates spent" in outputs[0]
    assert "budget of 1,010 env steps spent" in outputs[1]


def test_make_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert f"\n{target}:" in makefile
