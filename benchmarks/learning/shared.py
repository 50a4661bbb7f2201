"""What the learning suites share: the start states of the gates, and parts of their reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import gates
from benchmarks.figures import Curve, draw_curves
from benchmarks.jobs import Job, Records
from benchmarks.markdown import mean, number, seed_columns
from benchmarks.suites import Options

TRAIN = "benchmarks.learning.train_job"
FINAL_EPISODES, EVAL_SEED = 50, 1000

PEER_GATE = (
    "The gate: our mean is at least theirs; less than one standard error of the difference "
    "below still passes, and is marked."
)


def seeded(options: Options, make: Callable[..., Job], *arguments: str) -> list[Job]:
    """One job per seed."""
    return [make(options, seed, *arguments) for seed in options.seeds]


def evaluation(options: Options) -> dict[str, int]:
    """The part of a spec that says how the last policy is evaluated."""
    return {"final_episodes": 4 if options.quick else FINAL_EPISODES, "eval_seed": EVAL_SEED}


def stated(config: Any) -> dict[str, Any]:
    """What a config says beyond the defaults, so that a key the package gains changes nothing."""
    values: dict[str, Any] = config.model_dump(mode="json", exclude_defaults=True)
    values["algo_kwargs"] = config.params.model_dump(mode="json", exclude_defaults=True)
    return {key: value for key, value in values.items() if key not in ("seed", "output_dir")}


def on_gpu(
    name: str,
    options: Options,
    changes: Mapping[str, Any],
    quick: Mapping[str, Any],
    quick_knobs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A packaged config for a spec, that keeps nothing beside its curve."""
    from rl_training.experiment.config import load_config

    config = load_config(name)
    values: dict[str, Any] = config.model_dump(mode="json", exclude_defaults=True)
    values |= {"device": "cuda", "tensorboard": False, "keep_best": False}
    values |= {"checkpoint_interval": 0, **changes}
    knobs = config.params.model_dump(mode="json", exclude_defaults=True)
    if options.quick:
        values |= quick
        knobs |= quick_knobs or {}
    values["algo_kwargs"] = knobs
    return {key: value for key, value in values.items() if key not in ("seed", "output_dir")}


def peer_inputs(options: Options, eval_episodes: int) -> dict[str, list[int]]:
    """The start states that ours is evaluated from, at the end and during training."""
    from rl_training.runtime.evaluation import SELECTION_STATES

    return {
        "reset_seeds": _reset_seeds(EVAL_SEED, evaluation(options)["final_episodes"]),
        "curve_seeds": _reset_seeds(SELECTION_STATES, eval_episodes),
    }


def _reset_seeds(seed: int, episodes: int) -> list[int]:
    from rl_training.runtime.evaluation import start_seed

    return [start_seed(seed, i) for i in range(episodes)]


# --- report ----------------------------------------------------------------------------------


def returns(records: Records, job: str) -> list[float]:
    """Mean return of the last policy, per seed."""
    return records.values(job, "return_mean")


def details(records: Records, job: str, clock: str = "updates") -> list[str]:
    """Best evaluation, clock and seconds of training, each as its mean over seeds."""
    return [mean(records.values(job, key)) for key in ("best_eval", clock, "train_seconds")]


def peer_header(peer: str) -> tuple[str, ...]:
    """Of a table whose rows come from `peer_row`."""
    compared = ("ours", "seeds", peer, "seeds", "difference", "standard error")
    return ("algorithm", *compared, "our s", f"{peer} s", "gate")


def peer_row(
    records: Records,
    label: str,
    jobs: tuple[str, str],
    verdict: gates.Verdict,
    theirs: Sequence[float],
    note: str = "",
) -> list[str]:
    """Ours and a peer's job side by side; `theirs` are the returns that count as the peer's."""
    job, peer_job = jobs
    ours = returns(records, job)
    difference = fmean(ours) - fmean(theirs) if ours and theirs else None
    error = gates.standard_error(ours, theirs) if difference is not None else None
    return [
        label,
        *seed_columns(ours)[:2],
        *seed_columns(theirs)[:2],
        number(difference),
        number(error),
        mean(records.values(job, "train_seconds")),
        mean(records.values(peer_job, "train_seconds")),
        verdict.text + note,
    ]


def curves_of(records: Records, jobs: Mapping[str, str], clock: str) -> dict[str, list[Curve]]:
    """The evaluations during training, by the label of each job that has run."""
    found: dict[str, list[Curve]] = {}
    for job, label in jobs.items():
        curves: Iterable[dict[str, Any]] = [r.result["curve"] for r in records.of(job)]
        if curves:
            found[label] = [(curve[clock], curve["return"]) for curve in curves]
    return found


def figure(path: Path, curves: Mapping[str, Sequence[Curve]], title: str, clock: str) -> str:
    """Markdown of the figure that it draws; empty where there is none."""
    ylabel = "return, mean and range over seeds"
    if not curves or not draw_curves(path, curves, title, ylabel, clock):
        return ""
    return f"![Return over {clock}]({path.parent.name}/{path.name})"
