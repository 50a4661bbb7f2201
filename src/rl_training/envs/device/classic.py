"""Gymnasium's classic control tasks in torch: the same equations on (N, ...) float32 tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym
import torch
from torch import Tensor

from rl_training.envs.device.protocol import StepTensors
from rl_training.envs.device.streams import uniforms

Outcome = tuple[Tensor, Tensor, Tensor]
"""New variables, reward and whether the episode has terminated."""


class TorchTask:
    """A task whose state is (N, K) variables; its spaces are those of Gymnasium's environment."""

    gymnasium_id: ClassVar[str]
    low: ClassVar[tuple[float, ...]]
    """Bounds of the variables at a reset, between which they are uniform."""
    high: ClassVar[tuple[float, ...]]
    deterministic = True

    def __init__(
        self,
        num_worlds: int,
        device: torch.device,
        max_episode_steps: int | None = None,
        **env_kwargs: Any,
    ) -> None:
        """`env_kwargs` are those of Gymnasium's environment."""
        env = gym.make(self.gymnasium_id, **env_kwargs)
        self.observation_space, self.action_space = env.observation_space, env.action_space
        limit = env.spec.max_episode_steps if env.spec is not None else None
        self.time_limit: int | None = max_episode_steps or limit
        env.close()
        self.num_worlds, self.device = num_worlds, device
        self.variables = torch.zeros(num_worlds, len(self.low), device=device)
        self._low = torch.tensor(self.low, device=device)
        self._range = torch.tensor(self.high, device=device) - self._low

    def change(self, variables: Tensor, actions: Tensor) -> Outcome:
        """One step of the equations."""
        raise NotImplementedError

    def observe(self, variables: Tensor) -> Tensor:
        """(N, O) observations."""
        return variables

    def reset(self, mask: Tensor, seeds: Tensor) -> Tensor:
        begun = self._low + self._range * uniforms(seeds, len(self.low))
        self.variables.copy_(torch.where(mask.unsqueeze(1), begun, self.variables))
        return self.observe(self.variables)

    def step(self, actions: Tensor) -> StepTensors:
        variables, reward, terminated = self.change(self.variables, actions)
        self.variables.copy_(variables)
        return StepTensors(self.observe(variables), reward, terminated)

    def state(self) -> Mapping[str, Tensor]:
        return {"variables": self.variables}

    def close(self) -> None:
        """Nothing to release."""


class CartPole(TorchTask):
    gymnasium_id = "CartPole-v1"
    low, high = (-0.05,) * 4, (0.05,) * 4
    GRAVITY, CART, POLE, HALF_LENGTH, FORCE, TAU = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    MOST_X, MOST_ANGLE = 2.4, 12 * 2 * math.pi / 360

    def __init__(
        self,
        num_worlds: int,
        device: torch.device,
        max_episode_steps: int | None = None,
        *,
        sutton_barto_reward: bool = False,
    ) -> None:
        super().__init__(num_worlds, device, max_episode_steps)
        self.rewards = (0.0, -1.0) if sutton_barto_reward else (1.0, 1.0)

    def change(self, variables: Tensor, actions: Tensor) -> Outcome:
        _, speed, angle, turn = variables.unbind(1)
        mass, moment = self.CART + self.POLE, self.POLE * self.HALF_LENGTH
        force = (actions * 2 - 1) * self.FORCE
        cos, sin = torch.cos(angle), torch.sin(angle)
        push = (force + moment * turn.square() * sin) / mass
        effective = self.HALF_LENGTH * (4.0 / 3.0 - self.POLE * cos.square() / mass)
        angular = (self.GRAVITY * sin - cos * push) / effective
        linear = push - moment * angular * cos / mass
        rates = torch.stack([speed, linear, turn, angular], 1)
        changed = variables + self.TAU * rates
        terminated = (changed[:, 0].abs() > self.MOST_X) | (changed[:, 2].abs() > self.MOST_ANGLE)
        goes_on, falls = self.rewards
        return changed, torch.where(terminated, falls, goes_on), terminated


class Pendulum(TorchTask):
    gymnasium_id = "Pendulum-v1"
    low, high = (-math.pi, -1.0), (math.pi, 1.0)
    MOST_SPEED, MOST_TORQUE, TAU = 8.0, 2.0, 0.05

    def __init__(
        self,
        num_worlds: int,
        device: torch.device,
        max_episode_steps: int | None = None,
        *,
        g: float = 10.0,
    ) -> None:
        super().__init__(num_worlds, device, max_episode_steps)
        self.gravity = g

    def change(self, variables: Tensor, actions: Tensor) -> Outcome:
        angle, speed = variables.unbind(1)
        torque = actions[:, 0].clamp(-self.MOST_TORQUE, self.MOST_TORQUE)
        upright = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        cost = upright.square() + 0.1 * speed.square() + 0.001 * torque.square()
        faster = speed + (1.5 * self.gravity * torch.sin(angle) + 3.0 * torque) * self.TAU
        faster = faster.clamp(-self.MOST_SPEED, self.MOST_SPEED)
        changed = torch.stack([angle + faster * self.TAU, faster], 1)
        return changed, -cost, torch.zeros_like(cost, dtype=torch.bool)

    def observe(self, variables: Tensor) -> Tensor:
        angle, speed = variables.unbind(1)
        return torch.stack([torch.cos(angle), torch.sin(angle), speed], 1)


