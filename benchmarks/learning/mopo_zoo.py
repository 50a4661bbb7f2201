"""MOPO and its twins on locomotion data of mixed quality, and learned ends of the same data.

Needs a GPU and the data of the suite `zoo`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import gates
from benchmarks.jobs import Job, Records
from benchmarks.learning.shared import TRAIN, details, figure, returns, seeded
from benchmarks.learning.zoo import TASKS, behaviour, data_file
from benchmarks.markdown import SEED_HEADER, mean, seed_columns, table
from benchmarks.speed.ratios import only
from benchmarks.suites import Options, Section, Suite

NAME = "mopo_zoo"
UPDATES, EVALUATIONS, FINAL_EPISODES, EVAL_SEED = 100_000, 10, 20, 1000
FOLDS, RECALL = 5, 0.9
VARIANTS: dict[str, dict[str, Any]] = {
    "mopo": {},
    "strict": {"penalty_coef": 5.0},
    "std": {"penalty": "learned_std"},
    "free": {"penalty_coef": 0.0},
}
LABELS = {
    "mopo": "MOPO",
    "strict": "MOPO, penalty 5",
    "std": "MOPO, penalty by learned standard deviation",
    "free": "twin: no penalty",
}
MEANING = {
    "mopo": "MOPO with its default knobs",
    "strict": "the same with `penalty_coef` 5",
    "std": "the same with the paper's penalty, `learned_std`",
    "free": "the same with `penalty_coef` 0",
}
METRICS = ("train/q_mean", "imagined/penalty_mean", "imagined/reward_mean", "model/epochs")
ENDS = "ends-hopper"


def mopo_zoo_jobs(options: Options) -> list[Job]:
    names = [f"{variant}-{task}" for task in TASKS for variant in VARIANTS]
    return [_ends_job(options), *(job for name in names for job in seeded(options, _job, name))]


def _job(options: Options, seed: int, name: str) -> Job:
    variant, task = name.split("-")
    updates = 200 if options.quick else UPDATES
    knobs = dict(VARIANTS[variant])
    if options.quick:
        knobs |= {"model_max_epochs": 1, "rollout_batch_size": 500}
    config = {
        "algo": "mopo",
        "env_id": TASKS[task][0],
        "dataset": {"kind": "npz"},
        "algo_kwargs": knobs,
        "total_updates": updates,
        "eval_interval": updates // EVALUATIONS,
        "eval_episodes": 2 if options.quick else 10,
        "log_interval": updates // EVALUATIONS,
        "final_eval": False,
        "keep_best": False,
        "tensorboard": False,
        "device": "cuda",
        "engine": "graph",
    }
    spec: dict[str, Any] = {"config": config, "eval_seed": EVAL_SEED, "metrics": METRICS}
    spec["final_episodes"] = 2 if options.quick else FINAL_EPISODES
    return Job(NAME, name, seed, TRAIN, spec, inputs=data_file(task), gpu=True, cost=300)


def _ends_job(options: Options) -> Job:
    spec = {
        "folds": FOLDS,
        "knobs": {"model_max_epochs": 1 if options.quick else 30},
        "device": "cuda",
    }
    module = "benchmarks.learning.ends_job"
    return Job(NAME, ENDS, 0, module, spec, inputs=data_file("hopper"), gpu=True, cost=300)


def mopo_zoo_report(records: Records, figures: Path) -> Section:
    rows, verdicts, drawn = [], [], []
    for task in TASKS:
        jobs = {variant: f"{variant}-{task}" for variant in VARIANTS}
        for variant, job in jobs.items():
            last = [record.result["last_metrics"] for record in records.of(job)]
            watched = [mean([metrics[name] for metrics in last], 1) for name in METRICS[:3]]
            cells = [*seed_columns(returns(records, job)), *details(records, job), *watched]
            rows.append([task, variant, *cells])
        verdicts.append(
            gates.clearly_better(
                f"mopo on {task} above itself without the penalty",
                returns(records, jobs["mopo"]),
                returns(records, jobs["free"]),
            )
        )
        labels = {job: LABELS[variant] for variant, job in jobs.items()}
        title = f"MOPO on {TASKS[task][1].removesuffix('.npz')}"
        path, marks = figures / f"{NAME}-{task}.png", behaviour(task)
        drawn.append(figure(path, records, labels, title, "updates", marks))
    ends = only(records, ENDS)
    found = [ends.result["recall"]] if ends else []
    verdicts.append(gates.at_least("recall of ends held out of Hopper's data", found, RECALL))
    header = (
        "data",
        "run",
        *SEED_HEADER,
        "best",
        "updates",
        "seconds",
        "Q",
        "penalty",
        "imagined reward",
    )
    text = (
        f"{UPDATES:,} updates of SAC in a model of 100,000 logged steps, rollouts of five steps; "
        f"mean return of the last policy over {FINAL_EPISODES} start states. *Q*, *penalty* and "
        "*imagined reward* are those of the last updates and the last round of rollouts. Runs "
        "share the card."
    )
    parts = [
        text,
        "\n".join(f"- *{name}*: {meaning}" for name, meaning in MEANING.items()),
        *drawn,
        table(header, rows),
    ]
    if ends:
        r = ends.result
        parts.append(
            f"Learned ends (`termination: learned`), default widths, on Hopper's data with whole "
            f"episodes held out, each of the {r['ends']} ends once in {FOLDS} fits: recall "
            f"{r['recall']:.3f}, precision {r['precision']:.3f}."
        )
    parts.append(gates.listing(verdicts))
    return Section("\n\n".join(part for part in parts if part), tuple(verdicts))


SUITE = Suite(NAME, "MOPO on mixed locomotion data", mopo_zoo_jobs, mopo_zoo_report)
