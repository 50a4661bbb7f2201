"""Environments in worker processes, one each."""

from __future__ import annotations

import atexit
import os
import select
import signal
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import _async_worker
from numpy.typing import NDArray

from rl_training.envs.contract import (
    EnvContract,
    all_finite,
    close_env,
    life_lost_in,
    score_in,
    success_in,
    what_it_did,
)
from rl_training.envs.global_random import seed_global_generators
from rl_training.envs.make import env_spaces, make_env, spaces_of
from rl_training.envs.repeatability import Repeatability, repeatability
from rl_training.envs.spaces import Spaces
from rl_training.envs.vector import (
    Replayed,
    StepArrays,
    VectorEnvs,
    check_same_spaces,
    replay_episode,
)
from rl_training.experiment.errors import EnvironmentSetupError

ANSWER_LIMIT_S = 600
"""Seconds that a worker may take for a step or a reset before it counts as stuck."""


_open_workers: weakref.WeakSet[AsyncEnvs] = weakref.WeakSet()


@atexit.register
def _close_workers() -> None:
    for envs in list(_open_workers):
        envs.close()


class AsyncEnvs(VectorEnvs):
    """Gymnasium's worker processes, with shared memory and without autoreset."""

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any] | None, num_envs: int) -> None:
        self._vector: AsyncVectorEnv[Any, Any] | None = None
        super().__init__(env_id, env_spaces(env_id, env_kwargs), num_envs)
        make = _WorkerFactory(env_id, dict(env_kwargs or {}), self.spaces)
        try:
            self._vector = AsyncVectorEnv(
                [make] * num_envs,
                shared_memory=True,
                worker=_serve_until_the_parent_ends,
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
        # At exit the interpreter sends SIGTERM, which workers ignore, and then waits for them.
        _open_workers.add(self)
        self._answered = [_answered_in_a_second(pipe) for pipe in self._vector.parent_pipes]
        self.repeatability = self._tried()

    def _tried(self) -> Repeatability:
        """Run the test in a worker, because it may kill the process."""
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
        for i in np.flatnonzero(terminated | truncated).tolist():
            self.successes[i] = _sent(infos, "is_success", i)
            self.scores[i] = _sent(infos, "score", i)
        self.lives_lost = infos.get("_life_lost")
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
        """Return the workers' results, or raise a failure that names the broken one."""
        vector, limit = self._workers, ANSWER_LIMIT_S * max(1, steps)
        try:
            ask()
            for i, answered in enumerate(self._answered):
                # Counted in polls: a clock would continue while the process is stopped.
                if not any(answered() for _ in range(limit)):
                    self._fail(i, f"has not answered for {limit} s")
            return answer()
        except (EOFError, OSError) as error:
            sentinels = [process.sentinel for process in vector.processes]
            ended = wait(sentinels, timeout=5.0)
            i = next((i for i, s in enumerate(sentinels) if s in ended), 0)
            vector.processes[i].join(5.0)  # the exit code arrives a little after the end
            what = f"lost its worker process ({_end_of(vector.processes[i].exitcode)})"
            fix = "correct the environment, or give the machine more memory"
            self._fail(i, what, fix, error)

    def _raise_reported(self, infos: Mapping[str, Any]) -> None:
        if "failure" in infos:
            i = int(np.flatnonzero(infos["_failure"])[0])
            self._fail(i, str(infos["failure"][i]))

    def close(self) -> None:
        vector, self._vector = self._vector, None
        if vector is None:
            return
        # Gymnasium's close waits for replies that a failed worker never sends.
        for pipe in vector.parent_pipes:
            with suppress(OSError):
                pipe.send(("close", None))
        # Workers in a long step get one second; after that they are killed.
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


def _serve_until_the_parent_ends(*arguments: Any) -> None:
    """Gymnasium's worker, without a traceback when the parent process was killed."""
    with suppress(EOFError, ConnectionError):
        _async_worker(*arguments)


class _WorkerFactory:
    """Makes the environment in a worker process."""

    def __init__(self, env_id: str, env_kwargs: dict[str, Any], spaces: Spaces) -> None:
        self._env_id, self._env_kwargs, self._spaces = env_id, env_kwargs, spaces
        self._parent = os.getpid()

    def __call__(self) -> gym.Env[Any, Any]:
        if os.getpid() == self._parent:  # Gymnasium also makes one here, for its spaces
            return _WorkerEnv(_Absent(), self._spaces)
        # Signals reach the whole process group. The parent handles them and closes the pipe,
        # which ends a worker.
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_IGN)
        if "torch" in sys.modules:
            # The thread pool does not survive a fork; with one thread it is not used.
            sys.modules["torch"].set_num_threads(1)
        env: gym.Env[Any, Any]
        try:
            env = make_env(self._env_id, self._env_kwargs)
            check_same_spaces(spaces_of(env, self._env_id), self._spaces, self._env_id)
        except BaseException as error:  # noqa: BLE001  (raised at the first reset)
            env = _Absent(error)
        return _WorkerEnv(env, self._spaces, (self._env_id, self._env_kwargs))


