"""The use of a trained agent: act, collect data, explain actions, estimate its value from a log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, overload

import numpy as np
import torch

from rl_training.algorithms.base import Algorithm
from rl_training.api import insight, worth
from rl_training.data.dataset import TransitionDataset
from rl_training.envs.global_random import refuse_beside_learning
from rl_training.envs.masks import with_any_mask
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import TrainConfig, with_wrappers
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.trust import refuse_unknown_modules
from rl_training.models.carry import Carry, num_rows, reset_rows
from rl_training.runtime.collection import Behaviour, StepWatcher, collect
from rl_training.runtime.playing import Playable
from rl_training.runtime.policy import ActingPolicy, Array, env_actions


class Acting(Playable):
    """The use of a policy. The class that holds the policy sets `config` and calls `_adopt`."""

    config: TrainConfig
    algorithm: Algorithm
    _policy: ActingPolicy
    _source: str | None = None
    """The file that alone names the modules of the config; None if the user gave the config or
    trusts it."""

    def _adopt(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self._policy = ActingPolicy(algorithm)

    def _check_modules(self) -> None:
        """Refuse to import modules that only a file names; called before environments are made."""
        if self._source is not None:
            refuse_unknown_modules(self.config.to_dict(), self._source)

    def _acting(self, deterministic: bool, seed: int | None) -> ActingPolicy:
        return ActingPolicy(self.algorithm, deterministic, repeats=True)

    def _own_task(self) -> tuple[str, Mapping[str, Any]]:
        self._check_modules()
        return self.config.environment, self.config.task_kwargs

    def _own_wrappers(self) -> Mapping[str, Any]:
        if self._source is not None:
            named = {"wrappers": self.config.to_dict()["wrappers"]}
            refuse_unknown_modules(named, self._source)
        return with_wrappers({}, self.config.wrappers)

    def _task_spaces(self) -> Spaces:
        return self.algorithm.spaces

    def _eval_lengths(self) -> tuple[int, int]:
        return self.config.eval_episodes, self.config.eval_max_steps

    def collect(
        self,
        episodes: int | None = None,
        steps: int | None = None,
        *,
        noise: float = 0.0,
        epsilon: float = 0.0,
        deterministic: bool = True,
        seed: int = 0,
        first_episode: int = 0,
        on_step: StepWatcher | None = None,
    ) -> TransitionDataset:
        """Transitions of whole `episodes`, or of exactly `steps` steps, in the task's environment.

        Box actions get Gaussian `noise` of that standard deviation in [-1, 1] and are clipped; with
        probability `epsilon` an action is uniformly random instead. Episode i is decided by
        (seed, i) alone, counted from `first_episode`. `on_step` gets each reward, and whether the
        episode ended with it.
        """
        c = self.config
        behaviour = Behaviour(deterministic, noise, epsilon)
        behaviour.check(self.algorithm)
        self._check_modules()
        return collect(
            lambda obs, mode, state: self.predict(obs, state, deterministic=mode),
            behaviour,
            self.algorithm,
            c.environment,
            c.task_kwargs,
            name=c.algo,
            episodes=episodes,
            steps=steps,
            max_steps=c.eval_max_steps,
            seed=seed,
            first_episode=first_episode,
            on_step=on_step,
        )

    @overload
    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_mask: Any = None,
        with_support: Literal[False] = False,
    ) -> tuple[Array, Any]: ...
    @overload
    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_mask: Any = None,
        *,
        with_support: Literal[True],
    ) -> tuple[Array, Any, Array]: ...
    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_mask: Any = None,
        with_support: bool = False,
    ) -> tuple[Array, Any] | tuple[Array, Any, Array]:
        """Action for one observation, or actions for a batch, in the environment's units.

        Observations of several parts are given by name: a mapping, as the environment has it, or
        a data frame with the columns of the training data. Actions with names are given by name.

        Signature and return value are those of Stable-Baselines3. A recurrent policy (Dreamer,
        `memory`) returns what it carries as the state: hand it to the next call, with
        `episode_start` true for the observations that begin an episode; without a state all of
        them do. Other policies return `state` as they got it. Where the task has action masks,
        observations end with them or have them as a part, or the masks are given apart, as
        `action_mask`. `with_support` adds what `support` says of the actions.
        """
        policy = self._policy
        if (
            type(observation) is np.ndarray
            and observation.shape == policy.plain_shape
            and observation.dtype == policy.obs_dtype
            and deterministic
            and action_mask is None
            and not with_support
        ):  # most calls, at less than half the price of what follows
            action = policy.one(observation)
            if action is not None:
                return action, state
        observation = with_any_mask(observation, action_mask, self.algorithm.spaces)
        obs, alone = insight.observation_rows(self.algorithm, observation, "predict")
        if not deterministic:
            refuse_beside_learning()
            policy = ActingPolicy(self.algorithm, False)
        recurrent = self.algorithm.recurrent
        carry = None
        if recurrent:
            carry = _state_before(self.algorithm, state, episode_start, len(obs))
        actions, carry = policy(obs, carry)
        taken = actions[0] if alone else actions
        actions = insight.user_actions(self.algorithm, actions)
        chosen, kept = (actions[0] if alone else actions), carry if recurrent else state
        if with_support:
            return chosen, kept, self.support(observation, taken)
        return chosen, kept

    def action_probabilities(self, observation: Any) -> Array | list[Array]:
        """The policy's probability of every Discrete action; `predict` takes the likeliest. One
        array for each part of MultiDiscrete actions."""
        return insight.action_probabilities(self.algorithm, observation)

    def log_prob(self, observation: Any, action: Any) -> Array:
        """Log-probability, or log-density in the environment's units, of given actions."""
        return insight.log_prob(self.algorithm, observation, action)

    def value(self, observation: Any) -> Array:
        """Expected discounted return from an observation, in units of the processed rewards: by
        the algorithm's own estimate of V, or else Q of the policy's likeliest action."""
        return insight.value(self.algorithm, observation)

    def q_values(self, observation: Any, action: Any | None = None) -> Array:
        """Expected discounted return of given actions, or of every Discrete one; the smallest
        among the critics, in units of the processed rewards."""
        return insight.q_values(self.algorithm, observation, action)

    def explain(self, observation: Any) -> dict[str, Any]:
        """The action that `predict` gives, under "action", with everything the algorithm can say
        about it: those of the four questions above that it has an answer to."""
        action, _ = self.predict(observation)
        known = insight.everything_known(self.algorithm, observation, action)
        return {"action": action, **known}

    def estimate(
        self,
        data: worth.Data,
        *,
        behaviour: Any = None,
        progress: bool = True,
        **options: Any,
    ) -> worth.Evaluation:
        """What the policy is worth on a log that it was not trained on, with intervals.

        `behaviour` are probabilities of the logged actions, (N,), or of all Discrete actions,
        (N, actions), or the name of such an array or column in the data; else they are estimated.
        Options are those of `ope.options.Options`: estimators, gamma, horizon, stochastic,
        value_range, replicates, updates and more. See docs/off_policy_evaluation.md.
        """
        return worth.estimate(self, data, behaviour, progress, **options)

    _support: worth.Support | None = None

    def fit_support(self, data: worth.Data) -> None:
        """Learn from a log which actions it supports, for `support` and `abstaining`."""
        self._support = worth.support_of(data, self)

    def support(self, observation: Any, action: Any) -> Array:
        """How usual actions are in the log that `fit_support` was given, as quantiles.

        0.05 means that of the log's own actions one in twenty is as unusual.
        """
        rows, alone = insight.observation_rows(self.algorithm, observation, "support")
        inner = insight.inner_actions(self.algorithm, action, len(rows), "support").cpu().numpy()
        found = self._known_support("support").quantile(rows, inner)
        return np.asarray(found[0] if alone else found)

    def _known_support(self, asked: str) -> worth.Support:
        if self._support is None:
            raise ConfigError(
                f"{asked}: call fit_support(data) first, with the log to compare with"
            )
        return self._support

    def abstaining(self, below: float = 0.05) -> AbstainingPolicy:
        """The policy with the log's likeliest action where its own has less support than `below`.

        `predict` of it is this agent's; `fallbacks` and `decisions` count.
        """
        return AbstainingPolicy(self, self._known_support("abstaining"), below)


