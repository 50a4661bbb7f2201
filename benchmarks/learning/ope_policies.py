"""Policies for the ICU-Sepsis process as networks, whose exact values are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from benchmarks.learning.icu_sepsis_mdp import TERMINAL, Array, Process
from rl_training import BC


def optimal_policy(process: Process) -> Array:
    """(states, actions), by value iteration over actions that clinicians have taken."""
    value = np.zeros(len(process.start))
    paid = (process.transition * process.reward).sum(2)
    for _ in range(300):
        value[list(TERMINAL)] = 0.0
        value = (paid + process.transition @ value).max(1)
        value[list(TERMINAL)] = 0.0
    best = (paid + process.transition @ value).argmax(1)
    policy: Array = np.eye(process.transition.shape[1])[best]
    return policy


def mixed(process: Process, optimal: Array, share: float) -> Array:
    """The clinicians' policy with a share of the optimal one."""
    return (1.0 - share) * process.clinicians + share * optimal


FITTING = 3_000
"""Steps. After 600 a network leaves 4% of an episode's weight on actions that clinicians never
take, and the ratios of their own policy are not 1."""

NEVER = 5.0
"""Weight of the chance of actions that the policy never takes."""


def as_network(
    process: Process, policy: Array, data: dict[str, NDArray[Any]], seed: int, steps: int
) -> BC:
    """A network whose probabilities are close to `policy` at every state."""
    agent = BC(
        dataset=data, hidden_sizes=[256, 256], seed=seed, device="cpu",
        spaces={"obs_dim": process.features.shape[1],
                "actions": {"kind": "discrete", "n": policy.shape[1]}},
    )  # fmt: skip
    features = torch.from_numpy(process.features.astype(np.float32))
    wanted = torch.from_numpy(policy).float()
    net: Any = agent.algorithm.policy
    centre, spread = features.mean(0), features.std(0) + 1e-3
    with torch.no_grad():  # standardise inside the first layer
        first = net.net.layers[0]
        first.weight /= spread
        first.bias -= first.weight @ centre
    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        found = net(features)
        loss = F.kl_div(found, wanted, reduction="batchmean")
        # what the policy never does, the network must not do either: no ratio makes up for it
        loss = loss + NEVER * found.exp()[wanted == 0.0].sum() / len(found)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return agent


@torch.no_grad()
def probabilities(process: Process, agent: BC) -> Array:
    """(states, actions) of the network itself, for its exact value."""
    net: Any = agent.algorithm.policy
    found = net(torch.from_numpy(process.features.astype(np.float32))).exp().double().numpy()
    return np.asarray(found / found.sum(1, keepdims=True))
