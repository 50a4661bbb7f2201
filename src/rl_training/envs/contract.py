"""Checks of what an environment returns, shared by training, evaluation, data and videos."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.envs.spaces import Spaces
from rl_training.experiment.config_errors import shortened
from rl_training.experiment.errors import EnvironmentFailure, RLTrainingError, describe_exception

StepResult = tuple[NDArray[Any], float, bool, bool, Any]
"""Observation, reward, terminated, truncated and info."""

FINITE = "every number has to be finite; correct the environment"
CORRECT = "correct the environment, or env_kwargs"

FOREIGN_ERRORS = (Exception, SystemExit)
"""Exceptions that an environment's code may raise; none of them may end the process."""

_FLOAT32, _FLOAT64, _UINT8 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.uint8)
MASK = "action_mask"
"""Key of `info` that says which actions are allowed."""
FEW = 32
"""Numbers that Python adds faster than NumPy looks at them."""
_NUMBERS = frozenset({float, np.float64, np.float32})


class WrongAnswerError(Exception):
    """The environment returned something wrong; its message is shown without "raised"."""


class EnvContract:
    """Checks what the environments of one task return.

    The message of a `WrongAnswerError` is the middle of a sentence: "returned the reward None,
    ...". Callers check for non-finite numbers themselves, because they can check many at once.
    """

    def __init__(self, spaces: Spaces) -> None:
        self.shape, self.dtype = spaces.obs_shape, np.dtype(spaces.obs_dtype)
        # NumPy has a single object for each of these, so they can be compared with `is`.
        self._taken = (_UINT8, _UINT8) if spaces.is_image else (_FLOAT32, _FLOAT64)
        self._expects_no_mask = not (spaces.is_box or spaces.has_mask)

    def reset(self, env: gym.Env[Any, Any], seed: int) -> NDArray[Any]:
        """Reset the environment and return the first observation."""
        answer: Any = env.reset(seed=seed)
        if not (isinstance(answer, (tuple, list)) and len(answer) == 2):
            raise WrongAnswerError(
                f"returned {_kind(answer)} from reset, expected (observation, info) as in "
                "Gymnasium 0.26 and later"
            )
        if self._expects_no_mask and type(answer[1]) is dict and MASK in answer[1]:
            raise self._unexpected_mask("reset")
        return self.observation(answer[0])

    def step(self, take: Callable[[Any], Any], action: Any) -> StepResult:
        """Call `take`, the `step` of an environment, and return its checked result."""
        answer = take(action)
        try:
            obs, reward, terminated, truncated, info = answer
        except (TypeError, ValueError):
            raise WrongAnswerError(
                f"returned {_kind(answer)} from step, expected (observation, reward, terminated, "
                "truncated, info) as in Gymnasium 0.26 and later"
            ) from None
        one, other = self._taken
        if (
            type(obs) is not np.ndarray
            or obs.shape != self.shape
            or (obs.dtype is not one and obs.dtype is not other)
        ):
            obs = self.observation(obs)
        if type(reward) not in _NUMBERS:
            reward = _number(reward)
        if type(terminated) is not bool and type(terminated) is not np.bool_:
            terminated = _flag(terminated, "terminated")
        if type(truncated) is not bool and type(truncated) is not np.bool_:
            truncated = _flag(truncated, "truncated")
        if self._expects_no_mask and type(info) is dict and MASK in info:
            raise self._unexpected_mask("step")
        return obs, reward, terminated, truncated, info

    def observation(self, obs: Any) -> NDArray[Any]:
        """Return the observation as an array of the task's shape and dtype."""
        if obs is None or isinstance(obs, (dict, str, bytes)):
            raise WrongAnswerError(f"returned {_kind(obs)} as the observation, {self._expected}")
        try:
            array = np.asarray(obs)
        except ValueError:  # rows of unequal length
            raise WrongAnswerError(
                f"returned {_kind(obs)}, which is not an array, as the observation, "
                f"{self._expected}"
            ) from None
        if array.shape != self.shape:
            raise WrongAnswerError(
                f"returned an observation of shape {array.shape}, expected {self.shape}"
            )
        other_type = self.dtype == _UINT8 and array.dtype != _UINT8  # would be truncated to bytes
        if array.dtype.kind not in "fiub" or other_type:
            raise WrongAnswerError(
                f"returned an observation of {array.dtype}, expected {self.dtype}"
            )
        # a plain array has no mask, and importing `numpy.ma` for the question takes long
        if type(obs) is not np.ndarray and np.ma.isMaskedArray(obs) and np.ma.is_masked(obs):
            raise WrongAnswerError(f"returned an observation with masked numbers {obs}")
        return array.astype(self.dtype, copy=False)

    def _unexpected_mask(self, where: str) -> WrongAnswerError:
        """Of a mask that would be ignored, so that forbidden actions would be taken."""
        return WrongAnswerError(
            f"gave info['{MASK}'] from {where}, which the policy would not obey: masks are for "
            "Discrete actions and observations without images, and are given from every reset on"
        )

    @property
    def _expected(self) -> str:
        return f"expected {self.dtype} numbers of shape {self.shape}"


