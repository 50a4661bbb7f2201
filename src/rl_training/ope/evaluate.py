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
from rl_training.ope.counted_model import states_repeat
from rl_training.ope.coverage import PROBLEM, caution_about, worth_of
from rl_training.ope.episodes import Floats, WeightedEpisodes
from rl_training.ope.fitted import fit_critics
from rl_training.ope.found import LEAST_EFFECTIVE, Evaluation, verdict_of
from rl_training.ope.intervals import bootstrap, lower_bound
from rl_training.ope.model_based import model_based_value
from rl_training.ope.options import RATIOS, Options
from rl_training.ope.steps import (
    CountedSteps,
    action_chances,
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
ROBUST: dict[str, Callable[[WeightedEpisodes, weighted.Values], weighted.Estimator]] = {
    "dr": weighted.doubly_robust,
    "wdr": weighted.truncated_doubly_robust,
    "wdr_full": weighted.weighted_doubly_robust,
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
    """Estimate the behaviour policy, if it is not given, and the support of the log."""
    dataset.require_rewards()
    if not dataset.has_whole_episode:
        raise DataError(
            f"data set '{dataset.name}' holds no complete episode, so nothing says what one is "
            "worth; set terminations or truncations where episodes end"
        )
    estimated = estimated_behaviour(dataset, seed=seed, device=device, on_update=on_update)
    return Log(dataset, behaviour or estimated, fit_support(dataset, estimated, seed=seed))


SMALL_DRIFT = 0.05
"""Share of the value of fitted Q that it may still move by, where its interval is narrower."""
Progress = Callable[[str], OnUpdate]
"""Where a fit with a title shows how far it is."""


def evaluate(
    config: TrainConfig,
    algorithm: Algorithm,
    log: Log,
    options: Options,
    progress: Progress | None = None,
) -> Evaluation:
    """The policy of a run with this config, judged on a log."""
    options.check()
    dataset = log.dataset
    algorithm.spaces.refuse_other(dataset.spaces, f"data set '{dataset.name}'")
    target = log_probabilities(algorithm, dataset, options.stochastic)
    wanted, notes = _possible(options, has_ratios=target is not None)
    steps = CountedSteps.of(dataset, options.horizon)
    own = discounted_returns(dataset, steps, options.gamma)
    _refuse_other_returns(own, options)
    found: dict[str, Interval] = {}
    fitted, settled = None, True
    if {"fqe", *ROBUST} & set(wanted):
        shown = None if progress is None else progress("FQE")
        fitted = fit_critics(config, algorithm, dataset, options, shown)
    if "fqe" in wanted:
        assert fitted is not None
        value = found["fqe"] = fitted.estimate(dataset, options)
        drift = fitted.drift(dataset, options)
        settled = abs(drift) <= max(value.high - value.value, SMALL_DRIFT * abs(value.value))
        if not settled:
            notes.append(
                f"fqe has not settled: by its own targets its value would still move by about "
                f"{drift:+.2g}; give value_range, a lower gamma or more episodes"
            )
    if "mb" in wanted:
        shown = None if progress is None else progress("model")
        found["mb"] = model_based_value(config, algorithm, dataset, options, shown)
        if states_repeat(dataset):
            notes.append(
                "mb counts transitions, because states of this log repeat; such intervals held the "
                f"exact value in {worth_of('mb by counts')} of replications ({PROBLEM})"
                if dataset.spaces.is_discrete
                else "states of this log repeat, and mb with Box actions fits normal "
                "distributions, which suit continuous states; read fqe"
            )
    size = bound = None
    if target is not None:
        episodes = WeightedEpisodes.of(
            dataset.rewards[steps.rows].astype(np.float64),
            (target - log.behaviour.log_probs)[steps.rows],
            steps.starts,
            options.gamma,
            steps.groups,
        )
        size, values = episodes.effective_size, None
        if size == 0.0:
            wanted = _without_followed_episode(wanted, notes)
        if ROBUST.keys() & set(wanted):
            assert fitted is not None
            values = fitted.values(dataset, steps, options)
        found |= {
            name: _bootstrapped(_estimator(name, episodes, values), steps, options)
            for name in wanted
            if name in RATIOS
        }
        bound = _sure_bound(episodes, log.behaviour, options)
        if log.behaviour.estimated:
            notes.append("the behaviour policy is estimated by cloning, cross-fitted by episode")
        if 0.0 < size < LEAST_EFFECTIVE:
            notes.append(
                f"the weights rest on {size:.1f} episodes, so estimates by ratios say little"
            )
    behaviour = _bootstrapped(lambda counts: (counts @ own) / counts.sum(-1), steps, options)
    unusual = unusual_share(algorithm, log, options.stochastic)
    found = {name: found[name] for name in wanted}
    notes += [said for name in wanted if (said := caution_about(name)) is not None]
    uncounted = float(np.where(steps.ended, 0.0, options.gamma**steps.lengths).mean())
    logged = float(own.min()), float(own.max())
    verdict, supported = verdict_of(
        found, behaviour, unusual, size, options, settled, uncounted, logged
    )
    return Evaluation(
        policy=fingerprint_of(algorithm),
        data=dataset.fingerprint(),
        episodes=steps.count,
        options=options,
        estimates=found,
        behaviour=behaviour,
        effective_size=size,
        lower_bound=bound,
        unusual=unusual,
        verdict=verdict,
        supported=supported,
        notes=tuple(notes),
    )


def _possible(options: Options, *, has_ratios: bool) -> tuple[list[str], list[str]]:
    """The estimators that make sense, and a note about the others."""
    wanted = list(dict.fromkeys(options.estimators))
    refused = [] if has_ratios else [name for name in wanted if name in RATIOS]
    kept = [name for name in wanted if name not in refused]
    if not kept:
        raise ConfigError(
            f"estimators: {', '.join(refused)} need the probability of logged actions, and a "
            "deterministic policy over Box actions has none; use fqe or mb"
        )
    if not refused:
        return kept, []
    return kept, [
        f"{', '.join(refused)} are left out: a deterministic policy over Box actions has no ratios"
    ]


def _without_followed_episode(wanted: list[str], notes: list[str]) -> list[str]:
    """The estimators that are left where every episode has an action that the policy never takes;
    their weights are all 0, which says nothing about its value."""
    kept = [name for name in wanted if name not in PLAIN]
    if not kept:
        raise DataError(
            f"estimators: {', '.join(wanted)} need episodes that the policy could have made, and "
            "every logged one has an action that it never takes; use fqe, or evaluate drawn "
            "actions (stochastic)"
        )
    if left := [name for name in wanted if name in PLAIN]:
        notes.append(
            f"{', '.join(left)} are left out: every logged episode has an action that the policy "
            "never takes"
        )
    return kept


def _refuse_other_returns(returns: Floats, options: Options) -> None:
    """Refuse a range of returns that does not hold the logged ones."""
    if options.value_range is None:
        return
    low, high = options.value_range
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    if returns.min() < low - slack or returns.max() > high + slack:
        raise ConfigError(
            f"value_range: [{low:g}, {high:g}] does not hold the logged returns, which lie in "
            f"[{returns.min():g}, {returns.max():g}]; widen it, or leave it out"
        )


def _estimator(
    name: str, episodes: WeightedEpisodes, values: weighted.Values | None
) -> weighted.Estimator:
    if name in PLAIN:
        return PLAIN[name](episodes)
    assert values is not None
    return ROBUST[name](episodes, values)


def _bootstrapped(estimator: weighted.Estimator, steps: CountedSteps, options: Options) -> Interval:
    return bootstrap(
        estimator,
        steps.count,
        groups=steps.groups,
        resamples=options.resamples,
        confidence=options.confidence,
        seed=options.seed,
    )


def _sure_bound(episodes: WeightedEpisodes, behaviour: Behaviour, options: Options) -> float | None:
    """Needs bounded returns, the log's own probabilities and independent episodes."""
    if options.value_range is None or behaviour.estimated or episodes.groups is not None:
        return None
    return lower_bound(
        episodes.whole_weights, episodes.returns, *options.value_range, options.confidence
    )


@torch.no_grad()
def unusual_share(algorithm: Algorithm, log: Log, stochastic: bool) -> float:
    """Share of the policy's actions, at logged observations, below the unusual quantile."""
    dataset, rng = log.dataset, np.random.default_rng(0)
    rows = np.sort(rng.permutation(len(dataset))[:4_000])
    seen = dataset.observations[rows]
    policy, shares = algorithm.acting_policy, []
    if stochastic and isinstance(policy, CategoricalPolicy):
        probs = action_chances(algorithm, seen, stochastic)
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
