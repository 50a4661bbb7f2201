"""Environments in worker processes, each of which steps a share of them.

Actions, observations, rewards and flags lie in memory that all processes share: a step sends a
few bytes to each worker and back. Only replays, failures and what is tried at the start are
pickled, between processes of one run.
"""

from __future__ import annotations

import atexit
import itertools
import math
import multiprocessing
import os
import pickle
import select
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from rl_training.envs.contract import CORRECT, what_it_did
from rl_training.envs.global_random import seed_global_generators
from rl_training.envs.make import env_spaces
from rl_training.envs.repeatability import Repeatability, repeatability
from rl_training.envs.spaces import Spaces
from rl_training.envs.vector import (
    Replayed,
    StepArrays,
    SyncEnvs,
    VectorEnvs,
    check_same_spaces,
)
from rl_training.experiment.errors import (
    ConfigError,
    EnvironmentFailure,
    EnvironmentSetupError,
    RLTrainingError,
)

ANSWER_LIMIT_S = 600
"""Seconds that a worker may take for a step or a reset before it counts as stuck."""

STEP, RESET, DONE = b"step", b"reset", b""
"""Requests and the answer that name no further values; others are pickled."""

UNKNOWN = -1
"""A success that the environment does not report."""

NOT_BEGUN = -1
"""What a worker is busy with before it serves its environments."""


_open_workers: weakref.WeakSet[AsyncEnvs] = weakref.WeakSet()


@atexit.register
def _close_workers() -> None:
    for envs in list(_open_workers):
        envs.close()


