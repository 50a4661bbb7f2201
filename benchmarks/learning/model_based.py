"""Learned models: MBPO beside SAC, MOPO beside itself without its penalty, and spoilt twins.

MBPO's gain is partly that it updates often, so SAC with as many updates per step stands beside it.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import gates
from benchmarks.jobs import Job, Records
from benchmarks.learning.sabotage import MEANING as SABOTAGE
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

NAME = "model_based"
SWINGS_UP, SHARE_OF_STEPS = -200.0, 0.6
SPOILT = -400.0
BALANCES = 1000.0
FROM_DATA = -300.0
SAC_STEPS = 12_000
EVAL_EVERY = 250

MEANING = {
    "mbpo": "`mbpo/pendulum` as it is packaged",
    "sac": "SAC with one update per step, the same sizes and rates, for three times the steps",
    "sac-often": "SAC with as many updates per step as MBPO",
    "mbpo-shuffled": f"MBPO, and {SABOTAGE['shuffled']}",
    "mbpo-untrained": f"MBPO, and {SABOTAGE['untrained']}",
    "balance": "`mbpo/inverted_pendulum` as it is packaged",
    "balance-never": "the same with a model that never ends an episode",
    "balance-blind": "the same, and no real row, which would show ends, in a minibatch",
    "balance-seen": "as *balance-blind*, with known ends",
    "balance-v4-never": "as *balance-never*, on InvertedPendulum-v4: the same physics and ends, "
    "but it pays 1 also for the step in which the pole falls",
    "balance-v4": "that task with known ends, and no real row in a minibatch",
    "balance-v4-blind": "the same with a model that never ends an episode, so that nothing tells",
    "mopo": "`mopo/pendulum` as it is packaged",
    "mopo-free": "the same with `penalty_coef` 0",
}
SECONDS = {
    "mbpo": 100,
    "sac": 40,
    "sac-often": 70,
    "mbpo-shuffled": 100,
    "mbpo-untrained": 80,
    "balance": 220,
    "balance-never": 220,
    "balance-blind": 220,
    "balance-seen": 220,
    "balance-v4-never": 220,
    "balance-v4": 220,
    "balance-v4-blind": 220,
    "mopo": 130,
    "mopo-free": 130,
}
SHARED_KNOBS = (
    "batch_size",
    "hidden_sizes",
    "learning_starts",
    "policy_lr",
    "critic_lr",
    "temperature_lr",
)
BALANCING = ("balance", "balance-seen", "balance-v4")
FALLING = ("balance-blind", "balance-v4-blind")
LABELS = {
    "mbpo": "MBPO",
    "sac": "SAC",
    "sac-often": "SAC, as many updates as MBPO",
    "mbpo-shuffled": "MBPO's twin: model of shuffled data",
    "mbpo-untrained": "MBPO's twin: untrained model",
}
PENDULUM = tuple(LABELS)


# --- jobs ------------------------------------------------------------------------------------


def model_based_jobs(options: Options) -> list[Job]:
    return [job for name in MEANING for job in seeded(options, _job, name)]


def _job(options: Options, seed: int, name: str) -> Job:
    spec: dict[str, Any] = {"config": _config(options, name), **evaluation(options)}
    if name in ("mbpo-shuffled", "mbpo-untrained"):
        spec["sabotage"] = name.partition("-")[2]
    return Job(NAME, name, seed, TRAIN, spec, cost=SECONDS[name])


def _config(options: Options, name: str) -> dict[str, Any]:
    """What a run's config says beyond the defaults."""
    from rl_training.experiment.config import TrainConfig, load_config

    packaged = {"balance": "mbpo/inverted_pendulum", "mopo": "mopo/pendulum"}
    config = load_config(packaged.get(name.partition("-")[0], "mbpo/pendulum"))
    knobs = config.params.model_dump(mode="json", exclude_defaults=True)
    values: dict[str, Any] = config.model_dump(mode="json", exclude_defaults=True)
    values |= {"device": "cpu", "threads": 1, "tensorboard": False, "keep_best": False}
    values |= {"checkpoint_interval": 0, "engine": "eager"}
    if name in PENDULUM:
        values["eval_interval"] = EVAL_EVERY
    if name.startswith("sac"):
        often = config.algo_kwargs["gradient_updates_per_step"] if name == "sac-often" else 1.0
        knobs = {key: config.algo_kwargs[key] for key in SHARED_KNOBS}
        values["algo"] = "sac"
        if name == "sac":
            values["total_timesteps"] = SAC_STEPS
        knobs |= {
            "gradient_updates_per_step": often,
            "buffer_capacity": values["total_timesteps"],
        }
    if name == "mbpo-untrained":
        knobs["real_ratio"] = 0.0
    if name.startswith("balance-v4"):
        values["env_id"] = "InvertedPendulum-v4"
    if name.startswith("balance") and name.endswith(("never", "blind")):
        knobs["termination"] = "never"
    if name.endswith(("blind", "seen")) or name == "balance-v4":
        knobs["real_ratio"] = 0.0
    if name == "mopo-free":
        knobs["penalty_coef"] = 0.0
    if options.quick:
        _shorten(values, knobs)
    values["algo_kwargs"] = knobs
    TrainConfig(**values)  # refused here rather than in a process of its own
    return {key: value for key, value in values.items() if key not in ("seed", "output_dir")}


