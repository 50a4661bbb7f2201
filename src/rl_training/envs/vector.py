"""Several copies of an environment, stepped together and reset by mask.

Nothing resets itself: `step` returns exactly what the environments returned, so the
observation of an ended episode is its last one, and no transition crosses episodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.envs.contract import (
    CORRECT,
    FINITE,
    FOREIGN_ERRORS,
    EnvContract,
    all_finite,
    close_env,
    life_lost_in,
    numbers,
    score_in,
    success_in,
    what_it_did,
)
from rl_training.envs.global_random import OwnGenerators
from rl_training.envs.make import make_env, spaces_of
from rl_training.envs.repeatability import Repeatability, repeatability
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import (
    EnvironmentFailure,
    EnvironmentSetupError,
    RLTrainingError,
)

StepArrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]


class Replayed(NamedTuple):
    """The result of replaying the actions of an episode."""

    obs: NDArray[Any]  # one observation
    episode_return: float


class VectorEnvs(ABC):
    """E environments that are stepped together.

    `obs` holds the current observations, (E, O) float32 or (E, ...) uint8 images; it is zero
    before the first `reset`. Returned arrays, `obs` included, are never written to again. After
    an `EnvironmentFailure` only `close` may be called.
    """

    def __init__(self, env_id: str, spaces: Spaces, num_envs: int) -> None:
        self.env_id = env_id
        self.spaces = spaces
        self.num_envs = num_envs
        self.contract = EnvContract(spaces)
        self.repeatability = Repeatability()
        self.obs: NDArray[Any] = np.zeros((num_envs, *spaces.obs_shape), spaces.obs_dtype)
        self.successes: list[bool | None] = [None] * num_envs
        """Whether the last ended episode of each environment was a success, if it reports that."""
        self.scores: list[float | None] = [None] * num_envs
        """Return of the last ended episode before wrappers changed it, if it reports that."""
        self.lives_lost: NDArray[Any] | None = None
        """(E,) bool, which environments lost a life in the last step; None for none of them."""
        # For messages about failures: one shared clock is cheaper than E counters.
        self._clock = 0
        self._began = [0] * num_envs
        self._seeds = [0] * num_envs
        self._begun: NDArray[Any] = np.zeros(0)
        self._number = 0  # of the first environment, where others are stepped elsewhere

    def begin_step(self, actions: NDArray[Any]) -> None:
        """Begin what `step` does. Worker processes go on by themselves until `finish_step`;
        environments of this process wait for it."""
        self._begun = actions

    def finish_step(self) -> StepArrays:
        """The results of the step that `begin_step` began."""
        return self.step(self._begun)

    @abstractmethod
    def step(self, actions: NDArray[Any]) -> StepArrays:
        """Step every environment with its row of `actions`, in environment units.

        Returns next_obs like `obs`, reward (E,) float32, terminated (E,) bool and truncated
        (E,) bool. If an environment sets both flags, it counts as terminated. An environment
        whose episode has ended must be reset before the next step; one that has only lost a
        life goes on.
        """

    @abstractmethod
    def _reset(self, mask: NDArray[Any], obs: NDArray[Any]) -> None:
        """Reset the masked environments with `self._seeds` and write their rows of `obs`."""

    @abstractmethod
    def _replay(self, actions: Sequence[NDArray[Any]]) -> list[Replayed | None]: ...

    @abstractmethod
    def close(self) -> None:
        """Release the environments; a second call does nothing."""

    def reset(self, mask: NDArray[Any], seeds: Sequence[int]) -> None:
        """Reset the environments where `mask` (E,) bool is set, each with its entry of the E
        `seeds`; the other environments and seeds are ignored."""
        for i, due in enumerate(mask.tolist()):
            if due:
                self._seeds[i] = int(seeds[i])
                self._began[i] = self._clock
        obs = self.obs.copy()
        self._reset(mask, obs)
        if not all_finite(obs):
            self._fail_not_finite(obs, np.zeros(self.num_envs, np.float32), None)
        self.obs = obs

    def replay(
        self, seeds: Sequence[int], actions: Sequence[NDArray[Any]]
    ) -> list[Replayed | None]:
        """Reset every environment with its seed and step it through its own `actions` (L, ...).

        Returns None for an environment whose episode ended or raised before its last action,
        which means that it did not repeat. Such an environment must be reset.
        """
        self._seeds = [int(seed) for seed in seeds]
        self._began = [self._clock - len(taken) for taken in actions]
        replayed = self._replay(actions)
        obs = self.obs.copy()
        for i, result in enumerate(replayed):
            if result is not None:
                obs[i] = result.obs
        self.obs = obs
        return replayed

    def _fail_not_finite(
        self, obs: NDArray[Any], reward: NDArray[Any], actions: NDArray[Any] | None
    ) -> NoReturn:
        good = np.isfinite(obs).reshape(self.num_envs, -1).all(1)
        i = int(np.argmin(good & np.isfinite(reward)))
        if not good[i]:
            what = f"returned the observation {numbers(obs[i])}"
        else:
            what = f"returned the reward {reward[i]}"
        if actions is not None and not np.isfinite(actions[i]).all():
            self._fail(i, f"was given the action {numbers(actions[i])}", "the policy has diverged")
        self._fail(i, what, FINITE)

    def _fail(
        self, i: int, what: str, fix: str = CORRECT, cause: BaseException | None = None
    ) -> NoReturn:
        failure = self.failure(i, what, fix)
        with suppress(Exception):
            self.close()
        raise failure from cause

    def failure(self, i: int, what: str, fix: str = CORRECT) -> EnvironmentFailure:
        """The sentence about an environment that did `what`, a verb and what follows it."""
        seed, step = self._seeds[i], self._clock - self._began[i]
        return EnvironmentFailure(
            f"env_id: environment {self._number + i} of '{self.env_id}' (episode seed {seed}, "
            f"step {step}) {what}; {fix}"
        )


def check_same_spaces(found: Spaces, first: Spaces, env_id: str) -> None:
    """Raise an error if two copies of an environment have different spaces."""
    if found != first:
        raise EnvironmentSetupError(
            f"env_id: one copy of '{env_id}' has {first.in_full()}, another {found.in_full()}; "
            "make the environment choose the same spaces every time"
        )


def replay_episode(
    env: gym.Env[Any, Any], seed: int, actions: NDArray[Any], contract: EnvContract
) -> Replayed | None:
    rows: Any = actions.tolist() if actions.ndim == 1 else actions
    total, ended = 0.0, False
    try:
        obs = contract.reset(env, seed)
        for action in rows:
            if ended:
                return None
            obs, reward, terminated, truncated, _ = contract.step(env.step, action)
            total += float(np.float32(reward))  # as the collector sums them
            ended = bool(terminated or truncated)
        return None if ended else Replayed(obs.astype(contract.dtype), total)
    except FOREIGN_ERRORS:  # it did not raise the first time
        return None


class SyncEnvs(VectorEnvs):
    """Steps a list of environments in a loop."""

    def __init__(
        self,
        env_id: str,
        env_kwargs: Mapping[str, Any] | None,
        num_envs: int,
        tried: Repeatability | None = None,
    ) -> None:
        """`tried` says what a test of the environment has found; None tests it."""
        self._envs: list[gym.Env[Any, Any]] = []
        tried = tried or repeatability(env_id, env_kwargs)
        try:
            for _ in range(num_envs):
                self._envs.append(make_env(env_id, env_kwargs))
                spaces = spaces_of(self._envs[-1], env_id)
                if len(self._envs) == 1:
                    super().__init__(env_id, spaces, num_envs)
                check_same_spaces(spaces, self.spaces, env_id)
        except RLTrainingError:
            self.close()
            raise
        self.repeatability = tried
        self._step_functions: list[Callable[[Any], Any]] = [env.step for env in self._envs]
        # Environments that sample from the process-wide generators get private copies, as in
        # processes of their own; other environments are spared the cost.
        self._generators = [OwnGenerators() for _ in self._envs] if tried.draws else []
        for i, generators in enumerate(self._generators):
            self._step_functions[i] = generators.around(self._step_functions[i])
        self._discrete = self.spaces.is_discrete

    def step(self, actions: NDArray[Any]) -> StepArrays:
        self._clock += 1
        num_envs, check = self.num_envs, self.contract.step
        obs = np.empty((num_envs, *self.contract.shape), self.contract.dtype)
        reward = np.empty(num_envs, np.float32)
        terminated = np.zeros(num_envs, np.bool_)
        truncated = np.zeros(num_envs, np.bool_)
        self.lives_lost = None
        # Environments check Python integers faster than NumPy's.
        rows: Any = actions.tolist() if self._discrete else actions
        i = 0
        try:
            for i, step in enumerate(self._step_functions):
                obs[i], reward[i], ends, cut, info = check(step, rows[i])
                if ends:
                    terminated[i] = True
                elif cut:
                    truncated[i] = True
                if ends or cut:
                    self.successes[i], self.scores[i] = success_in(info), score_in(info)
                elif life_lost_in(info):
                    if self.lives_lost is None:
                        self.lives_lost = np.zeros(num_envs, np.bool_)
                    self.lives_lost[i] = True
        except FOREIGN_ERRORS as error:
            self._fail(i, what_it_did(error), cause=error)
        if not (all_finite(obs) and all_finite(reward)):
            self._fail_not_finite(obs, reward, actions)
        self.obs = obs
        return obs, reward, terminated, truncated

    def _reset(self, mask: NDArray[Any], obs: NDArray[Any]) -> None:
        i = 0
        try:
            for i, due in enumerate(mask.tolist()):
                if due:
                    with self._generators_of(i, self._seeds[i]):
                        obs[i] = self.contract.reset(self._envs[i], self._seeds[i])
        except FOREIGN_ERRORS as error:
            self._fail(i, what_it_did(error), cause=error)

    def _generators_of(self, i: int, seed: int) -> AbstractContextManager[None]:
        """Seed and install the private generators of an environment, if it has any, for the
        beginning of an episode."""
        if not self._generators:
            return nullcontext()
        self._generators[i].begin_episode(seed)
        return self._generators[i].in_place()

    def _replay(self, actions: Sequence[NDArray[Any]]) -> list[Replayed | None]:
        replayed = []
        for i, env in enumerate(self._envs):
            with self._generators_of(i, self._seeds[i]):
                replayed.append(replay_episode(env, self._seeds[i], actions[i], self.contract))
        return replayed

    def close(self) -> None:
        while self._envs:
            close_env(self._envs.pop())