class Acrobot(TorchTask):
    gymnasium_id = "Acrobot-v1"
    low, high = (-0.1,) * 4, (0.1,) * 4
    TAU, GRAVITY, MOST_SPEEDS = 0.2, 9.8, (4 * math.pi, 9 * math.pi)

    def change(self, variables: Tensor, actions: Tensor) -> Outcome:
        torque = actions.to(variables.dtype) - 1.0

        def rates(v: Tensor) -> Tensor:
            return self._rates(v, torque)

        half = 0.5 * self.TAU  # the classic Runge-Kutta method of fourth order
        k1 = rates(variables)
        k2 = rates(variables + half * k1)
        k3 = rates(variables + half * k2)
        k4 = rates(variables + self.TAU * k3)
        moved = variables + self.TAU / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        first, second, *speeds = moved.unbind(1)
        angles = [torch.remainder(a + math.pi, 2 * math.pi) - math.pi for a in (first, second)]
        bounded = [s.clamp(-m, m) for s, m in zip(speeds, self.MOST_SPEEDS, strict=True)]
        terminated = -torch.cos(angles[0]) - torch.cos(angles[0] + angles[1]) > 1.0
        return torch.stack([*angles, *bounded], 1), torch.where(terminated, 0.0, -1.0), terminated

    def _rates(self, variables: Tensor, torque: Tensor) -> Tensor:
        """Of two links of length, mass and inertia 1, each with its centre in the middle."""
        first, second, turn1, turn2 = variables.unbind(1)
        cos2, sin2, g = torch.cos(second), torch.sin(second), self.GRAVITY
        d1, d2 = 3.5 + cos2, 1.25 + 0.5 * cos2
        phi2 = 0.5 * g * torch.sin(first + second)
        phi1 = -0.5 * turn2.square() * sin2 - turn2 * turn1 * sin2 + 1.5 * g * torch.sin(first)
        phi1 = phi1 + phi2
        ratio = d2 / d1
        second_turn = torque + ratio * phi1 - 0.5 * turn1.square() * sin2 - phi2
        angular2 = second_turn / (1.25 - d2 * ratio)
        angular1 = -(d2 * angular2 + phi1) / d1
        return torch.stack([turn1, turn2, angular1, angular2], 1)

    def observe(self, variables: Tensor) -> Tensor:
        first, second, turn1, turn2 = variables.unbind(1)
        parts = [torch.cos(first), torch.sin(first), torch.cos(second), torch.sin(second)]
        return torch.stack([*parts, turn1, turn2], 1)


class MountainCar(TorchTask):
    gymnasium_id = "MountainCar-v0"
    low, high = (-0.6, 0.0), (-0.4, 0.0)
    GOAL, POWER, LEAST_X, MOST_X, MOST_SPEED = 0.5, 0.001, -1.2, 0.6, 0.07

    def __init__(
        self,
        num_worlds: int,
        device: torch.device,
        max_episode_steps: int | None = None,
        *,
        goal_velocity: float = 0.0,
    ) -> None:
        super().__init__(num_worlds, device, max_episode_steps)
        self.goal_velocity = goal_velocity

    def change(self, variables: Tensor, actions: Tensor) -> Outcome:
        changed, terminated = self._moved(variables, actions.to(variables.dtype) - 1.0)
        return changed, torch.full_like(changed[:, 0], -1.0), terminated

    def _moved(self, variables: Tensor, force: Tensor) -> tuple[Tensor, Tensor]:
        x, speed = variables.unbind(1)
        speed = speed + force * self.POWER - 0.0025 * torch.cos(3.0 * x)
        speed = speed.clamp(-self.MOST_SPEED, self.MOST_SPEED)
        moved = x + speed
        x = moved.clamp(self.LEAST_X, self.MOST_X)
        speed = torch.where((moved <= self.LEAST_X) & (speed < 0), 0.0, speed)
        there = (x >= self.GOAL) & (speed >= self.goal_velocity)
        return torch.stack([x, speed], 1), there


class MountainCarContinuous(MountainCar):
    gymnasium_id = "MountainCarContinuous-v0"
    GOAL, POWER = 0.45, 0.0015

    def change(self, variables: Tensor, actions: Tensor) -> Outcome:
        changed, terminated = self._moved(variables, actions[:, 0].clamp(-1.0, 1.0))
        reward = torch.where(terminated, 100.0, 0.0) - 0.1 * actions[:, 0].square()
        return changed, reward, terminated
