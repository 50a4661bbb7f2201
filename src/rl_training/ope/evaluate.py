"""What a policy is worth on a log, with intervals, effective sample size, support and a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.fqe import fingerprint_of
from rl_training.data.dataset import TransitionDataset
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError, DataError
from rl_training.models import CategoricalPolicy
from rl_training.ope import estimators as weighted
from rl_training.ope.behaviour import Behaviour, OnUpdate, estimated_behaviour
from rl_training.ope.episodes import WeightedEpisodes
from rl_training.ope.fitted import fit_critics
from rl_training.ope.found import LEAST_EFFECTIVE, Evaluation, verdict_of
from rl_training.ope.intervals import bootstrap
from rl_training.ope.options import RATIOS, Options
from rl_training.ope.steps import (
    CountedSteps,
    discounted_returns,
    log_probabilities,
    network_inputs,
)
from rl_training.ope.support import UNUSUAL, Support, fit_support
from rl_training.runtime.statistics import Interval

PLAIN: dict[str, Callable[[WeightedEpisodes], weighted.Estimator]] = {
    "is": weighted.importance_sampling,
    "wis": weighted.weighted_importance_sampling,
    "pdis": weighted.per_decision,
    "pdwis": weighted.weighted_per_decision,
}


@dataclass(frozen=True, eq=False)
class Log:
    """A log made ready, so that several policies can be judged on it."""

    dataset: TransitionDataset
    behaviour: Behaviour
    support: Support


def prepare_log(
    dataset: TransitionDataset,
    behaviour: Behaviour | None = None,
    *,
    seed: int = 0,
    device: str = "cpu",
    on_update: OnUpdate | None = None,
) -> Log:
    """Interval what acted, where the log does not say it, and what it supports."""
    dataset.require_rewards()
    if not dataset.has_whole_episode:
        raise DataError(
            f"data set '{dataset.name}' holds no complete episode, so nothing says what one is "
            "worth; set terminations or truncations where episodes end"
        )
    estimated = estimated_behaviour(dataset, seed=seed, device=device, on_update=on_update)
    return Log(dataset, behaviour or estimated, fit_support(dataset, estimated, seed=seed))


def evaluate(
    config: TrainConfig,
    algorithm: Algorithm,
    log: Log,
    options: Options,
    on_update: OnUpdate | None = None,
) -> Evaluation:
    """The policy of a run with this config, judged on a log."""
    options.check()
    dataset, notes = log.dataset, []
    algorithm.spaces.refuse_other(dataset.spaces, f"data set '{dataset.name}'")
    wanted = list(dict.fromkeys(options.estimators))
    target = log_probabilities(algorithm, dataset, options.stochastic)
    if target is None:
        refused = [name for name in wanted if name in RATIOS]
        wanted = [name for name in wanted if name not in RATIOS]
        if not wanted:
            raise ConfigError(
                f"estimators: {', '.join(refused)} need the probability of logged actions, and a "
                "deterministic policy over Box actions has none; use fqe"
            )
        if refused:
            notes.append(
                f"{', '.join(refused)} are left out: a deterministic policy over Box actions has "
                "no ratios"
            )
    steps = CountedSteps.of(dataset, options.horizon)
    groups = steps.groups
    fitted = None
    if {"fqe", "wdr", "dr"} & set(wanted):
        fitted = fit_critics(config, algorithm, dataset, options, on_update)
    found: dict[str, Interval] = {}
    episodes = None
    if target is not None:
        ratios = (target - log.behaviour.log_probs)[steps.rows]
        episodes = WeightedEpisodes.of(
            dataset.rewards[steps.rows].astype(np.float64), ratios, steps.starts, options.gamma,
            groups,
        )  # fmt: skip
    for name in wanted:
        if name == "fqe":
            assert fitted is not None
            found[name] = fitted.estimate(dataset, options)
            continue
        assert episodes is not None
        if name in PLAIN:
            estimator = PLAIN[name](episodes)
        else:
            assert fitted is not None
            values = fitted.values(dataset, steps, options)
            robust = {"dr": weighted.doubly_robust, "wdr": weighted.weighted_doubly_robust}
            estimator = robust[name](episodes, values)
        found[name] = bootstrap(
            estimator, episodes.count, groups=groups, resamples=options.resamples,
            confidence=options.confidence, seed=options.seed,
        )  # fmt: skip
    own = discounted_returns(dataset, steps, options.gamma)
    behaviour = bootstrap(
        lambda counts: (counts @ own) / counts.sum(-1), len(own), groups=groups,
        resamples=options.resamples, confidence=options.confidence, seed=options.seed,
    )  # fmt: skip
    unusual = unusual_share(algorithm, log, options.stochastic)
    size = None if episodes is None else episodes.effective_size
    if log.behaviour.estimated and episodes is not None:
        notes.append("the behaviour policy is estimated by cloning, cross-fitted by episode")
    if size is not None and size < LEAST_EFFECTIVE:
        notes.append(f"the weights rest on {size:.1f} episodes, so estimates by ratios say little")
    verdict, supported = verdict_of(found, behaviour, unusual, size, options)
    return Evaluation(
        fingerprint_of(algorithm), dataset.fingerprint(), steps.count, options, found, behaviour,
        size, unusual, verdict, supported, tuple(notes),
    )  # fmt: skip


@torch.no_grad()
def unusual_share(algorithm: Algorithm, log: Log, stochastic: bool) -> float:
    """Share of the policy's actions, at logged observations, below the unusual quantile."""
    dataset, rng = log.dataset, np.random.default_rng(0)
    rows = np.sort(rng.permutation(len(dataset))[:4_000])
    seen = dataset.observations[rows]
    policy, shares = algorithm.acting_policy, []
    if stochastic and isinstance(policy, CategoricalPolicy):
        parts = [policy(obs).exp() for obs in network_inputs(algorithm, seen)]
        probs = torch.cat(parts).cpu().numpy()
        for action in range(dataset.spaces.action_dim):
            inner = np.full(len(rows), action)
            shares.append(probs[:, action] * (log.support.quantile(seen, inner) < UNUSUAL))
        return float(np.sum(shares, 0).mean())
    drawn = stochastic and policy.has_density
    torch_state = torch.get_rng_state()
    torch.manual_seed(0)
    chosen = [
        policy.sample(obs) if drawn else policy.mode(obs) for obs in network_inputs(algorithm, seen)
    ]
    torch.set_rng_state(torch_state)
    inner = torch.cat(chosen).cpu().numpy()
    return float((log.support.quantile(seen, inner) < UNUSUAL).mean())
