"""IQL as one would write it in an afternoon, kept as it is: the yardstick of `test_speed`.

Do not improve it. One network per function, an optimiser object each, batches gathered array by
array, losses one after the other.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn


def mlp(in_dim: int, out_dim: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(in_dim, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, out_dim),
    )


class NaiveIQL:
    def __init__(self, arrays: dict[str, Any], width: int, batch_size: int) -> None:
        self.data = {key: torch.as_tensor(value) for key, value in arrays.items()}
        self.batch_size = batch_size
        obs_dim = self.data["observations"].shape[1]
        self.action_dim = self.data["actions"].shape[1]
        self.value = mlp(obs_dim, 1, width)
        self.policy = mlp(obs_dim, self.action_dim, width)
        self.log_std = nn.Parameter(torch.zeros(self.action_dim))
        self.critics = nn.ModuleList(mlp(obs_dim + self.action_dim, 1, width) for _ in range(2))
        self.targets = nn.ModuleList(mlp(obs_dim + self.action_dim, 1, width) for _ in range(2))
        self.targets.load_state_dict(self.critics.state_dict())
        self.value_optimizer = torch.optim.Adam(self.value.parameters(), lr=3e-4)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=3e-4)
        policy = [*self.policy.parameters(), self.log_std]
        self.policy_optimizer = torch.optim.Adam(policy, lr=3e-4)

    def sample(self) -> dict[str, torch.Tensor]:
        rows = torch.randint(len(self.data["rewards"]), (self.batch_size,))
        return {key: value[rows] for key, value in self.data.items()}

    def update(self) -> dict[str, float]:
        batch = self.sample()
        obs, action = batch["observations"], batch["actions"]
        pair = torch.cat([obs, action], 1)
        with torch.no_grad():
            q = torch.minimum(self.targets[0](pair), self.targets[1](pair)).squeeze(1)
        error = q - self.value(obs).squeeze(1)
        value_loss = (torch.where(error > 0, 0.7, 0.3) * error**2).mean()
        self.value_optimizer.zero_grad()
        value_loss.backward()
        self.value_optimizer.step()

        with torch.no_grad():
            advantage = q - self.value(obs).squeeze(1)
            weight = torch.exp(3.0 * advantage).clamp(max=100.0)
        log_std = self.log_std.clamp(-5.0, 2.0)
        z = (torch.atanh(action) - self.policy(obs)) / log_std.exp()
        density = -0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)
        log_prob = (density - torch.log(1 - action**2)).sum(1)
        policy_loss = -(weight * log_prob).mean()
        self.policy_optimizer.zero_grad()
        policy_loss.backward()
        self.policy_optimizer.step()

        with torch.no_grad():
            alive = 1.0 - batch["terminations"].float()
            goal = batch["rewards"] + 0.99 * alive * self.value(batch["next_observations"]).squeeze(
                1
            )
        losses = [((critic(pair).squeeze(1) - goal) ** 2).mean() for critic in self.critics]
        critic_loss = losses[0] + losses[1]
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        with torch.no_grad():
            both = zip(self.targets.parameters(), self.critics.parameters(), strict=True)
            for slow, fast in both:
                slow.mul_(0.995).add_(0.005 * fast)
        return {
            "value_loss": value_loss.item(),
            "policy_loss": policy_loss.item(),
            "critic_loss": critic_loss.item(),
        }
