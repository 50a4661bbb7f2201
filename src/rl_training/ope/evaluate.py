"""What a policy is worth on a log, with intervals, effective sample size, support and a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.fqe import FQEAlgorithm, evaluated_policy, fingerprint_of
from rl_training.algorithms.warm_start import reads_observations, start_from
from rl_training.data.dataset import TransitionDataset
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError, DataError, did_you_mean
from rl_training.models import CategoricalPolicy
from rl_training.ope import estimators as weighted
from rl_training.ope.behaviour import Behaviour, OnUpdate, estimated_behaviour
from rl_training.ope.episodes import Floats, WeightedEpisodes, padded
from rl_training.ope.estimators import Values
from rl_training.ope.intervals import Estimate, bootstrap
from rl_training.ope.support import UNUSUAL, Support, fit_support
from rl_training.replay.table import observation_statistics
from rl_training.runtime.agents import VmapLearner
from rl_training.runtime.build import build_algorithm
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops.offline import OfflineData, give_resample

ESTIMATORS = ("fqe", "wdr", "dr", "wis", "pdwis", "is", "pdis")
DEFAULT = ("fqe", "wdr", "wis", "pdwis")
RATIOS = frozenset(ESTIMATORS) - {"fqe"}
PLAIN: dict[str, Callable[[WeightedEpisodes], weighted.Estimator]] = {
    "is": weighted.importance_sampling,
    "wis": weighted.weighted_importance_sampling,
    "pdis": weighted.per_decision,
    "pdwis": weighted.weighted_per_decision,
}
LEAST_EFFECTIVE = 10.0
"""Effective episodes below which an estimate by ratios says nothing."""
MOST_UNUSUAL = 0.15
"""Share of the policy's actions that may be unusual before the data stop supporting it: of the
log's own actions it is `UNUSUAL`."""
ROWS_AT_ONCE = 8_192