class SharedArrays:
    """What the processes write for one another: a row per environment.

    The memory has no name that could be left behind: it is gone with the last process.
    """

    obs: NDArray[Any]
    actions: NDArray[Any]
    scores: NDArray[Any]
    seeds: NDArray[Any]
    reward: NDArray[Any]
    stepping: NDArray[Any]
    mask: NDArray[Any]
    terminated: NDArray[Any]
    truncated: NDArray[Any]
    lives_lost: NDArray[Any]
    successes: NDArray[Any]

    def __init__(self, spaces: Spaces, num_envs: int, context: Any) -> None:
        self._spaces, self._num_envs = spaces, num_envs
        sizes = [_bytes_of(dtype, shape) for dtype, shape in self._fields().values()]
        self._memory = context.RawArray("B", sum(sizes))
        self._map()

    def _fields(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
        spaces, rows = self._spaces, (self._num_envs,)
        whole = np.int64 if spaces.choices else np.float32
        return {
            "obs": (spaces.obs_dtype, (*rows, *spaces.obs_shape)),
            "actions": (whole, (*rows, *spaces.inner_action_shape)),
            "scores": (np.float64, rows),  # NaN where none is reported
            "seeds": (np.int64, rows),
            "reward": (np.float32, rows),
            "stepping": (np.int32, rows),  # of each worker, the environment it is busy with
            "mask": (np.bool_, rows),
            "terminated": (np.bool_, rows),
            "truncated": (np.bool_, rows),
            "lives_lost": (np.bool_, rows),
            "successes": (np.int8, rows),
        }

    def _map(self) -> None:
        start = 0
        for name, (dtype, shape) in self._fields().items():
            array = np.frombuffer(self._memory, dtype, math.prod(shape), start)
            setattr(self, name, array.reshape(shape))
            start += _bytes_of(dtype, shape)

    def __getstate__(self) -> tuple[Any, ...]:
        return self._spaces, self._num_envs, self._memory

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._spaces, self._num_envs, self._memory = state
        self._map()


def _bytes_of(dtype: Any, shape: tuple[int, ...]) -> int:
    """Rounded up, so that what follows is aligned."""
    size: int = np.dtype(dtype).itemsize * math.prod(shape)
    return -(-size // 8) * 8


class Share(NamedTuple):
    """What one worker is given."""

    env_id: str
    env_kwargs: dict[str, Any]
    number: int
    """Of the worker."""
    first: int
    """Its first environment."""
    size: int
    """How many."""


class AsyncEnvs(VectorEnvs):
    """Environments in `workers` processes, by default in one each.

    What they return does not depend on the number of processes.
    """

    def __init__(
        self,
        env_id: str,
        env_kwargs: Mapping[str, Any] | None,
        num_envs: int,
        workers: int | None = None,
    ) -> None:
        self.processes: list[Any] = []
        self._pipes: list[Connection] = []
        super().__init__(env_id, env_spaces(env_id, env_kwargs), num_envs)
        context = multiprocessing.get_context(_start_method())
        self._shared = SharedArrays(self.spaces, num_envs, context)
        count = min(workers or num_envs, num_envs)
        self._shared.stepping[...] = NOT_BEGUN
        self._ended = 0
        cuts = [num_envs * w // count for w in range(count + 1)]
        self._shares = [slice(*ends) for ends in itertools.pairwise(cuts)]
        # At exit the interpreter sends SIGTERM, which workers ignore, and then waits for them.
        _open_workers.add(self)
        try:
            for w, own in enumerate(self._shares):
                share = Share(env_id, dict(env_kwargs or {}), w, own.start, own.stop - own.start)
                self._start(context, share)
            self._answered = [_answered_in_a_second(pipe) for pipe in self._pipes]
            self.repeatability = self._made()
        except BaseException:
            self.close()
            raise

    def _start(self, context: Any, share: Share) -> None:
        here, there = context.Pipe()
        self._pipes.append(here)
        process = context.Process(
            target=_serve,
            name=f"environments-{share.number}",
            args=(share, self.spaces, self._shared, there),
            daemon=True,
        )
        process.start()
        there.close()
        self.processes.append(process)

    def _made(self) -> Repeatability:
        """Wait until all environments are made.

        The first worker tests them before, because a test may end its process.
        """
        try:
            tried: Repeatability = self._answers({0: DONE})[0]
            self._answers(dict.fromkeys(range(len(self._pipes)), pickle.dumps(tried)))
        except EnvironmentFailure as error:
            cause = error.__cause__
            if not isinstance(cause, (EOFError, OSError)):
                raise
            if self._shared.stepping[self._ended] != NOT_BEGUN:  # the environment ended it
                raise EnvironmentSetupError(str(error)) from cause
            raise EnvironmentSetupError(
                f"vectorization: a worker process of '{self.env_id}' ended as it began "
                f"({_end_of(self.processes[self._ended].exitcode)}); look above for its message, "
                "or use vectorization=sync without env_workers"
            ) from cause
        return tried

    def step(self, actions: NDArray[Any]) -> StepArrays:
        self.begin_step(actions)
        return self.finish_step()

    def begin_step(self, actions: NDArray[Any]) -> None:
        self._clock += 1
        self._shared.actions[...] = actions
        self._ask(dict.fromkeys(range(len(self._pipes)), STEP))

    def finish_step(self) -> StepArrays:
        self._collect(range(len(self._pipes)))
        shared = self._shared
        obs, reward = shared.obs.copy(), shared.reward.copy()
        terminated, truncated = shared.terminated.copy(), shared.truncated.copy()
        for i in np.flatnonzero(terminated | truncated).tolist():
            success, score = int(shared.successes[i]), float(shared.scores[i])
            self.successes[i] = None if success == UNKNOWN else bool(success)
            self.scores[i] = None if np.isnan(score) else score
        lost = 1 in shared.lives_lost.tobytes()
        self.lives_lost = shared.lives_lost.copy() if lost else None
        self.obs = obs
        return obs, reward, terminated, truncated

    def _reset(self, mask: NDArray[Any], obs: NDArray[Any]) -> None:
        shared = self._shared
        shared.mask[...], shared.seeds[...] = mask, self._seeds
        due = [w for w, own in enumerate(self._shares) if mask[own].any()]
        self._answers(dict.fromkeys(due, RESET))
        obs[mask] = shared.obs[mask]

    def _replay(self, actions: Sequence[NDArray[Any]]) -> list[Replayed | None]:
        given = {
            w: pickle.dumps((self._seeds[own], list(actions[own])))
            for w, own in enumerate(self._shares)
        }
        answers = self._answers(given, steps=max(len(taken) for taken in actions))
        return [replayed for w in range(len(self._shares)) for replayed in answers[w]]

    def _answers(self, requests: Mapping[int, bytes], steps: int = 1) -> dict[int, Any]:
        """Send a request to each of some workers; returns their answers."""
        self._ask(requests)
        return self._collect(requests, steps)

    def _ask(self, requests: Mapping[int, bytes]) -> None:
        if not self._pipes:
            raise RuntimeError("these environments are closed")
        for w, request in requests.items():
            try:
                self._pipes[w].send_bytes(request)
            except OSError as error:
                self._lost(w, error)

    def _collect(self, workers: Iterable[int], steps: int = 1) -> dict[int, Any]:
        """The answers of workers, or a failure that names the broken environment."""
        limit = ANSWER_LIMIT_S * max(1, steps)
        answers: dict[int, Any] = {}
        failures: list[_Failed] = []
        for w in workers:
            # Counted in polls: a clock would continue while the process is stopped.
            if not any(self._answered[w]() for _ in range(limit)):
                self._fail(self._busy_with(w), f"has not answered for {limit} s")
            try:
                answer = self._pipes[w].recv_bytes()
            except (EOFError, OSError) as error:
                self._lost(w, error)
            answers[w] = None if answer == DONE else pickle.loads(answer)
            if isinstance(answers[w], _Failed):
                failures.append(answers[w])
        if failures:
            failed = failures[0]
            with suppress(Exception):
                self.close()
            raise (EnvironmentSetupError if failed.setup else EnvironmentFailure)(failed.sentence)
        return answers

    def _lost(self, w: int, error: BaseException) -> NoReturn:
        """Blame the environment that a worker was busy with when its process ended."""
        sentinels = [process.sentinel for process in self.processes]
        ended = wait(sentinels, timeout=5.0)
        if sentinels[w] not in ended:
            w = next((v for v, sentinel in enumerate(sentinels) if sentinel in ended), w)
        self.processes[w].join(5.0)  # the exit code arrives a little after the end
        self._ended = w
        what = f"lost its worker process ({_end_of(self.processes[w].exitcode)})"
        fix = "correct the environment, or give the machine more memory"
        self._fail(self._busy_with(w), what, fix, error)

    def _busy_with(self, w: int) -> int:
        """The environment that a worker is stepping, resetting or making."""
        return max(int(self._shared.stepping[w]), 0)

    def close(self) -> None:
        pipes, self._pipes = self._pipes, []
        if not pipes:
            return
        for pipe in pipes:  # at whose end a worker ends
            pipe.close()
        # Workers in a long step get one second; after that they are killed.
        deadline = time.monotonic() + 1.0
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in self.processes:
            if process.is_alive():
                process.kill()
        for process in self.processes:
            process.join()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


class _Failed(NamedTuple):
    """The answer of a worker that cannot go on."""

    sentence: str
    setup: bool = False
    """Whether the environments could not be made."""


def _serve(share: Share, spaces: Spaces, shared: SharedArrays, pipe: Connection) -> None:
    """Make a share of the environments and do what the parent asks until it closes the pipe."""
    # A fork inherits the parent's ends of pipes; held here, they would not close with the parent.
    for envs in list(_open_workers):
        inherited, envs._pipes = envs._pipes, []
        for end in inherited:
            end.close()
    # Signals reach the whole process group. The parent handles them and closes the pipe, which
    # ends a worker.
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if "torch" in sys.modules:
        # The thread pool does not survive a fork; with one thread it is not used.
        sys.modules["torch"].set_num_threads(1)
    with suppress(EOFError, OSError):  # the parent has ended, or has closed the environments
        worker = _Worker(share, spaces, shared, pipe)
        try:
            worker.serve()
        finally:
            worker.close()


class _Worker:
    """A worker's side of the pipe."""

    def __init__(
        self, share: Share, spaces: Spaces, shared: SharedArrays, pipe: Connection
    ) -> None:
        self._share, self._spaces, self._shared, self._pipe = share, spaces, shared, pipe
        self._own = slice(share.first, share.first + share.size)
        self._envs: _SharedEnvs | None = None

    def serve(self) -> None:
        self._shared.stepping[self._share.number] = self._share.first
        if self._share.number == 0:
            self._pipe.recv_bytes()
            self._answer(self._tried)
        tried: Repeatability = pickle.loads(self._pipe.recv_bytes())
        self._answer(lambda: self._make(tried))
        while True:
            request = self._pipe.recv_bytes()
            if request == STEP:
                self._answer(self._step)
            elif request == RESET:
                self._answer(self._reset)
            else:
                seeds, actions = pickle.loads(request)
                self._answer(lambda: self._made.replay(seeds, actions))  # noqa: B023

    def close(self) -> None:
        if self._envs is not None:
            self._envs.close()

    def _answer(self, work: Callable[[], Any]) -> None:
        try:
            result = work()
            answer = DONE if result is None else pickle.dumps(result)
        except EnvironmentFailure as failure:
            answer = pickle.dumps(_Failed(str(failure)))
        except RLTrainingError as error:
            answer = pickle.dumps(_Failed(str(error), setup=True))
        except BaseException as error:  # noqa: BLE001  (Ctrl-C does not reach a worker)
            answer = pickle.dumps(self._failed(error))
        self._pipe.send_bytes(answer)

    def _failed(self, error: BaseException) -> _Failed:
        """The environment that was being stepped, reset or made raised what is no `Exception`."""
        if self._envs is None:
            did, env_id = what_it_did(error), self._share.env_id
            return _Failed(f"env_id: environment '{env_id}' {did} when made; {CORRECT}", setup=True)
        i = int(self._shared.stepping[self._share.number]) - self._share.first
        return _Failed(str(self._envs.failure(i, what_it_did(error))))

    def _tried(self) -> Repeatability:
        try:
            return repeatability(self._share.env_id, self._share.env_kwargs)
        except BaseException:  # noqa: BLE001  (training reports it)
            return Repeatability()

    @property
    def _made(self) -> _SharedEnvs:
        assert self._envs is not None
        return self._envs

    def _make(self, tried: Repeatability) -> None:
        self._envs = _SharedEnvs(self._share, tried, self._shared.stepping)
        check_same_spaces(self._envs.spaces, self._spaces, self._share.env_id)

    def _step(self) -> None:
        shared, own, envs = self._shared, self._own, self._made
        obs, reward, terminated, truncated = envs.step(shared.actions[own].copy())
        shared.obs[own], shared.reward[own] = obs, reward
        shared.terminated[own], shared.truncated[own] = terminated, truncated
        shared.lives_lost[own] = False if envs.lives_lost is None else envs.lives_lost
        for i in np.flatnonzero(terminated | truncated).tolist():
            success, score = envs.successes[i], envs.scores[i]
            shared.successes[own.start + i] = UNKNOWN if success is None else success
            shared.scores[own.start + i] = np.nan if score is None else score

    def _reset(self) -> None:
        shared, own = self._shared, self._own
        self._made.reset(shared.mask[own], shared.seeds[own].tolist())
        shared.obs[own] = self._made.obs


class _SharedEnvs(SyncEnvs):
    """The environments of a worker, which writes with which of them it is busy."""

    def __init__(self, share: Share, tried: Repeatability, stepping: NDArray[Any]) -> None:
        super().__init__(share.env_id, share.env_kwargs, share.size, tried)
        self._number, self._place, self._stepping = share.first, share.number, stepping
        steps = self._step_functions
        self._step_functions = [self._marked(i, step) for i, step in enumerate(steps)]

    def _marked(self, i: int, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        stepping, place, number = self._stepping, self._place, self._number + i

        def marked(action: Any) -> Any:
            stepping[place] = number
            return step(action)

        return marked

    def _generators_of(self, i: int, seed: int) -> AbstractContextManager[None]:
        self._stepping[self._place] = self._number + i
        if not self._generators:
            # A fork inherits its parent's generators: all workers would sample the same numbers.
            seed_global_generators(seed)
        return super()._generators_of(i, seed)


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


START_METHOD = "RL_TRAINING_START_METHOD"
"""Environment variable that chooses how worker processes are started."""


def _start_method() -> str | None:
    """How processes are started: by fork on Linux, unless START_METHOD says otherwise.

    Environments registered by a script or a notebook then exist in the workers, and no script
    needs a `__main__` guard. The libraries of macOS may crash after a fork, and Windows has none:
    the system's own way is used there.
    """
    chosen, known = os.environ.get(START_METHOD), multiprocessing.get_all_start_methods()
    if chosen and chosen not in known:
        raise ConfigError(
            f"{START_METHOD}: there is no way '{chosen}' to start processes here; use one of "
            f"{', '.join(known)}, or remove the variable"
        )
    return chosen or ("fork" if sys.platform.startswith("linux") else None)
