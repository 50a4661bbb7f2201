"""A worker process: makes a share of the environments and steps them for its parent."""

from __future__ import annotations

import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.envs.contract import CORRECT, what_it_did
from rl_training.envs.global_random import seed_global_generators
from rl_training.envs.repeatability import Repeatability, repeatability
from rl_training.envs.shared_arrays import UNKNOWN, SharedArrays
from rl_training.envs.spaces import Spaces
from rl_training.envs.vector import SyncEnvs, check_same_spaces
from rl_training.experiment.errors import EnvironmentFailure, RLTrainingError

STEP, RESET, DONE = b"step", b"reset", b""
"""Requests and the answer that name no further values; others are pickled."""


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


class Failed(NamedTuple):
    """The answer of a worker that cannot go on."""

    sentence: str
    setup: bool = False
    """Whether the environments could not be made."""


def serve(share: Share, spaces: Spaces, shared: SharedArrays, pipe: Connection) -> None:
    """Make a share of the environments and do what the parent asks until it closes the pipe."""
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
            answer = pickle.dumps(Failed(str(failure)))
        except RLTrainingError as error:
            answer = pickle.dumps(Failed(str(error), setup=True))
        except BaseException as error:  # noqa: BLE001  (Ctrl-C does not reach a worker)
            answer = pickle.dumps(self._failed(error))
        self._pipe.send_bytes(answer)

    def _failed(self, error: BaseException) -> Failed:
        """The environment that was being stepped, reset or made raised something else than an
        `Exception`."""
        if self._envs is None:
            did, env_id = what_it_did(error), self._share.env_id
            return Failed(f"env_id: environment '{env_id}' {did} when made; {CORRECT}", setup=True)
        i = int(self._shared.stepping[self._share.number]) - self._share.first
        return Failed(str(self._envs.failure(i, what_it_did(error))))

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
