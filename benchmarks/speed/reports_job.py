"""The report of one run with very many rows of metrics."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.process import ONE_THREAD, Request, answer_job

for name in ("report", "index", "runs"):  # what is measured, in a process of its own
    importlib.import_module(f"rl_training.reports.{name}")

TRAINING = (
    '{"event": "train", "tick": %d, "updates": %d, "env_steps": %d, "episodes": 0, '
    '"train/policy_loss": -7.753961563110352, "train/value_loss": %d.25, "lr/policy": 0.0003, '
    '"time/elapsed_seconds": %d.5, "time/updates_per_second": 194.18099203736224}\n'
)
EVALUATION = (
    '{"event": "eval", "tick": %d, "eval/return_mean": %d.5, "eval/return_std": 0.25, '
    '"eval/returns": [1.0, 2.0, 3.0], "best": false}\n'
)


def write_run(folder: Path, rows: int, rows_per_evaluation: int) -> None:
    """A run folder as it is after so many updates."""
    folder.mkdir()
    config = f"algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: {rows}\nseed: 0\n"
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    with (folder / "metrics.jsonl").open("w", encoding="utf-8", buffering=1 << 20) as file:
        for tick in range(1, rows + 1):
            file.write(TRAINING % (tick, tick, tick, tick % 977, tick // 1_000))
            if tick % rows_per_evaluation == 0:
                file.write(EVALUATION % (tick, tick % 313))


def time_report(request: Request) -> dict[str, Any]:
    """What `rl-training report` costs, and how large its page is."""
    run, page = request.scratch / "run", request.scratch / "report.html"
    write_run(run, request.spec["rows"], request.spec["rows_per_evaluation"])
    arguments = [sys.executable, "-m", "rl_training", "report", str(run), "--out", str(page)]
    began = time.monotonic()
    process = subprocess.Popen(arguments, env={**os.environ, **ONE_THREAD})
    _, status, used = os.wait4(process.pid, 0)
    wall = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"the report ended with exit code {process.returncode}")
    text = page.read_text(encoding="utf-8")
    if f"{request.spec['rows']:,} of {request.spec['rows']:,}" not in text:
        raise RuntimeError("the report lacks the end of the run")
    print(f"{wall:.1f} s")
    return {
        "wall_seconds": wall,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "megabytes": len(text.encode()) / 1e6,
        "peak_megabytes": used.ru_maxrss / 1024,
        "metrics_gigabytes": (run / "metrics.jsonl").stat().st_size / 1e9,
    }


if __name__ == "__main__":
    answer_job(time_report, ("rl-training", "numpy"))
