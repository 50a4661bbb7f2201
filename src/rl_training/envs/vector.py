"""Several copies of an environment, stepped together and reset by mask.

There is no autoreset anywhere: what `step` returns is what the environments returned, so
the observation of an ended episode is its last one and no transition crosses episodes.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import select
import signal
import sys
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from multiprocessing.connection import wait
from typing import Any, Literal, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from numpy.typing import NDArray

from rl_training.envs.contract import (
    CORRECT,
    FINITE,
    FOREIGN_ERRORS,
    EnvContract,
    all_finite,
    close_env,
    numbers,
    what_it_did,
)
from rl_training.envs.global_random import OwnGenerators, seed_global_generators
from rl_training.envs.make import env_spaces, make_env, spaces_of
from rl_training.envs.repeatability import Repeatability, repeatability
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import (
    ConfigError,
    EnvironmentFailure,
    EnvironmentSetupError,
    RLTrainingError,
)

Vectorization = Literal["sync", "async"]
StepArrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]

ANSWER_LIMIT_S = 600
"""Seconds without an answer to a step or a reset after which a worker counts as stuck."""


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


def _same_spaces(found: Spaces, first: Spaces, env_id: str) -> None:
    """Refuse copies of an environment that differ in their spaces."""
    if found != first:
        raise EnvironmentSetupError(
            f"env_id: one copy of '{env_id}' has {first.in_full()}, another {found.in_full()}; "
            "make the environment choose the same spaces every time"
        )


class _SyncEnvs(VectorEnvs):
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
                _same_spaces(spaces, self.spaces, env_id)
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
                obs[i], reward[i], ends, cut = check(step, rows[i])
                if ends:
                    terminated[i] = True
                elif cut:
                    truncated[i] = True
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
                replayed.append(_replay_episode(env, self._seeds[i], actions[i], self.contract))
        return replayed

    def close(self) -> None:
        while self._envs:
            close_env(self._envs.pop())


_open_workers: weakref.WeakSet[_AsyncEnvs] = weakref.WeakSet()


@atexit.register
def _close_workers() -> None:
    for envs in list(_open_workers):
        envs.close()


class _AsyncEnvs(VectorEnvs):
    """Gymnasium's worker processes, with shared memory and without autoreset."""

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any] | None, num_envs: int) -> None:
        self._vector: AsyncVectorEnv[Any, Any] | None = None
        super().__init__(env_id, env_spaces(env_id, env_kwargs), num_envs)
        make = _WorkerFactory(env_id, dict(env_kwargs or {}), self.spaces)
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
        # At its exit the interpreter sends SIGTERM, which workers ignore, and waits for them.
        _open_workers.add(self)
        # One poll object each: `Connection.poll` builds a selector at every call.
        self._pollers = []
        for pipe in self._vector.parent_pipes:
            poller = select.poll()
            poller.register(pipe.fileno(), select.POLLIN)
            self._pollers.append(poller)
        self.repeatability = self._tried()

    def _tried(self) -> Repeatability:
        """Tried by one of the workers, because the environment may not live through it."""
        vector = self._workers

        def ask() -> None:
            vector.set_attr("tries", [i == 0 for i in range(self.num_envs)])
            vector.call_async("repeatability")

        found: Repeatability = self._answers(ask, vector.call_wait, steps=1)[0]
        return found

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
        if not (all_finite(obs) and all_finite(reward)):
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
        # Workers in the middle of a long step are not waited for, and ignore other signals.
        deadline = time.monotonic() + 1.0
        for process in vector.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in vector.processes:
            if process.is_alive():
                process.kill()
        for process in vector.processes:
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

    def __init__(self, env_id: str, env_kwargs: dict[str, Any], spaces: Spaces) -> None:
        self._env_id, self._env_kwargs, self._spaces = env_id, env_kwargs, spaces
        self._parent = os.getpid()

    def __call__(self) -> gym.Env[Any, Any]:
        if os.getpid() == self._parent:  # Gymnasium makes one here as well, for its spaces
            return _WorkerEnv(_Absent(), self._spaces)
        # Signals reach the whole process group, but it is the parent that saves, ends and
        # closes the pipe, at which a worker ends.
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_IGN)
        if "torch" in sys.modules:
            # The thread pool does not survive a fork: with one thread it is not asked.
            sys.modules["torch"].set_num_threads(1)
        env: gym.Env[Any, Any]
        try:
            env = make_env(self._env_id, self._env_kwargs)
            _same_spaces(spaces_of(env, self._env_id), self._spaces, self._env_id)
        except BaseException as error:  # noqa: BLE001  (told at the first reset)
            env = _Absent(error)
        return _WorkerEnv(env, self._spaces, (self._env_id, self._env_kwargs))


