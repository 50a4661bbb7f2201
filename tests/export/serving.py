"""A server in a process of its own, in which PyTorch cannot be imported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WITHOUT_TORCH = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "gymnasium"):
            raise ImportError(name)
sys.meta_path.insert(0, Refused())
from rl_training.cli import main
sys.argv = ["rl-training", *sys.argv[1:]]
main()
"""


@contextmanager
def served(
    folder: Path, *options: str, token: str | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`host:port` and the process."""
    environment = {k: v for k, v in os.environ.items() if k != "RL_TRAINING_TOKEN"}
    if token is not None:
        environment["RL_TRAINING_TOKEN"] = token
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_TORCH, "serve", str(folder), "--port", "0", *options],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        port = re.search(r":(\d+) \(", line)
        assert port, line
        yield f"127.0.0.1:{port[1]}", process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
