"""Several copies of an environment, stepped together and reset by mask.

There is no autoreset anywhere: what `step` returns is what the environments returned, so
the observation of an ended episode is its last one and no transition crosses episodes.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import select
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any, Literal, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from numpy.typing import NDArray

from rl_training.data.generation import make_env
from rl_training.data.spaces import Spaces
from rl_training.experiment.errors import (
    ConfigError,
    EnvironmentSetupError,
    RLTrainingError,
    told,
)

Vectorization = Literal["sync", "async"]
StepArrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]

ANSWER_LIMIT_S = 600
"""Seconds without an answer to a step or a reset after which a worker counts as stuck."""


class EnvironmentFailure(RLTrainingError):  # noqa: N818  (what it is, to a reader of the log)
    """An environment raised, returned what is no number or no observation, or died."""


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
        self.obs: NDArray[Any] = np.zeros((num_envs, *spaces.obs_shape), spaces.obs_dtype)
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
        if not _all_finite(obs):
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
            what = f"returned the observation {_numbers(obs[i])}"
        else:
            what = f"returned the reward {reward[i]}"
        if actions is not None and not np.isfinite(actions[i]).all():
            self._fail(i, f"was given the action {_numbers(actions[i])}", "the policy has diverged")
        self._fail(i, what, "every number has to be finite; correct the environment")

    def _fail(
        self, i: int, what: str, mend: str | None = None, cause: Exception | None = None
    ) -> NoReturn:
        seed, step = self._seeds[i], self._clock - self._began[i]
        with suppress(Exception):
            self.close()
        raise EnvironmentFailure(
            f"env_id: environment {i} of '{self.env_id}' (episode seed {seed}, step {step}) "
            f"{what}; {mend or 'correct the environment, or env_kwargs'}"
        ) from cause


def make_vector_env(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None,
    num_envs: int,
    vectorization: Vectorization = "sync",
) -> VectorEnvs:
    """`num_envs` copies of a Gymnasium environment, in this process ("sync", the faster one
    for light environments) or in one process each ("async")."""
    if num_envs < 1:
        raise ConfigError(f"num_envs: {num_envs} environments cannot be stepped; use 1 or more")
    if vectorization == "sync":
        return _SyncEnvs(env_id, env_kwargs, num_envs)
    if vectorization == "async":
        return _AsyncEnvs(env_id, env_kwargs, num_envs)
    raise ConfigError(f"vectorization: '{vectorization}' is unknown; use 'sync' or 'async'")


def _spaces_of(env: gym.Env[Any, Any], env_id: str) -> Spaces:
    try:
        return Spaces.of(env)
    except EnvironmentSetupError as error:
        raise EnvironmentSetupError(f"env_id: '{env_id}': {error}") from None


class _SyncEnvs(VectorEnvs):
    """A list of environments and a loop."""

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any] | None, num_envs: int) -> None:
        self._envs: list[gym.Env[Any, Any]] = []
        try:
            for _ in range(num_envs):
                self._envs.append(make_env(env_id, env_kwargs))
            spaces = _spaces_of(self._envs[0], env_id)
        except RLTrainingError:
            self.close()
            raise
        super().__init__(env_id, spaces, num_envs)
        self._step_functions: list[Callable[[Any], Any]] = [env.step for env in self._envs]
        self._shape, self._dtype = spaces.obs_shape, np.dtype(spaces.obs_dtype)
        self._discrete = spaces.is_discrete

    def step(self, actions: NDArray[Any]) -> StepArrays:
        self._clock += 1
        num_envs, shape, dtype = self.num_envs, self._shape, self._dtype
        images = dtype == np.uint8
        obs = np.empty((num_envs, *shape), dtype)
        reward = np.empty(num_envs, np.float32)
        terminated = np.zeros(num_envs, np.bool_)
        truncated = np.zeros(num_envs, np.bool_)
        # Python integers: environments check them faster than NumPy's.
        rows: Any = actions.tolist() if self._discrete else actions
        i = 0
        try:
            for i, step in enumerate(self._step_functions):
                row, value, ends, cut, _ = step(rows[i])
                if (
                    type(row) is not np.ndarray
                    or row.shape != shape
                    or (images and row.dtype != dtype)
                ):
                    row = _as_observation(row, shape, dtype)
                obs[i] = row
                reward[i] = value
                if ends:
                    terminated[i] = True
                elif cut:
                    truncated[i] = True
        except Exception as error:  # noqa: BLE001  (foreign code may raise anything)
            self._fail(i, _raised(error), cause=error)
        if not (_all_finite(obs) and _all_finite(reward)):
            self._fail_not_finite(obs, reward, actions)
        self.obs = obs
        return obs, reward, terminated, truncated

    def _reset(self, mask: NDArray[Any], obs: NDArray[Any]) -> None:
        i = 0
        try:
            for i, due in enumerate(mask.tolist()):
                if due:
                    first, _ = self._envs[i].reset(seed=self._seeds[i])
                    obs[i] = _as_observation(first, self._shape, self._dtype)
        except Exception as error:  # noqa: BLE001
            self._fail(i, _raised(error), cause=error)

    def _replay(self, actions: Sequence[NDArray[Any]]) -> list[Replayed | None]:
        return [
            _replay_episode(env, seed, taken, self._shape, self._dtype)
            for env, seed, taken in zip(self._envs, self._seeds, actions, strict=True)
        ]

    def close(self) -> None:
        while self._envs:
            with suppress(Exception):  # one that has failed may fail here as well
                self._envs.pop().close()


class _AsyncEnvs(VectorEnvs):
    """Gymnasium's worker processes, with shared memory and without autoreset."""

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any] | None, num_envs: int) -> None:
        self._vector: AsyncVectorEnv[Any, Any] | None = None
        make = _WorkerFactory(env_id, dict(env_kwargs or {}))
        env = make_env(env_id, env_kwargs)
        try:
            spaces = _spaces_of(env, env_id)
        finally:
            env.close()
        super().__init__(env_id, spaces, num_envs)
        try:
            self._vector = AsyncVectorEnv(
                [make] * num_envs,
                shared_memory=True,
                copy=False,
                context=_start_method(),
                autoreset_mode=AutoresetMode.DISABLED,
            )
        except (EOFError, OSError) as error:
            raise EnvironmentSetupError(
                f"vectorization: a worker process of '{env_id}' ended while it made the "
                f"environment ({type(error).__name__}); look above for its message, or use "
                "vectorization=sync"
            ) from error
        # One poll object each: `Connection.poll` builds a selector at every call.
        self._pollers = []
        for pipe in self._vector.parent_pipes:
            poller = select.poll()
            poller.register(pipe.fileno(), select.POLLIN)
            self._pollers.append(poller)

    @property
    def _workers(self) -> AsyncVectorEnv[Any, Any]:
        if self._vector is None:
            raise RuntimeError("these environments are closed")
        return self._vector

    def step(self, actions: NDArray[Any]) -> StepArrays:
        self._clock += 1
        vector = self._workers

        def ask() -> None:
            vector.step_async(actions)

        shared, rewards, terminated, truncated, infos = self._answers(ask, vector.step_wait)
        self._raise_reported(infos)
        obs, reward = shared.copy(), rewards.astype(np.float32)
        if not (_all_finite(obs) and _all_finite(reward)):
            self._fail_not_finite(obs, reward, actions)
        self.obs = obs
        return obs, reward, terminated, truncated & ~terminated

    def _reset(self, mask: NDArray[Any], obs: NDArray[Any]) -> None:
        vector = self._workers

        def ask() -> None:
            vector.reset_async(seed=list(self._seeds), options={"reset_mask": mask})

        shared, infos = self._answers(ask, vector.reset_wait)
        self._raise_reported(infos)
        obs[mask] = shared[mask]

    def _replay(self, actions: Sequence[NDArray[Any]]) -> list[Replayed | None]:
        vector = self._workers

        def ask() -> None:
            vector.set_attr("episode", list(zip(self._seeds, actions, strict=True)))
            vector.call_async("replay_episode")

        longest = max(len(taken) for taken in actions)
        return list(self._answers(ask, vector.call_wait, steps=longest))

    def _answers(self, ask: Callable[[], None], answer: Callable[[], Any], steps: int = 1) -> Any:
        """What the workers answer, or a failure that names the one that cannot."""
        vector, limit = self._workers, ANSWER_LIMIT_S * max(1, steps)
        try:
            ask()
            for i, poller in enumerate(self._pollers):
                # Counted in polls, not by a clock, which runs on while the process is stopped.
                if not any(poller.poll(1000) for _ in range(limit)):
                    self._fail(i, f"has not answered for {limit} s")
            return answer()
        except (EOFError, OSError) as error:
            sentinels = [process.sentinel for process in vector.processes]
            ended = wait(sentinels, timeout=5.0)
            i = next((i for i, s in enumerate(sentinels) if s in ended), 0)
            vector.processes[i].join(5.0)  # the exit code comes a moment after the end
            what = f"lost its worker process ({_end_of(vector.processes[i].exitcode)})"
            mend = "correct the environment, or give the machine more memory"
            self._fail(i, what, mend, error)

    def _raise_reported(self, infos: Mapping[str, Any]) -> None:
        if "failure" in infos:
            i = int(np.flatnonzero(infos["_failure"])[0])
            self._fail(i, str(infos["failure"][i]))

    def close(self) -> None:
        vector, self._vector = self._vector, None
        if vector is None:
            return
        # Gymnasium's close waits for answers that a failed worker never gives.
        for pipe in vector.parent_pipes:
            with suppress(OSError):
                pipe.send(("close", None))
        for process in vector.processes:
            # A worker in the middle of a long step is not waited for.
            process.join(1.0)
            if process.is_alive():
                process.terminate()
                process.join(1.0)
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in vector.parent_pipes:
            pipe.close()
        vector.error_queue.close()
        vector.closed = True

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