@dataclass(frozen=True)
class Options:
    """How an evaluation is made."""

    estimators: tuple[str, ...] = DEFAULT
    gamma: float = 0.99
    horizon: int | None = None
    """Steps that are counted; needed with gamma 1."""
    stochastic: bool = False
    """Drawn actions instead of the likeliest ones."""
    value_range: tuple[float, float] | None = None
    replicates: int = 16
    """Bootstrap replicates of FQE."""
    updates: int = 10_000
    """Updates of FQE."""
    hidden_sizes: tuple[int, ...] = (128, 128)
    critic_lr: float = 1e-3
    tau: float = 0.01
    """How far the target networks of FQE move at each update."""
    resamples: int = 1_000
    """Bootstrap resamples of the other estimators."""
    confidence: float = 0.95
    seed: int = 0
    device: str = "cpu"

    def check(self) -> None:
        """Refuse what makes no sense, in one sentence."""
        for name in self.estimators:
            if name not in ESTIMATORS:
                raise ConfigError(
                    f"estimators: unknown estimator '{name}'{did_you_mean(name, ESTIMATORS)}; "
                    f"known are {', '.join(ESTIMATORS)}"
                )
        if not 0.0 < self.gamma <= 1.0:
            raise ConfigError(f"gamma: expected a number above 0, at most 1, got {self.gamma:g}")
        if self.gamma == 1.0 and self.horizon is None:
            raise ConfigError(
                "horizon: without a discount (gamma 1) FQE needs the number of steps that are "
                "counted; give horizon, or a gamma below 1"
            )
        if self.horizon is not None and self.horizon < 1:
            raise ConfigError(f"horizon: expected at least 1 step, got {self.horizon}")
        if self.replicates < 2:
            raise ConfigError(f"replicates: expected at least 2, got {self.replicates}")
        if not 0.5 <= self.confidence < 1.0:
            raise ConfigError(f"confidence: expected a share from 0.5, got {self.confidence:g}")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What was found; `str` of it is for reading, `to_dict` for ope.json."""

    policy: str
    """Fingerprint of the policy."""
    data: str
    """Fingerprint of the log."""
    episodes: int
    options: Options
    estimates: dict[str, Estimate]
    behaviour: Estimate
    effective_size: float | None
    """Episodes that carry the weights; None without ratios."""
    unusual: float
    """Share of the policy's actions that the data hardly hold; 0.05 of the log's own."""
    verdict: str
    supported: bool
    notes: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def value(self) -> Estimate:
        """The estimate to read first."""
        return self.estimates[next(name for name in ESTIMATORS if name in self.estimates)]

    def to_dict(self) -> dict[str, Any]:
        numbers = {
            name: {"value": one.value, "low": one.low, "high": one.high}
            for name, one in {**self.estimates, "behaviour": self.behaviour}.items()
        }
        return {
            "policy": self.policy,
            "data": self.data,
            "episodes": self.episodes,
            "gamma": self.options.gamma,
            "horizon": self.options.horizon,
            "stochastic": self.options.stochastic,
            "confidence": self.options.confidence,
            "estimates": numbers,
            "effective_size": self.effective_size,
            "unusual": self.unusual,
            "supported": self.supported,
            "verdict": self.verdict,
            "notes": list(self.notes),
            **self.extra,
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
    """Estimate what acted, where the log does not say it, and what it supports."""
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
    target = _log_probabilities(algorithm, dataset, options.stochastic)
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
    steps = _Steps.of(dataset, options.horizon)
    groups = steps.groups
    fitted = None
    if {"fqe", "wdr", "dr"} & set(wanted):
        fitted = _fit(config, algorithm, dataset, options, on_update)
    found: dict[str, Estimate] = {}
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
    own = _discounted(dataset, steps, options.gamma)
    behaviour = bootstrap(
        lambda counts: (counts @ own) / counts.sum(-1), len(own), groups=groups,
        resamples=options.resamples, confidence=options.confidence, seed=options.seed,
    )  # fmt: skip
    unusual = _unusual_share(algorithm, log, options.stochastic)
    size = None if episodes is None else episodes.effective_size
    if log.behaviour.estimated and episodes is not None:
        notes.append("the behaviour policy is estimated by cloning, cross-fitted by episode")
    if size is not None and size < LEAST_EFFECTIVE:
        notes.append(f"the weights rest on {size:.1f} episodes, so estimates by ratios say little")
    verdict, supported = _verdict(found, behaviour, unusual, size, options)
    return Evaluation(
        fingerprint_of(algorithm), dataset.fingerprint(), steps.count, options, found, behaviour,
        size, unusual, verdict, supported, tuple(notes),
    )  # fmt: skip


def _verdict(
    found: dict[str, Estimate],
    behaviour: Estimate,
    unusual: float,
    size: float | None,
    options: Options,
) -> tuple[str, bool]:
    name = next(one for one in ESTIMATORS if one in found)
    best, sure = found[name], f"{options.confidence:.0%}"
    if unusual > MOST_UNUSUAL or (name in RATIOS and (size or 0.0) < LEAST_EFFECTIVE):
        why = f"{unusual:.0%} of the policy's actions are ones that the data hardly hold"
        if unusual <= MOST_UNUSUAL:
            why = f"the weights rest on {size or 0.0:.1f} episodes"
        return f"not supported by the data: {why}", False
    if best.low > behaviour.value:
        return (
            f"better than the behaviour: the {sure} lower bound of {name}, {best.low:.4g}, is "
            f"above the behaviour's {behaviour.value:.4g}"
        ), True
    if best.high < behaviour.value:
        return (
            f"worse than the behaviour: the {sure} upper bound of {name}, {best.high:.4g}, is "
            f"below the behaviour's {behaviour.value:.4g}"
        ), True
    return (
        f"not shown to differ from the behaviour: the {sure} interval of {name} holds the "
        f"behaviour's {behaviour.value:.4g}"
    ), True


# --- rows of a log ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Steps:
    """The rows that a horizon counts, episode after episode."""

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    """Place of each episode's first row among `rows`."""
    step: NDArray[np.int64]
    """Number of each row within its episode."""
    lengths: NDArray[np.int64]
    ended: NDArray[np.bool_]
    """(episodes,) whether nothing counts after the last row: the end, or the horizon."""
    groups: NDArray[np.int64] | None

    @property
    def count(self) -> int:
        return len(self.lengths)

    @classmethod
    def of(cls, dataset: TransitionDataset, horizon: int | None) -> _Steps:
        lengths = dataset.episode_lengths()
        step = np.arange(len(dataset)) - np.repeat(dataset.episode_starts, lengths)
        kept = step < (horizon or np.inf)
        counted = np.minimum(lengths, horizon or lengths.max())
        ended = dataset.terminations[dataset.episode_ends]
        if horizon is not None:
            ended = ended | (lengths >= horizon)
        groups = None
        if dataset.groups is not None:
            groups = np.unique(dataset.episode_groups(), return_inverse=True)[1].reshape(-1)
        starts = np.concatenate([[0], counted.cumsum()[:-1]])
        return cls(np.flatnonzero(kept), starts, step[kept], counted, ended, groups)


def _discounted(dataset: TransitionDataset, steps: _Steps, gamma: float) -> Floats:
    worth = dataset.rewards[steps.rows].astype(np.float64) * gamma**steps.step
    return np.asarray(np.add.reduceat(worth, steps.starts))


