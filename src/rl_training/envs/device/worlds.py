"""Steps the worlds of a simulator and resets them as episodes end, without leaving the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_training.envs.contract import FINITE
from rl_training.envs.device.protocol import DeviceEnv
from rl_training.envs.device.register import DeviceTask
from rl_training.envs.device.streams import episode_seeds, world_keys
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFailure,
    EnvironmentSetupError,
    RLTrainingError,
)
from rl_training.experiment.state import Stored

_NONE, _OBSERVATION, _REWARD = -1, 0, 1


class WorldStep(NamedTuple):
    """One transition of every world; at the end of an episode `next_obs` is its last one, and at
    most one of the flags is set."""

    next_obs: Tensor  # (N, O)
    reward: Tensor  # (N,)
    terminated: Tensor  # (N,) bool
    truncated: Tensor  # (N,) bool


class EpisodeTotals(NamedTuple):
    """Sums over the episodes that have ended since the run began."""

    episodes: int
    return_sum: float
    length_sum: float


class Worlds:
    """The training environments of one run or several whose simulator lives on the device.

    Each run has a seed and equally many worlds, one run after the other; what its worlds do does
    not depend on the other runs. `step` waits for nothing, has fixed shapes and writes to the same
    tensors each time, so that it can be captured in a CUDA graph. The simulator's state and all
    counters are tensors: a checkpoint holds those of its run, `of(i)`, and a resumed run continues
    from them exactly, without replaying episodes.
    """

    def __init__(self, env: DeviceEnv, env_id: str, *seeds: int) -> None:
        self.env, self.env_id, self.num_worlds = env, env_id, env.num_worlds
        self.runs, self.num_envs = len(seeds), env.num_worlds // len(seeds)
        """Runs, and worlds of each."""
        self._closed = False
        self.spaces = _spaces(env, env_id)
        self.device, n = env.device, env.num_worlds
        self._keys = torch.cat([world_keys(seed, self.num_envs, self.device) for seed in seeds])

        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=self.device)

        kind = torch.uint8 if self.spaces.is_image else torch.float32
        self.obs = zeros(kind, n, *self.spaces.obs_shape)
        """(N, O) observations to act on; always the same tensor."""
        self._episode, self._length = zeros(torch.int64, n), zeros(torch.int64, n)
        self._return = zeros(torch.float64, n)
        self.steps = zeros(torch.int64, self.runs)
        """(runs,) steps of all worlds so far."""
        self._totals = zeros(torch.float64, self.runs, len(EpisodeTotals._fields))
        # world, seed, step and what was not finite, of the first failure of a run
        self._failure = torch.full((self.runs, 4), _NONE, device=self.device)
        if self.spaces.is_box:
            bounds = (self.spaces.action_low, self.spaces.action_high)
            self._low, self._high = (torch.tensor(x, device=self.device) for x in bounds)
        self._starts = torch.tensor(self.spaces.starts, device=self.device)
        everywhere = torch.ones(n, dtype=torch.bool, device=self.device)
        first = env.reset(everywhere, self._seeds())
        self._refuse_shape("observations", first, self.obs.shape)
        self.obs.copy_(first)
        self._refuse_other_state()
        self._parts = [WorldsOfRun(self, i) for i in range(self.runs)]

    def of(self, run: int) -> WorldsOfRun:
        """The worlds of one run."""
        return self._parts[run]

    def by_run(self, x: Tensor) -> Tensor:
        """(runs, worlds of each, ...) of (N, ...)."""
        return x.view(self.runs, self.num_envs, *x.shape[1:])

    @torch.no_grad()
    def step(self, actions: Tensor) -> WorldStep:
        """Step all worlds with actions in inner units, and reset those whose episode ends; the
        observations to act on next are in `obs`."""
        obs, reward, terminated, truncated = self.env.step(self._outer(actions))
        self._length += 1
        self._return += reward
        cut = torch.zeros_like(terminated) if truncated is None else truncated
        if self.env.time_limit is not None:
            cut = cut | (self._length >= self.env.time_limit)
        cut = cut & ~terminated
        ended = terminated | cut
        self._note_failure(obs, reward)
        sums = (ended.double(), self._return * ended, self._length * ended)
        self._totals += torch.stack([self.by_run(x).sum(1) for x in sums], 1)
        self.steps += 1
        self._episode += ended
        self._length.masked_fill_(ended, 0)
        self._return.masked_fill_(ended, 0.0)
        begun = self.env.reset(ended, self._seeds())
        self.obs.copy_(torch.where(ended.view(-1, *(1,) * (obs.dim() - 1)), begun, obs))
        return WorldStep(obs, reward, terminated, cut)

    def _seeds(self) -> Tensor:
        return episode_seeds(self._keys, self._episode)

    def _outer(self, actions: Tensor) -> Tensor:
        """Actions in the environment's units, as `Spaces.to_env` computes them."""
        if not self.spaces.is_box:
            return actions + (self._starts[0] if self.spaces.is_discrete else self._starts)
        outer = (actions + 1.0) * (0.5 * (self._high - self._low)) + self._low
        return torch.minimum(torch.maximum(outer, self._low), self._high)

    def _note_failure(self, obs: Tensor, reward: Tensor) -> None:
        """Remember the first world of each run with a number that is not finite; `check` reads it
        later."""
        blind = ~torch.isfinite(obs).flatten(1).all(1)
        bad = self.by_run(blind | ~torch.isfinite(reward))
        world = bad.to(torch.int8).argmax(1, keepdim=True)  # (runs, 1)
        of_world = (self._seeds(), self._length, torch.where(blind, _OBSERVATION, _REWARD))
        found = torch.cat([world, *(self.by_run(x).gather(1, world) for x in of_world)], 1)
        new = bad.any(1, keepdim=True) & (self._failure[:, :1] == _NONE)
        self._failure.copy_(torch.where(new, found, self._failure))

    def check(self) -> None:
        """Raise an error if a world has returned numbers that are not finite; waits for the
        device."""
        for run, (world, seed, step, what) in enumerate(self._failure.tolist()):
            if world == _NONE:
                continue
            name = "observation" if what == _OBSERVATION else "reward"
            whose = f" of the run {run + 1} of {self.runs}" if self.runs > 1 else ""
            raise EnvironmentFailure(
                f"env_id: environment '{self.env_id}' returned a NaN or infinite {name} in world "
                f"{world}{whose} (seed {seed}, step {step}); {FINITE}"
            )

    def totals(self) -> list[EpisodeTotals]:
        """Episodes of each run that have ended; waits for the device."""
        return [EpisodeTotals(int(count), *sums) for count, *sums in self._totals.tolist()]

    def new_notes(self) -> list[str]:
        """What the simulator has to say since the last call; may wait for the device."""
        asked: Callable[[], list[str]] = getattr(self.env, "new_notes", list)
        return asked()

    def close(self) -> None:
        """Close the simulator; every run may do so."""
        if not self._closed:
            self._closed = True
            self.env.close()

    # --- state --------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that a step writes to, by name."""
        own = {
            "obs": self.obs,
            "episode": self._episode,
            "length": self._length,
            "return": self._return,
            "totals": self._totals,
            "failure": self._failure,
            "steps": self.steps,
        }
        return own | {f"simulator/{name}": value for name, value in self.env.state().items()}

    def _refuse_other_state(self) -> None:
        """Refuse a simulator whose state is not by world, where runs have to share it."""
        for name, value in self.env.state().items():
            if self.runs > 1 and (value.dim() == 0 or value.shape[0] != self.num_worlds):
                raise EnvironmentSetupError(
                    f"seeds: the state '{name}' of environment '{self.env_id}' has the shape "
                    f"{tuple(value.shape)}, expected {self.num_worlds} worlds along the first "
                    "axis, of which every seed has some; train one seed per run"
                )

    def _refuse_shape(self, what: str, found: Tensor, expected: torch.Size) -> None:
        if found.shape != expected or found.device.type != self.device.type:
            raise EnvironmentSetupError(
                f"env_id: environment '{self.env_id}' returned {what} of shape "
                f"{tuple(found.shape)} on {found.device}, expected {tuple(expected)} on "
                f"{self.device}; correct the simulator"
            )


