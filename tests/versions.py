"""Install the package beside other versions of Python, PyTorch and Gymnasium and try it.

    python tests/versions.py            every Python found, the usual and the edge versions
    python tests/versions.py --python 3.13 --torch 2.13.0 --gymnasium newest
    python3 tests/versions.py --python 3.13 --torch own --gymnasium 1.1.0 --lowest

Each trial makes an environment under .venv-versions, installs the package with its core
dependencies and runs a short part of the tests there. PyTorch comes from wherever pip is configured
to find it: from an index with CPU builds a trial takes minutes, from others it fetches gigabytes.
With `own` it is the one that the Python has already, such as the CPU build of a Linux distribution.
Pythons that are not on this machine are named and left out; exit code 1 if a trial fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / ".venv-versions"
PARTS = (
    "tests/test_public_api.py",
    "tests/test_older_runs.py",
    "tests/experiment",
    "tests/runtime/test_resume.py",
)
"""Public names, configs, checkpoints, and every algorithm trained, killed and resumed."""
FOUND = (
    "import sys, torch, gymnasium, numpy; "
    "print('Python', sys.version.split()[0], *(f'{m.__name__} {m.__version__}' "
    "for m in (torch, gymnasium, numpy)))"
)
"""Prints the versions that are tried."""
NEWEST, OWN = "newest", "own"


@dataclass(frozen=True)
class Trial:
    """One combination; a version is a number, `newest` or, of PyTorch, `own`."""

    python: str
    torch: str
    gymnasium: str
    lowest: bool = False
    """Whether all other dependencies have the lowest versions that are declared."""

    def __str__(self) -> str:
        others = ", lowest others" if self.lowest else ""
        return f"Python {self.python}, torch {self.torch}, gymnasium {self.gymnasium}{others}"

    def requirements(self) -> list[str]:
        wanted = {"torch": self.torch, "gymnasium": self.gymnasium}
        chosen = {name: v for name, v in wanted.items() if v != OWN}
        found = [name if v == NEWEST else f"{name}=={v}" for name, v in chosen.items()]
        _, least = declared()
        others = least.items() if self.lowest else ()
        return found + [f"{name}=={v}.*" for name, v in others if name not in wanted]


def declared() -> tuple[list[str], dict[str, str]]:
    """The supported Pythons, and the lowest versions of the dependencies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [re.search(r"Python :: (3\.\d+)$", line) for line in project["classifiers"]]
    lowest = dict(line.split(">=") for line in project["dependencies"])
    return [match[1] for match in found if match], lowest


def usual_torch() -> str:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    match = re.search(r"^torch==(\S+)", text, flags=re.MULTILINE)
    assert match
    return match[1]


def interpreter(version: str) -> str | None:
    """An executable of this version: on the path, or one of pyenv's."""
    candidates = [shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python")))
    for candidate in candidates:
        if candidate is None:
            continue
        asked = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    return None


def planned(pythons: Sequence[str]) -> list[Trial]:
    """The tested versions on each Python, the lowest on the oldest, the newest on the newest."""
    _, lowest = declared()
    trials = [Trial(version, usual_torch(), NEWEST) for version in pythons]
    oldest = f"{lowest['torch']}.0", f"{lowest['gymnasium']}.0"
    return [*trials, Trial(pythons[0], *oldest, lowest=True), Trial(pythons[-1], NEWEST, NEWEST)]


def carry_out(trial: Trial, executable: str) -> bool:
    folder = ENVIRONMENTS / re.sub(r"[^\w.]+", "-", str(trial))
    python = folder / "bin" / "python"
    steps: list[list[str]] = []
    if not python.exists():
        shared = ["--system-site-packages"] if trial.torch == OWN else []
        steps.append([executable, "-m", "venv", *shared, str(folder)])
    install = [str(python), "-m", "pip", "install", "--quiet"]
    steps.append([*install, *trial.requirements(), "pytest", "pytest-timeout", str(ROOT)])
    steps.append([str(python), "-c", FOUND])
    steps.append([str(python), "-m", "pytest", "-p", "no:cacheprovider", *PARTS])
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for step in steps:
        if subprocess.run(step, cwd=ROOT, env=environment, check=False).returncode != 0:
            print(f"{trial}: FAILED in: {' '.join(step)}", flush=True)
            return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    pythons, _ = declared()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", choices=pythons, help="only this one")
    parser.add_argument("--torch", help="only this version, newest, or own")
    parser.add_argument("--gymnasium", default=NEWEST, help="with --torch (%(default)s)")
    parser.add_argument(
        "--lowest", action="store_true", help="with --torch: the lowest of all other dependencies"
    )
    chosen = parser.parse_args(arguments)
    found = {version: interpreter(version) for version in pythons}
    for version, executable in found.items():
        if executable is None:
            print(f"Python {version}: not on this machine, not tried")
    there = [v for v in pythons if found[v] and chosen.python in (None, v)]
    if not there:
        print("nothing to try")
        return 1
    trials = planned(there)
    if chosen.torch:
        versions = (chosen.torch, chosen.gymnasium, chosen.lowest)
        trials = [Trial(version, *versions) for version in there]
    failed = False
    for trial in trials:
        began = time.monotonic()
        executable = found[trial.python]
        assert executable is not None
        passed = carry_out(trial, executable)
        failed |= not passed
        word = "passed" if passed else "FAILED"
        print(f"{trial}: {word} after {time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
