"""The folder of a study: its plan, its runs, their logs and a table of their scores."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.files import replace_text
from rl_training.experiment.lock import is_in_use
from rl_training.experiment.tracking import CONFIG_FILE, RESULT_FILE, reraise_os_error

STUDY_FILE, TABLE_FILE = "study.json", "table.csv"


@dataclass(frozen=True)
class Trial:
    """One run of a study."""

    name: str
    run_dir: Path
    config_file: Path
    log_file: Path

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


class Study:
    """Runs that belong together, in one folder.

    The same plan may be opened by several processes, also on several machines with a shared file
    system: each takes the runs that nobody works on.
    """

    def __init__(self, folder: Path, configs: Sequence[tuple[str, TrainConfig]]) -> None:
        self.folder = folder
        self.trials = [
            Trial(
                name,
                folder / "runs" / name,
                folder / "configs" / f"{name}.yaml",
                folder / "logs" / f"{name}.log",
            )
            for name, _ in configs
        ]
        plan = {"format": 1, "runs": {name: _plain(config) for name, config in configs}}
        self._refuse_other_plan(plan)
        with reraise_os_error(folder):
            for part in ("runs", "configs", "logs"):
                (folder / part).mkdir(parents=True, exist_ok=True)
            for trial, (_, config) in zip(self.trials, configs, strict=True):
                settled = config.replace(output_dir=str(folder / "runs"), run_name=trial.name)
                replace_text(trial.config_file, settled.to_yaml())
            # the last file: a study that was cut off before it is made again
            replace_text(folder / STUDY_FILE, json.dumps(plan, indent=1) + "\n")

    def _refuse_other_plan(self, plan: dict[str, Any]) -> None:
        path = self.folder / STUDY_FILE
        if not path.exists():
            if self.folder.is_dir() and any((self.folder / "runs").glob(f"*/{CONFIG_FILE}")):
                raise ConfigError(
                    f"'{self.folder}' holds runs without a {STUDY_FILE}; choose another folder "
                    "with --out"
                )
            return
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            runs = dict(stored["runs"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise ConfigError(
                f"'{path}' is damaged; remove it to begin the study again with the runs that "
                "are there, or choose another folder with --out"
            ) from None
        for name, config in plan["runs"].items():
            if name not in runs:
                raise ConfigError(
                    f"'{self.folder}' is another study: it has no run '{name}'; choose another "
                    "folder with --out, or repeat the command that began it"
                )
            if runs[name] != config:
                known = runs[name] if isinstance(runs[name], dict) else {}
                keys = [key for key in config if known.get(key) != config[key]]
                raise ConfigError(
                    f"'{self.folder}' was begun with another {', '.join(keys) or 'version'} of "
                    f"'{name}'; choose another folder with --out, or repeat the command that "
                    "began it"
                )
        if len(runs) > len(plan["runs"]):
            raise ConfigError(
                f"'{self.folder}' is a study of {len(runs)} runs, but this command has "
                f"{len(plan['runs'])} of them; repeat the command that began it, or choose "
                "another folder with --out"
            )

    def write_table(self, rows: Sequence[dict[str, Any]]) -> Path:
        """The scores of all runs as CSV."""
        path, text = self.folder / TABLE_FILE, io.StringIO()
        keys = list(dict.fromkeys(key for row in rows for key in row))
        writer = csv.DictWriter(text, keys, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        with reraise_os_error(path):
            replace_text(path, text.getvalue())
        return path


def _plain(config: TrainConfig) -> dict[str, Any]:
    """What identifies a run: everything but where and on what it is trained."""
    free = ("output_dir", "run_name", "device", "threads")
    plain: dict[str, Any] = json.loads(json.dumps(config.to_dict()))
    return {key: value for key, value in plain.items() if key not in free}