class _WorkerFactory:
    """Makes the environment of one worker."""

    def __init__(self, env_id: str, env_kwargs: dict[str, Any]) -> None:
        self._env_id, self._env_kwargs = env_id, env_kwargs
        self._parent = os.getpid()

    def __call__(self) -> gym.Env[Any, Any]:
        if os.getpid() != self._parent:  # Gymnasium also makes one in the parent, for its spaces
            # Ctrl-C reaches the whole process group, but it is the parent that saves and
            # ends; and a handler inherited from the parent must not swallow `terminate`.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if "torch" in sys.modules:
                # The thread pool does not survive a fork: with one thread it is not asked.
                sys.modules["torch"].set_num_threads(1)
        return _WorkerEnv(make_env(self._env_id, self._env_kwargs))


class _WorkerEnv(gym.Wrapper[Any, Any, Any, Any]):
    """An environment in a worker: float32 observations of one shape, failures as words.

    Gymnasium would broadcast an observation of another shape into its shared memory, and
    would not say which environment raised.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        spaces = Spaces.of(env)
        self._shape, self._dtype = spaces.obs_shape, np.dtype(spaces.obs_dtype)
        low, high = (0, 255) if spaces.is_image else (-np.inf, np.inf)
        self.observation_space = gym.spaces.Box(low, high, self._shape, spaces.obs_dtype)
        self._discrete = isinstance(env.action_space, gym.spaces.Discrete)
        self.episode: tuple[int, NDArray[Any]] = (0, np.zeros(0))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        _seed_global_generators(seed)
        try:
            return _as_observation(self.env.reset(seed=seed)[0], self._shape, self._dtype), {}
        except Exception as error:  # noqa: BLE001
            return np.zeros(self._shape, self._dtype), {"failure": _raised(error)}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            obs, reward, terminated, truncated, _ = self.env.step(
                int(action) if self._discrete else action
            )
            obs, reward = _as_observation(obs, self._shape, self._dtype), float(reward)
        except Exception as error:  # noqa: BLE001
            report = {"failure": _raised(error)}
            return np.zeros(self._shape, self._dtype), 0.0, False, False, report
        return obs, reward, bool(terminated), bool(truncated), {}  # infos are not looked at

    def replay_episode(self) -> Replayed | None:
        """`episode` is set just before: Gymnasium can set a value in each worker, but calls
        all of them with the same arguments."""
        _seed_global_generators(self.episode[0])
        return _replay_episode(self.env, *self.episode, self._shape, self._dtype)


def _seed_global_generators(seed: int | None) -> None:
    """For environments that draw from them against the rules: a fork begins with its
    parent's state, so all workers would draw the same numbers, and a replay others."""
    random.seed(seed)
    np.random.seed(None if seed is None else seed % 2**32)
    if seed is not None and "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def _replay_episode(
    env: gym.Env[Any, Any],
    seed: int,
    actions: NDArray[Any],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
) -> Replayed | None:
    rows: Any = actions.tolist() if actions.ndim == 1 else actions
    total, ended = 0.0, False
    try:
        obs = env.reset(seed=seed)[0]
        for action in rows:
            if ended:
                return None
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(np.float32(reward))  # as the collector adds them up
            ended = bool(terminated or truncated)
        return None if ended else Replayed(_as_observation(obs, shape, dtype).copy(), total)
    except Exception:  # noqa: BLE001  (it did not raise the first time)
        return None