class _Absent(gym.Env[Any, Any]):
    """Stands where no environment could be made, or is needed."""

    def __init__(self, why: BaseException | None = None) -> None:
        self._why = why or RuntimeError("there is no environment in this process")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        raise self._why


class _WorkerEnv(gym.Wrapper[Any, Any, Any, Any]):
    """An environment in a worker: float32 observations of one shape, failures as words.

    Gymnasium would broadcast an observation of another shape into its shared memory, and
    would not say which environment raised.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        spaces: Spaces,
        task: tuple[str, dict[str, Any]] = ("", {}),
    ) -> None:
        super().__init__(env)
        self._contract, self._task = EnvContract(spaces), task
        low, high = (0, 255) if spaces.is_image else (-np.inf, np.inf)
        self.observation_space = gym.spaces.Box(low, high, spaces.obs_shape, spaces.obs_dtype)
        self.action_space = _action_space(spaces)
        self._discrete = spaces.is_discrete
        self._nothing = np.zeros(spaces.obs_shape, spaces.obs_dtype)
        self.episode: tuple[int, NDArray[Any]] = (0, np.zeros(0))
        self.tries = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        seed = seed or 0
        # A fork begins with its parent's state: all workers would draw the same numbers.
        seed_global_generators(seed)
        try:
            return self._contract.reset(self.env, seed), {}
        except BaseException as error:  # noqa: BLE001  (Ctrl-C does not reach a worker)
            return self._nothing, {"failure": what_it_did(error)}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            obs, reward, terminated, truncated = self._contract.step(
                self.env.step, int(action) if self._discrete else action
            )
        except BaseException as error:  # noqa: BLE001
            return self._nothing, 0.0, False, False, {"failure": what_it_did(error)}
        # infos are not looked at
        return obs, float(reward), bool(terminated), bool(truncated), {}

    def replay_episode(self) -> Replayed | None:
        """`episode` is set just before: Gymnasium can set a value in each worker, but calls
        all of them with the same arguments."""
        seed_global_generators(self.episode[0])
        return _replay_episode(self.env, *self.episode, self._contract)

    def repeatability(self) -> Repeatability:
        """Tried where `tries` was set."""
        try:
            return repeatability(*self._task) if self.tries else Repeatability()
        except BaseException:  # noqa: BLE001  (told when training meets it)
            return Repeatability()

    def close(self) -> None:
        close_env(self.env)


def _action_space(spaces: Spaces) -> gym.Space[Any]:
    if spaces.is_discrete:
        return gym.spaces.Discrete(spaces.action_dim, start=spaces.action_start)
    low, high = (np.asarray(x, np.float32) for x in (spaces.action_low, spaces.action_high))
    return gym.spaces.Box(low, high, dtype=np.float32)


def _replay_episode(
    env: gym.Env[Any, Any], seed: int, actions: NDArray[Any], contract: EnvContract
) -> Replayed | None:
    rows: Any = actions.tolist() if actions.ndim == 1 else actions
    total, ended = 0.0, False
    try:
        obs = contract.reset(env, seed)
        for action in rows:
            if ended:
                return None
            obs, reward, terminated, truncated = contract.step(env.step, action)
            total += float(np.float32(reward))  # as the collector adds them up
            ended = bool(terminated or truncated)
        return None if ended else Replayed(obs.astype(contract.dtype), total)
    except FOREIGN_ERRORS:  # it did not raise the first time
        return None


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
