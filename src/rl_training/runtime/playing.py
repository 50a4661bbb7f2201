"""Episodes of a policy in its environment, for agents and for exported policies alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.experiment.errors import ConfigError
from rl_training.experiment.trust import WRAPPERS

if TYPE_CHECKING:  # an exported policy acts without PyTorch, so nothing is imported before its use
    from rl_training.envs.spaces import Spaces
    from rl_training.runtime.evaluation import ActFunction, EvalResult


class Playable(ABC):
    """`evaluate` and `record_video` of anything that acts."""

    @abstractmethod
    def _acting(self, deterministic: bool, seed: int | None) -> ActFunction:
        """The policy as a function of observations; refused if it cannot act in that mode."""

    @abstractmethod
    def _own_task(self) -> tuple[str, Mapping[str, Any]]:
        """Id and arguments of the policy's own environment; refused if it may not be made."""

    @abstractmethod
    def _task_spaces(self) -> Spaces:
        """The spaces that an environment must have."""

    @abstractmethod
    def _eval_lengths(self) -> tuple[int, int]:
        """Episodes of an evaluation, unless given, and the largest number of steps of each."""

    def evaluate(
        self,
        episodes: int | None = None,
        seed: int | None = None,
        *,
        deterministic: bool = True,
        env_id: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        max_steps: int | None = None,
    ) -> EvalResult:
        """Run whole episodes in new environments, with the likeliest actions or with samples.

        `seed` decides the start states and the samples. By default they are held out: no
        evaluation during training, by which `best` is chosen, uses them, and they are the same
        for every run of the task. `env_id` and `env_kwargs` replace the policy's own; the spaces
        must be the same, and with another `env_id` the policy's own arguments are not used. An
        episode is cut after `max_steps` steps, by default the `eval_max_steps` of its config.
        """
        from rl_training.experiment.config import whole_number
        from rl_training.runtime.evaluation import evaluate_once

        usual, _ = self._eval_lengths()
        result = evaluate_once(
            self._acting(deterministic, seed),
            self._task(env_id, env_kwargs),
            self._task_spaces(),
            episodes=usual if episodes is None else whole_number(episodes),
            max_steps=self._longest(max_steps),
            seed=seed,
        )
        return replace(result, limit="max_steps")

    def record_video(
        self,
        path: str | Path,
        *,
        seed: int | None = None,
        episode: int = 0,
        overwrite: bool = False,
        deterministic: bool = True,
        env_id: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        max_steps: int | None = None,
    ) -> EvalResult:
        """Write an episode of `evaluate`, by default the first, as a video, .mp4 or .gif, and
        return its result.

        With sampled actions it starts like that episode, but continues differently.
        """
        from rl_training.runtime.evaluation import HELD_OUT_STATES
        from rl_training.runtime.video import record_episode

        result = record_episode(
            self._acting(deterministic, seed),
            *self._task(env_id, env_kwargs),
            self._task_spaces(),
            HELD_OUT_STATES if seed is None else seed,
            Path(path),
            max_steps=self._longest(max_steps),
            overwrite=overwrite,
            episode=_counted(episode, "episode", least=0),
        )
        return replace(result, limit="max_steps")

    def _longest(self, max_steps: Any) -> int:
        """The given largest number of steps of an episode, checked, or the usual one."""
        if max_steps is None:
            return self._eval_lengths()[1]
        return _counted(max_steps, "max_steps", least=1)

    def _task(
        self, env_id: str | None, env_kwargs: Mapping[str, Any] | None
    ) -> tuple[str, dict[str, Any]]:
        """The policy's environment, or another one, which has no arguments but those given; the
        policy's wrappers are around either, unless the arguments name others."""
        if env_kwargs is not None and not isinstance(env_kwargs, Mapping):
            raise ConfigError(f"env_kwargs: expected keyword arguments by name, got {env_kwargs!r}")
        own: Mapping[str, Any] = {}
        if env_id is None:  # another environment is named by the caller and needs no check
            env_id, own = self._own_task()
        given = dict(own if env_kwargs is None else env_kwargs)
        wrappers = {} if WRAPPERS in given else self._own_wrappers()
        return env_id, {**given, **wrappers}

    def _own_wrappers(self) -> Mapping[str, Any]:
        """The wrappers through which the policy sees any environment, beside its arguments."""
        return {}


def _counted(given: Any, name: str, least: int) -> int:
    """A whole number; others are refused by the `name` of the argument."""
    from rl_training.experiment.config import whole_number

    number = whole_number(given)
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise ConfigError(f"{name}: expected a whole number, at least {least}, got {given!r}")
    return number