_BY_RUN = ("totals", "failure", "steps")


class WorldsOfRun:
    """The worlds of one run among those that are stepped together; its part of the checkpoint is
    that of a run of its own. `inexact_because` and `notes` are as in `Collector`."""

    def __init__(self, worlds: Worlds, run: int) -> None:
        self.worlds, self.run = worlds, run
        self.inexact_because: str | None = None
        self.notes: list[str] = []
        if not worlds.env.deterministic:
            self.inexact_because = f"the simulator of '{worlds.env_id}' does not repeat bit for bit"
        self._card = card(worlds.device)

    @property
    def exact(self) -> bool:
        """Whether a resumed run is expected to equal an uninterrupted one."""
        return self.inexact_because is None

    def tensors(self) -> dict[str, Tensor]:
        """Its part of every tensor that a step writes to, by name; the memory is shared."""
        size, run = self.worlds.num_envs, self.run
        return {
            name: value[run] if name in _BY_RUN else value[run * size : (run + 1) * size]
            for name, value in self.worlds.tensors().items()
        }

    def training_state(self) -> dict[str, Any]:
        """Return tensors and plain values from which another process continues exactly."""
        return {
            "tensors": {name: value.detach().cpu() for name, value in self.tensors().items()},
            "card": self._card,
            "inexact_because": self.inexact_because,
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        stored = Stored(state, "collector")
        if "tensors" not in stored:
            raise CheckpointError(
                f"collector: the checkpoint holds no worlds of '{self.worlds.env_id}'; resume with "
                "the env_id of the run"
            )
        self.inexact_because = stored.get("inexact_because", None) or self.inexact_because
        began = str(stored.get("card", self._card))
        if began != self._card:
            note = (
                f"the worlds of '{self.worlds.env_id}' were simulated on {began} and go on on "
                f"{self._card}, which rounds otherwise: from here on the run differs from an "
                "uninterrupted one; resume on the same kind of device to continue exactly"
            )
            self.notes.append(note)
            self.inexact_because = note
        self._load(stored.section("tensors"))

    def _load(self, stored: Stored) -> None:
        own = self.tensors()
        if "steps" not in stored:  # an earlier version did not count them
            own.pop("steps")
        obs = stored.tensor("obs", None, *([None] * own["obs"].dim()))
        if obs.shape != own["obs"].shape:
            raise CheckpointError(
                f"collector: the checkpoint holds {obs.shape[0]} worlds with observations "
                f"{tuple(obs.shape[1:])}, this run has {self.worlds.num_envs} with "
                f"{self.worlds.spaces.obs_shape}; resume with the same env_id, env_kwargs and "
                "num_envs"
            )
        found = {name: stored.tensor_like(name, value) for name, value in own.items()}
        for name, value in own.items():
            value.copy_(found[name])


def card(device: torch.device) -> str:
    """What computes on `device`, in words."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"


def _spaces(env: DeviceEnv, env_id: str) -> Spaces:
    try:
        return Spaces.from_gymnasium(env.observation_space, env.action_space)
    except EnvironmentSetupError as error:
        raise EnvironmentSetupError(f"env_id: '{env_id}': {error}") from None


def make_worlds(
    task: DeviceTask,
    env_kwargs: Mapping[str, Any],
    num_envs: int,
    device: torch.device,
    *seeds: int,
) -> Worlds:
    """The worlds of a task, `num_envs` for each seed; a failure is one sentence."""
    if num_envs < 1:
        raise ConfigError(f"num_envs: {num_envs} worlds cannot be stepped; use 1 or more")
    num_worlds = num_envs * len(seeds)
    try:
        return Worlds(task.maker()(num_worlds, device, **env_kwargs), task.id, *seeds)
    except RLTrainingError:
        raise
    except (MemoryError, torch.OutOfMemoryError):
        raise ConfigError(
            f"num_envs: {num_worlds:,} worlds of '{task.id}' do not fit into the memory of "
            f"{device}; lower it"
        ) from None
    except TypeError as error:
        if not env_kwargs:
            raise
        raise EnvironmentSetupError(
            f"env_kwargs: environment '{task.id}' does not accept {dict(env_kwargs)} ({error}); "
            "remove or correct the keys"
        ) from None
