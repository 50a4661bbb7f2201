"""Environments in worker processes, each of which steps a share of them.

Actions, observations, rewards and flags lie in memory that all processes share: a step sends a
few bytes to each worker and back. Only replays, failures and what is tried at the start are
pickled, between processes of one run.
"""

from __future__ import annotations

import atexit
import itertools
import multiprocessing
import os
import pickle
import select
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from rl_training.envs.make import env_spaces
from rl_training.envs.repeatability import Repeatability
from rl_training.envs.shared_arrays import NOT_BEGUN, UNKNOWN, SharedArrays
from rl_training.envs.spaces import Spaces
from rl_training.envs.vector import Replayed, StepArrays, VectorEnvs
from rl_training.envs.worker_process import DONE, RESET, STEP, Failed, Share, serve
from rl_training.experiment.errors import ConfigError, EnvironmentFailure, EnvironmentSetupError

ANSWER_LIMIT_S = 600
"""Seconds that a worker may take for a step or a reset before it counts as stuck."""


_open_workers: weakref.WeakSet[AsyncEnvs] = weakref.WeakSet()


@atexit.register
def _close_workers() -> None:
    for envs in list(_open_workers):
        envs.close()


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
            target=_begin,
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
                f"vectorization: a worker process of '{self.env_id}' ended while it started "
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
        failures: list[Failed] = []
        for w in workers:
            # Counted in polls: a clock would continue while the process is stopped.
            if not any(self._answered[w]() for _ in range(limit)):
                self._fail(self._busy_with(w), f"has not answered for {limit} s")
            try:
                answer = self._pipes[w].recv_bytes()
            except (EOFError, OSError) as error:
                self._lost(w, error)
            answers[w] = None if answer == DONE else pickle.loads(answer)
            if isinstance(answers[w], Failed):
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


def _begin(share: Share, spaces: Spaces, shared: SharedArrays, pipe: Connection) -> None:
    """What a worker process runs."""
    # A fork inherits the parent's ends of pipes; held here, they would not close with the parent.
    for envs in list(_open_workers):
        inherited, envs._pipes = envs._pipes, []
        for end in inherited:
            end.close()
    serve(share, spaces, shared, pipe)


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
            f"{START_METHOD}: processes cannot be started by '{chosen}' here; use one of "
            f"{', '.join(known)}, or remove the variable"
        )
    return chosen or ("fork" if sys.platform.startswith("linux") else None)
