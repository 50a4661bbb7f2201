"""The policy that made a log: by its own record, or estimated by cloning.

An estimate that has seen the rows it is asked about makes every weight look right, so it is
cross-fitted: the episodes are cut into folds, and each fold is judged by a clone of the others. Its
temperature is then set so that the logged actions are as likely as can be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.algorithms.bc import BCAlgorithm
from rl_training.data.dataset import TransitionDataset
from rl_training.data.statistics import observation_statistics
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import DataError
from rl_training.models import BoxPolicy, CategoricalPolicy
from rl_training.models.masks import allowed
from rl_training.ope.episodes import Floats
from rl_training.runtime.agents import VmapLearner
from rl_training.runtime.build import build_algorithm
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops.offline import OfflineData, give_resample

FOLDS = 4
FEWEST, MOST = 240, 4_000
"""Updates of the clones."""
LOOKS = 12
"""How often a clone is compared with episodes that it does not learn from; the best is kept."""
SMALLEST = 1e-3
"""Share of a uniform policy that is mixed into estimated probabilities, so that none is 0."""
SUM_TOLERANCE = 1e-3

OnUpdate = Callable[[int, int], None]
"""Called with updates done and in total."""


@dataclass(frozen=True, eq=False)
class Behaviour:
    """The policy that collected a log, known or estimated."""

    log_probs: Floats
    """(N,) of the logged actions; densities in inner units for Box actions."""
    probabilities: Floats | None
    """(N, actions) of all Discrete actions, where known."""
    estimated: bool
    clone: Clone | None = None


@dataclass(frozen=True, eq=False)
class Clone:
    """Clones of a log's behaviour, for observations of any kind; one per fold."""

    members: Sequence[BCAlgorithm]
    temperature: float
    spaces: Spaces

    @torch.no_grad()
    def probabilities(self, observations: NDArray[np.float32]) -> Floats:
        """(B, actions), the mean over the members."""
        found = [_probabilities(one, observations, self.temperature) for one in self.members]
        return np.asarray(np.mean(found, axis=0))

    @torch.no_grad()
    def likeliest(self, observations: NDArray[np.float32]) -> NDArray[Any]:
        """(B, ...) likeliest actions, in inner units."""
        if self.spaces.is_discrete:
            return np.asarray(self.probabilities(observations).argmax(-1))
        modes = [
            one.policy.mode(one.network_input(_tensor(one, observations))).cpu().numpy()
            for one in self.members
        ]
        return np.asarray(np.mean(modes, axis=0), np.float32)


def recorded_behaviour(dataset: TransitionDataset, given: NDArray[Any]) -> Behaviour:
    """From (N,) probabilities of the logged actions, or (N, actions) of all Discrete ones.

    Of Box actions they are densities in the environment's units.
    """
    values = np.asarray(given, np.float64)
    rows = len(dataset)
    actions = dataset.spaces.action_dim if dataset.spaces.is_discrete else None
    if values.shape not in ((rows,), (rows, actions)):
        wide = f" or {(rows, actions)}" if actions else ""
        raise DataError(
            f"behaviour: expected probabilities of the shape {(rows,)}{wide}, one row per step of "
            f"data set '{dataset.name}', got {values.shape}"
        )
    every = values if values.ndim == 2 else None
    if every is not None:
        if (every < 0.0).any():
            row = int(np.flatnonzero((every < 0.0).any(1))[0])
            raise DataError(
                f"behaviour: row {row:,} holds {every[row].min():g}, which is no probability; "
                "correct it, and give no logarithms"
            )
        off = np.abs(every.sum(1) - 1.0)
        if not (off <= SUM_TOLERANCE).all():
            row = int(np.nanargmax(np.where(np.isfinite(off), off, np.inf)))
            raise DataError(
                f"behaviour: the probabilities of row {row:,} sum to {every[row].sum():g}; all "
                "rows must hold probabilities that sum to 1"
            )
        inner = np.asarray(dataset.spaces.from_env(dataset.actions))
        values = every[np.arange(rows), inner]
    if not (np.isfinite(values) & (values > 0.0)).all():
        row = int(np.flatnonzero(~(np.isfinite(values) & (values > 0.0)))[0])
        raise DataError(
            f"behaviour: row {row:,} has probability {values[row]:g} for the action that was "
            "taken; correct it (probabilities, not their logarithms), or leave them out to have "
            "them estimated"
        )
    if actions is not None and (values > 1.0 + SUM_TOLERANCE).any():
        row = int(np.flatnonzero(values > 1.0)[0])
        raise DataError(
            f"behaviour: row {row:,} has probability {values[row]:g}; probabilities of Discrete "
            "actions are at most 1, so give no logarithms"
        )
    half_widths = np.subtract(dataset.spaces.action_high, dataset.spaces.action_low) / 2.0
    inner_units = float(np.log(half_widths).sum())  # 0 for Discrete actions, which have no bounds
    return Behaviour(np.log(values) + inner_units, every, estimated=False)


