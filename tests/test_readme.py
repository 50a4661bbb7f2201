"""The README's examples run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- runs -->\n```(\w+)\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize(("language", "code"), BLOCKS, ids=[language for language, _ in BLOCKS])
def test_example_runs(language: str, code: str, tmp_path: Path) -> None:
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    command = {"python": [sys.executable, "-c"], "shell": ["bash", "-euc"]}[language]
    done = subprocess.run(
        [*command, code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if language == "python":
        assert (tmp_path / "awr.ckpt" / "manifest.json").is_file()
    else:
        assert "budget of 2,000 updates spent" in done.stdout


def test_both_languages_are_covered() -> None:
    assert sorted(language for language, _ in BLOCKS) == ["python", "shell"]


def test_make_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert f"\n{target}:" in makefile
