"""From offline to online: RLPD beside SAC without the data, and RLPD with its parts taken away.

The pendulum is paid only for standing, so the simulator alone shows nothing to learn from.
Prior data are the thirty clumsy episodes of the packaged config and, once more, thirty of a SAC
that was half-trained on the ordinary pendulum.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import gates
from benchmarks.jobs import Job, Records
from benchmarks.learning.shared import (
    FINAL_EPISODES,
    TRAIN,
    details,
    evaluation,
    figure,
    returns,
    seeded,
)
from benchmarks.markdown import SEED_HEADER, number, seed_columns, table
from benchmarks.suites import Options, Section, Suite

NAME = "offline_to_online"
CONFIG = "rlpd/pendulum"
LEARNS, FAILS = 120.0, 40.0
Q_MEAN = "train/q_mean"

PRIOR: dict[str, Any] = {
    "config": {
        "algo": "sac",
        "env_id": "Pendulum-v1",
        "device": "cpu",
        "threads": 1,
        "engine": "eager",
        "total_timesteps": 3_500,
        "final_eval": False,
        "tensorboard": False,
        "algo_kwargs": {
            "hidden_sizes": [64, 64],
            "buffer_capacity": 20_000,
            "policy_lr": 1e-3,
            "critic_lr": 1e-3,
            "temperature_lr": 1e-3,
        },
    },
    "env_id": "rl_training/SparsePendulum-v0",
    "episodes": 30,
}
"""A policy and what it does in the sparse task."""

MEANING = {
    "rlpd": "`rlpd/pendulum` as it is packaged",
    "from_sac": "the same on the episodes of the half-trained SAC",
    "sac": "SAC in the environment alone, as many updates per step, the same sizes and rates",
    "shuffled": "RLPD, rewards of the prior data permuted over all rows, less their mean",
    "permuted": "RLPD, rewards of the prior data permuted over all rows",
    "plain": "RLPD with two critics, both in the target, and no LayerNorm",
}
CLUMSY = {"mean return of the clumsy episodes": 58.0}
SECONDS = {"rlpd": 100, "from_sac": 110, "sac": 100, "shuffled": 100, "permuted": 100, "plain": 70}
SHARED_KNOBS = ("batch_size", "hidden_sizes", "buffer_capacity", "learning_starts")
RATES = ("policy_lr", "critic_lr", "temperature_lr")


# --- jobs ------------------------------------------------------------------------------------


def offline_to_online_jobs(options: Options) -> list[Job]:
    return [job for name in MEANING for job in seeded(options, _job, name)]


def _job(options: Options, seed: int, name: str) -> Job:
    spec: dict[str, Any] = {"config": _config(options, name), **evaluation(options)}
    spec["peaks"] = [Q_MEAN]
    if name == "from_sac":
        spec["prior"] = _quick_prior() if options.quick else PRIOR
    if name in ("shuffled", "permuted"):
        spec |= {"shuffle_rewards": True, "centre_rewards": name == "shuffled"}
    return Job(NAME, name, seed, TRAIN, spec, cost=SECONDS[name])


def _quick_prior() -> dict[str, Any]:
    return {**PRIOR, "config": {**PRIOR["config"], "total_timesteps": 1_100}, "episodes": 2}


def _config(options: Options, name: str) -> dict[str, Any]:
    """What a run's config says beyond the defaults."""
    from rl_training.experiment.config import TrainConfig, load_config

    config = load_config(CONFIG)
    knobs = config.params.model_dump(mode="json", exclude_defaults=True)
    values: dict[str, Any] = config.model_dump(mode="json", exclude_defaults=True)
    values |= {"device": "cpu", "threads": 1, "tensorboard": False, "keep_best": False}
    values |= {"checkpoint_interval": 0, "engine": "eager" if options.quick else "compile"}
    if name == "plain":
        knobs |= {"num_critics": 2, "layer_norm": False}
    if name == "sac":
        own = config.algo_kwargs
        knobs = {key: own[key] for key in (*SHARED_KNOBS, *RATES, "gradient_updates_per_step")}
        values |= {"algo": "sac"}
        del values["dataset"]
    if options.quick:
        knobs["learning_starts"] = 100
        values |= {"total_timesteps": 400, "eval_interval": 200, "eval_episodes": 2}
        values["log_interval"] = 100
    values["algo_kwargs"] = knobs
    TrainConfig(**values)  # refused here rather than in a process of its own
    return {key: value for key, value in values.items() if key not in ("seed", "output_dir")}