def estimated_behaviour(
    dataset: TransitionDataset,
    *,
    updates: int | None = None,
    hidden_sizes: Sequence[int] = (128, 128),
    seed: int = 0,
    device: str = "cpu",
    on_update: OnUpdate | None = None,
) -> Behaviour:
    """By clones of folds of episodes, or of groups of them, each asked about the others.

    Without `updates`, as many as pass over the data ten times, within `FEWEST` and `MOST`.
    """
    spaces = dataset.spaces
    if updates is None:
        updates = min(MOST, max(FEWEST, 10 * len(dataset) // 256))
    owner, folds = _folds(dataset, FOLDS, seed)
    if folds < 2:
        raise DataError(
            f"data set '{dataset.name}' holds one episode, from which no behaviour can be "
            "estimated; give its probabilities (behaviour), or more episodes"
        )
    config = TrainConfig.parse(
        {
            "algo": "bc",
            "seed": seed,
            "device": device,
            "total_updates": updates,
            "engine": "eager",
            "dataset": {"kind": "npz", "path": dataset.name, "normalize_observations": True},
            "algo_kwargs": {"hidden_sizes": list(hidden_sizes), "lr": 1e-3},
        }
    )
    agents = [build_algorithm(config.replace(seed=seed + i), spaces) for i in range(folds)]
    statistics = [torch.from_numpy(x) for x in observation_statistics(dataset)]
    for agent in agents:
        agent.normalizer.set_statistics(*statistics)
    data = OfflineData(config.replace(seeds=[seed + i for i in range(folds)]), agents, dataset)
    rng = np.random.default_rng(seed)
    lengths = dataset.episode_lengths()
    checked = []
    for fold, agent in enumerate(agents):
        others = np.flatnonzero(owner != fold)
        aside = rng.permutation(others)[: max(1, len(others) // 10)]
        learned = np.isin(np.arange(len(owner)), others) & ~np.isin(np.arange(len(owner)), aside)
        if not learned.any():
            learned = owner != fold
        give_resample(agent, dataset, learned.astype(np.int64))
        rows = np.flatnonzero(np.repeat(np.isin(np.arange(len(owner)), aside), lengths))
        checked.append(rng.permutation(rows)[:5_000])
    engine = Engine(
        VmapLearner(agents, data.draw, [seed + i for i in range(folds)]), "eager", updates
    )
    best = [np.inf] * folds
    kept = [{k: v.clone() for k, v in agent.state_dict().items()} for agent in agents]
    done = 0
    inner = np.asarray(spaces.from_env(dataset.actions))
    for look in range(1, LOOKS + 1):
        share = updates * look // LOOKS - done
        if share:
            engine.run(share)
        done += share
        for i, (agent, rows) in enumerate(zip(agents, checked, strict=True)):
            loss = -float(_log_probs(agent, dataset.observations[rows], inner[rows], 1.0).mean())
            if loss < best[i]:
                best[i] = loss
                kept[i] = {k: v.clone() for k, v in agent.state_dict().items()}
        if on_update is not None:
            on_update(done, updates)
    for agent, state in zip(agents, kept, strict=True):
        agent.load_state_dict(state)
    return _judged(dataset, agents, np.repeat(owner, lengths), inner)


def _judged(
    dataset: TransitionDataset,
    agents: Sequence[Any],
    fold_of_row: NDArray[np.int64],
    inner: NDArray[Any],
) -> Behaviour:
    """Every row by the clone that has not seen it, at the temperature that fits best."""
    obs, discrete = dataset.observations, dataset.spaces.is_discrete

    def log_probs(temperature: float) -> Floats:
        found = np.zeros(len(dataset))
        for fold, agent in enumerate(agents):
            rows = fold_of_row == fold
            found[rows] = _log_probs(agent, obs[rows], inner[rows], temperature)
        return found

    grid = np.geomspace(0.5, 4.0, 13)
    temperature = float(max(grid, key=lambda one: float(log_probs(one).mean())))
    clone = Clone(tuple(agents), temperature, dataset.spaces)
    every = None
    if discrete:
        every = np.zeros((len(dataset), dataset.spaces.action_dim))
        for fold, agent in enumerate(agents):
            rows = fold_of_row == fold
            every[rows] = _probabilities(agent, obs[rows], temperature)
    return Behaviour(log_probs(temperature), every, estimated=True, clone=clone)


def _folds(dataset: TransitionDataset, most: int, seed: int) -> tuple[NDArray[np.int64], int]:
    """(episodes,) the fold of every episode, and how many folds there are."""
    groups, owner = np.unique(dataset.episode_groups(), return_inverse=True)
    folds = min(most, len(groups))
    place = np.random.default_rng(seed).permutation(len(groups)) % folds
    return place[owner.reshape(-1)], folds


def _tensor(agent: Any, observations: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(observations)).to(agent.update_count.device)


@torch.no_grad()
def _probabilities(agent: Any, observations: NDArray[np.float32], temperature: float) -> Floats:
    """(B, actions) at a temperature, none of them 0 but those that a mask forbids."""
    policy = agent.policy
    assert isinstance(policy, CategoricalPolicy)
    seen = agent.network_input(_tensor(agent, observations))
    log_probs: Tensor = policy(seen).double()
    probabilities = (log_probs / temperature).softmax(-1)
    possible = torch.ones_like(probabilities)
    if policy.masked:
        possible = allowed(seen, probabilities.shape[-1]).double()
    even = possible / possible.sum(-1, keepdim=True).clamp(min=1.0)
    mixed: Tensor = (1.0 - SMALLEST) * probabilities + SMALLEST * even
    return np.asarray(mixed.cpu().numpy())


@torch.no_grad()
def _log_probs(
    agent: Any, observations: NDArray[np.float32], inner: NDArray[Any], temperature: float
) -> Floats:
    """(B,) of given inner actions; a temperature scales the standard deviation of Box ones."""
    if agent.spaces.is_discrete:
        every = _probabilities(agent, observations, temperature)
        return np.asarray(np.log(every[np.arange(len(inner)), inner]))
    policy = agent.policy
    assert isinstance(policy, BoxPolicy)
    mean, log_std = policy(agent.network_input(_tensor(agent, observations)))
    action = torch.from_numpy(np.ascontiguousarray(inner)).to(mean.device)
    wider = (mean, log_std + float(np.log(temperature)))
    return np.asarray(policy.log_prob_under(wider, action).double().cpu().numpy())