class CheckedEnv:
    """An environment whose results are checked and whose failures are one sentence each."""

    def __init__(self, env: gym.Env[Any, Any], env_id: str, contract: EnvContract) -> None:
        self.env, self.env_id, self.contract = env, env_id, contract
        self._episode, self._seed, self.length = "", 0, 0

    def reset(self, seed: int, episode: str) -> NDArray[Any]:
        """Reset the environment; messages about failures call the episode `episode`."""
        self._episode, self._seed, self.length = episode, seed, 0
        obs: NDArray[Any] = self._call(self.contract.reset, self.env, seed)
        self._check_finite(obs, 0.0)
        return obs

    def step(self, action: Any) -> StepResult:
        self.length += 1
        answer: StepResult = self._call(self.contract.step, self.env.step, action)
        self._check_finite(answer[0], answer[1])
        return answer

    def close(self) -> None:
        close_env(self.env)

    def _check_finite(self, obs: NDArray[Any], reward: float) -> None:
        if not all_finite(obs):
            raise self._failure(f"returned the observation {numbers(obs)}", FINITE)
        if not math.isfinite(reward):
            raise self._failure(f"returned the reward {reward}", FINITE)

    def _call(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return ask(*arguments)
        except RLTrainingError:
            raise
        except FOREIGN_ERRORS as error:
            raise self._failure(what_it_did(error), CORRECT) from error

    def _failure(self, what: str, fix: str) -> EnvironmentFailure:
        return EnvironmentFailure(
            f"env_id: environment '{self.env_id}' {what} in {self._episode} (seed {self._seed}, "
            f"step {self.length}); {fix}"
        )


def success_in(info: Any) -> bool | None:
    """Read `info["is_success"]` of the last step of an episode; None if it is missing or not a
    boolean."""
    value = info.get("is_success") if isinstance(info, dict) else None
    if value is None:
        return None
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "fiub":
        return None
    return bool(array.reshape(()))


def life_lost_in(info: Any) -> bool:
    """Whether `info["life_lost"]` says that a life was lost: for learning the episode ends, and
    the game goes on."""
    return isinstance(info, dict) and "life_lost" in info and bool(info["life_lost"])


def score_in(info: Any) -> float | None:
    """Read `info["episode"]["r"]` of the last step of an episode: the return before wrappers
    changed the rewards, where Gymnasium's `RecordEpisodeStatistics` puts it; None if it is
    missing or not a finite number."""
    episode = info.get("episode") if isinstance(info, dict) else None
    value = episode.get("r") if isinstance(episode, dict) else None
    if value is None:
        return None
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        return None
    return float(array.reshape(()))


def close_env(env: gym.Env[Any, Any]) -> None:
    """Close an environment and ignore errors, which harm nothing that was done in it."""
    with suppress(*FOREIGN_ERRORS):
        env.close()


def what_it_did(error: BaseException) -> str:
    """Describe a failure of an environment as the middle of a sentence."""
    return (
        str(error) if isinstance(error, WrongAnswerError) else f"raised {describe_exception(error)}"
    )


def numbers(array: NDArray[Any]) -> str:
    """Format at most a few numbers on one line."""
    return np.array2string(array, threshold=8, max_line_width=1000)


def all_finite(array: NDArray[Any]) -> bool:
    if array.dtype is _UINT8:
        return True
    # For the few numbers of a step Python's own sum takes the least; it may overflow.
    if array.size <= FEW and math.isfinite(sum(array.ravel().tolist())):
        return True
    # Searching the bytes takes half the time of `all`.
    return 0 not in np.isfinite(array).tobytes()


def _number(value: Any) -> float:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "fiub":
        raise WrongAnswerError(f"returned the reward {_shown(value)}, expected a number")
    return float(array.reshape(()))


def _flag(value: Any, name: str) -> bool:
    array = np.asarray(value)
    if array.shape != () or array.dtype.kind not in "fiub" or array not in (0, 1):
        raise WrongAnswerError(f"returned {_shown(value)} as '{name}', expected True or False")
    return bool(array)


def _shown(value: Any) -> str:
    return " ".join(shortened(value).split())  # arrays print on several lines


def _kind(answer: Any) -> str:
    if answer is None:
        return "None"
    if isinstance(answer, (tuple, list)):
        return f"a {type(answer).__name__} of {len(answer)}"
    if isinstance(answer, np.ndarray):
        return f"an array of shape {answer.shape}"
    return f"a {type(answer).__name__}"
