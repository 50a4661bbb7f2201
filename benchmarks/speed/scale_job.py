"""Ray nodes killed in the middle of a run, and the costs that limit many workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.process import Request, answer_job
from benchmarks.speed.search_job import command, is_equal, wait_for
from rl_training import ManagedAlgorithm
from rl_training.experiment.config import load_config
from rl_training.search.grid import configs_of, plan_of
from rl_training.search.ray_tasks import OWN_CLUSTER, RayTasks
from rl_training.search.runner import StudyRunner
from rl_training.search.study import Study

MOST_TRIES = 5
CLAIMS = 20
CLAIMING = """
import sys, time
from pathlib import Path
from benchmarks.speed.scale_job import study_of, claim_some
study = study_of(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
claim_some(study, int(sys.argv[2]))
"""


def overrides(keys: dict[str, Any]) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in keys.items()]


# --- killed nodes ---------------------------------------------------------------------------------


def nodes(request: Request) -> dict[str, Any]:
    """The same run again and again; its node is killed each time."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ.update(OWN_CLUSTER)
    spec, folder = request.spec, request.scratch
    keys = overrides(spec["keys"])
    whole = ManagedAlgorithm(load_config("bc/pendulum", [*keys, f"output_dir={folder}"]))
    whole.learn(progress=False)
    assert whole.run_dir is not None
    state = last_state(whole.run_dir, spec["last"])
    head = {"num_cpus": 0, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    rounds = []
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        launcher = RayTasks(cluster.address, workers=1)
        for number in range(spec["rounds"]):
            for attempt in range(MOST_TRIES):
                study = Study(
                    folder / f"study-{number}-{attempt}",
                    configs_of(plan_of("bc/pendulum", keys, None)),
                )
                tick = (1 + number % spec["kill_after"]) * spec["keys"]["checkpoint_interval"]
                found = one_round(cluster, launcher, study, tick, spec["last"], state)
                cluster.add_node(num_cpus=1)
                if found is not None:
                    rounds.append({**found, "attempts": attempt + 1})
                    print(f"round {number}: {rounds[-1]}", flush=True)
                    break
    finally:
        ray.shutdown()
        cluster.shutdown()
    return {"rounds": rounds}


def one_round(
    cluster: Any, launcher: RayTasks, study: Study, tick: int, last: str, state: Any
) -> dict[str, Any] | None:
    """None if the run had ended before its node could be killed."""
    (trial,) = study.trials
    said: list[str] = []
    killed: list[int] = []

    def kill_node() -> None:
        wait_for(lambda: newest(trial.run_dir) >= tick)
        try:
            line = ancestry(int((trial.run_dir / ".lock").read_text().split()[0]))
        except (OSError, ValueError, IndexError):
            return  # it has ended
        raylets = [node.all_processes["raylet"][0].process.pid for node in cluster.worker_nodes]
        raylet = next(pid for pid in line if pid in raylets)
        for pid in (*line[: line.index(raylet)], raylet):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    killer = threading.Thread(target=kill_node)
    killer.start()
    outcome = StudyRunner(study, launcher, said.append).run()
    killer.join()
    if not killed:
        return None
    return {
        "finished": outcome.finished == [trial.name],
        "lost": any("lost by the Ray cluster" in line for line in said),
        "equal": is_equal(last_state(trial.run_dir, last), state),
        "killed_after": tick,
    }


def newest(run_dir: Path) -> int:
    """The tick of the newest checkpoint."""
    ticks = (int(path.parent.name) for path in run_dir.glob("checkpoints/0*/manifest.json"))
    return max(ticks, default=0)


def last_state(run_dir: Path, last: str) -> Any:
    return torch.load(run_dir / "checkpoints" / last / "algorithm.pt", weights_only=True)


def ancestry(pid: int) -> list[int]:
    """A process, its parent and so on."""
    found = []
    while pid > 1:
        found.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


# --- what limits many workers ---------------------------------------------------------------------


def limits(request: Request) -> dict[str, Any]:
    spec, folder = request.spec, request.scratch
    keys = overrides({**spec["keys"], "total_updates": 1, "final_eval": False})
    train = command("train", "bc/pendulum", *keys, f"output_dir={folder}", "run_name=one", "-q")
    process = seconds(lambda: subprocess.run(train, check=True, stdout=subprocess.DEVNULL))
    found = {"process": process, **checkpoint_costs(folder, overrides(spec["keys"]))}
    found |= ray_costs()
    found |= journal_costs(folder, spec["trials"])
    return found


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def checkpoint_costs(folder: Path, keys: list[str]) -> dict[str, float]:
    agent = ManagedAlgorithm(load_config("bc/pendulum", [*keys, f"output_dir={folder}"]))
    agent.learn(total_updates=300, progress=False)
    assert agent.run_dir is not None
    times = 50
    spent = seconds(lambda: [agent.save(folder / f"{i}.ckpt") for i in range(times)])
    steps = 5_000
    collecting = seconds(lambda: agent.collect(steps=steps))
    study = Study(folder / "many", configs_of(plan_of("bc/pendulum", keys, None)))
    (trial,) = study.trials
    status = seconds(lambda: [trial.status for _ in range(1000)])
    return {
        "checkpoint": 1e3 * spent / times,
        "collect": steps / collecting,
        "status": 1e6 * status / 1000,
        "run_files": sum(path.is_file() for path in agent.run_dir.rglob("*")),
    }


def ray_costs() -> dict[str, float]:
    import ray

    start = seconds(lambda: RayTasks())
    task = ray.remote(num_cpus=1)(lambda: os.getpid())
    first = seconds(lambda: ray.get(task.remote()))
    times = 100
    further = seconds(lambda: [ray.get(task.remote()) for _ in range(times)])
    ray.shutdown()
    return {"ray_start": start, "ray_first": first, "ray_task": 1e3 * further / times}


def study_of(folder: Path) -> Any:
    """A tuning whose trials are ended without being trained."""
    from rl_training.search.space import space_of
    from rl_training.search.tune import evaluated
    from rl_training.search.tuning import TuningFolder, TuningPlan

    metric = "eval/return_mean"
    config = evaluated(load_config("bc/pendulum"), metric, False)
    space = space_of(config, ["algo_kwargs.lr"], [], metric)
    return TuningFolder(folder, TuningPlan(config, space, (0,), (1,), metric, False))


def claim_some(study: Any, number: int) -> None:
    for _ in range(number):
        claim = study.claim(1_000_000)
        study.tell(claim, "finished", float(claim.number), [float(claim.number)])


def journal_costs(folder: Path, trials: int) -> dict[str, float]:
    alone = study_of(folder / "alone")
    first = seconds(lambda: claim_some(alone, CLAIMS))
    claim_some(alone, max(0, trials - CLAIMS))
    late = seconds(lambda: claim_some(alone, CLAIMS))
    workers = []
    for _ in range(8):
        arguments = [sys.executable, "-c", CLAIMING, str(folder / "shared"), str(CLAIMS)]
        workers.append(
            subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()

    def all_of_them() -> None:
        for worker in workers:
            worker.communicate("go\n")

    shared = seconds(all_of_them)
    return {
        "claim_1": 1e3 * first / CLAIMS,
        "claim_late": 1e3 * late / CLAIMS,
        "claim_8": 1e3 * shared / (8 * CLAIMS),
    }


def work(request: Request) -> dict[str, Any]:
    parts = {"nodes": nodes, "limits": limits}
    return parts[request.spec["what"]](request)


if __name__ == "__main__":
    answer_job(work, ("rl-training", "ray", "optuna", "torch", "numpy", "gymnasium"))
