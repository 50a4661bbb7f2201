"""PPO with memory where velocities are hidden, and with action masks, beside sb3-contrib's."""

from __future__ import annotations

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
    figure,
    peer_header,
    peer_inputs,
    peer_row,
    returns,
)
from benchmarks.markdown import NO_VALUE, SEED_HEADER, seed_columns, table
from benchmarks.peers.environment import CONTRIB, SB3_VERSION
from benchmarks.speed.ratios import RatioTable
from benchmarks.suites import Options, Section, Suite

NAME = "masks_and_memory"
CONTRIB_JOB = "benchmarks.peers.contrib_job"
COMPARE = "benchmarks.speed.compare_job"
MEMORY, DQN, MASKS = "ppo/cartpole_memory", "dqn/cartpole_memory", "ppo/masked_doors"
LEARNS, FAILS = 450.0, 200.0
TIMES_FASTER = 2.0
ROUNDS = 10
SAME_AS_PEER = {"memory": "lstm"}
"""sb3-contrib has no GRU."""


def _values(options: Options, name: str, **knobs: Any) -> dict[str, Any]:
    from rl_training.experiment.config import load_config

    values: dict[str, Any] = load_config(name).to_dict()
    del values["seed"], values["output_dir"]
    values |= {"device": "cpu", "threads": 1, "tensorboard": False, "engine": "eager"}
    values["algo_kwargs"] |= knobs
    if options.quick:
        values |= {"total_timesteps": 2048, "eval_interval": 2048, "eval_episodes": 2}
    return values


def masks_and_memory_jobs(options: Options) -> list[Job]:
    jobs = []
    for seed in options.seeds:
        jobs += [
            _train_job(options, seed, "memory-ppo", MEMORY),
            _train_job(options, seed, "memory-ppo-lstm", MEMORY, **SAME_AS_PEER),
            _train_job(options, seed, "memory-ppo-none", MEMORY, memory="none"),
            _train_job(options, seed, "memory-dqn", DQN),
            _train_job(options, seed, "memory-dqn-none", DQN, memory="none"),
            _train_job(options, seed, "masks-ppo", MASKS),
            _peer_job(options, seed, "memory-contrib", MEMORY, **SAME_AS_PEER),
            _peer_job(options, seed, "masks-contrib", MASKS),
        ]
    jobs.append(_speed_job(options, "memory-speed", MEMORY, **SAME_AS_PEER))
    jobs.append(_speed_job(options, "masks-speed", MASKS))
    return jobs


def _train_job(options: Options, seed: int, job: str, name: str, **knobs: Any) -> Job:
    spec = {"config": _values(options, name, **knobs), **evaluation(options)}
    return Job(NAME, job, seed, TRAIN, spec, cost=150)


def _peer_job(options: Options, seed: int, job: str, name: str, **knobs: Any) -> Job:
    values = _values(options, name, **knobs)
    spec = {"sb3-contrib": SB3_VERSION, "config": values, **evaluation(options)}
    inputs = {"config": _resolved(values), **peer_inputs(options, values["eval_episodes"])}
    return Job(NAME, job, seed, CONTRIB_JOB, spec, inputs, CONTRIB, CONTRIB.python, 300)


def _resolved(values: dict[str, Any]) -> dict[str, Any]:
    """With every knob, as the peer is built from them."""
    from rl_training.experiment.config import TrainConfig

    config = TrainConfig(**values)
    knobs = config.params.model_dump(mode="json")
    return {**config.model_dump(mode="json"), "algo_kwargs": knobs}


def _speed_job(options: Options, job: str, name: str, **knobs: Any) -> Job:
    from rl_training.experiment.config import TrainConfig

    values = _resolved(_values(options, name, **knobs) | {"seed": 0})
    config = TrainConfig(**values)
    turn = config.params.rollout_length * config.num_envs * (2 if options.quick else 8)
    rounds = 2 if options.quick else ROUNDS
    # a turn more, because both sides finish the rollout in which a turn ends
    values["total_timesteps"] = max(values["total_timesteps"], turn * (rounds + 1))
    spec = {"config": values, "turn_ticks": turn, "rounds": rounds, "peer": True}
    spec |= {"sb3-contrib": SB3_VERSION}
    return Job(NAME, job, 0, COMPARE, spec, peer=CONTRIB, cost=150)