class _Absent(gym.Env[Any, Any]):
    """Placeholder for an environment that could not be made or is not needed."""

    def __init__(self, why: BaseException | None = None) -> None:
        self._why = why or RuntimeError("there is no environment in this process")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        raise self._why


class _WorkerEnv(gym.Wrapper[Any, Any, Any, Any]):
    """An environment in a worker: observations of one shape and dtype, failures as text.

    Gymnasium would broadcast an observation of another shape into its shared memory and
    would not report which environment raised.
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
        # A fork inherits its parent's generators: all workers would sample the same numbers.
        seed_global_generators(seed)
        try:
            return self._contract.reset(self.env, seed), {}
        except BaseException as error:  # noqa: BLE001  (Ctrl-C does not reach a worker)
            return self._nothing, {"failure": what_it_did(error)}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            obs, reward, terminated, truncated, info = self._contract.step(
                self.env.step, int(action) if self._discrete else action
            )
        except BaseException as error:  # noqa: BLE001
            return self._nothing, 0.0, False, False, {"failure": what_it_did(error)}
        sent: dict[str, Any] = {}
        if terminated or truncated:
            found = {"is_success": success_in(info), "score": score_in(info)}
            sent = {key: value for key, value in found.items() if value is not None}
        elif life_lost_in(info):
            sent = {"life_lost": True}
        return obs, float(reward), bool(terminated), bool(truncated), sent

    def replay_episode(self) -> Replayed | None:
        """Replay `episode`, which is set before, because Gymnasium can set a different value in
        each worker but passes the same arguments to all."""
        seed_global_generators(self.episode[0])
        return replay_episode(self.env, *self.episode, self._contract)

    def repeatability(self) -> Repeatability:
        """Run the test if `tries` is set."""
        try:
            return repeatability(*self._task) if self.tries else Repeatability()
        except BaseException:  # noqa: BLE001  (training reports it)
            return Repeatability()

    def close(self) -> None:
        close_env(self.env)


def _sent(infos: Mapping[str, Any], key: str, env: int) -> Any:
    """What a worker sent under this key in the last step; None for nothing."""
    return infos[key][env].item() if key in infos and infos[f"_{key}"][env] else None


def _action_space(spaces: Spaces) -> gym.Space[Any]:
    if spaces.is_discrete:
        return gym.spaces.Discrete(spaces.action_dim, start=spaces.action_start)
    if not spaces.is_box:
        return gym.spaces.MultiDiscrete(
            list(spaces.action_choices), start=list(spaces.action_starts)
        )
    low, high = (np.asarray(x, np.float32) for x in (spaces.action_low, spaces.action_high))
    return gym.spaces.Box(low, high, dtype=np.float32)


def _end_of(exit_code: int | None) -> str:
    if exit_code is None:
        return "without an exit code"
    if exit_code < 0:
        return f"killed by signal {signal.Signals(-exit_code).name}"
    return f"exit code {exit_code}"


def _answered_in_a_second(pipe: Connection) -> Callable[[], Any]:
    """A function that waits for up to a second, and says whether an answer has come."""
    if not hasattr(select, "poll"):  # Windows, whose pipes can only be asked themselves
        return lambda: pipe.poll(1.0)
    # Made once, because `Connection.poll` builds a selector in every call.
    poller = select.poll()
    poller.register(pipe.fileno(), select.POLLIN)
    return lambda: poller.poll(1000)


def _start_method() -> str | None:
    """Use fork on Linux: environments registered by a script or a notebook then exist in the
    workers, and no script needs a `__main__` guard. The libraries of macOS may crash after a
    fork, and Windows has none: the system's own way is used there."""
    return "fork" if sys.platform.startswith("linux") else None
