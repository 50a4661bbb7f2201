"""Train one of our algorithms from a resolved config and evaluate the last policy."""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.prior import prior_data, prior_file
from benchmarks.learning.sabotage import sabotaged
from benchmarks.process import PausedError, Request, answer_job
from rl_training import (
    Callback,
    ManagedAlgorithm,
    TrainConfig,
    TransitionDataset,
    load_transition_dataset,
)
from rl_training.data.demonstrations import demonstrations
from rl_training.experiment.config import DatasetConfig
from rl_training.experiment.seeding import derive_seed
from rl_training.experiment.tracking import METRICS_FILE
from rl_training.runtime.callbacks import StepEvent, TrainResult


def training_data(config: TrainConfig, spec: dict[str, Any]) -> TransitionDataset | None:
    """Data of a job that are not simply the config's; None where they are."""
    if "prior" in spec:
        return prior_data(spec["prior"])
    if "demonstrations" in spec:  # the very steps that an imitation with this seed is shown
        whole = load_transition_dataset(config.dataset or {}, env_id=config.env_id)
        seed = derive_seed(config.seed, "demonstrations")
        return demonstrations(whole, **spec["demonstrations"], seed=seed)
    if not spec.get("shuffle_rewards"):
        return None
    dataset = shuffled_rewards(config)
    if spec.get("centre_rewards"):
        dataset = replace(dataset, rewards=dataset.rewards - dataset.rewards.mean())
    return dataset


def shuffled_rewards(config: TrainConfig) -> TransitionDataset:
    """The config's data with the processed rewards of all rows permuted by the run's seed."""
    assert config.dataset is not None
    unsupported = {"normalize_observations", "returns"}
    changed = unsupported & config.dataset.model_fields_set
    # Data handed over in memory keep no preparation options, so there must be none to keep.
    if any(getattr(config.dataset, key) != _default(key) for key in changed):
        raise ValueError(f"the shuffled twin cannot keep dataset.{min(changed)}")
    dataset = load_transition_dataset(config.dataset, env_id=config.env_id)
    order = np.random.default_rng(config.seed).permutation(len(dataset))
    return replace(dataset, rewards=dataset.rewards[order], name=f"{dataset.name}-shuffled")


def _default(key: str) -> Any:
    return DatasetConfig.model_fields[key].default


def events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    """What the run has logged of one kind, in order."""
    lines = (run_dir / METRICS_FILE).read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def evaluation_curve(run_dir: Path, clock: str) -> dict[str, list[float]]:
    """Clock, mean return and mean length of every evaluation during training."""
    evaluations = events(run_dir, "eval")
    return {
        clock: [event["tick"] for event in evaluations],
        "return": [round(event["eval/return_mean"], 2) for event in evaluations],
        "length": [round(event["eval/length_mean"], 1) for event in evaluations],
    }


def played(logged: list[dict[str, Any]]) -> dict[str, Any]:
    """Scores of whole games while they were learned from, where they are not the returns: their
    mean over the last twentieth of the steps, and a curve of as many points."""
    scored = [e for e in logged if "rollout/score_mean" in e]
    if not scored:
        return {}
    width = logged[-1]["tick"] / POINTS
    parts: dict[int, list[dict[str, Any]]] = {}
    for event in scored:
        parts.setdefault(math.ceil(event["tick"] / width), []).append(event)
    means = {
        part: sum(e["rollout/episodes"] * e["rollout/score_mean"] for e in found)
        / sum(e["rollout/episodes"] for e in found)
        for part, found in sorted(parts.items())
    }
    steps = [found[-1]["tick"] for _, found in sorted(parts.items())]
    curve = {"env_steps": steps, "return": [round(mean, 2) for mean in means.values()]}
    return {"training_score": curve["return"][-1], "training_curve": curve}


POINTS = 20


def quality(dataset: TransitionDataset) -> dict[str, float]:
    """What a data set is worth, by its episodes."""
    found = dataset.episode_returns()
    ends = {"return_min": float(found.min()), "return_max": float(found.max())}
    return {"episodes": len(found), "return_mean": float(found.mean()), **ends}


def mean_state(agent: ManagedAlgorithm, spec: dict[str, Any]) -> list[float]:
    """Where the last policy is on average, by component of the observation."""
    seen = agent.collect(episodes=spec["final_episodes"], seed=spec["eval_seed"]).observations
    return [round(float(x), 4) for x in seen.mean(0)]


