"""One thing that both the older sources and these do, measured alternately."""

from __future__ import annotations

import importlib
import io
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from benchmarks.process import ROOT, Request, answer_job
from benchmarks.speed.against import cases, measure
from benchmarks.speed.compare_job import OURS

FOLDER = "RL_TRAINING_OLDER"
"""Variable that names a checkout of the older commit, for machines without git."""


def older_sources(commit: str, scratch: Path) -> Path:
    """A folder with the sources of a commit."""
    named = os.environ.get(FOLDER)
    if named:
        return Path(named)
    command = ["git", "-C", str(ROOT), "archive", commit, "src"]
    packed = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(scratch, filter="data")
    return scratch


def work(request: Request) -> dict[str, Any]:
    spec = request.spec
    case = next(c for c in cases(spec["suite"], spec["seconds"]) if c.name == spec["name"])
    request.scratch.mkdir(parents=True, exist_ok=True)
    older = older_sources(spec["commit"], request.scratch)
    result = measure(case, older, spec["rounds"])
    print(f"{result['held']:.3f} of the old speed")
    return result


if __name__ == "__main__":
    importlib.import_module(OURS)  # the code that is measured, so that its changes are noticed
    answer_job(work, ("rl-training", "torch", "numpy", "gymnasium"))