# --- report ----------------------------------------------------------------------------------


def masks_and_memory_report(records: Records, figures: Path) -> Section:
    memory, masks, speed = _memory(records, figures), _masks(records), RatioTable("sb3-contrib")
    speed.add(records, "memory-speed", "PPO, LSTM", None)
    speed.add(records, "masks-speed", "PPO, masks", TIMES_FASTER)
    compared = speed.section()
    parts = [
        f"sb3-contrib {SB3_VERSION} has the sizes, batches, rollouts, rates and schedules of ours. "
        + PEER_GATE,
        "### Memory\n\n"
        "CartPole whose observations are the position and the angle alone "
        "(`rl_training/CartPoleNoVelocity-v0`); packaged configs `ppo/cartpole_memory` and "
        "`dqn/cartpole_memory`, with and without memory; mean return of the last policy over the "
        f"same {FINAL_EPISODES} start states, at most 500. RecurrentPPO has an LSTM of as many "
        "units.\n\n" + memory.markdown,
        "### Masks\n\n"
        "80 doors of which 60 are locked in each step (`rl_training/MaskedDoors-v0`); packaged "
        "config `ppo/masked_doors`; the best return is 100, and a random policy has 5.\n\n"
        + masks.markdown,
        "### Speed\n\n"
        "Environment steps per second of whole training runs, the two alternately on one thread "
        "each, as in *Speed of online training on one CPU core*.\n\n" + compared.markdown,
    ]
    verdicts = (*memory.verdicts, *masks.verdicts, *compared.verdicts)
    return Section("\n\n".join(parts), verdicts)


def _memory(records: Records, figures: Path) -> Section:
    labels = {
        "memory-ppo": "PPO, GRU",
        "memory-ppo-lstm": "PPO, LSTM",
        "memory-ppo-none": "PPO without memory",
        "memory-dqn": "DQN, GRU",
        "memory-dqn-none": "DQN without memory",
        "memory-contrib": "RecurrentPPO (sb3-contrib)",
    }
    held = {
        "memory-ppo": gates.at_least("memory-ppo", returns(records, "memory-ppo"), LEARNS),
        "memory-ppo-none": gates.at_most(
            "memory-ppo-none", returns(records, "memory-ppo-none"), FAILS
        ),
    }
    rows = []
    for job, label in labels.items():
        verdict = held.get(job)
        gate = verdict.gate.removeprefix(f"{job} ") if verdict else NO_VALUE
        cells = [*seed_columns(returns(records, job)), *details(records, job, "env_steps")]
        rows.append([label, *cells, gate, verdict.text if verdict else NO_VALUE])
    header = ("algorithm", *SEED_HEADER, "best", "steps", "seconds", "gate", "")
    drawn = figure(figures / f"{NAME}.png", records, labels, "CartPole without velocities")
    theirs = returns(records, "memory-contrib")
    beside = gates.not_worse("memory-ppo", returns(records, "memory-ppo"), theirs)
    text = f"{table(header, rows)}\n\nPPO with a GRU beside RecurrentPPO: {beside.text}.\n\n{drawn}"
    return Section(text.strip(), (*held.values(), beside))


def _masks(records: Records) -> Section:
    theirs = returns(records, "masks-contrib")
    verdict = gates.not_worse("masks-ppo", returns(records, "masks-ppo"), theirs)
    row = peer_row(records, "PPO, masks", ("masks-ppo", "masks-contrib"), verdict, theirs)
    return Section(table(peer_header("MaskablePPO"), [row]), (verdict,))


SUITE = Suite(NAME, "Memory and action masks", masks_and_memory_jobs, masks_and_memory_report)
