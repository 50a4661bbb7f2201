"""Evaluates policies in separate environments with separate seeds; training is not affected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rl_training.envs.contract import CheckedEnv, EnvContract, close_env, success_in
from rl_training.envs.global_random import seed_global_generators, untouched_randomness
from rl_training.envs.make import make_env, spaces_of
from rl_training.envs.reference_scores import Reference, reference_of
from rl_training.envs.spaces import Spaces
from rl_training.execution import usual_torch
from rl_training.experiment.errors import ConfigError, RLTrainingError
from rl_training.experiment.seeding import derive_seed
from rl_training.models.carry import Carry, rows_of

Array = np.ndarray[Any, Any]

ActFunction = Callable[[Array, Carry | None], tuple[Array, Carry]]
"""(B, O) raw observations, and what the policy carries from the step before, to (B, ...) actions
in the environment's units and what it carries on; None at the start of all B episodes."""

ManyActFunction = Callable[[Array, Sequence[int], Carry | None], tuple[Array, Carry]]
"""The same for several policies: the second argument says which policy each row is for."""

PARALLEL_EPISODES = 16
"""Episodes of a policy that run at the same time."""


@dataclass(frozen=True)
class EvalResult:
    """Undiscounted returns of whole episodes."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    cut: tuple[bool, ...] = ()
    """Episodes that had not ended after the most steps that an evaluation takes."""
    successes: tuple[bool | None, ...] = ()
    """What `info["is_success"]` said at the end of each; None where it says nothing."""
    limit: str = field(default="eval_max_steps", compare=False, repr=False, kw_only=True)
    """What sets the most steps: this key of a config, or an argument of the call."""
    reference: Reference | None = field(default=None, compare=False, repr=False, kw_only=True)
    """Published scores of the task, if there are any."""

    @property
    def episodes(self) -> int:
        return len(self.returns)

    @property
    def return_mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def return_std(self) -> float:
        return float(np.std(self.returns))

    @property
    def success_rate(self) -> float | None:
        """Fraction of successful episodes; None if no episode reports success or failure."""
        known = [success for success in self.successes if success is not None]
        return sum(known) / len(known) if known else None

    @property
    def normalized_mean(self) -> float | None:
        """The mean return in percent of the way from the low to the high published score; None
        where the task has none."""
        return None if self.reference is None else self.reference.normalized(self.return_mean)

    def metrics(self) -> dict[str, float]:
        rate, normalized = self.success_rate, self.normalized_mean
        return {
            "eval/return_mean": self.return_mean,
            "eval/return_std": self.return_std,
            "eval/return_min": float(np.min(self.returns)),
            "eval/return_max": float(np.max(self.returns)),
            "eval/length_mean": float(np.mean(self.lengths)),
            **({} if rate is None else {"eval/success_rate": rate}),
            **({} if normalized is None else {"eval/normalized_mean": normalized}),
        }

    def __str__(self) -> str:
        cut = f", {sum(self.cut)} of them cut at {max(self.lengths):,} steps"
        rate, scale = self.success_rate, self.reference
        share = "" if scale is None else f", {scale.name}-normalised {self.normalized_mean:,.1f} %"
        return (
            f"return {self.return_mean:,.1f} ± {self.return_std:,.1f} "
            f"over {self.episodes} episode{'s' if self.episodes > 1 else ''}"
            f"{'' if rate is None else f', success {rate:.0%}'}{share}"
            f"{cut if any(self.cut) else ''}"
        )

    def note(self, *, options: bool = False) -> str | None:
        """A remark that belongs beside the returns; it names the command's `options`, or else keys
        and arguments."""
        if not any(self.cut):
            return None
        time_limit, most = "env_kwargs.max_episode_steps", self.limit
        if options:
            time_limit, most = "--set max_episode_steps=N", "--max-steps"
        return (
            f"{sum(self.cut)} of {self.episodes} evaluation episodes had not ended after "
            f"{max(self.lengths):,} steps and were cut there; give the environment a time limit "
            f"({time_limit}), or set {most}"
        )


class Episode(NamedTuple):
    """One episode of an evaluation, of one of several policies."""

    policy: int
    number: int


SELECTION_STATES = derive_seed(0, "start states of evaluations during training")
"""The seed of the start states on which a run compares its policies, for every run the same."""
HELD_OUT_STATES = derive_seed(0, "held-out start states")
"""The seed of the start states on which policies are reported, which chose none of them."""


def start_seed(seed: int, episode: int) -> int:
    """The seed with which an evaluation resets the environment for an episode."""
    return derive_seed(seed, "eval", episode) % 2**31


class Outcome(NamedTuple):
    """The result of one episode."""

    episode_return: float
    length: int
    cut: bool
    success: bool | None


class Evaluator:
    """Runs episodes of one task with fixed seeds, many at a time, of one policy or several.

    Each policy has a seed of its own, on which the start states of its episodes depend. The
    environments must have the `spaces` for which the policies were made. An episode that has
    not ended after `max_steps` steps is cut there.
    """

    def __init__(
        self,
        env_id: str,
        env_kwargs: Mapping[str, Any],
        spaces: Spaces,
        seeds: Sequence[int],
        max_steps: int,
    ) -> None:
        self.env_id, self.env_kwargs, self.seeds = env_id, env_kwargs, list(seeds)
        self.max_steps = max_steps
        self._spaces, self._contract = spaces, EnvContract(spaces)
        self._reference = reference_of(env_id, env_kwargs)
        self._envs: list[CheckedEnv] = []

    def start_from(self, seed: int, policy: int = 0) -> None:
        """Let the episodes of a policy start from the states of another seed."""
        self.seeds[policy] = seed

    def run(self, act: ActFunction, episodes: int, first: int = 0) -> EvalResult:
        """Run `episodes` whole episodes, counted from `first`; episode i always starts from the
        same state."""
        return self.run_all(lambda obs, _, carry: act(obs, carry), episodes, (0,), first)[0]

    def run_all(
        self, act: ManyActFunction, episodes: int, policies: Sequence[int], first: int = 0
    ) -> dict[int, EvalResult]:
        """Run `episodes` whole episodes of each policy, all at the same time.

        What a policy draws depends on the first policy's seed and on nothing before.
        """
        results: dict[Episode, Outcome] = {}
        with usual_torch(), untouched_randomness():
            seed_global_generators(derive_seed(self.seeds[0], "eval draws"))
            wanted = range(first, first + episodes)
            for start in range(0, episodes, PARALLEL_EPISODES):
                numbers = wanted[start : start + PARALLEL_EPISODES]
                results |= self._run_wave(act, [Episode(p, n) for p in policies for n in numbers])
        return {
            p: EvalResult(
                *zip(*(results[Episode(p, n)] for n in wanted), strict=True),
                reference=self._reference,
            )
            for p in policies
        }

    def _run_wave(self, act: ManyActFunction, episodes: list[Episode]) -> dict[Episode, Outcome]:
        while len(self._envs) < len(episodes):
            self.add_env(make_env(self.env_id, self.env_kwargs))
        running = dict(zip(episodes, self._envs, strict=False))
        returns, cut = dict.fromkeys(episodes, 0.0), dict.fromkeys(episodes, False)
        success: dict[Episode, bool | None] = dict.fromkeys(episodes)
        obs: dict[Episode, Any] = {}
        for i, env in running.items():
            seed = start_seed(self.seeds[i.policy], i.number)
            obs[i] = env.reset(seed, f"evaluation episode {i.number}")
        envs, carry = dict(running), None
        while running:
            seen, owners = np.stack([obs[i] for i in running]), [i.policy for i in running]
            actions, carry = act(seen, owners, carry)
            steps = list(zip(list(running.items()), actions, strict=True))
            for (i, env), action in steps:
                obs[i], reward, terminated, truncated, info = env.step(action)
                returns[i] += float(reward)
                ended = terminated or truncated
                cut[i] = not ended and env.length >= self.max_steps
                if ended or cut[i]:
                    success[i] = success_in(info)
                    del running[i]
            if len(running) < len(steps):
                carry = rows_of(carry, [i in running for (i, _), _ in steps])
        return {i: Outcome(returns[i], envs[i].length, cut[i], success[i]) for i in episodes}

    def add_env(self, env: gym.Env[Any, Any]) -> None:
        """Add an environment; it is refused if its spaces differ from the policies'."""
        try:
            found = spaces_of(env, self.env_id)
            self._spaces.refuse_other(found, f"environment '{self.env_id}'")
        except RLTrainingError:
            close_env(env)
            raise
        self._envs.append(CheckedEnv(env, self.env_id, self._contract))

    def close(self) -> None:
        while self._envs:
            self._envs.pop().close()


def evaluate_once(
    act: ActFunction,
    task: tuple[str, Mapping[str, Any]],
    spaces: Spaces,
    *,
    episodes: int,
    max_steps: int,
    seed: int | None = None,
) -> EvalResult:
    """Run episodes in new environments; without a seed they start from held-out states."""
    if not (isinstance(episodes, int) and episodes >= 1):
        raise ConfigError(f"episodes: expected a whole number, at least 1, got {episodes!r}")
    states = HELD_OUT_STATES if seed is None else seed
    evaluator = Evaluator(*task, spaces, [states], max_steps)
    try:
        return evaluator.run(act, episodes)
    finally:
        evaluator.close()
