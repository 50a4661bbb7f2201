"""The README's examples run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- runs -->\n```(\w+)\n(.*?)```", README, flags=re.DOTALL)


NAMES = [re.match(r"# (\w+\.py)\n", code) for _, code in BLOCKS]
MODULES = {name[1]: code for name, (_, code) in zip(NAMES, BLOCKS, strict=True) if name}
EXAMPLES = [(language, code) for language, code in BLOCKS if code not in MODULES.values()]


def run(language: str, code: str, folder: Path) -> str:
    """Output of an example, in a folder that holds the modules of the others."""
    for name, text in MODULES.items():
        (folder / name).write_text(text, encoding="utf-8")
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    command = {"python": [sys.executable, "-c"], "shell": ["bash", "-euc"]}[language]
    done = subprocess.run(
        [*command, code], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def shortened(code: str) -> str:
    """The same with small budgets; test_learning.py runs the first one as it stands."""
    code = re.sub(r"total_updates=[1-9][\d_]+", "total_updates=200", code)
    return re.sub(r"total_timesteps=\d+", "total_timesteps=1010", code)


def test_the_python_example_runs(tmp_path: Path) -> None:
    (code,) = (code for language, code in EXAMPLES if language == "python")
    run("python", shortened(code), tmp_path)
    assert (tmp_path / "awr.ckpt" / "manifest.json").is_file()


def test_the_shell_examples_run(tmp_path: Path) -> None:
    """One after the other, the second with an environment of one's own."""
    shell = [code for language, code in EXAMPLES if language == "shell"]
    outputs = [run("shell", shortened(code), tmp_path) for code in shell]
    assert len(outputs) == 2
    assert "budget of 200 updates spent" in outputs[0]
    assert "budget of 1,010 env steps spent" in outputs[1]


def test_make_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert f"\n{target}:" in makefile
