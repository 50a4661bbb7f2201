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
    numbers,
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
    """Where replaying an episode's actions has led."""

    obs: NDArray[Any]  # one observation
    episode_return: float


class VectorEnvs(ABC):
    """E environments with one clock.

    `obs` holds the current observations, (E, O) float32 or (E, ...) uint8 images; before the
    first `reset` of all environments it is zeros. Arrays that were handed out, `obs`
    included, are never written to again. After an `EnvironmentFailure` only `close` is of use.
    """

    def __init__(self, env_id: str, spaces: Spaces, num_envs: int) -> None:
        self.env_id = env_id
        self.spaces = spaces
        self.num_envs = num_envs
        self.contract = EnvContract(spaces)
        self.repeatability = Repeatability()
        self.obs: NDArray[Any] = np.zeros((num_envs, *spaces.obs_shape), spaces.obs_dtype)
        self.successes: list[bool | None] = [None] * num_envs
        """Of the episode that ended last in each, where the environment reports it."""
        # For sentences about failures: one shared clock costs less than E counters.
        self._clock = 0
        self._began = [0] * num_envs
        self._seeds = [0] * num_envs

    @abstractmethod
    def step(self, actions: NDArray[Any]) -> StepArrays:
        """Step every environment with its row of `actions`, in the environment's units.

        Returns next_obs as `obs` is, reward (E,) float32, terminated (E,) bool and
        truncated (E,) bool. An environment that reports both has terminated. An ended
        environment has to be reset before the next step.
        """

    @abstractmethod
    def _reset(self, mask: NDArray[Any], obs: NDArray[Any]) -> None:
        """Reset the masked environments with `self._seeds`, their observations into `obs`."""

    @abstractmethod
    def _replay(self, actions: Sequence[NDArray[Any]]) -> list[Replayed | None]: ...

    @abstractmethod
    def close(self) -> None:
        """Release the environments; a second call does nothing."""

    def reset(self, mask: NDArray[Any], seeds: Sequence[int]) -> None:
        """Begin a new episode where `mask` (E,) bool is set, with the seed at that index
        (`seeds` has E entries, the others are not looked at); the rest is left alone."""
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

        None where the episode ended or raised before its last action: the environment did
        not do what it did before. Such an environment has to be reset.
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
        self, i: int, what: str, mend: str = CORRECT, cause: BaseException | None = None
    ) -> NoReturn:
        seed, step = self._seeds[i], self._clock - self._began[i]
        with suppress(Exception):
            self.close()
        raise EnvironmentFailure(
            f"env_id: environment {i} of '{self.env_id}' (episode seed {seed}, step {step}) "
            f"{what}; {mend}"
        ) from cause


def check_same_spaces(found: Spaces, first: Spaces, env_id: str) -> None:
    """Refuse copies of an environment that differ in their spaces."""
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
            total += float(np.float32(reward))  # as the collector adds them up
            ended = bool(terminated or truncated)
        return None if ended else Replayed(obs.astype(contract.dtype), total)
    except FOREIGN_ERRORS:  # it did not raise the first time
        return None


class SyncEnvs(VectorEnvs):
    """A list of environments and a loop."""

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any] | None, num_envs: int) -> None:
        self._envs: list[gym.Env[Any, Any]] = []
        tried = repeatability(env_id, env_kwargs)
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
        # Environments that draw from the generators of the process get generators of their own,
        # as each has in a process of its own; others are spared the cost.
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
        # Python integers: environments check them faster than NumPy's.
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
                    self.successes[i] = success_in(info)
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
        """Where an environment has generators of its own: seeded, and in place."""
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
