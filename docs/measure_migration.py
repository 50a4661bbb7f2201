"""Runs the programs of the two migration pages, ours and the peer's, with several seeds.

`python -m docs.measure_migration --seeds 3` prints the table that stands on each page. The peers
run in the environment that the benchmarks make for them.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.environment import SHARED

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"from_stable_baselines3.md": "stable_baselines3", "from_d3rlpy.md": "d3rlpy"}
VERSIONS = (
    "import importlib.metadata as m, json, sys; print(json.dumps([m.version(p) for p in {}]))"
)


def programs(page: Path) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def measure(python: Path, code: str, folder: Path) -> tuple[float, float]:
    """The return that a program prints, and its CPU seconds, imports included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [python, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.stderr)
    found = re.findall(r"^return (\S+)$", done.stdout, re.M)
    return float(found[-1]), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def versions(python: Path, packages: list[str]) -> str:
    code = VERSIONS.format(packages)
    found = json.loads(subprocess.check_output([python, "-c", code], text=True))
    pairs = zip(packages, found, strict=True)
    return ", ".join(f"{name} {version}" for name, version in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--page", choices=sorted(PAGES), help="one of the two")
    arguments = parser.parse_args()
    SHARED.ensure(print)
    for name in [arguments.page] if arguments.page else PAGES:
        peer, blocks = PAGES[name], programs(ROOT / "docs" / "tutorials" / name)
        print(f"\n{name}\n\n| library | return of seeds 0, 1, ... | mean | CPU seconds |")
        print("| --- | --- | ---: | ---: |", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            for block in (b for b in blocks if "\nseed = 0\n" not in b):
                subprocess.run([sys.executable, "-c", block], cwd=folder, check=True, stdout=2)
            for block in (b for b in blocks if "\nseed = 0\n" in b):
                own = peer not in block
                python = Path(sys.executable) if own else SHARED.python
                found = []
                for n in range(arguments.seeds):
                    code = block.replace("\nseed = 0\n", f"\nseed = {n}\n")
                    found.append(measure(python, code, Path(folder)))
                    value, used = found[-1]
                    who = "rl-training" if own else peer
                    print(
                        f"{who}, seed {n}: {value:.1f}, {used:.0f} s", file=sys.stderr, flush=True
                    )
                shared = ["torch", "numpy", "gymnasium"]
                label = versions(python, ["rl-training" if own else peer, *shared])
                seeds = ", ".join(f"{value:.1f}" for value, _ in found)
                mean, seconds = (statistics.mean(column) for column in zip(*found, strict=True))
                print(f"| {label} | {seeds} | {mean:.1f} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
