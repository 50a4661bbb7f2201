"""The folder of a study: its plan, its runs, their logs and a table of their scores."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rl_training.experiment.checkpoint import MANIFEST
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError, RunInUseError
from rl_training.experiment.files import replace_text
from rl_training.experiment.lock import is_in_use, working_in
from rl_training.experiment.tracking import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    RESULT_FILE,
    reraise_os_error,
    versions,
)
from rl_training.search.launch import Job

STUDY_FILE, TABLE_FILE, TRIALS_FOLDER = "study.json", "table.csv", "trials"
SAME_COMMAND = "the same command"
"""What continues a study."""


@dataclass(frozen=True)
class Trial(Job):
    """One run of a study."""

    run_dir: Path
    config_file: Path

    @property
    def arguments(self) -> tuple[str, ...]:
        config = str(self.config_file.absolute())
        return ("-m", "rl_training", "train", config, "--resume", "--quiet")

    @property
    def progress(self) -> str:
        """The newest checkpoint of every seed."""
        saved = self.run_dir.rglob(f"{CHECKPOINT_FOLDER}/*/{MANIFEST}")
        return max((str(path) for path in saved), default="")

    @property
    def status(self) -> str:
        """waiting, running, finished, or stopped before its end."""
        if is_in_use(self.run_dir):
            return "running"
        try:
            result = json.loads((self.run_dir / RESULT_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return "stopped" if (self.run_dir / CONFIG_FILE).is_file() else "waiting"
        finished = isinstance(result, dict) and result.get("status") == "finished"
        return "finished" if finished else "stopped"


class StudyFolder:
    """Runs that belong together, in one folder, with the plan that they follow.

    The same plan may be opened by several processes, also on several machines with a shared file
    system: each takes the runs that nobody works on.
    """

    kind: ClassVar[str]

    def __init__(self, folder: Path, plan: dict[str, Any]) -> None:
        self.folder = folder
        version = versions()["rl-training"]
        stored = self._stored()
        if stored is not None:
            self._refuse_other_kind(stored, version)
            self.refuse_other_plan(stored, plan)
        with reraise_os_error(folder, SAME_COMMAND):
            for part in ("runs", "configs", "logs", TRIALS_FOLDER):
                (folder / part).mkdir(parents=True, exist_ok=True)
            self.prepare()
            if stored is None:
                # the last file: a study that was cut off before it is made again
                whole = {"format": 1, "kind": self.kind, "version": version, **plan}
                replace_text(folder / STUDY_FILE, json.dumps(whole, indent=1) + "\n")

    def prepare(self) -> None:
        """Write what must be there before the plan is."""

    def refuse_other_plan(self, stored: dict[str, Any], plan: dict[str, Any]) -> None:
        """Refuse a plan that is not the one of the folder."""
        raise NotImplementedError

    def trial(self, name: str) -> Trial:
        return Trial(
            name,
            self.folder / "logs" / f"{name}.log",
            self.folder / "runs" / name,
            self.folder / "configs" / f"{name}.yaml",
        )

    def held(self, name: str) -> ExitStack | None:
        """A lock that keeps other processes of the study from a trial; None if one has it."""
        folder, lock = self.folder / TRIALS_FOLDER / name, ExitStack()
        if is_in_use(folder):
            return None
        try:
            with reraise_os_error(folder, SAME_COMMAND):
                folder.mkdir(exist_ok=True)
            lock.enter_context(working_in(folder))
        except RunInUseError:
            return None
        return lock

    def write_config(self, trial: Trial, config: TrainConfig) -> None:
        place = str(trial.run_dir.parent.absolute())  # also for a node with another folder
        settled = config.replace(output_dir=place, run_name=trial.name)
        replace_text(trial.config_file, settled.to_yaml())

    def _stored(self) -> dict[str, Any] | None:
        path = self.folder / STUDY_FILE
        if not path.exists():
            if self.folder.is_dir() and any((self.folder / "runs").glob(f"*/{CONFIG_FILE}")):
                raise ConfigError(
                    f"'{self.folder}' holds runs without a {STUDY_FILE}; choose another folder "
                    "with --out"
                )
            return None
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            return {**stored, "format": int(stored["format"])}
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise self._damaged() from None

    def _damaged(self) -> ConfigError:
        return ConfigError(
            f"'{self.folder / STUDY_FILE}' is damaged; remove it to begin the study again with the "
            "runs that are there, or choose another folder with --out"
        )

    def _refuse_other_kind(self, stored: dict[str, Any], version: str) -> None:
        kind = stored.get("kind", "sweep")
        if kind != self.kind:
            raise ConfigError(
                f"'{self.folder}' is the study of another command, {kind}; choose another folder "
                "with --out"
            )
        if stored.get("version", version) != version:
            raise ConfigError(
                f"'{self.folder}' was begun with rl-training {stored['version']}, and runs of "
                f"version {version} would not be comparable; install that version, or choose "
                "another folder with --out"
            )

    def write_table(self, rows: Sequence[dict[str, Any]]) -> Path:
        """The scores of all runs as CSV."""
        path, text = self.folder / TABLE_FILE, io.StringIO()
        keys = list(dict.fromkeys(key for row in rows for key in row))
        writer = csv.DictWriter(text, keys, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        with reraise_os_error(path, SAME_COMMAND):
            replace_text(path, text.getvalue())
        return path


class Study(StudyFolder):
    """Runs that are all known from the beginning."""

    kind = "sweep"

    def __init__(self, folder: Path, configs: Sequence[tuple[str, TrainConfig]]) -> None:
        self._configs = configs
        super().__init__(folder, {"runs": {name: identity(config) for name, config in configs}})

    @property
    def trials(self) -> list[Trial]:
        return [self.trial(name) for name, _ in self._configs]

    def prepare(self) -> None:
        for trial, (_, config) in zip(self.trials, self._configs, strict=True):
            self.write_config(trial, config)

    def refuse_other_plan(self, stored: dict[str, Any], plan: dict[str, Any]) -> None:
        runs = stored.get("runs")
        if not isinstance(runs, dict):
            raise self._damaged()
        for name, config in plan["runs"].items():
            if name not in runs:
                raise ConfigError(
                    f"'{self.folder}' is another study: it has no run '{name}'; choose another "
                    "folder with --out, or repeat the command that began it"
                )
            refuse_difference(runs[name], config, f"'{name}'", self.folder)
        if len(runs) > len(plan["runs"]):
            raise ConfigError(
                f"'{self.folder}' is a study of {len(runs)} runs, but this command has "
                f"{len(plan['runs'])} of them; repeat the command that began it, or choose "
                "another folder with --out"
            )


def refuse_difference(stored: Any, given: dict[str, Any], what: str, folder: Path) -> None:
    """Refuse values that are not those with which a study was begun."""
    if stored == given:
        return
    known = stored if isinstance(stored, dict) else {}
    keys = [key for key in {**known, **given} if known.get(key) != given.get(key)]
    raise ConfigError(
        f"'{folder}' was begun with another {', '.join(keys) or 'form'} of {what}; choose another "
        "folder with --out, or repeat the command that began it"
    )


def identity(config: TrainConfig) -> dict[str, Any]:
    """What identifies a run: everything but where and on what it is trained."""
    free = ("output_dir", "run_name", "device", "threads")
    plain: dict[str, Any] = json.loads(json.dumps(config.to_dict()))
    return {key: value for key, value in plain.items() if key not in free}
