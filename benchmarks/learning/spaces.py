"""Spaces that are not vectors: Dict observations, MultiDiscrete actions and states by number, each
beside Stable-Baselines3 in the same run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import gates
from benchmarks.jobs import Job, Records
from benchmarks.learning.shared import (
    FINAL_EPISODES,
    PEER_GATE,
    TRAIN,
    details,
    evaluation,
    peer_header,
    peer_inputs,
    peer_row,
    returns,
    seeded,
    stated,
)
from benchmarks.markdown import SEED_HEADER, seed_columns, table
from benchmarks.peers.environment import SB3_VERSION
from benchmarks.suites import Options, Section, Suite

NAME = "spaces"
PEER = "benchmarks.peers.sb3_job"
ENVS = "benchmarks.learning.spaces_envs"


@dataclass(frozen=True)
class Task:
    """A task, what the last policy has to reach, and what a run takes on one core, roughly."""

    title: str
    least: float
    seconds: float
    config: str
    """A packaged config, whose environment `env_id` may replace."""
    env_id: str | None = None
    steps: int | None = None


TASKS = {
    "dict": Task("PPO, Dict observations", 475, 60, "ppo/cartpole", f"{ENVS}:DictCartPole-v0"),
    "multi_discrete": Task(
        "PPO, MultiDiscrete actions", 450, 150, "ppo/cartpole", f"{ENVS}:TwoCartPoles-v0", 200_000
    ),
    "frozen_lake": Task("DQN, FrozenLake-v1", 0.65, 60, "dqn/frozen_lake"),
    "taxi": Task("DQN, Taxi-v4", 7.0, 120, "dqn/taxi"),
}


def spaces_jobs(options: Options) -> list[Job]:
    jobs: list[Job] = []
    for name in TASKS:
        jobs += seeded(options, _train_job, name) + seeded(options, _peer_job, name)
    return jobs


def _config(options: Options, task: Task) -> Any:
    from rl_training.experiment.config import load_config

    config = load_config(task.config)
    changes: dict[str, Any] = {"device": "cpu", "threads": 1, "tensorboard": False}
    changes |= {"checkpoint_interval": 0, "keep_best": False}
    if task.env_id:
        changes["env_id"] = task.env_id
    if task.steps:
        changes["total_timesteps"] = task.steps
    if options.quick:
        steps = 1_000 + getattr(config.params, "learning_starts", 0)
        changes |= {"total_timesteps": steps, "eval_interval": 500, "eval_episodes": 2}
    return config.replace(**changes)


def _train_job(options: Options, seed: int, name: str) -> Job:
    task = TASKS[name]
    spec = {"config": stated(_config(options, task)), **evaluation(options)}
    return Job(NAME, name, seed, TRAIN, spec, cost=task.seconds)


def _peer_job(options: Options, seed: int, name: str) -> Job:
    """The same sizes, schedules, budget and start states; it takes these spaces as they are."""
    task = TASKS[name]
    config = _config(options, task)
    spec = {"stable-baselines3": SB3_VERSION, "config": stated(config), **evaluation(options)}
    inputs = {"config": config.to_dict(), **peer_inputs(options, config.eval_episodes)}
    return Job(NAME, f"sb3-{name}", seed, PEER, spec, inputs, cost=2.0 * task.seconds)


def spaces_report(records: Records, figures: Path) -> Section:
    learned, compared, verdicts = [], [], []
    for name, task in TASKS.items():
        values, theirs = returns(records, name), returns(records, f"sb3-{name}")
        reached = gates.at_least(task.title, values, task.least)
        better = gates.not_worse(f"{task.title}, beside SB3", values, theirs)
        verdicts += [reached, better]
        cells = [*seed_columns(values, 2), *details(records, name, "env_steps")]
        learned.append([task.title, *cells, f"at least {task.least:g}", reached.text])
        compared.append(peer_row(records, task.title, (name, f"sb3-{name}"), better, theirs))
    header = ("task", *SEED_HEADER, "best", "env steps", "seconds", "gate", "")
    text = (
        f"Mean return of the last policy, deterministic, over the same {FINAL_EPISODES} start "
        "states for both sides. *Dict observations* is CartPole in three parts, one of them "
        "Discrete; *MultiDiscrete actions* is two CartPoles at once, whose episode ends with the "
        "first pole that falls, 500 at most. FrozenLake is slippery: the best policy reaches about "
        "0.74 of 1 in the 100 steps of an episode. Taxi's best is about 7.9.\n\n"
        f"{table(header, learned)}\n\n"
        f"### Beside Stable-Baselines3 {SB3_VERSION}\n\n"
        "The same budget, batch, network and buffer sizes, learning rates and schedules; its own "
        "treatment of each space, which is the concatenation of the parts of a Dict and one-hot "
        "states, as ours. On Taxi ours keeps to the action mask that the environment gives in "
        "`info`, which Stable-Baselines3 does not read, so that row compares more than the "
        "learners. No knob was tuned for these rows. "
        f"{PEER_GATE}\n\n"
        f"{table(peer_header('SB3'), compared)}"
    )
    return Section(text, tuple(verdicts))


SUITE = Suite(NAME, "Spaces that are not vectors", spaces_jobs, spaces_report)