class AbstainingPolicy:
    """See `ManagedAlgorithm.abstaining`."""

    def __init__(self, agent: Acting, support: worth.Support, below: float = 0.05) -> None:
        self.agent = agent
        spaces = agent.algorithm.spaces
        self._choose = worth.Abstaining(
            lambda obs: np.asarray(spaces.from_env(agent._policy(obs)[0])), support, below
        )

    @property
    def decisions(self) -> int:
        """Number of actions so far."""
        return self._choose.decisions

    @property
    def fallbacks(self) -> int:
        """How many of them were the log's action instead of the policy's."""
        return self._choose.fallbacks

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_mask: Any = None,
    ) -> tuple[Array, Any]:
        """As `ManagedAlgorithm.predict`, for deterministic actions only."""
        if not deterministic:
            raise ConfigError(
                "deterministic: an abstaining policy takes its likeliest action or the log's; "
                "leave it at True"
            )
        observation = with_any_mask(observation, action_mask, self.agent.algorithm.spaces)
        rows, alone = insight.observation_rows(self.agent.algorithm, observation, "predict")
        taken = env_actions(self.agent.algorithm, self._choose(rows))
        actions = insight.user_actions(self.agent.algorithm, taken)
        return (actions[0] if alone else actions), state


def _state_before(algorithm: Algorithm, state: Any, episode_start: Any, rows: int) -> Carry | None:
    """The carry of a recurrent policy before a call of `predict` with `rows` observations."""
    if state is None:
        return None
    kind = type(algorithm.initial_carry(1))
    if not isinstance(state, kind) or num_rows(state) != rows:
        held = f"{num_rows(state)} rows" if isinstance(state, kind) else type(state).__name__
        raise ConfigError(
            f"predict: expected the state that the call before returned, for {rows} "
            f"observation{'' if rows == 1 else 's'}, got {held}; give state=None where all "
            "episodes begin"
        )
    if episode_start is None:
        return state
    first = np.atleast_1d(np.asarray(episode_start, np.bool_))
    if first.shape not in ((1,), (rows,)):
        raise ConfigError(
            f"predict: episode_start must hold one flag per observation, {rows}, got the shape "
            f"{first.shape}"
        )
    return reset_rows(state, torch.from_numpy(np.broadcast_to(first, (rows,)).copy()))