def _numbers(array: NDArray[Any]) -> str:
    """At most a few of them, on one line."""
    return np.array2string(array, threshold=8, max_line_width=1000)


def _all_finite(array: NDArray[Any]) -> bool:
    if array.dtype == np.uint8:
        return True
    # Searching the bytes takes half the time of `all` on the few numbers of a step.
    return 0 not in np.isfinite(array).tobytes()


def _as_observation(obs: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    array = np.asarray(obs)
    if array.shape != shape:
        raise _WrongObservationError(
            f"returned an observation of shape {array.shape}, expected {shape}"
        )
    if dtype == np.uint8 and array.dtype != dtype:  # other numbers would be cut to bytes
        raise _WrongObservationError(f"returned an observation of {array.dtype}, expected uint8")
    return array.astype(dtype, copy=False)


class _WrongObservationError(Exception):
    """Said as it is, not as something the environment raised."""


def _raised(error: Exception) -> str:
    if isinstance(error, _WrongObservationError):
        return str(error)
    return f"raised {told(error)}"


def _end_of(exit_code: int | None) -> str:
    if exit_code is None:
        return "without an exit code"
    if exit_code < 0:
        return f"killed by signal {signal.Signals(-exit_code).name}"
    return f"exit code {exit_code}"


def _start_method() -> str | None:
    """Fork where there is one: environments that a script or a notebook has registered
    exist in the workers, and no script needs a `__main__` guard."""
    return "fork" if "fork" in multiprocessing.get_all_start_methods() else None
