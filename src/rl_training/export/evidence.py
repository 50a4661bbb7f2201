"""What the data of a run say about its policy: behaviour, support, and both by group."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_training.algorithms.base import Algorithm
from rl_training.data.dataset import TransitionDataset
from rl_training.export.parity import Predict
from rl_training.export.support import Support, support_of
from rl_training.replay.table import TransitionTable
from rl_training.runtime.held_out import measures_by_row
from rl_training.runtime.statistics import Summary

Array = np.ndarray[Any, Any]
QUERIES = 2_000
MOST_GROUPS = 50
LOW = 0.05
ROWS_AT_ONCE = 4_096
WITHOUT_REWARDS = ("action_agreement", "log_likelihood", "action_gap")


class Evidence:
    """The data that a policy was trained on, seen beside the policy."""

    def __init__(self, dataset: TransitionDataset, algorithm: Algorithm) -> None:
        dataset = dataset.in_memory()
        self.dataset, self.algorithm = dataset, algorithm
        self.support: Support | None = support_of(
            algorithm.spaces, dataset.observations, dataset.actions
        )

    def described(self) -> dict[str, Any]:
        """Sizes, for the card."""
        return {
            "name": self.dataset.name,
            "episodes": self.dataset.num_episodes,
            "transitions": len(self.dataset),
            "fingerprint_of_data_found": self.dataset.fingerprint(),
        }

    def behaviour_returns(self) -> tuple[float, ...]:
        """Of the data's whole episodes."""
        if not (self.dataset.has_rewards and self.dataset.has_whole_episode):
            return ()
        return tuple(float(value) for value in self.dataset.episode_returns())

    def support_section(self, predict: Predict) -> dict[str, Any] | None:
        """How near the policy's decisions in logged states are to the data."""
        if self.support is None or self.algorithm.recurrent:
            return None
        rows = self._rows(np.arange(len(self.dataset)))
        mine, theirs = self._supports(rows, predict)
        return {
            "meaning": self.support.meaning,
            "states": len(rows),
            "policy_median": float(np.median(mine)),
            "data_median": float(np.median(theirs)),
            "policy_share_below_0.05": float((mine < LOW).mean()),
            "data_share_below_0.05": float((theirs < LOW).mean()),
        }

    @torch.no_grad()
    def held_out_section(self) -> dict[str, Any] | None:
        """Measures on the episodes that were set aside, with intervals over episodes."""
        aside, algorithm = self.dataset.held_out, self.algorithm
        if aside is None or algorithm.recurrent:
            return None
        table = TransitionTable(
            aside, algorithm.update_count.device, gamma=algorithm.gamma, with_returns=False
        )
        found: dict[str, list[Array]] = {}
        for rows in torch.split(torch.arange(len(table)), ROWS_AT_ONCE):
            batch = table.gather(rows)
            seen = batch._replace(
                obs=algorithm.network_input(batch.obs),
                next_obs=algorithm.network_input(batch.next_obs),
            )
            for name, values in measures_by_row(algorithm, seen).items():
                if name in WITHOUT_REWARDS:  # the data's are not those of training
                    found.setdefault(name, []).append(values.double().numpy())
        starts = aside.episode_starts
        section: dict[str, Any] = {"episodes": len(starts), "transitions": len(table)}
        for name, parts in found.items():
            sums = np.add.reduceat(np.concatenate(parts), starts)
            mean = Summary.of((sums / aside.episode_lengths()).tolist()).mean
            section |= {name: mean.value, f"{name}_95": [mean.low, mean.high]}
        return section

    def by_group(self, predict: Predict) -> list[dict[str, Any]] | None:
        """Behaviour and agreement in every group of the data's column of groups."""
        dataset = self.dataset
        if dataset.groups is None or self.algorithm.recurrent:
            return None
        names, counts = np.unique(dataset.groups, return_counts=True)
        largest = np.sort(np.argsort(-counts, kind="stable")[:MOST_GROUPS])
        owners, returns = dataset.episode_groups(), self.behaviour_returns()
        found = []
        for name in names[largest]:
            entry: dict[str, Any] = {"group": str(name), "episodes": int((owners == name).sum())}
            if returns:
                own = np.asarray(returns)[owners == name]
                summary = Summary.of(own)
                entry["behaviour_return"] = summary.mean.value
                entry["behaviour_return_95"] = [summary.mean.low, summary.mean.high]
            rows = self._rows(np.flatnonzero(dataset.groups == name))
            entry["agreement_with_data"] = self._agreement(rows, predict)
            if self.support is not None:
                entry["support_median"] = float(np.median(self._supports(rows, predict)[0]))
            found.append(entry)
        return found

    def _rows(self, candidates: Array) -> Array:
        """Some of the candidates; none that support is measured by, where there are others."""
        known = np.zeros(0, np.int64) if self.support is None else self.support.rows
        others = np.setdiff1d(candidates, known)
        candidates = others if len(others) else candidates
        index = np.linspace(0, len(candidates) - 1, min(QUERIES, len(candidates)))
        return np.asarray(candidates[index.astype(np.int64)])

    def _supports(self, rows: Array, predict: Predict) -> tuple[Array, Array]:
        assert self.support is not None
        spaces = self.algorithm.spaces
        obs = np.ascontiguousarray(self.dataset.observations[rows])
        actions, _ = predict(obs, None)
        seen = torch.from_numpy(obs)
        mine, theirs = (
            self.support.of(seen, torch.from_numpy(np.ascontiguousarray(spaces.from_env(taken))))
            for taken in (actions, self.dataset.actions[rows])
        )
        return mine.numpy(), theirs.numpy()

    def _agreement(self, rows: Array, predict: Predict) -> float:
        """Share of equal Discrete actions; of Box actions, those within 5 % of the range."""
        actions, _ = predict(np.ascontiguousarray(self.dataset.observations[rows]), None)
        spaces, logged = self.algorithm.spaces, self.dataset.actions[rows]
        if not spaces.is_box:
            return float((actions == logged).reshape(len(rows), -1).all(-1).mean())
        span = np.asarray(spaces.action_high) - np.asarray(spaces.action_low)
        return float((np.abs(actions - logged) <= 0.05 * span).all(-1).mean())
