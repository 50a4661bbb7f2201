"""Your own environment and algorithm, compared with a built-in algorithm.

The environment is a point on a line that has to be pushed to the origin. The algorithm clones only
the steps of a batch with the largest rewards: from random data it learns to push the right way,
where behaviour cloning learns to act at random. Run it with
`python examples/own_environment_and_algorithm.py`; it takes half a minute.
"""

from __future__ import annotations

import argparse
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from rl_training import BC
from rl_training.extend import (
    Algorithm,
    Batch,
    CloningParams,
    Loss,
    Metrics,
    Policy,
    Positive,
    Rate,
    Spaces,
    managed_class,
    register_algorithm,
)


class Hold(gym.Env[Any, Any]):
    """Push a point to the origin: 40 steps, each rewarded by how much closer it came."""

    observation_space = Box(-2.0, 2.0, (1,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        self.steps = 0
        return self.position.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        before = abs(float(self.position[0]))
        moved = np.clip(self.position + 0.2 * np.asarray(action), -2.0, 2.0)
        self.position, self.steps = moved.astype(np.float32), self.steps + 1
        reward = before - abs(float(self.position[0]))
        return self.position.copy(), reward, False, self.steps == 40, {}


gym.register("Hold-v0", entry_point=f"{__name__}:Hold")


class BestStepsParams(CloningParams):
    share: Rate = 0.2
    """Share of each batch that is cloned: the steps with the largest rewards."""
    lr: Positive = 1e-3
    """Learning rate of the policy."""


def best_steps_loss(log_prob: Tensor, reward: Tensor, *, share: float) -> Loss:
    """-mean(log pi over the rows with the largest rewards), inputs (B,)."""
    kept = max(1, round(share * reward.shape[0]))  # from the config: a fixed shape
    loss = -log_prob.index_select(0, reward.topk(kept).indices).mean()
    return Loss(loss, {"policy_loss": loss})


class BestStepsAlgorithm(Algorithm[BestStepsParams, Batch]):
    """Cloning of the steps with the largest rewards."""

    Params = BestStepsParams
    loop: ClassVar[str] = "offline"
    paper: ClassVar[str] = "none"
    summary: ClassVar[str] = "clone the steps of each batch with the largest rewards"
    losses: ClassVar[tuple[str, ...]] = ("policy_loss",)

    def __init__(
        self, spaces: Spaces, params: BestStepsParams, normalize_observations: bool = False
    ) -> None:
        super().__init__(spaces, params, normalize_observations)
        self._policy = self.make_policy(params.action_distribution)
        self.add_optimizer("policy", self._policy.parameters(), params.lr)

    @property
    def policy(self) -> Policy:
        return self._policy

    def update(self, batch: Batch) -> Metrics:
        def loss() -> Loss:
            log_prob = self.policy.log_prob(batch.obs, batch.action)
            return best_steps_loss(log_prob, batch.reward, share=self.params.share)

        return self.minimize(loss, "policy")


register_algorithm("best_steps", BestStepsAlgorithm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--total-updates", type=int, default=1_000)
    arguments = parser.parse_args()
    options: dict[str, Any] = {
        "dataset": {"kind": "random", "steps": 4_000},
        "hidden_sizes": [32, 32],
        "seed": arguments.seed,
        "output_dir": arguments.output_dir,
        "total_updates": arguments.total_updates,
    }
    table = Table("agent", "how much closer after 40 steps")
    for cls in (BC, managed_class("best_steps")):
        agent = cls("Hold-v0", **options)
        agent.learn(progress=False)
        table.add_row(repr(agent), f"{agent.evaluate(20).return_mean:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
