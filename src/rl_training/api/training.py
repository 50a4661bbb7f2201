"""Trains an agent: starts a run, continues it, or resumes an interrupted one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.api.acting import Acting
from rl_training.api.initial import begin
from rl_training.api.options import changes, refuse_changes, with_options
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
from rl_training.envs.make import env_spaces
from rl_training.experiment.checkpoint import CheckpointInfo
from rl_training.experiment.checkpoint_store import CheckpointStore
from rl_training.experiment.config import (
    CHANGEABLE_ON_RESUME,
    TrainConfig,
    whole_number,
)
from rl_training.experiment.console import Console, ProgressConsole
from rl_training.experiment.errors import CheckpointError, ConfigError
from rl_training.experiment.lock import working_in
from rl_training.experiment.sinks import make_sinks
from rl_training.experiment.tracking import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    create_run_folder,
    read_run_config,
    reraise_os_error,
    write_run_config,
)
from rl_training.reports.live import LiveReport
from rl_training.runtime.build import build_loop, run_scope
from rl_training.runtime.callbacks import Callback, TrainResult, checked_callbacks
from rl_training.runtime.loops import Loop
from rl_training.runtime.trainer import STARTING_OVER, Trainer, one_agent


class Training(Acting):
    """The training runs of an agent."""

    run_dir: Path | None
    result: TrainResult | None = None
    checkpoint: CheckpointInfo | None = None
    """What the agent was loaded from."""
    _loaded = False
    _dataset: TransitionDataset | None = None
    """Data that were given in memory, and have to be written into the run folder."""
    _read: TransitionDataset | None = None
    """Data that were read to learn about the spaces of a task without an environment."""

    @property
    def data_in_memory(self) -> TransitionDataset | None:
        """Data that need not be read: given as such, or read for their spaces."""
        return self._read if self._dataset is None else self._dataset

    def _start(self) -> None:
        """Take over the policy that the config wants to begin with."""
        self._beginning = begin(self.config, [self.algorithm], self.data_in_memory)

    _beginning: str | None = None
    """What was taken over, as a sentence."""

    def learn(
        self,
        total_updates: int | None = None,
        *,
        total_timesteps: int | None = None,
        more_updates: int | None = None,
        more_timesteps: int | None = None,
        callbacks: Callback | Sequence[Callback] = (),
        progress: bool = True,
        **options: Any,
    ) -> TrainResult:
        """Train to the end of the budget.

        Options are run-time keys such as `eval_interval`. Called again, it goes on in the
        same run folder. The budget is a total over all calls: `more_updates` and
        `more_timesteps` add to what is done so far instead, and a budget that is spent
        already is refused. Ctrl-C raises KeyboardInterrupt and SIGTERM ends the program,
        once the run is saved.
        """
        callbacks = checked_callbacks(callbacks)
        if "seeds" in options or self.config.seeds is not None:
            raise ConfigError(
                "seeds: an agent is one policy, so learn trains one seed; train several with "
                "rl_training.learn_seeds"
            )
        budget = {
            "total_updates": self._budget("updates", total_updates, more_updates),
            "total_epochs": options.pop("total_epochs", None),
            "total_timesteps": self._budget("timesteps", total_timesteps, more_timesteps),
        }
        if any(value is not None for value in budget.values()):
            options |= budget  # in place of the config's, of whichever kind
        if self.run_dir is not None:
            return self._resume(self.run_dir, options, callbacks, progress, again=True)
        self._check_modules()
        config = with_options(self.config, options, self.config.algo)
        free = CHANGEABLE_ON_RESUME | {"output_dir", "engine", "threads"}
        changed = changes(self.config.to_dict(), config.to_dict(), free)
        if changed:
            raise ConfigError(
                f"learn cannot change what the agent was made with ({'; '.join(changed)}); "
                "give it when making the agent"
            )
        if self._loaded and config.env_id is not None:  # its spaces come from the checkpoint
            found = env_spaces(config.env_id, config.task_kwargs)
            self.algorithm.spaces.refuse_other(found, f"environment '{config.env_id}'")
        console = ProgressConsole() if progress else Console()
        with run_scope(config, self.algorithm.spaces):
            # everything that can be refused is refused before the folder exists
            make_sinks(config)
            loop = build_loop(config, self.algorithm, self.data_in_memory)
            self._read = None  # the loop has what it needs of them
            # kept, whatever a resume changes, and wherever it is made
            config = with_absolute_paths(config.settled(engine=loop.engine.mode))
            run_dir = create_run_folder(config)
            with removed_on_failure(run_dir):
                config = with_data_kept(config, run_dir, self._dataset)
                write_run_config(run_dir, config)
            self.config, self.run_dir = config, run_dir
            announce(console, run_dir, loop)
            if self._beginning is not None:
                console.say(self._beginning)
            live = LiveReport(config, run_dir, console)
            callbacks = (*callbacks, *live.callbacks())
            with working_in(run_dir), live.until_the_end():
                return self._trainer(config, loop, run_dir, console, callbacks).run()

    def _trainer(
        self,
        config: TrainConfig,
        loop: Loop,
        run_dir: Path,
        console: Console,
        callbacks: Sequence[Callback],
    ) -> Trainer[TrainResult]:
        return one_agent(config, self.algorithm, loop, run_dir, console, callbacks, agent=self)

    def _budget(self, unit: str, total: int | None, more: int | None) -> int | None:
        """The total budget, given directly or as an addition to what is done."""
        if more is None:
            return total
        if total is not None:
            raise ConfigError(f"learn: give total_{unit} or more_{unit}, not both")
        more = whole_number(more)
        if isinstance(more, bool) or not isinstance(more, int) or more < 1:
            raise ConfigError(f"more_{unit}: expected a whole number, at least 1, got {more!r}")
        if self.run_dir is None:
            return more
        config = TrainConfig.stored(read_run_config(self.run_dir))
        latest = _store_of(self.run_dir, config).latest()
        key = "env_steps" if unit == "timesteps" else unit
        return more + (0 if latest is None else int(latest.manifest["progress"][key]))

    def _resume(
        self,
        run_dir: Path,
        options: Mapping[str, Any],
        callbacks: Sequence[Callback],
        progress: bool,
        again: bool = False,
    ) -> TrainResult:
        """Continue a run; a new budget that is spent already is refused, and with `again` every
        complete run."""
        stored = TrainConfig.stored(read_run_config(run_dir))
        config = with_options(stored, options, stored.algo)
        refuse_changes(stored, config)
        console = ProgressConsole() if progress else Console()
        if "graph" in config.engine and self.algorithm.update_count.device.type != "cuda":
            console.say(
                "warning: the run began on a GPU; on a CPU it continues, but not bit for bit"
            )
            config = config.settled(engine="auto")
        config = with_paths_found(config, run_dir)
        live = LiveReport(config, run_dir, console)
        callbacks = (*callbacks, *live.callbacks())
        with working_in(run_dir), run_scope(config, self.algorithm.spaces):
            make_sinks(config)
            with spent_budget_named(stored, config, _store_of(run_dir, config)):
                loop = build_loop(config, self.algorithm)
            trainer = self._trainer(config, loop, run_dir, console, callbacks)
            (record,) = trainer.records
            check_checkpoints(record.store, config, self.algorithm.spaces, console)
            with refused_if_unfit(run_dir):
                trainer.restore()
            started_anew = trainer.started_anew
            if started_anew and (record.store.all() or record.store.unreadable()):
                raise CheckpointError(
                    f"run '{run_dir}': none of its checkpoints can be used; remove the folder "
                    f"'{CHECKPOINT_FOLDER}' in it to start the run again"
                )
            if again and record.is_over():
                loop.close()
                more = "more_updates" if loop.unit == "updates" else "more_timesteps"
                fix = f"train on with learn({more}=...), or with a larger total"
                if record.stop_reason:
                    fix = "train on with other early_stopping, such as early_stopping=None"
                raise ConfigError(
                    f"learn: the run in '{run_dir}' is complete after {loop.tick:,} {loop.unit} "
                    f"({record.stop_reason or f'its budget is {loop.total:,}'}); {fix}"
                )
            refuse_spent(stored, config, loop)
            if started_anew:
                console.say(STARTING_OVER)
                self._start()
            with reraise_os_error(run_dir / CONFIG_FILE):
                write_run_config(run_dir, config)
            self.config, self.run_dir = config, run_dir
            if note := version_note(record.last_saved):
                console.say(note)
            console.say(f"resuming {run_dir} at {loop.tick:,} of {loop.total:,} {loop.unit}")
            with live.until_the_end():
                return trainer.run()


def _store_of(run_dir: Path, config: TrainConfig) -> CheckpointStore:
    return CheckpointStore(run_dir / CHECKPOINT_FOLDER, config.keep_last, config.keep_best)
