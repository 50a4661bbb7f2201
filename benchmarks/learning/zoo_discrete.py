"""BC, AWR and MARWIL on mixed data with Discrete actions, five seeds in one batched run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmarks import gates
from benchmarks.figures import Interval, draw_intervals
from benchmarks.jobs import Job, Records
from benchmarks.learning.shared import origin
from benchmarks.learning.zoo import FOLDER, MODULE, interval
from benchmarks.markdown import NO_VALUE, table
from benchmarks.speed.ratios import only
from benchmarks.suites import Options, Section, Suite

NAME, FILE, TASK = "zoo_discrete", "lunarlander-mixed-zoo.npz", "LunarLander-v3"
SEEDS, UPDATES, EVALUATIONS, EPISODES = (0, 1, 2, 3, 4), 4_000, 4, 10
ALGORITHMS = ("bc", "awr", "marwil")
DATA_RETURN = 101
"""Mean return of the episodes, by five policies of mean returns from 78 to 147."""


def zoo_discrete_jobs(options: Options) -> list[Job]:
    """One job per algorithm, with all seeds in it."""
    updates = 40 if options.quick else UPDATES
    path = {"path": str(Path(os.environ.get(FOLDER, ".")).resolve() / FILE)}
    jobs = []
    for algo in ALGORITHMS:
        config: dict[str, Any] = {
            "algo": algo,
            "env_id": TASK,
            "dataset": {"kind": "npz", "normalize_observations": True},
            "total_updates": updates,
            "eval_interval": updates // EVALUATIONS,
            "eval_episodes": 1 if options.quick else EPISODES,
            "keep_best": False,
            "tensorboard": False,
            "device": "cpu",
            "threads": 1,
        }
        spec = {"config": config, "seeds": list(SEEDS)}
        jobs.append(Job(NAME, algo, 0, MODULE, spec, inputs=path, cost=300, timeout=7200))
    return jobs


def zoo_discrete_report(records: Records, figures: Path) -> Section:
    rows, verdicts, panel = [], [], {}
    for algo in ALGORITHMS:
        record = only(records, algo)
        r: dict[str, Any] = record.result if record else {}
        cells, ends = [NO_VALUE] * 4, []
        if r:
            cells = [
                interval(r["last"]["mean"]),
                interval(r["last"]["iqm"]),
                interval(r["best"]["mean"]),
                f"{r['seconds']:,.0f} s",
            ]
            ends = [r["last"]["mean"]["value"]]
            shown = (r["last"]["mean"], r["best"]["mean"])
            panel[algo.upper()] = [Interval(x["value"], x["low"], x["high"]) for x in shown]
        verdict = gates.at_least(f"{algo.upper()}: last return", ends, DATA_RETURN)
        verdicts.append(verdict)
        rows.append([algo.upper(), *cells, verdict.text])
    text = (
        f"100,000 steps of {TASK} by five policies of mean returns 78 to 147; the data's mean "
        f"return is {DATA_RETURN}. {UPDATES:,} updates of {len(SEEDS)} seeds in one batched run "
        f"(`learn_seeds`), default knobs, standardised observations; {EPISODES} episodes per "
        f"evaluation and seed, {EVALUATIONS} evaluations, of which the last and each seed's best "
        "are given with 95% bootstrap intervals over seeds. The gate asks for the data's mean."
    )
    header = ("algorithm", "last, mean", "last, IQM", "best, mean", "five seeds in", "gate")
    parts = [text, table(header, rows)]
    image = figures / f"{NAME}.png"
    if panel:
        title = f"Mixed data of {TASK}\n{origin(records, list(ALGORITHMS), f'{len(SEEDS)} seeds')}"
        marks = {TASK: {"mean of the data": float(DATA_RETURN)}}
        if draw_intervals(
            image, {TASK: panel}, ("last evaluation", "best evaluation"), title, marks
        ):
            parts.insert(1, f"![Returns with intervals]({figures.name}/{image.name})")
    return Section("\n\n".join(parts), tuple(verdicts))


SUITE = Suite(
    NAME, "BC, AWR and MARWIL on mixed data of LunarLander", zoo_discrete_jobs, zoo_discrete_report
)