class Limit(Callback):
    """Ends a run after some minutes of it."""

    def __init__(self, minutes: float | None) -> None:
        self.until = None if minutes is None else time.monotonic() + 60.0 * minutes

    def on_step(self, event: StepEvent) -> None:
        if self.until is not None and time.monotonic() >= self.until:
            event.request_stop(PIECE_ENDS)


PIECE_ENDS = "the end of a piece"


def learned_in_pieces(
    config: TrainConfig, folder: Path, minutes: float | None
) -> tuple[ManagedAlgorithm, TrainResult]:
    """A whole run, of which this process makes one piece and raises `PausedError` after it."""
    folder.mkdir(parents=True, exist_ok=True)
    limit, begun = Limit(minutes), sorted(folder.glob("*/checkpoints/[0-9]*"))
    if begun:
        agent = ManagedAlgorithm.resume(
            begun[-1].parents[1], progress=False, callbacks=[limit], trust=True
        )
        assert agent.result is not None
        trained = agent.result
    else:
        agent = ManagedAlgorithm(config.replace(output_dir=str(folder)))
        trained = agent.learn(progress=False, callbacks=[limit])
    total = config.total_timesteps or 0
    if trained.stop_reason == PIECE_ENDS and trained.env_steps < total:
        raise PausedError(f"{trained.env_steps:,} of {total:,} steps")
    return agent, trained


def work(request: Request) -> dict[str, Any]:
    spec = request.spec
    if "folder" in request.inputs:
        return piece(request)
    if "path" in request.inputs:  # where a data file lies is not what it holds
        spec["config"]["dataset"]["path"] = request.inputs["path"]
    config = TrainConfig(**spec["config"], seed=request.seed, output_dir=str(request.scratch))
    dataset = training_data(config, spec)
    agent = ManagedAlgorithm(config, dataset=dataset)
    with sabotaged(spec.get("sabotage")):
        trained = agent.learn(progress=False)
    return judged(agent, trained, spec, dataset)


def piece(request: Request) -> dict[str, Any]:
    """The next piece of a long run; what it came to, with the last one."""
    spec = request.spec
    if "prior" in spec:
        spec["config"]["dataset"] = {"kind": "npz", "path": str(prior_file(spec["prior"]))}
    # no evaluation at the end of a piece, which would cost time and be one more of the curve
    config = TrainConfig(**spec["config"], seed=request.seed).replace(final_eval=False)
    folder, minutes = Path(request.inputs["folder"]), request.inputs.get("minutes")
    with sabotaged(spec.get("sabotage")):
        agent, trained = learned_in_pieces(config, folder, minutes)
    dataset = prior_data(spec["prior"]) if "prior" in spec else None
    result = judged(agent, trained, spec, dataset)
    shutil.rmtree(folder)
    return result


def judged(
    agent: ManagedAlgorithm,
    trained: TrainResult,
    spec: dict[str, Any],
    dataset: TransitionDataset | None,
) -> dict[str, Any]:
    """Evaluate the last policy of a run and say how it came about."""
    likeliest = not spec.get("drawn", False)
    final = agent.evaluate(spec["final_episodes"], seed=spec["eval_seed"], deterministic=likeliest)
    curve = evaluation_curve(trained.run_dir, "env_steps" if trained.env_steps else "updates")
    logged = events(trained.run_dir, "train")
    last = logged[-1]
    print(f"return {final.return_mean:,.1f}, {trained.wall_seconds:.0f} s of training")
    prior = {"prior": quality(dataset)} if "prior" in spec and dataset is not None else {}
    peaks = {name: max(e[name] for e in logged if name in e) for name in spec.get("peaks", ())}
    watched: dict[str, Any] = {}
    if spec.get("watch_states"):
        watched["mean_state"] = mean_state(agent, spec)
    if spec.get("also_drawn"):
        options = {"seed": spec["eval_seed"], "deterministic": False}
        watched["drawn_return"] = agent.evaluate(spec["final_episodes"], **options).return_mean
    return {
        **prior,
        **watched,
        **played(logged),
        "peaks": peaks,
        "return_mean": final.return_mean,
        "return_std": final.return_std,
        # a walker that stands still and one that falls may have the same return
        "length_mean": float(np.mean(final.lengths)),
        "episodes": final.episodes,
        "best_eval": max(curve["return"]),
        "updates": trained.updates,
        "env_steps": trained.env_steps,
        "train_seconds": round(trained.wall_seconds, 1),
        "engine": agent.config.engine,
        "last_metrics": {name: last[name] for name in spec.get("metrics", ())},
        "curve": curve,
    }


if __name__ == "__main__":
    answer_job(work, ("rl-training", "torch", "numpy", "gymnasium"))
