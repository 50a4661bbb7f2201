"""Collects transitions from a vector of environments, exactly resumable.

The state of an environment is stored as the seed of its episode and the actions since the
reset: no simulator has to be pickled, and a checkpoint takes a few kilobytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.envs.many import ManyEnvs
from rl_training.envs.named import holds_many
from rl_training.envs.spaces import Spaces
from rl_training.envs.vector import SyncEnvs, VectorEnvs
from rl_training.envs.workers import AsyncEnvs
from rl_training.experiment.errors import CheckpointError, ConfigError
from rl_training.experiment.seeding import episode_seed
from rl_training.experiment.state import Stored

Vectorization = Literal["sync", "async"]

MOST_ENVS = 10_000
"""Environments of one collector."""


class Step(NamedTuple):
    """One transition of each environment, exactly as the environments returned it.

    At the end of an episode `next_obs` is its last observation, never the first one of the
    next episode; at most one of `terminated` and `truncated` is set. A lost life counts as a
    termination, although the game goes on from `next_obs`.
    """

    obs: NDArray[Any]  # (E, O) float32, or (E, ...) uint8 images
    action: NDArray[Any]  # (E, A) or (E,), inner units, as given
    reward: NDArray[Any]  # (E,) float32
    next_obs: NDArray[Any]  # as obs
    terminated: NDArray[Any]  # (E,) bool
    truncated: NDArray[Any]  # (E,) bool


class EpisodeRecord(NamedTuple):
    """A finished episode."""

    env: int
    episode_return: float
    length: int
    seed: int
    success: bool | None = None
    """What `info["is_success"]` said at its end; None where the environment does not report it."""
    score: float | None = None
    """What `info["episode"]["r"]` said at its end: the return before wrappers changed it."""


def make_vector_env(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None,
    num_envs: int,
    vectorization: Vectorization = "sync",
    workers: int = 0,
) -> VectorEnvs:
    """Make `num_envs` copies of a Gymnasium environment, in this process ("sync", faster for
    cheap environments), in one process each ("async"), or in `workers` processes if given."""
    if num_envs < 1:
        raise ConfigError(f"num_envs: {num_envs} environments cannot be stepped; use 1 or more")
    if num_envs > MOST_ENVS:
        raise ConfigError(
            f"num_envs: at most {MOST_ENVS:,} environments are stepped on the host, got "
            f"{num_envs:,}; lower it, or use worlds on the device, such as torch/CartPole-v1"
        )
    if holds_many(env_id):
        if vectorization == "async" or workers:
            key = "env_workers" if workers else "vectorization"
            raise ConfigError(
                f"{key}: '{env_id}' makes many environments at once, which are stepped together; "
                "remove this key"
            )
        return ManyEnvs(env_id, env_kwargs, num_envs)
    if vectorization not in ("sync", "async"):
        raise ConfigError(f"vectorization: '{vectorization}' is unknown; use 'sync' or 'async'")
    if workers or vectorization == "async":
        return AsyncEnvs(env_id, env_kwargs, num_envs, workers)
    return SyncEnvs(env_id, env_kwargs, num_envs)


class Collector:
    """Steps `num_envs` environments and resets them as episodes end, each with its own seed.

    The transitions depend on the arguments and the actions only. Returned arrays are never
    written to again. `inexact_because` says why a resumed run differs from an uninterrupted
    one: an episode does not repeat exactly, or a resume could not restore the state of an
    environment. Later checkpoints keep it. `notes` are sentences for the user.
    """

    def __init__(
        self,
        env_id: str,
        env_kwargs: Mapping[str, Any] | None,
        num_envs: int,
        seed: int,
        vectorization: Vectorization = "sync",
        workers: int = 0,
    ) -> None:
        self._envs = make_vector_env(env_id, env_kwargs, num_envs, vectorization, workers)
        self.spaces: Spaces = self._envs.spaces
        self.num_envs = num_envs
        self.env_steps = 0
        tried = self._envs.repeatability
        self.inexact_because: str | None = tried.inexact
        self.notes: list[str] = [note for note in (tried.inexact, tried.untried) if note]
        self.guard: AbstractContextManager[None] = nullcontext()
        """Entered around the environments' work in a step; it may raise."""
        # environments whose interrupted episode could not be restored
        self.restarted: NDArray[Any] = np.zeros(num_envs, np.bool_)
        self._seed = seed
        self._finished: list[EpisodeRecord] = []
        self._episodes = [0] * num_envs
        self._seeds = [episode_seed(seed, i, 0) for i in range(num_envs)]
        self._returns = np.zeros(num_envs, np.float64)
        self._log = _ActionLog(self.spaces, num_envs)
        self._action_shape = (num_envs, *self.spaces.inner_action_shape)
        self._begun: tuple[NDArray[Any], NDArray[Any]] | None = None  # in inner and outer units
        self._envs.reset(np.ones(num_envs, np.bool_), self._seeds)
        self.obs: NDArray[Any] = self._envs.obs

    @property
    def exact(self) -> bool:
        """Whether a resumed run is expected to equal an uninterrupted one."""
        return self.inexact_because is None

    def step(self, actions: NDArray[Any]) -> Step:
        """Step every environment, then reset those whose episode has ended.

        `actions` are in inner units: (E, A) in [-1, 1], or (E,) or (E, A) integers from 0. The
        observations to act on next are in `obs`. After an `EnvironmentFailure` the
        environments are closed, and `training_state` returns the state before this step.
        """
        self.begin(actions)
        return self.finish()

    def begin(self, actions: NDArray[Any]) -> None:
        """Begin a step: worker processes make it while the caller does something else. Until
        `finish`, `training_state` returns the state before it."""
        if actions.shape != self._action_shape:
            raise ValueError(f"actions of shape {actions.shape}, expected {self._action_shape}")
        env_actions = self.spaces.to_env(actions)
        with self.guard:
            self._envs.begin_step(env_actions)
        self._begun = (actions, env_actions)

    def finish(self) -> Step:
        """Wait for the step that `begin` began, and reset the environments whose episode ended."""
        assert self._begun is not None
        (actions, env_actions), self._begun = self._begun, None
        obs = self.obs
        seeds: list[int] | None = None
        # Nothing is recorded inside: if a step or a reset fails, the step has not happened.
        with self.guard:
            next_obs, reward, terminated, truncated = self._envs.finish_step()
            ended = terminated | truncated
            if 1 in ended.tobytes():  # a tenth of the time of `any`
                seeds = self._begin_episodes(ended)
        self._log.append(env_actions)
        self._returns += reward
        self.env_steps += self.num_envs
        if seeds is not None:
            self._record_finished(ended)
            self._record_resets(ended, seeds)
        self.obs = self._envs.obs
        if self._envs.lives_lost is not None:
            terminated = terminated | self._envs.lives_lost
        return Step(obs, actions, reward, next_obs, terminated, truncated)

    @property
    def begun(self) -> bool:
        """Whether a step is under way."""
        return self._begun is not None

    def no_actions(self) -> NDArray[Any]:
        """(E, ...) zeros with the shape and the dtype of inner actions."""
        return np.zeros(self._action_shape, np.int64 if self.spaces.choices else np.float32)

    def drain_episodes(self) -> list[EpisodeRecord]:
        """Return the episodes finished since the last call, in the order of their ends."""
        finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """Release the environments; a second call does nothing."""
        self._envs.close()

    def training_state(self) -> dict[str, Any]:
        """Return tensors and plain values from which another process continues exactly."""
        return {
            "env_steps": self.env_steps,
            "episodes": list(self._episodes),
            "seeds": list(self._seeds),
            "returns": torch.from_numpy(self._returns.copy()),
            "actions": [torch.from_numpy(self._log.since_reset(i)) for i in range(self.num_envs)],
            "obs": torch.from_numpy(self.obs.copy()),
            "finished": [list(record) for record in self._finished],
            "exact": self.exact,
            "inexact_because": self.inexact_because,
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore every environment by replaying its episode.

        An environment that does not reach the stored observation and return starts its next
        episode instead.
        """
        stored = Stored(state, "collector")
        obs = stored.tensor("obs", None, *([None] * self.obs.ndim)).numpy()
        if obs.dtype != self.obs.dtype:
            raise stored.wrong("obs", f"of {self.obs.dtype}")
        if obs.shape != self.obs.shape:
            raise CheckpointError(
                f"collector: the checkpoint holds {obs.shape[0]} environments with observations "
                f"{obs.shape[1:]}, this run has {self.num_envs} with {self.spaces.obs_shape}; "
                "resume with the same env_id, env_kwargs and num_envs"
            )
        actions = self._logged_actions(stored)
        self.recall(state)
        replayed = self._envs.replay(self._seeds, actions)
        lost = np.zeros(self.num_envs, np.bool_)
        for i, result in enumerate(replayed):
            # The return is compared too: an observation may not show the whole state.
            lost[i] = (
                result is None
                or result.obs.tobytes() != obs[i].tobytes()
                or result.episode_return != self._returns[i]
            )
            if lost[i]:
                note = (
                    f"environment {i} of '{self._envs.env_id}' did not repeat the "
                    f"{len(actions[i])} steps of its interrupted episode (seed {self._seeds[i]}), "
                    "so it is not deterministic; a new episode was started, and from here on the "
                    "run differs from an uninterrupted one"
                )
                self.notes.append(note)
                self.inexact_because = note
        self.restarted = lost
        if lost.any():
            self._record_resets(lost, self._begin_episodes(lost))
        self.obs = self._envs.obs

    def recall(self, state: dict[str, Any]) -> None:
        """Restore what `training_state` returned, except the environments: the state can be saved
        again, but no step can be taken."""
        stored, count = Stored(state, "collector"), self.num_envs
        self.env_steps = stored.whole("env_steps")
        if not stored.flag("exact"):  # earlier versions stored no reason
            because = stored.get("inexact_because", None)
            self.inexact_because = str(because or "an earlier resume of the run was not exact")
        self._episodes = stored.wholes("episodes", count)
        self._seeds = stored.wholes("seeds", count, most=2**32 - 1)
        self._finished = [_record(entry) for entry in stored.entries("finished")]
        self._returns = stored.tensor("returns", torch.float64, count).numpy().copy()
        self._log.load(self._logged_actions(stored))
        self.obs = stored["obs"].numpy().copy()

    def _logged_actions(self, stored: Stored) -> list[NDArray[Any]]:
        """The actions of every environment since its reset, checked against the action space."""
        like = torch.from_numpy(self._log.since_reset(0))
        logs = stored.tensors("actions", self.num_envs, like.dtype, None, *like.shape[1:])
        actions = [log.numpy() for log in logs]
        if not all(np.isfinite(taken).all() for taken in actions):
            raise stored.wrong("actions", "finite numbers")
        return actions

    def _begin_episodes(self, due: NDArray[Any]) -> list[int]:
        """Reset the environments in the mask; return the seeds of all environments' episodes."""
        seeds = list(self._seeds)
        for i in np.flatnonzero(due).tolist():
            seeds[i] = episode_seed(self._seed, i, self._episodes[i] + 1)
        self._envs.reset(due, seeds)
        return seeds

    def _record_finished(self, ended: NDArray[Any]) -> None:
        for i in np.flatnonzero(ended).tolist():
            episode_return, length = float(self._returns[i]), self._log.length(i)
            reported = self._envs.successes[i], self._envs.scores[i]
            self._finished.append(
                EpisodeRecord(i, episode_return, length, self._seeds[i], *reported)
            )

    def _record_resets(self, begun: NDArray[Any], seeds: list[int]) -> None:
        self._seeds = seeds
        for i in np.flatnonzero(begun).tolist():
            self._episodes[i] += 1
            self._returns[i] = 0.0
            self._log.restart(i)


def _record(entry: Any) -> EpisodeRecord:
    # earlier versions stored neither success nor score
    *known, success, score = [*entry, None, None][:6] if isinstance(entry, list) else [entry] * 3
    stored = Stored({"finished": known, "success": success, "score": score}, "collector")
    env, total, length, seed = stored.numbers("finished", 4)
    flag = None if success is None else stored.flag("success")
    own = None if score is None else stored.number("score")
    return EpisodeRecord(int(env), total, int(length), int(seed), flag, own)


class _ActionLog:
    """Stores the actions of every environment since its reset.

    Environments are stepped together, so there is one row per step: the episode of environment
    i is column i from row `_began[i]` on. When the storage is full, rows that no episode needs
    are dropped; when that frees less than half of it, it is doubled.
    """

    def __init__(self, spaces: Spaces, num_envs: int, capacity: int = 256) -> None:
        shape = (num_envs, *spaces.inner_action_shape)
        dtype: Any = np.float32
        if spaces.choices:
            ends = [start + n - 1 for start, n in zip(spaces.starts, spaces.choices, strict=True)]
            dtype = _smallest_integer(min(spaces.starts), max(ends))
        self._rows: NDArray[Any] = np.empty((capacity, *shape), dtype)
        self._used = 0
        self._began = [0] * num_envs

    def append(self, actions: NDArray[Any]) -> None:
        if self._used == len(self._rows):
            self._make_room()
        self._rows[self._used] = actions
        self._used += 1

    def length(self, env: int) -> int:
        return self._used - self._began[env]

    def restart(self, env: int) -> None:
        self._began[env] = self._used

    def since_reset(self, env: int) -> NDArray[Any]:
        """Return a copy, so that saving it does not save the whole log."""
        episode: NDArray[Any] = self._rows[self._began[env] : self._used, env]
        return np.array(episode)

    def load(self, actions: list[NDArray[Any]]) -> None:
        self._used = max(len(taken) for taken in actions)
        capacity = max(len(self._rows), 2 * self._used)
        self._rows = np.zeros((capacity, *self._rows.shape[1:]), self._rows.dtype)
        for i, taken in enumerate(actions):
            self._began[i] = self._used - len(taken)
            self._rows[self._began[i] : self._used, i] = taken

    def _make_room(self) -> None:
        first = min(self._began)
        kept = self._rows[first : self._used]
        rows = self._rows
        if 2 * len(kept) > len(rows):
            rows = np.empty((2 * len(rows), *rows.shape[1:]), rows.dtype)
        rows[: len(kept)] = kept.copy() if rows is self._rows else kept
        self._rows, self._used = rows, len(kept)
        self._began = [began - first for began in self._began]


def _smallest_integer(first: int, last: int) -> type[np.signedinteger[Any]]:
    for dtype in (np.int8, np.int16, np.int32):
        if np.iinfo(dtype).min <= first and last <= np.iinfo(dtype).max:
            return dtype
    return np.int64
