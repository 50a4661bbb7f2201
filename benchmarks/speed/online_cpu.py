"""Speed of whole online training runs on one CPU core, beside Stable-Baselines3."""

from __future__ import annotations

from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.jobs import Job, Records
from benchmarks.peers.environment import SB3_VERSION, SHARED
from benchmarks.speed.ratios import RatioTable, load_note
from benchmarks.suites import Options, Section, Suite

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig

NAME = "online_speed"
COMPARE = "benchmarks.speed.compare_job"

TIMES_FASTER = {
    "sac/pendulum": 2.0,
    "dqn/cartpole": 2.0,
    "qr_dqn/cartpole": 2.0,
    "ppo/cartpole": 2.0,
}
"""Packaged configs, and how many times the peer's speed they have to reach."""
CHANGES: dict[str, Any] = {"device": "cpu", "threads": 1, "engine": "eager", "seed": 0}
ROUNDS = 10
TURNS_PER_BUDGET = 20

# Rough, on one core: they only order the jobs and guess the time left.
SECONDS = {"sac/pendulum": 150, "dqn/cartpole": 50, "qr_dqn/cartpole": 60, "ppo/cartpole": 30}
PEER_SLOWER = 2.0


def online_speed_jobs(options: Options) -> list[Job]:
    """One job per config beside the peer; seeds play no part."""
    return [_job(options, name) for name in TIMES_FASTER]


def measured_config(name: str) -> TrainConfig:
    """A packaged config as it is measured here."""
    from rl_training.experiment.config import load_config

    return load_config(name).replace(**CHANGES)


def turn_steps(config: TrainConfig) -> int:
    """Environment steps of a turn: a whole number of training rounds, so that all turns do the
    same work."""
    size = _training_round(config)
    return max(1, (config.total_timesteps or 0) // TURNS_PER_BUDGET // size) * size


def _job(options: Options, name: str) -> Job:
    config = measured_config(name)
    rounds = 2 if options.quick else ROUNDS
    turn = turn_steps(config)
    spec: dict[str, Any] = {"config": config.to_dict(), "turn_ticks": turn, "rounds": rounds}
    spec |= {"peer": True, "stable-baselines3": SB3_VERSION}
    cost = SECONDS[name] * (1 + PEER_SLOWER) * rounds / TURNS_PER_BUDGET + 10
    return Job(NAME, _job_name(name), 0, COMPARE, spec, peer=SHARED, cost=cost)


def _job_name(name: str) -> str:
    return name.replace("/", "-")


def _training_round(config: TrainConfig) -> int:
    """Environment steps from one round of updates to the next."""
    params, envs = config.params, int(config.num_envs)
    if hasattr(params, "rollout_length"):
        return int(params.rollout_length) * envs
    return lcm(int(params.train_frequency), envs)


# --- report ----------------------------------------------------------------------------------


def online_speed_report(records: Records, _: Path) -> Section:
    ratios = RatioTable("SB3")
    for name, times_faster in TIMES_FASTER.items():
        ratios.add(records, _job_name(name), f"`{name}`", times_faster)
    compared = ratios.section()
    text = (
        "Environment steps per second of whole training runs on one thread, acting, storing "
        "and updating included, evaluation and checkpoints not: the first half of the packaged "
        "configs' budgets, eager. Ours is the loop that `learn` runs; Stable-Baselines3 and "
        f"sb3-contrib {SB3_VERSION} run `learn` without its logging, with the same sizes, "
        f"batch, buffer, rounds of updates and schedules. Both halves are cut into {ROUNDS} "
        "turns of equally many steps; the two take turns, only one runs at a time. The ratio "
        "is the median over rounds, with the lowest and the highest round beside it, and the "
        "same ratio in CPU time, which a busy machine disturbs less. The peers' environment "
        "has the older Gymnasium that d3rlpy needs, whose CartPole takes about 3 µs less per "
        "step than ours."
    )
    limits = (
        "What limits them: with networks this small most of an update is what PyTorch takes per "
        "operation, and both sides need about as many. Ours are recorded once, which takes a "
        "second or two, and run by TorchScript's interpreter, without Python and the graph of "
        "gradients in between: updates of DQN, QR-DQN and PPO take a quarter to a third less, "
        "those of SAC a tenth to a sixth less, because most of them are matrix products of 256 by "
        "256. Networks whose gradients are written down, without recording, gained 2% and less. "
        "Compiling takes 17 s of one core, or 2 to 4 s from the compiler's cache, and gained a "
        "tenth of DQN's update."
    )
    parts = (text, compared.markdown, limits, load_note(records))
    what = "Training in a simulator on one core, in multiples of Stable-Baselines3's speed"
    short = f"{what}: {compared.short}."
    return Section("\n\n".join(parts), compared.verdicts, short)


SUITE = Suite(
    NAME,
    "Speed of online training on one CPU core",
    online_speed_jobs,
    online_speed_report,
    alone=True,
)
