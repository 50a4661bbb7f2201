"""What a run on Atari images costs to keep and to bring back: memory, disk and seconds."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.process import Request, answer_job

RESUMED = """
import json, resource, sys, time
began = time.perf_counter()
from rl_training import ManagedAlgorithm, Callback
imported = time.perf_counter()
first = []
class First(Callback):
    def on_step(self, event):
        first.append(time.perf_counter())
        event.request_stop("measured")
budget = int(sys.argv[2])
ManagedAlgorithm.resume(
    sys.argv[1], total_timesteps=budget, progress=False, callbacks=[First()]
)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": first[0] - imported, "peak_bytes": peak}))
"""


def work(request: Request) -> dict[str, Any]:
    """Fill the replay, save in the middle of a game, and go on in a process of its own."""
    import torch

    from rl_training import ManagedAlgorithm
    from rl_training.experiment.config import load_config
    from rl_training.replay.replay import ReplayBuffer

    spec = request.spec
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        steps, changes = int(spec["steps"]), list(spec["changes"])
        config = load_config(spec["config"], [*changes, f"total_timesteps={steps}"])
        agent = ManagedAlgorithm(config.replace(output_dir=folder))
        saves: list[float] = []
        _time_saves(saves)
        began = time.perf_counter()
        result = agent.learn(progress=False)
        trained = time.perf_counter() - began - sum(saves)
        newest = max((result.run_dir / "checkpoints").glob("[0-9]*"))
        size = sum(file.stat().st_size for file in newest.rglob("*") if file.is_file())
        budget = str(steps + int(spec["further"]))
        command = [sys.executable, "-c", RESUMED, str(result.run_dir), budget]
        resumed = subprocess.run(command, check=True, capture_output=True, text=True)
        answer = json.loads(resumed.stdout.strip().splitlines()[-1])
    spaces = agent.algorithm.spaces
    capacity = config.params.buffer_capacity
    print(f"{size / 1e6:.0f} MB, saved in {saves[-1]:.1f} s, resumed in {answer['seconds']:.1f} s")
    return {
        "steps": steps,
        "train_seconds": trained,
        "checkpoint_bytes": size,
        "save_seconds": saves[-1],
        "resume_seconds": answer["seconds"],
        "resumed_peak_bytes": answer["peak_bytes"],
        "replay_bytes": ReplayBuffer.memory_needed(capacity, spaces),
        "stacked_bytes": 2 * capacity * spaces.obs_dim,
        "million_bytes": ReplayBuffer.memory_needed(1_000_000, spaces),
    }


def _time_saves(saves: list[float]) -> None:
    from rl_training.experiment.checkpoint_store import CheckpointStore

    save = CheckpointStore.save

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return save(self, *args, **kwargs)
        finally:
            saves.append(time.perf_counter() - began)

    CheckpointStore.save = timed  # type: ignore[method-assign]


if __name__ == "__main__":
    answer_job(work, ("rl-training", "torch", "numpy", "gymnasium", "ale-py"))