def _batches(algorithm: Algorithm, observations: NDArray[np.float32]) -> list[torch.Tensor]:
    """Observations as the networks see them, some at a time."""
    device = algorithm.update_count.device
    whole = torch.from_numpy(np.ascontiguousarray(observations))
    return [algorithm.network_input(part.to(device)) for part in torch.split(whole, ROWS_AT_ONCE)]


@torch.no_grad()
def _log_probabilities(
    algorithm: Algorithm, dataset: TransitionDataset, stochastic: bool
) -> Floats | None:
    """(N,) of the logged actions under the policy; None where it has no density."""
    inner = np.asarray(dataset.spaces.from_env(dataset.actions))
    given = torch.from_numpy(inner).to(algorithm.update_count.device)
    actions = torch.split(given, ROWS_AT_ONCE)
    found: list[Floats] = []
    for obs, action in zip(_batches(algorithm, dataset.observations), actions, strict=True):
        if stochastic and algorithm.acting_policy.has_density:
            log_probs = algorithm.log_probs(obs, action)
            assert log_probs is not None
            found.append(log_probs.double().cpu().numpy())
        elif dataset.spaces.is_discrete:
            same = (algorithm.acting_policy.mode(obs) == action).cpu().numpy()
            found.append(np.where(same, 0.0, -np.inf))
        else:
            return None
    return np.concatenate(found)


@torch.no_grad()
def _unusual_share(algorithm: Algorithm, log: Log, stochastic: bool) -> float:
    """Share of the policy's actions, at logged observations, below the unusual quantile."""
    dataset, rng = log.dataset, np.random.default_rng(0)
    rows = np.sort(rng.permutation(len(dataset))[:4_000])
    seen = dataset.observations[rows]
    policy, shares = algorithm.acting_policy, []
    if stochastic and isinstance(policy, CategoricalPolicy):
        probs = torch.cat([policy(obs).exp() for obs in _batches(algorithm, seen)]).cpu().numpy()
        for action in range(dataset.spaces.action_dim):
            inner = np.full(len(rows), action)
            shares.append(probs[:, action] * (log.support.quantile(seen, inner) < UNUSUAL))
        return float(np.sum(shares, 0).mean())
    drawn = stochastic and policy.has_density
    torch_state = torch.get_rng_state()
    torch.manual_seed(0)
    chosen = [
        policy.sample(obs) if drawn else policy.mode(obs) for obs in _batches(algorithm, seen)
    ]
    torch.set_rng_state(torch_state)
    inner = torch.cat(chosen).cpu().numpy()
    return float((log.support.quantile(seen, inner) < UNUSUAL).mean())


# --- fitted Q -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Fitted:
    """One critic of all episodes, two of halves, and bootstrap replicates."""

    agents: Sequence[FQEAlgorithm]
    counts: NDArray[np.int64]
    """(agents, episodes), how often each episode counted."""
    half: NDArray[np.bool_]
    """(episodes,), in which half; the second critic has learned from the first one."""

    def estimate(self, dataset: TransitionDataset, options: Options) -> Estimate:
        """The value of all, with the spread of the replicates around it."""
        first = dataset.observations[dataset.episode_starts]
        values = np.stack([_state_values(agent, first, None) for agent in self.agents])
        means = (self.counts * values).sum(1) / self.counts.sum(1)
        spread = float(means[3:].std(ddof=1)) * _normal_quantile(options.confidence)
        return Estimate(float(means[0]), float(means[0] - spread), float(means[0] + spread))

    def values(self, dataset: TransitionDataset, steps: _Steps, options: Options) -> Values:
        """Q and V of every row by the critic that has not learned from its episode."""
        in_half = np.repeat(self.half, steps.lengths)
        observations = dataset.observations[steps.rows]
        inner = np.asarray(dataset.spaces.from_env(dataset.actions))[steps.rows]
        to_go = None if options.horizon is None else (options.horizon - steps.step)
        q, v = np.zeros(len(steps.rows)), np.zeros(len(steps.rows))
        last = np.append(steps.starts[1:], len(steps.rows)) - 1
        after = np.zeros(steps.count)
        for agent, mine in ((self.agents[1], ~in_half), (self.agents[2], in_half)):
            own = None if to_go is None else to_go[mine]
            q[mine] = _action_values(agent, observations[mine], inner[mine], own)
            v[mine] = _state_values(agent, observations[mine], own)
            cut = mine[last] & ~steps.ended
            left = None if to_go is None else to_go[last][cut] - 1
            following = dataset.next_observations[steps.rows[last[cut]]]
            if len(following):
                after[cut] = _state_values(agent, following, left)
        wide = np.zeros((steps.count, int(steps.lengths.max()) + 1))
        wide[:, :-1] = padded(v, steps.starts, steps.lengths)
        wide[np.arange(steps.count), steps.lengths] = after
        return Values(padded(q, steps.starts, steps.lengths), wide)


