"""Rollouts of a policy in environments on the host."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.roles import RolloutLearner
from rl_training.envs.collector import Step
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import TrainingDivergedError
from rl_training.models import Carry
from rl_training.models.carry import reset_rows
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component
from rl_training.runtime.loops.online import Experience
from rl_training.runtime.loops.rollouts import Carried, Rollout, RolloutSteps
from rl_training.runtime.profile import Part


class HostRollouts:
    """Fills rollouts by stepping a collector's environments with the policy's actions."""

    def __init__(
        self, config: TrainConfig, algorithm: Algorithm, engine: Engine, learning: Algorithm
    ) -> None:
        """`learning` is the algorithm whose updates are counted."""
        self.algorithm, self.pause, self.learning = algorithm, engine.pause, learning
        self.actor_critic = cast(RolloutLearner, algorithm)
        self.device, self.normalizer = algorithm.update_count.device, algorithm.normalizer
        self.carried = Carried(algorithm, config.num_envs) if algorithm.recurrent else None
        sizes = algorithm.params.rollout_length, config.num_envs
        self.rollout = Rollout(*sizes, algorithm.spaces, self.device, self.carried)
        self.experience = Experience(config, algorithm, engine.pause)

    @torch.no_grad()
    def collect(self) -> None:
        """Step to the end of the rollout, or until the pause is due."""
        # the last observation of a rollout is the first of the next one and counts once
        first = self.experience.progress.env_steps == 0 and not self.rollout.first_seen
        obs = self._seen(self.experience.obs, observe=first)
        self.rollout.first_seen = True
        tensor = torch.from_numpy
        while not self.rollout.is_full:
            before = None if self.carried is None else self.carried.now
            recalled, after = self._recall(obs, before)
            step, (action, log_prob, value) = self._step(recalled)
            final = torch.zeros_like(value)
            if 1 in step.truncated.tobytes():  # then the next state is not in the next row
                last, _ = self._recall(self._seen(step.next_obs, observe=False), after)
                final = self.actor_critic.value(last)
            reward, terminated = tensor(step.reward), tensor(step.terminated)
            self.rollout.add(
                tensor(step.obs),
                RolloutSteps(
                    *(obs, action, log_prob, value, reward, terminated),
                    *(tensor(step.truncated), final),
                ),
            )
            if self.carried is not None:
                if (len(self.rollout) - 1) % self.carried.length == 0:
                    self.carried.before.append(before)
                self.carried.now = reset_rows(after, terminated | tensor(step.truncated))
            obs = self._seen(self.experience.obs, observe=True)
            if self.pause.due():
                break

    def order(self, size: int, updates: int) -> Tensor:
        """(size,) rows of a rollout in random order."""
        return torch.randperm(size, device=self.device)

    def component(self) -> Component:
        return self.rollout

    def last_value(self) -> Tensor:
        """(E,) values of the observations to act on next."""
        now = None if self.carried is None else self.carried.now
        seen, _ = self._recall(self._seen(self.experience.obs, observe=False), now)
        value: Tensor = self.actor_critic.value(seen)
        return value

    def _recall(self, obs: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """What the networks get of seen observations, and the carry after them."""
        return (obs, None) if self.carried is None else self.carried.recall(obs, carry)

    def _step(self, obs: Tensor) -> tuple[Step, tuple[Tensor, Tensor, Tensor]]:
        """One step with newly sampled actions and the results of `RolloutLearner.collect`."""
        drawn: Any = ()

        def draw() -> Any:
            nonlocal drawn
            drawn = self._drawn(obs)
            return drawn[0].cpu().numpy()

        return self.experience.draw_and_step(draw), drawn

    def _drawn(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        try:
            return self.actor_critic.collect(obs)
        except RuntimeError:  # sampling raises an error for NaN probabilities
            head = self.actor_critic.actor
            if self.algorithm.spaces.is_box or bool(torch.isfinite(head(obs).exp()).all()):
                raise
        raise TrainingDivergedError(
            f"the policy's probabilities became NaN by update {int(self.learning.update_count)}; "
            "go back to an earlier checkpoint, lower the learning rate, set algo_kwargs.grad_clip, "
            "or scale the rewards"
        )

    def _seen(self, raw: Any, observe: bool) -> Tensor:
        """Update the statistics with observations and return them normalised."""
        obs = torch.from_numpy(raw).to(self.device, copy=True)
        if not self.normalizer.active:  # the calls would do nothing, and take a while
            return obs
        if observe:
            self.normalizer.observe(obs)
        seen: Tensor = self.normalizer(obs)
        return seen

    def parts(self) -> list[Part]:
        return [
            Part(self.experience.collector, "finish", "environment"),
            Part(self.algorithm, "collect", "policy"),
        ]
