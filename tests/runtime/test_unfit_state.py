"""Every value of every component of a checkpoint, exchanged for others: refused, or harmless."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training import ManagedAlgorithm
from rl_training.api.support import refused_if_unfit
from rl_training.envs.spaces import Spaces
from rl_training.experiment.checkpoint import read_checkpoint
from rl_training.experiment.console import Console
from rl_training.experiment.errors import CheckpointError, RLTrainingError, UnfitStateError
from rl_training.runtime import record as record_module
from rl_training.runtime.build import build_loop, run_scope
from rl_training.runtime.record import Record
from tests.contract.small_runs import small_config

RUNS: dict[str, dict[str, Any]] = {
    "bc": {"eval_interval": 5, "early_stopping": {"patience": 50}},
    "dqn": {"algo_kwargs": {"prioritized": True, "n_step": 2}},
    "ppo": {},
    "mbpo": {},
    "dreamer": {},
}
GONE = object()
LATER = ("fitted_at", "inexact_because", "lengths", "scores")
"""Values that the first versions did not store."""


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a nest of containers each value is, the containers included."""
    if path:
        yield path
    if isinstance(value, dict):
        some = list(value)[:: 1 + len(value) // 12]  # of many weights a few
        for key in some:
            yield from leaves(value[key], (*path, key))
    elif isinstance(value, (list, tuple)) and value:
        yield from leaves(value[0], (*path, 0))


def exchanged(parts: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of the nest, only as deep as it has to be, with another value at one place."""
    key, *rest = path
    result = dict(parts) if isinstance(parts, dict) else list(parts)
    if rest:
        result[key] = exchanged(parts[key], tuple(rest), new)
    elif new is GONE:
        del result[key]
    else:
        result[key] = new
    return result


def others(value: Any) -> list[Any]:
    """What could stand there instead."""
    changed: list[Any] = [GONE, None, "x", -7, 10**30, 1.5, True, math.nan, [], {}, b"x"]
    if isinstance(value, torch.Tensor):
        changed += [value.to(torch.int8), value.to(torch.complex64), value[None], torch.zeros(3, 5)]
        changed += [value.bool(), value.double()] + ([value[:-1]] if value.dim() else [])
        if value.is_floating_point():
            changed.append(torch.full_like(value, math.nan))
    return [new for new in changed if not same(new, value)]


def same(new: Any, value: Any) -> bool:
    if isinstance(new, torch.Tensor) or isinstance(value, torch.Tensor):
        return (
            isinstance(new, torch.Tensor)
            and isinstance(value, torch.Tensor)
            and (new.dtype, new.shape) == (value.dtype, value.shape)
            and torch.equal(new, value)
        )
    return type(new) is type(value) and new == value


@pytest.mark.parametrize("algo", RUNS)
def test_every_value_is_looked_at(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(algo, output_dir=str(tmp_path), final_eval=False, **RUNS[algo])
    agent = ManagedAlgorithm(config)
    agent.learn(progress=False)
    assert agent.run_dir is not None
    config = agent.config
    with run_scope(config, agent.algorithm.spaces):
        loop = build_loop(config, agent.algorithm)
        record = Record(config, agent.algorithm, loop, agent.run_dir, Console())
        latest = record.store.latest()
        assert latest is not None
        info, sound = read_checkpoint(latest.path)
        given = sound
        monkeypatch.setattr(record_module, "read_checkpoint", lambda path: (info, given))
        weights_refused = 0
        for path in list(leaves(sound)):
            value: Any = sound
            for key in path:
                value = value[key]
            for new in others(value):
                given = exchanged(sound, path, new)
                try:
                    with refused_if_unfit(latest.path):
                        record.restore()
                except CheckpointError:
                    weights_refused += path[0] == "algorithm"
                else:
                    where, what = "/".join(map(str, path)), type(new).__name__
                    assert path[0] not in ("algorithm", "random"), (where, what)
                    needed = value is not None and len(path) == 2 and path[0] != "trainer"
                    assert new is not GONE or not needed or path[1] in LATER, where
        assert weights_refused > 40
        given = copy.deepcopy(sound)
        record.restore()  # and it still takes what is sound
        loop.close()
        record.selection.close()


def test_a_programming_error_is_not_called_a_misfit() -> None:
    for error in (KeyError("x"), TypeError("x"), RuntimeError("x"), AttributeError("x")):
        with pytest.raises(type(error)), refused_if_unfit(Path("x")):
            raise error
    misfit = pytest.raises(CheckpointError, match="checkpoint 'x' does not fit")
    with misfit, refused_if_unfit(Path("x")):
        raise UnfitStateError("it lacks 'y'")


BOX = {"obs_dim": 3, "action_kind": "box", "action_dim": 1, "action_low": [-2.0]}
BOX |= {"action_high": [2.0], "action_start": 0, "image_shape": [], "frame_stack": 1}


def test_spaces_that_no_environment_has() -> None:
    assert Spaces.from_dict(BOX).action_high == (2.0,)
    old = {key: BOX[key] for key in ("obs_dim", "action_kind", "action_dim")}
    assert Spaces.from_dict({**old, "action_kind": "discrete"}).is_discrete
    for key, values in {
        "obs_dim": [0, -1, "3", True, 3.0, None],
        "action_kind": ["ball", None],
        "action_dim": [0, 2, "1"],
        "action_low": [[], [math.nan], [2.0], [3.0], [-math.inf], ["x"], [-2.0] * 5, None],
        "action_high": [[math.inf], 2.0],
        "action_start": ["1", 0.5],
        "image_shape": [[2, 2], [0, 3], "ab", [3]],
        "frame_stack": [0, "1"],
    }.items():
        for value in values:
            with pytest.raises(UnfitStateError, match="spaces"):
                Spaces.from_dict({**BOX, key: value})
    with pytest.raises(RLTrainingError):
        Spaces.from_dict([])  # type: ignore[arg-type]
