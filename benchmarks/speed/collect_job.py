"""A data set in shards, by several numbers of workers: its rate, and whether it is equal."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.process import Request, answer_job
from benchmarks.speed.search_job import command, cpu_seconds
from rl_training import ManagedAlgorithm
from rl_training.experiment.config import load_config
from rl_training.experiment.cores import usable_cores
from rl_training.search.shards import ShardFolder, read_plan, shard_file, write_shards


def collect(request: Request) -> dict[str, Any]:
    """By each number of workers in turn, and some shards once more by this process."""
    spec, folder = request.spec, request.scratch
    keys = [f"{key}={json.dumps(value)}" for key, value in spec["keys"].items()]
    agent = ManagedAlgorithm(load_config("bc/pendulum", [*keys, f"output_dir={folder}"]))
    agent.learn(progress=False)
    found: list[dict[str, Any]] = []
    digests: list[dict[str, str]] = []
    target = folder / "data.parquet"
    for asked in spec["workers"]:
        shutil.rmtree(target, ignore_errors=True)
        workers = asked or usable_cores()
        arguments = ["data", "collect", str(agent.run_dir), "--steps", str(spec["steps"])]
        arguments += ["--shard", str(spec["shard"]), "--noise", "0.1", "--quiet"]
        before, began = cpu_seconds(), time.monotonic()
        subprocess.run(
            command(*arguments, "--workers", str(workers), "--out", str(target)),
            check=True,
            stdout=subprocess.DEVNULL,
        )
        wall, cpu = time.monotonic() - began, cpu_seconds() - before
        digests.append(digests_of(target))
        found.append(
            {
                "workers": workers,
                "wall_seconds": wall,
                "cpu_seconds": cpu,
                "steps_per_second": spec["steps"] / wall,
                "steps_per_core_second": spec["steps"] / cpu,
                "bytes": sum(path.stat().st_size for path in target.glob("*.parquet")),
            }
        )
        print(f"{workers} workers: {found[-1]['steps_per_second']:,.0f} steps/s", flush=True)
    equal = all(one == digests[0] for one in digests)
    again = folder / "again.parquet"
    ShardFolder(again, read_plan(target))
    for index in spec["again"]:
        write_shards(again, index, index + 1)
        name = shard_file(again, index).name
        equal &= digests_of(again)[name] == digests[0][name]
    print(f"{len(digests[0])} shards, equal: {equal}", flush=True)
    return {
        "shards": len(digests[0]),
        "runs": found,
        "again": len(spec["again"]),
        "equal": equal,
        "load": os.getloadavg()[0],
    }


def digests_of(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("*.parquet"))
    }


if __name__ == "__main__":
    answer_job(collect, ("rl-training", "pyarrow", "torch", "numpy", "gymnasium"))