# --- report ----------------------------------------------------------------------------------


def area(records: Records, job: str) -> list[float]:
    """Mean of a run's evaluations, which are evenly spaced: the area under its curve."""
    return [fmean(record.result["curve"]["return"]) for record in records.of(job)]


def offline_to_online_report(records: Records, figures: Path) -> Section:
    rows = [
        [
            name,
            *seed_columns(returns(records, name)),
            number(fmean(areas), 0) if (areas := area(records, name)) else "–",
            number(max(peaks), 0) if (peaks := _peaks(records, name)) else "–",
            *details(records, name, "env_steps")[1:],
        ]
        for name in MEANING
    ]
    header = ("run", *SEED_HEADER, "area", "highest mean Q", "env steps", "seconds")
    verdicts = (
        gates.every_seed_at_least("rlpd", returns(records, "rlpd"), LEARNS),
        gates.at_least("rlpd on the half-trained SAC's data", returns(records, "from_sac"), LEARNS),
        gates.most_seeds_at_most("sac without prior data", returns(records, "sac"), FAILS),
        gates.at_most("rlpd on shuffled rewards", returns(records, "shuffled"), FAILS),
        gates.better(
            "rlpd's area above that of two critics without LayerNorm",
            area(records, "rlpd"),
            area(records, "plain"),
        ),
    )
    labels = {
        "rlpd": "RLPD, clumsy episodes",
        "from_sac": "RLPD, episodes of half-trained SAC",
        "sac": "SAC, no data",
        "shuffled": "twin: rewards permuted, less their mean",
        "permuted": "twin: rewards permuted",
        "plain": "twin: two plain critics",
    }
    title = "Sparse pendulum, within 10,000 steps"
    prior = next((r.result["prior"] for r in records.of("from_sac")), None)
    quality = (
        f" The half-trained SAC's {prior['episodes']} episodes return {prior['return_mean']:.0f} "
        f"on average ({prior['return_min']:.0f} to {prior['return_max']:.0f})."
        if prior
        else ""
    )
    text = (
        "A pendulum that hangs at the start and is paid 1 per step only while it stands within "
        "0.2 radians; the best policies get about 150 of 200. Mean return of the last policy, "
        f"deterministic, over the same {FINAL_EPISODES} start states for every run. *area* is the "
        "mean of the evaluations during training, every 1,000 steps. The clumsy controller's 30 "
        "episodes return 58 on average." + quality
    )
    finding = (
        "Permuted rewards alone cost area, but not the last return. Our reading: what is in the "
        "data is then paid 0.29 everywhere and what the policy does itself is paid nothing, which "
        "draws it to the states of the data, and so upright, where it finds the true reward. Less "
        "their mean, permuted rewards lead nowhere; that twin has the gate."
    )
    meanings = "\n".join(f"- *{name}*: {meaning}" for name, meaning in MEANING.items())
    gates_table = gates.listing(verdicts)
    parts = (
        text,
        meanings,
        figure(figures / f"{NAME}.png", records, labels, title, marks=CLUMSY),
        table(header, rows),
        finding,
        gates_table,
    )
    return Section("\n\n".join(part for part in parts if part), verdicts)


def _peaks(records: Records, job: str) -> list[float]:
    return [float(record.result["peaks"][Q_MEAN]) for record in records.of(job)]


SUITE = Suite(NAME, "From offline to online", offline_to_online_jobs, offline_to_online_report)