def _shorten(values: dict[str, Any], knobs: dict[str, Any]) -> None:
    values |= {"eval_interval": 100, "eval_episodes": 2, "log_interval": 100}
    if "total_timesteps" in values:
        knobs["learning_starts"] = 100
        values["total_timesteps"] = 200
    else:
        values["total_updates"] = 200
    if values["algo"] != "sac":
        knobs |= {"model_max_epochs": 2, "rollout_batch_size": 500}


# --- report ----------------------------------------------------------------------------------


def steps_to(records: Records, job: str, bound: float) -> list[float]:
    """Environment steps at the first evaluation that reaches the bound; without one, the budget."""
    found = []
    for record in records.of(job):
        curve = record.result["curve"]
        reached = (
            step
            for step, value in zip(curve["env_steps"], curve["return"], strict=True)
            if value >= bound
        )
        found.append(float(next(reached, record.result["env_steps"])))
    return found


def sooner(records: Records) -> gates.Verdict:
    gate = f"mbpo reaches {SWINGS_UP:g} in at most {SHARE_OF_STEPS:g} times sac's steps"
    ours, theirs = (steps_to(records, name, SWINGS_UP) for name in ("mbpo", "sac"))
    if not ours or not theirs:
        return gates.Verdict.missing(gate)
    passed = fmean(ours) <= SHARE_OF_STEPS * fmean(theirs)
    text = f"{fmean(ours):,.0f} against {fmean(theirs):,.0f}"
    return gates.Verdict(gate, passed, text)


def _balancing(records: Records, name: str) -> gates.Verdict:
    found = records.values(name, "best_eval")
    return gates.every_seed_at_least(f"{name}, best evaluation", found, BALANCES)


def _not_balancing(records: Records, name: str) -> gates.Verdict:
    found = records.values(name, "best_eval")
    return gates.every_seed_at_most(f"{name}, best evaluation", found, BALANCES - 1.0)


def model_based_report(records: Records, figures: Path) -> Section:
    rows = []
    for name in MEANING:
        steps = steps_to(records, name, SWINGS_UP) if name in PENDULUM else []
        cells = [*seed_columns(returns(records, name)), *details(records, name, "env_steps")]
        rows.append([name, *cells, number(fmean(steps), 0) if steps else "–"])
    header = ("run", *SEED_HEADER, "best", "env steps", "seconds", f"steps to {SWINGS_UP:g}")
    verdicts = (
        gates.every_seed_at_least("mbpo", returns(records, "mbpo"), SWINGS_UP),
        sooner(records),
        gates.at_most("mbpo on shuffled next states", returns(records, "mbpo-shuffled"), SPOILT),
        gates.at_most("mbpo in an untrained model", returns(records, "mbpo-untrained"), SPOILT),
        *(_balancing(records, name) for name in BALANCING),
        *(_not_balancing(records, name) for name in ("balance-never", *FALLING)),
        gates.at_least("mopo", returns(records, "mopo"), FROM_DATA),
        gates.better(
            "mopo above itself without the penalty",
            returns(records, "mopo"),
            returns(records, "mopo-free"),
        ),
    )
    text = (
        "Mean return of the last policy, deterministic, over the same "
        f"{FINAL_EPISODES} start states for every run. *best* is the best evaluation during "
        "training (10 episodes), *steps to* the first evaluation that good, every "
        f"{EVAL_EVERY} steps, and the whole budget where there was none."
    )
    finding = (
        "*sac-often* needs about as few steps as *mbpo*: on this small task what is gained over "
        "*sac* is gained by updating often, and that the model is worth something is shown by the "
        "spoilt ones alone.\n\n"
        "Why *balance-never* balances: one row in twenty of a minibatch is real, with its true "
        "end, and those rows suffice. Without real rows nothing but the termination function "
        "tells where an episode ends, and nothing else differs between *balance-seen* and "
        "*balance-blind*: a fall costs one reward, and no row begins in the states behind it, "
        "whose values nothing corrects. That pair asks what the gate on *balance-never* was meant "
        "to ask; both are kept. One seed of *balance-blind* balances half of the run and loses it "
        "again: on v5 the reward of a fall tells, too. InvertedPendulum-v4, where not even the "
        "reward tells, has a pair of its own, which separates in every seed. MOPO and its twin "
        "hardly differ: data of which half are random actions leave a model of this task little "
        "to doubt."
    )
    parts = (
        text,
        "\n".join(f"- *{name}*: {meaning}" for name, meaning in MEANING.items()),
        figure(figures / f"{NAME}.png", records, LABELS, "Pendulum-v1, steps in the environment"),
        table(header, rows),
        finding,
        gates.listing(verdicts),
    )
    return Section("\n\n".join(part for part in parts if part), verdicts)


SUITE = Suite(NAME, "Learned models", model_based_jobs, model_based_report)
