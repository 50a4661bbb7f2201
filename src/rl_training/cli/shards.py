"""Collects a data set in shards and shows how far it is."""

from __future__ import annotations

from pathlib import Path

from rl_training.api.managed import load
from rl_training.cli.launchers import Wanted
from rl_training.cli.options import out
from rl_training.experiment.console import ProgressConsole
from rl_training.experiment.errors import DataError
from rl_training.experiment.storage import refuse_url
from rl_training.runtime.collection import Behaviour
from rl_training.search.batch import run_jobs
from rl_training.search.shards import CollectionPlan, ShardFolder, counts, shard_file


def collect_shards(folder: Path, plan: CollectionPlan, wanted: Wanted, *, shown: bool) -> None:
    """Write all shards of the plan that are not there yet."""
    refuse_url(folder, "shards are written to a folder")
    if folder.suffix != ".parquet":
        raise DataError(
            f"target '{folder}': shards are a folder of Parquet files, which is found as a data "
            f"set by its name; end it in .parquet, such as '{folder.with_suffix('.parquet')}'"
        )
    agent = load(plan.checkpoint, device="cpu", trust=plan.trust)
    Behaviour(plan.deterministic, plan.noise, plan.epsilon).check(agent.algorithm)
    if agent.algorithm.spaces.is_image:
        raise DataError(
            f"--shard: '{agent.config.env_id}' has image observations, which tables do not hold; "
            "collect one file that ends in .npz or .hdf5 instead"
        )
    launcher = wanted.launcher(folder, plan.shards)
    target = ShardFolder(folder, plan)
    progress = ShardProgress(target, shown)
    out.print(f"{plan.shards:,} shards in {folder}, {launcher.words}", soft_wrap=True)
    try:
        run_jobs(target.jobs(launcher.workers), launcher, progress.look)
    finally:
        progress.stop()
    out.print(f"{progress.summary()}; train on them with dataset={folder}", soft_wrap=True)


class ShardProgress(ProgressConsole):
    """Counts what the shards hold, as they appear."""

    def __init__(self, target: ShardFolder, shown: bool) -> None:
        super().__init__()
        self._target, self._shown = target, shown
        self._open = set(range(target.plan.shards))
        self._sums = dict.fromkeys(("steps", "episodes", "returns", "squares"), 0.0)
        self.look()
        if shown:
            self.start("collecting", target.plan.amount, self._done, target.plan.unit)

    @property
    def _done(self) -> int:
        return int(self._sums[self._target.plan.unit]) if self._sums["steps"] else 0

    def look(self) -> None:
        missing = set(self._target.missing())
        for index in self._open - missing:
            for key, value in counts(shard_file(self._target.folder, index)).items():
                self._sums[key] += value
        self._open = missing
        if self._shown and hasattr(self, "_began"):
            self.advance(self._done, self._returns())

    def _returns(self) -> str:
        episodes = self._sums["episodes"]
        if not episodes:
            return ""
        mean = self._sums["returns"] / episodes
        std = max(0.0, self._sums["squares"] / episodes - mean**2) ** 0.5
        return f"return {mean:,.1f} ± {std:,.1f}"

    def summary(self) -> str:
        """Shards, steps and returns in one line."""
        done = self._target.plan.shards - len(self._open)
        text = f"{done:,} shards, {int(self._sums['steps']):,} steps"
        return ", ".join(part for part in (text, self._returns()) if part)
