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


def test_the_python_example_beats_its_data(tmp_path: Path) -> None:
    (code,) = (code for language, code in EXAMPLES if language == "python")
    printed = run("python", code, tmp_path)
    assert (tmp_path / "awr.ckpt" / "manifest.json").is_file()
    data, stated = re.findall(r": (-\d+) on average", code), re.findall(r"# about (-\d+)", code)
    returned = [float(number) for number in re.findall(r"-\d+\.\d+", printed)]
    assert len(returned) >= 2, printed
    # other versions round differently; far from what is written would be another example
    assert all(abs(one - float(stated[0])) < 150 for one in returned[:2]), printed
    assert min(returned[:2]) > float(data[0]) + 200, printed


def test_the_shell_examples_run(tmp_path: Path) -> None:
    outputs = [run("shell", code, tmp_path) for language, code in EXAMPLES if language == "shell"]
    assert len(outputs) == 2
    assert "budget of 2,000 updates spent" in outputs[0]
    returned = re.search(r"last evaluation: return (-[\d.]+)", outputs[1])
    assert returned is not None
    assert -8.0 < float(returned[1]) < 0.0, "an environment of one's own is learned"


def test_make_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert f"\n{target}:" in makefile
