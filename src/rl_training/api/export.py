"""Exports an agent, with a record of its run and data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.api.run_folders import with_paths_found
from rl_training.experiment.checkpoint import CheckpointInfo, read_checkpoint
from rl_training.experiment.errors import RLTrainingError
from rl_training.experiment.state import Stored
from rl_training.experiment.terminal import terminal
from rl_training.experiment.tracking import CHECKPOINT_FOLDER, CONFIG_FILE
from rl_training.export.card import CardText, Origin
from rl_training.export.compared import baseline_of
from rl_training.export.evidence import Evidence
from rl_training.export.observations import Task
from rl_training.export.parity import Predict
from rl_training.export.write import ExportOptions, ExportResult, Trained, export_policy
from rl_training.runtime.loops.data import raw_data

if TYPE_CHECKING:
    from rl_training.api.managed import ManagedAlgorithm


def export_agent(
    agent: ManagedAlgorithm,
    folder: Path,
    *,
    compare: Sequence[Path],
    progress: bool,
    intended_use: str,
    limits: str,
    **options: Any,
) -> ExportResult:
    """`ManagedAlgorithm.export`."""
    chosen = ExportOptions(text=CardText(intended_use, limits), **options)
    origin = _origin(agent, compare)
    if agent.algorithm.update_count.device.type != "cpu":
        agent = on_cpu(agent)
    trained = Trained(
        agent.config,
        agent.algorithm,
        _predict(agent),
        _task(agent),
        origin,
        _evidence(agent, origin),
    )
    say = terminal("stderr").print if progress else lambda text: None
    return export_policy(trained, folder, chosen, say)


def _predict(agent: ManagedAlgorithm) -> Predict:
    """`predict`, with flat actions, and numbers in place of names."""
    spaces = agent.algorithm.spaces
    numbers = {label: i + spaces.action_start for i, label in enumerate(spaces.action_labels)}

    def predict(obs: Any, state: Any) -> tuple[Any, Any]:
        action, state = agent.predict(obs, state)
        if numbers:
            action = np.asarray([numbers[name] for name in action.tolist()], np.int64)
        return spaces.inside(action), state

    return predict


def on_cpu(agent: ManagedAlgorithm) -> ManagedAlgorithm:
    """A copy whose algorithm is on the CPU."""
    copied = object.__new__(type(agent))
    copied.__setstate__({**agent.__getstate__(), "config": agent.config.replace(device="cpu")})
    return copied


def _task(agent: ManagedAlgorithm) -> Task:
    env_id, env_kwargs = agent.config.env_id, dict(agent.config.task_kwargs)
    if not env_id:
        return Task(None, {}, "the run has no environment")
    try:
        agent._check_modules()
    except RLTrainingError as error:
        return Task(env_id, env_kwargs, str(error).splitlines()[0])
    return Task(env_id, env_kwargs)


def _origin(agent: ManagedAlgorithm, compare: Sequence[Path]) -> Origin:
    info, run_dir = agent.checkpoint, agent.run_dir
    if info is not None and info.path.absolute().parent.name == CHECKPOINT_FOLDER:
        above = info.path.absolute().parent.parent
        run_dir = above if (above / CONFIG_FILE).is_file() else None
    return Origin(
        agent.config,
        info,
        run_dir,
        _fingerprint(info),
        baselines=[baseline_of(run) for run in compare],
    )


def _evidence(agent: ManagedAlgorithm, origin: Origin) -> Evidence | None:
    """A summary of the run's data; None if they are missing or have changed."""
    config = agent.config
    if config.dataset is None or agent.algorithm.spaces.is_image:
        return None
    if origin.run_dir is not None:
        config = with_paths_found(config, origin.run_dir)
    try:
        agent._check_modules()
        data = raw_data(config, agent.algorithm, agent._dataset)
    except RLTrainingError:
        return None
    return Evidence(data, agent.algorithm)


def _fingerprint(info: CheckpointInfo | None) -> str | None:
    """The fingerprint of the data that a checkpoint was trained on, if it is stored."""
    if info is None:
        return None
    _, parts = read_checkpoint(info.path, ("data", "demonstrations"))
    found = [part["fingerprint"] for part in parts.values() if "fingerprint" in Stored(part)]
    return str(found[0]) if found else None
