"""One environment step's worth of RLPD learning: ours, and with critics in a Python list.

The other side is frozen here: what one writes first. A list of `nn.Sequential`, each called on
its own, target updates parameter by parameter, `torch.optim.Adam`, and a minibatch drawn, cut
and moved to tensors at every critic update. The same arithmetic, sizes and number of steps.
"""

from __future__ import annotations

import copy
import itertools
import os
import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.process import Request, answer_job
from rl_training import TrainConfig, TransitionDataset
from rl_training.envs.spaces import Spaces
from rl_training.models import TanhGaussianPolicy
from rl_training.runtime.agents import SingleLearner
from rl_training.runtime.build import build_algorithm, keep_freed_memory
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops.offline import OfflineData

ROWS = 20_000


def synthetic(spaces: Spaces) -> TransitionDataset:
    """Rows of noise, in one episode."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((ROWS + 1, spaces.obs_dim)).astype(np.float32)
    last = np.arange(ROWS) == ROWS - 1
    return TransitionDataset(
        observations=obs[:-1],
        actions=rng.uniform(-1, 1, (ROWS, spaces.action_dim)).astype(np.float32),
        rewards=rng.standard_normal(ROWS).astype(np.float32),
        next_observations=obs[1:],
        terminations=np.zeros(ROWS, np.bool_),
        truncations=last,
        name="noise",
        spaces=spaces,
    )


# --- ours ------------------------------------------------------------------------------------


def our_round(config: TrainConfig, spaces: Spaces, dataset: TransitionDataset) -> Callable[[], Any]:
    """The piece of work that the loop runs after each environment step."""
    from rl_training.replay.batch import interleaved

    algorithm = build_algorithm(config, spaces)
    prior, own = (OfflineData(config, [algorithm], dataset).table for _ in range(2))
    p = config.params
    slices, rows = p.updates_at_once, p.offline_rows

    def draw(_: Any) -> Any:
        mine = own.sample(slices * (p.batch_size - rows))
        return interleaved(prior.sample(slices * rows), mine, slices)

    engine = Engine(SingleLearner(algorithm, draw), config.engine, 1)
    return lambda: engine.run(1)


# --- the list --------------------------------------------------------------------------------


class ListEnsemble:
    """RLPD with critics one after the other."""

    def __init__(self, params: Any, spaces: Spaces, dataset: TransitionDataset) -> None:
        self.p, self.data, self.spaces = params, dataset, spaces
        self.policy = TanhGaussianPolicy(spaces.obs_dim, spaces.action_dim, params.hidden_sizes)
        self.critics = [self._critic() for _ in range(params.num_critics)]
        self.targets = copy.deepcopy(self.critics)
        parameters = [q for critic in self.critics for q in critic.parameters()]
        self.critic_optimizer = torch.optim.Adam(parameters, params.critic_lr)
        self.policy_optimizer = torch.optim.Adam(self.policy.parameters(), params.policy_lr)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], params.temperature_lr)

    def _critic(self) -> nn.Sequential:
        sizes = [self.spaces.obs_dim + self.spaces.action_dim, *self.p.hidden_sizes]
        layers: list[nn.Module] = []
        for fan_in, fan_out in itertools.pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out), nn.LayerNorm(fan_out), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def _minibatch(self) -> list[Tensor]:
        halves = []
        for rows in (self.p.offline_rows, self.p.batch_size - self.p.offline_rows):
            index = np.random.randint(0, len(self.data), rows)
            d = self.data
            columns = (d.observations, d.actions, d.rewards, d.next_observations, d.terminations)
            halves.append([torch.as_tensor(column[index]) for column in columns])
        return [torch.cat(pair) for pair in zip(*halves, strict=True)]

    def _sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy.rsample(obs, torch.randn(obs.shape[0], self.spaces.action_dim))

    def round(self) -> None:
        """Many critic updates, then one step of the policy and the temperature."""
        p = self.p
        for _ in range(p.updates_at_once):
            obs, action, reward, next_obs, ended = self._minibatch()
            with torch.no_grad():
                next_action, log_prob = self._sample(next_obs)
                chosen = random.sample(self.targets, p.num_min_critics)
                joined = torch.cat([next_obs, next_action], -1)
                next_q = torch.stack([critic(joined).squeeze(-1) for critic in chosen]).amin(0)
                next_q = next_q - self.log_alpha.exp() * log_prob
                target = reward + p.gamma * (1.0 - ended.float()) * next_q
            joined = torch.cat([obs, action], -1)
            errors = [F.mse_loss(critic(joined).squeeze(-1), target) for critic in self.critics]
            self.critic_optimizer.zero_grad()
            torch.stack(errors).sum().backward()  # type: ignore[no-untyped-call]
            self.critic_optimizer.step()
            with torch.no_grad():
                for online, slow in zip(self.critics, self.targets, strict=True):
                    for a, b in zip(online.parameters(), slow.parameters(), strict=True):
                        b.mul_(1.0 - p.tau).add_(p.tau * a)
        action, log_prob = self._sample(obs)
        joined = torch.cat([obs, action], -1)
        q = torch.stack([critic(joined).squeeze(-1) for critic in self.critics]).mean(0)
        loss = (self.log_alpha.exp().detach() * log_prob - q).mean()
        self.policy_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.policy_optimizer.step()
        target_entropy = -0.5 * self.spaces.action_dim
        alpha_loss = -(self.log_alpha * (log_prob.detach() + target_entropy)).mean()
        self.alpha_optimizer.zero_grad()
        alpha_loss.backward()  # type: ignore[no-untyped-call]
        self.alpha_optimizer.step()


# --- turns -----------------------------------------------------------------------------------


def rate(work: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Rounds per second and per second of CPU time."""
    began = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        work()
    return tuple(  # type: ignore[return-value]
        rounds / (now - then)
        for now, then in zip((time.perf_counter(), time.process_time()), began, strict=True)
    )


def work(request: Request) -> dict[str, Any]:
    spec = request.spec
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()  # both sides run in this process
    load = os.getloadavg()[0]
    bounds = (1.0,) * spec["action_dim"]
    spaces = Spaces(spec["obs_dim"], "box", spec["action_dim"], tuple(-x for x in bounds), bounds)
    config = TrainConfig(**spec["config"])
    dataset = synthetic(spaces)
    sides = [our_round(config, spaces, dataset), ListEnsemble(config.params, spaces, dataset).round]
    turns = []
    for side in sides:
        side()
        side()
        turns.append(max(1, round(rate(side, 2)[0] * spec["turn_seconds"])))
    measured: list[list[tuple[float, float]]] = [[], []]
    for turn in range(spec["rounds"]):
        for i in (0, 1) if turn % 2 == 0 else (1, 0):
            measured[i].append(rate(sides[i], turns[i]))
    ratios, cpu_ratios = (
        [ours[k] / theirs[k] for ours, theirs in zip(*measured, strict=True)] for k in (0, 1)
    )
    result = {
        "engine": config.engine,
        "ours": median(one[0] for one in measured[0]),
        "theirs": median(one[0] for one in measured[1]),
        "ratio": median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "cpu_ratio": median(cpu_ratios),
        "load_before": round(load, 2),
    }
    print(f"{result['ours']:.1f} rounds per second, {result['ratio']:.2f} times the list")
    return result


if __name__ == "__main__":
    answer_job(work, ("rl-training", "torch", "numpy", "gymnasium"))
