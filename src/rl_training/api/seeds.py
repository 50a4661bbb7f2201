"""Several agents at once, one per seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.api.initial import begin
from rl_training.api.managed import ManagedAlgorithm
from rl_training.api.options import refuse_changes, with_options
from rl_training.api.run_folders import (
    announce,
    removed_on_failure,
    with_absolute_paths,
    with_data_kept,
    with_paths_found,
)
from rl_training.api.support import (
    check_checkpoints,
    refuse_spent,
    refused_if_unfit,
    spent_budget_named,
    version_note,
)
from rl_training.data.dataset import TransitionDataset
from rl_training.experiment.checkpoint_store import CheckpointStore
from rl_training.experiment.config import DatasetConfig, TrainConfig, load_config, whole_number
from rl_training.experiment.console import Console, ProgressConsole
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.lock import working_in
from rl_training.experiment.sinks import make_sinks
from rl_training.experiment.storage import local_run
from rl_training.experiment.tracking import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    create_run_folder,
    read_run_config,
    reraise_os_error,
    write_run_config,
)
from rl_training.experiment.trust import refuse_unknown_modules
from rl_training.reports.live import LiveReport
from rl_training.runtime.build import build_algorithm, build_clock, run_scope, task_spaces
from rl_training.runtime.seeds import SeedsResult, seed_config, seed_folder, seeds_trainer


def learn_seeds(
    source: str | Path | TrainConfig,
    seeds: int | Sequence[int] | None = None,
    *,
    dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | str | Path | None = None,
    progress: bool = True,
    **options: Any,
) -> SeedsResult:
    """Train one agent per seed, all in one batched update: of an offline algorithm, or in worlds
    on the device.

    `source` is a packaged config such as "iql/pendulum", a YAML file or a `TrainConfig`;
    `seeds` a number of agents, counted from the config's seed, or the seeds themselves. Each
    agent has a run folder `seed-N` in the run folder of all, and is what a run of its own
    with that seed would have made, to within rounding: `rl_training.load` takes either.
    """
    config = source if isinstance(source, TrainConfig) else load_config(source)
    config = with_options(config, options, config.algo)
    config = config.replace(seeds=list(chosen_seeds(config, seeds)))
    assert config.seeds is not None
    # an agent of the first seed, which reads the data as any agent does
    first = ManagedAlgorithm(config.replace(seeds=None, seed=config.seeds[0]), dataset=dataset)
    # the data's spaces, and the policy that is evaluated
    config = config.replace(algo_kwargs=first.config.params)
    config = config.settled(dataset=first.config.dataset)
    spaces = first.algorithm.spaces
    console = ProgressConsole() if progress else Console()
    with run_scope(config, spaces):
        make_sinks(config)
        agents = [build_algorithm(seed_config(config, seed), spaces) for seed in config.seeds or ()]
        beginning = begin(config, agents, first.data_in_memory)
        clock = build_clock(config, agents, first.data_in_memory)
        config = with_absolute_paths(config.settled(engine=clock.engine.mode))
        run_dir = create_run_folder(config)
        with removed_on_failure(run_dir):
            config = with_data_kept(config, run_dir, first._dataset)
            _write_configs(run_dir, config)
        announce(console, run_dir, clock.loops[0])
        if beginning is not None:
            console.say(beginning)
        live = LiveReport(config, run_dir, console)
        with working_in(run_dir, *_parts(run_dir, config)), live.until_the_end():
            return seeds_trainer(config, agents, clock, run_dir, console, live.callbacks()).run()


def resume_seeds(
    run_dir: str | Path, *, progress: bool = True, trust: bool = False, **options: Any
) -> SeedsResult:
    """Continue a run of several seeds from the newest tick that all of them have saved.

    Modules that the run names are imported only from known packages, unless `trust`.
    """
    run_dir = local_run(run_dir)
    stored = TrainConfig.stored(read_run_config(run_dir))
    if not trust:
        refuse_unknown_modules(stored.to_dict(), f"run '{run_dir}'")
    if stored.seeds is None:
        raise ConfigError(f"'{run_dir}' is a run of one seed; resume it as such")
    config = with_options(stored, options, stored.algo)
    refuse_changes(stored, config)
    console = ProgressConsole() if progress else Console()
    config = with_paths_found(config, run_dir)
    spaces = task_spaces(config)
    live = LiveReport(config, run_dir, console)
    with working_in(run_dir, *_parts(run_dir, config)), run_scope(config, spaces):
        make_sinks(config)
        agents = [build_algorithm(seed_config(config, seed), spaces) for seed in stored.seeds]
        if "graph" in config.engine and agents[0].update_count.device.type != "cuda":
            console.say(
                "warning: the run began on a GPU; on a CPU it continues, but not bit for bit"
            )
            config = config.settled(engine="auto")
        folder = seed_folder(run_dir, stored.seeds[0]) / CHECKPOINT_FOLDER
        first = CheckpointStore(folder, config.keep_last, config.keep_best)
        with spent_budget_named(stored, config, first):
            clock = build_clock(config, agents)
        trainer = seeds_trainer(config, agents, clock, run_dir, console, live.callbacks())
        for part in trainer.records:
            check_checkpoints(part.store, part.config, spaces, console)
        with refused_if_unfit(run_dir):
            trainer.restore()
        refuse_spent(stored, config, max(clock.loops, key=lambda loop: loop.tick))
        if trainer.started_anew:
            begin(config, agents, None)
        with reraise_os_error(run_dir / CONFIG_FILE):
            _write_configs(run_dir, config)
        if note := version_note(trainer.records[0].last_saved):
            console.say(note)
        total, unit = clock.loops[0].total, clock.loops[0].unit
        console.say(f"resuming {run_dir} at {trainer.tick:,} of {total:,} {unit}")
        with live.until_the_end():
            return trainer.run()


def chosen_seeds(config: TrainConfig, seeds: int | Sequence[int] | None) -> Sequence[int]:
    """The seeds; a number of seeds counts up from the config's seed."""
    if seeds is None:
        seeds = config.seeds or 1
    seeds = whole_number(seeds)
    if isinstance(seeds, int):
        if seeds < 1:
            raise ConfigError(f"seeds: expected how many agents to train, at least 1, got {seeds}")
        return range(config.seed, config.seed + seeds)
    return list(seeds)


def _parts(run_dir: Path, config: TrainConfig) -> list[Path]:
    """The run folders of the seeds."""
    return [seed_folder(run_dir, seed) for seed in config.seeds or ()]


def _write_configs(run_dir: Path, config: TrainConfig) -> None:
    write_run_config(run_dir, config)
    for seed, folder in zip(config.seeds or (), _parts(run_dir, config), strict=True):
        folder.mkdir(exist_ok=True)
        write_run_config(folder, seed_config(config, seed))
