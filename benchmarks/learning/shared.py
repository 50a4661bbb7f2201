"""What the learning suites share: the start states of the gates, and parts of their reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import gates
from benchmarks.figures import Curve, Marks, Other, draw_curves
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


def curves_of(
    records: Records, jobs: Mapping[str, str], clock: str, kind: str = "curve"
) -> dict[str, list[Curve]]:
    """The evaluations during training, or another curve of those that have it, by the label of
    each job that has run."""
    found: dict[str, list[Curve]] = {}
    for job, label in jobs.items():
        results = [r.result for r in records.of(job)]
        curves: Iterable[dict[str, Any]] = [r.get(kind, r["curve"]) for r in results]
        if curves:
            found[label] = [(curve[clock], curve["return"]) for curve in curves]
    return found


AXES = {"env_steps": "environment steps", "updates": "updates"}


def figure(
    path: Path,
    records: Records,
    labels: Mapping[str, str],
    title: str,
    clock: str = "env_steps",
    marks: Marks | None = None,
    axis: str | None = None,
    kind: str = "curve",
    beside: Mapping[str, Sequence[Other]] | None = None,
) -> str:
    """Markdown of the figure of some jobs, by their names in words; empty where there is none.

    Its title says with how many seeds and which versions they ran.
    """
    curves, axis = curves_of(records, labels, clock, kind), axis or AXES[clock]
    title = f"{title}\n{origin(records, labels)}"
    ylabel = "return, mean and range over seeds"
    if not curves or not draw_curves(path, curves, title, ylabel, axis, marks or {}, beside):
        return ""
    return f"![{title.splitlines()[0]}: return over {axis}]({path.parent.name}/{path.name})"


def origin(records: Records, jobs: Iterable[str], seeds: str | None = None) -> str:
    """Seeds and versions of jobs in words."""
    runs = {job: found for job in jobs if (found := records.of(job))}
    counts = sorted({len(found) for found in runs.values()})
    several = " to ".join(str(count) for count in dict.fromkeys(counts[:1] + counts[-1:]))
    named = [seeds or f"{several} seed{'s' if several != '1' else ''}"]
    for package in ("rl-training", "torch", "gymnasium"):
        all_versions = [r.versions.get(package, "") for found in runs.values() for r in found]
        # a machine may have run the sources without an installed package
        known = sorted({v.partition("+")[0] for v in all_versions if v[:1].isdigit()})
        named += [f"{package} {' and '.join(known)}"] if known else []
    return ", ".join(named)