def _fit(
    config: TrainConfig,
    algorithm: Algorithm,
    dataset: TransitionDataset,
    options: Options,
    on_update: OnUpdate | None,
) -> _Fitted:
    normalise = algorithm.normalizer.active or reads_observations(algorithm.acting_policy)
    count = 3 + options.replicates
    seeds = [options.seed + i for i in range(count)]
    fqe = TrainConfig.parse(
        {
            "algo": "fqe",
            "seeds": seeds,
            "device": options.device,
            "init_from": "the policy",
            "total_updates": options.updates,
            "dataset": {"kind": "npz", "path": dataset.name, "normalize_observations": normalise},
            "algo_kwargs": {
                "gamma": options.gamma,
                "horizon": options.horizon,
                "stochastic": options.stochastic,
                "value_range": options.value_range,
                "hidden_sizes": list(options.hidden_sizes),
                "critic_lr": options.critic_lr,
                "tau": options.tau,
                "policy": evaluated_policy(config, algorithm).model_dump(mode="json"),
            },
        }
    )
    statistics = None
    if normalise and not algorithm.normalizer.active:
        mean, std = observation_statistics(dataset)
        statistics = torch.from_numpy(mean), torch.from_numpy(std)
    agents: list[Any] = []
    for seed in seeds:
        agent = build_algorithm(fqe.replace(seeds=None, seed=seed), dataset.spaces)
        start_from(agent, algorithm, "the policy", same_rewards=False, statistics=statistics)
        agents.append(agent)
    data = OfflineData(fqe, agents, dataset)
    counts, half = _counts(dataset, options)
    for agent, own in zip(agents, counts, strict=True):
        give_resample(agent, dataset, own)
    engine = Engine(VmapLearner(agents, data.draw, seeds), "auto", options.updates)
    done = 0
    while done < options.updates:
        _, more = engine.run_until_due(min(200, options.updates - done))
        done += more
        if on_update is not None:
            on_update(done, options.updates)
    for agent in agents:
        if agent.nonfinite_weight():
            raise ConfigError(
                "updates: a critic of FQE became NaN; lower critic_lr, or give value_range"
            )
    return _Fitted(agents, counts, half)


def _counts(
    dataset: TransitionDataset, options: Options
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """How often each episode counts for each critic, and which half an episode is in."""
    groups, owner = np.unique(dataset.episode_groups(), return_inverse=True)
    owner = owner.reshape(-1)
    if len(groups) < 2:
        raise DataError(
            f"data set '{dataset.name}' holds one episode, from which no interval can be made; "
            "give more of them"
        )
    rng = np.random.default_rng(options.seed)
    half = (rng.permutation(len(groups)) % 2 == 1)[owner]
    even = np.full(len(groups), 1.0 / len(groups))
    drawn = rng.multinomial(len(groups), even, size=options.replicates)[:, owner]
    whole = np.ones((1, len(owner)), np.int64)
    return np.concatenate([whole, half[None], ~half[None], drawn]).astype(np.int64), half


@torch.no_grad()
def _state_values(
    agent: FQEAlgorithm, observations: NDArray[np.float32], to_go: NDArray[np.int64] | None
) -> Floats:
    parts = _batches(agent, observations)
    left = _split(to_go, parts)
    found = [agent.state_values(obs, own) for obs, own in zip(parts, left, strict=True)]
    return np.asarray(torch.cat(found).double().cpu().numpy())


@torch.no_grad()
def _action_values(
    agent: FQEAlgorithm,
    observations: NDArray[np.float32],
    inner: NDArray[Any],
    to_go: NDArray[np.int64] | None,
) -> Floats:
    parts = _batches(agent, observations)
    actions = torch.split(torch.from_numpy(np.ascontiguousarray(inner)), ROWS_AT_ONCE)
    left = _split(to_go, parts)
    found = [
        agent.action_values(obs, action.to(obs.device), own)
        for obs, action, own in zip(parts, actions, left, strict=True)
    ]
    return np.asarray(torch.cat(found).double().cpu().numpy())


def _split(
    to_go: NDArray[np.int64] | None, parts: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    if to_go is None:
        return [None] * len(parts)
    whole = torch.split(torch.from_numpy(to_go.astype(np.float32)), ROWS_AT_ONCE)
    return [own.to(obs.device) for own, obs in zip(whole, parts, strict=True)]


def _normal_quantile(confidence: float) -> float:
    """Standard deviations on either side that hold so much of a normal distribution."""
    return math.sqrt(2.0) * float(torch.erfinv(torch.tensor(confidence, dtype=torch.float64)))
