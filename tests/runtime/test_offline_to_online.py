"""Prior data and own experience in one loop: what is in a minibatch, what is counted, when."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import RLPD, RLTrainingError, TrainConfig, algorithms, load_transition_dataset
from rl_training.algorithms.base import Act, Algorithm
from rl_training.data.sources import load_transition_dataset as load
from rl_training.experiment.registry import register
from rl_training.models import TanhGaussianPolicy
from rl_training.replay.batch import Batch, cut, interleaved
from rl_training.runtime.build import build_algorithm, build_loop
from rl_training.runtime.loops.off_policy import OffPolicyLoop

from ..contract.small_runs import small_config
from ..contract.test_updates import assert_same_state
from ..each import each

TAG = 1000.0
"""Reward of every row of prior data, which no step in the environment pays."""


def loop_of(config: TrainConfig | None = None, tagged: bool = False, **knobs: Any) -> OffPolicyLoop:
    config = config or small_config("rlpd", algo_kwargs=knobs)
    dataset = None
    if tagged:
        dataset = load("pendulum-mixed")
        dataset = replace(dataset, rewards=np.full_like(dataset.rewards, TAG))
        config = config.replace(dataset={"kind": "npz", "path": "in memory"})
    algorithm = build_algorithm(config, load("pendulum-mixed").spaces)
    torch.manual_seed(0)
    loop = build_loop(config, algorithm, dataset)
    assert isinstance(loop, OffPolicyLoop)
    return loop


def prior_rows(batch: Batch) -> int:
    return int((batch.reward == TAG).sum())


class Noted(Algorithm):
    """Keeps the batches of its updates, and whether its actions explored."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.batches: list[Batch] = []
        self.explored: list[bool] = []

    def update(self, batch: Batch) -> Any:
        self.batches.append(batch)
        return super().update(batch)

    def act(self, obs: torch.Tensor, *, explore: bool, carry: Any = None) -> Act:
        self.explored.append(explore)
        return super().act(obs, explore=explore, carry=carry)

    @property
    def shares(self) -> list[tuple[int, int]]:
        """Prior rows and all rows of every batch."""
        return [(prior_rows(batch), len(batch.reward)) for batch in self.batches]


class NotedRLPD(Noted, algorithms.RLPDAlgorithm):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.critic_batches: list[Batch] = []

    def critic_step(self, batch: Batch, *rest: Any) -> Any:
        self.critic_batches.append(batch)
        return super().critic_step(batch, *rest)


class NotedAWAC(Noted, algorithms.AWACAlgorithm): ...


class NotedIQL(Noted, algorithms.IQLAlgorithm): ...


class NotedCQL(Noted, algorithms.CQLAlgorithm): ...


@pytest.fixture(autouse=True)
def _noted(own_names: None) -> None:
    """`noted_rlpd` and its relatives."""
    for kind in (NotedRLPD, NotedAWAC, NotedIQL, NotedCQL):
        register(f"noted_{kind.__name__[5:].lower()}", kind)


def noted_loop(algo: str = "rlpd", tagged: bool = False, **knobs: Any) -> tuple[OffPolicyLoop, Any]:
    config = small_config(f"noted_{algo}", loop="offline_to_online", algo_kwargs=knobs)
    loop = loop_of(config, tagged)
    return loop, loop.algorithm


# --- minibatches -----------------------------------------------------------------------------


@each("ratio", [0.0, 0.05, 0.3, 0.5, 0.9, 1.0])
@each("updates", [1, 7, 20])
def test_every_slice_has_its_share_of_prior_rows(ratio: float, updates: int) -> None:
    loop = loop_of(tagged=True, offline_batch_ratio=ratio, gradient_updates_per_step=float(updates))
    loop.advance(13)
    batch = loop.engine.learner.draw(loop.algorithm)
    assert batch.reward.shape == (20 * updates,)
    assert [prior_rows(part) for part in cut(batch, updates)] == [round(20 * ratio)] * updates
    loop.close()


def test_the_share_is_that_of_the_batch_the_algorithm_sees() -> None:
    """The cuts of the loop are those of the update, at every one of its critic steps."""
    loop, noted = noted_loop(tagged=True, offline_batch_ratio=0.25, gradient_updates_per_step=4.0)
    loop.advance(15)
    seen = [(prior_rows(batch), len(batch.reward)) for batch in noted.critic_batches]
    assert seen == [(5, 20)] * 4 * 3
    loop.close()


def test_interleaving_keeps_every_row_whole_and_once() -> None:
    def numbered(start: int, rows: int) -> Batch:
        n = torch.arange(start, start + rows, dtype=torch.float32)
        wide = n[:, None].expand(-1, 3)
        return Batch(obs=wide, action=wide[:, :1], reward=n, next_obs=wide + 0.5, discount=-n)

    mixed = interleaved(numbered(0, 6), numbered(100, 9), 3)
    assert sorted(mixed.reward.tolist()) == [*range(6), *range(100, 109)]
    assert torch.equal(mixed.obs[:, 0], mixed.reward)
    assert torch.equal(mixed.next_obs[:, 2], mixed.reward + 0.5)
    assert torch.equal(mixed.discount, -mixed.reward)
    assert mixed.returns_to_go is None
    assert [int((part.reward < 50).sum()) for part in cut(mixed, 3)] == [2, 2, 2]


def test_ratio_one_learns_as_offline_does() -> None:
    """At ratio 1 a step draws and learns exactly what a step of the pretraining does."""
    loops = [
        loop_of(offline_batch_ratio=1.0, gradient_updates_per_step=1.0),
        loop_of(offline_batch_ratio=0.5, offline_pretrain_updates=5),
    ]
    loops[0].advance(12)  # nothing is learned yet
    for loop in loops:
        torch.manual_seed(4)
        engine = loop.pretraining.engine if loop.pretraining_total else loop.engine
        engine.run(5)
        loop.close()
    assert_same_state(*(loop.algorithm.training_state() for loop in loops))


def test_own_observations_are_normalised_as_the_data_are() -> None:
    config = small_config("rlpd")
    section = {**config.to_dict()["dataset"], "normalize_observations": True}
    loop = loop_of(config.replace(dataset=section))
    loop.advance(40)
    own = loop.memory.replay.gather(torch.arange(40))
    normalizer = loop.algorithm.normalizer
    batch = loop.engine.learner.draw(loop.algorithm)
    parts = list(cut(batch, 2))
    for name in ("obs", "next_obs"):
        raw = getattr(own, name)
        expected = {tuple(row) for row in normalizer(raw).tolist()}
        rows = [tuple(row) for part in parts for row in getattr(part, name)[10:].tolist()]
        assert len(rows) == 20
        assert set(rows) <= expected
        assert not set(rows) & {tuple(row) for row in raw.tolist()}
    loop.close()


@pytest.mark.parametrize(
    "rewards", [{"scale": 0.5, "shift": -1.0}, {"clip": 0.25}, {"return_range": 10.0}]
)
def test_own_rewards_pass_through_the_datas_processing(rewards: dict[str, Any]) -> None:
    config = small_config("rlpd", algo_kwargs={"learning_starts": 30})
    section = {**config.to_dict()["dataset"], "rewards": {}}
    plain = loop_of(config.replace(dataset=section))
    processed = loop_of(config.replace(dataset={**section, "rewards": rewards}))
    for loop in (plain, processed):
        torch.manual_seed(0)
        loop.advance(30)
        loop.close()
    raw = plain.memory.replay.gather(torch.arange(30)).reward.double().numpy()
    found = processed.memory.replay.gather(torch.arange(30)).reward.double().numpy()
    returns = load(section).episode_returns()
    expected = raw
    if "return_range" in rewards:
        expected = raw * 10.0 / (returns.max() - returns.min())
    elif "scale" in rewards:
        expected = raw * 0.5 - 1.0
    else:
        expected = raw.clip(-0.25, 0.25)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert not np.allclose(found, raw)


# --- counting --------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_envs", "frequency"), [(1, 1), (1, 5), (3, 1)])
def test_one_policy_step_per_environment_step(num_envs: int, frequency: int) -> None:
    knobs = {"gradient_updates_per_step": 20.0, "train_frequency": frequency}
    loop = loop_of(small_config("rlpd", num_envs=num_envs, algo_kwargs=knobs))
    loop.advance(27)
    optimizers = loop.algorithm.optimizers
    due = (27 // frequency) * frequency - 12
    assert int(optimizers["policy"].steps) == int(optimizers["temperature"].steps) == due
    assert int(optimizers["critics"].steps) == loop.progress.updates == 20 * due
    assert int(loop.algorithm.update_count) == loop.progress.updates
    loop.close()


@each(("ratio", "at_once"), [(0.5, 1), (1.0, 1), (2.5, 3), (4.0, 4)])
def test_ratios_are_kept_over_time(ratio: float, at_once: int) -> None:
    loop = loop_of(gradient_updates_per_step=ratio)
    for _ in range(52):
        loop.advance(1)
        due = ratio * max(0, loop.progress.env_steps - 12)
        assert due - at_once < loop.progress.updates <= due
        assert loop.progress.updates % at_once == 0
    loop.close()


def test_one_clock_over_both_phases() -> None:
    loop = loop_of(offline_pretrain_updates=7)
    assert loop.total == 64 + 7
    seen = []
    for ticks in (5, 4, 20, 42):
        loop.advance(ticks)
        seen.append((loop.tick, loop.progress.updates, loop.progress.env_steps))
    assert seen == [(5, 5, 0), (9, 7, 2), (29, 7 + 20, 22), (71, 7 + 104, 64)]
    assert loop.report()["updates/pretraining"] == 7
    assert loop.report()["updates/online"] == 104
    loop.close()


def test_pretraining_takes_prior_rows_alone_and_no_environment_step() -> None:
    loop, noted = noted_loop(tagged=True, offline_pretrain_updates=6)
    loop.advance(6)
    assert noted.shares == [(20, 20)] * 6
    assert loop.progress.env_steps == 0
    assert len(loop.memory.replay) == 0
    loop.close()


def test_what_has_learned_before_acts_from_the_first_step() -> None:
    """Without pretraining the first steps are random; after it the policy takes them."""
    for pretraining, acts in ((0, 0), (3, 10)):
        loop, noted = noted_loop(offline_pretrain_updates=pretraining)
        loop.advance(pretraining + 10)
        assert len(noted.explored) == acts
        loop.close()


@pytest.mark.parametrize("algo", ["awac", "iql", "cql"])
def test_offline_algorithms_go_on_in_the_environment(algo: str) -> None:
    """Pretraining on the data, then actions drawn from the policy and one minibatch of both
    sources to an update."""
    knobs = {"offline_pretrain_updates": 4, "offline_batch_ratio": 0.25}
    loop, noted = noted_loop(algo, tagged=True, **knobs)
    loop.advance(4 + 15)
    assert noted.shares == [(20, 20)] * 4 + [(5, 20)] * 2 * 3
    assert noted.explored == [True] * 15
    assert loop.progress.updates == int(loop.algorithm.update_count) == 10
    loop.close()


def test_own_actions_at_the_edge_have_a_finite_density() -> None:
    """Rounding puts tanh there; the data stay away from it."""
    policy = TanhGaussianPolicy(3, 1, [8])
    obs = torch.randn(3, 3)
    found = policy.log_prob(obs, torch.tensor([[1.0], [-1.0], [0.3]]))
    edge = torch.tensor([[1.0 - 1e-5], [1e-5 - 1.0], [0.3]])
    torch.testing.assert_close(found, policy.log_prob(obs, edge))
    assert torch.isfinite(found).all()


# --- runs ------------------------------------------------------------------------------------

SMALL = {
    "hidden_sizes": [8],
    "batch_size": 16,
    "num_critics": 3,
    "learning_starts": 20,
    "gradient_updates_per_step": 3.0,
    "buffer_capacity": 500,
    "eval_episodes": 1,
    "tensorboard": False,
    "device": "cpu",
}


def test_one_continuous_curve(tmp_path: Path) -> None:
    """Evaluations in both phases, at the ticks of one clock."""
    agent = RLPD(
        "Pendulum-v1",
        dataset="pendulum-mixed",
        offline_pretrain_updates=30,
        eval_interval=20,
        log_interval=10,
        lr_schedule={"kind": "cosine"},
        early_stopping={"patience": 50},
        output_dir=str(tmp_path),
        **SMALL,
    )
    result = agent.learn(total_timesteps=70, progress=False)
    assert (result.env_steps, result.updates) == (70, 30 + 3 * 50)
    assert result.stop_reason == "budget of 100 pretraining updates and env steps spent"
    text = (result.run_dir / "metrics.jsonl").read_text()
    events = [json.loads(line) for line in text.splitlines()]
    assert [e["tick"] for e in events if e["event"] == "eval"] == [20, 40, 60, 80, 100]
    train = [e for e in events if e["event"] == "train"]
    assert [e["tick"] for e in train] == list(range(10, 101, 10))
    assert [e["env_steps"] for e in train] == [0, 0, 0, *range(10, 71, 10)]
    assert train[0]["updates/pretraining"] == 10
    assert train[-1]["lr/policy"] < 0.1 * train[0]["lr/policy"]
    again = RLPD.load(result.run_dir)
    assert again.evaluate(1).return_mean == agent.evaluate(1).return_mean


@pytest.mark.parametrize("stop", [17, 55])
def test_more_steps_by_resume_equal_a_longer_run(stop: int, tmp_path: Path) -> None:
    """Left in the pretraining or after it, and taken up with a larger budget."""
    options = {"dataset": "pendulum-mixed", "offline_pretrain_updates": 25, "seed": 2, **SMALL}
    whole = RLPD("Pendulum-v1", output_dir=str(tmp_path / "whole"), **options)
    whole.learn(total_timesteps=60, progress=False)

    from rl_training import Callback

    class Stop(Callback):
        def on_step(self, event: Any) -> None:
            if event.tick >= stop:
                event.request_stop("enough")

    part = RLPD("Pendulum-v1", output_dir=str(tmp_path / "part"), log_interval=1, **options)
    first = part.learn(total_timesteps=40, callbacks=[Stop()], progress=False)
    assert first.stop_reason == "enough"
    resumed = RLPD.resume(first.run_dir, total_timesteps=60, progress=False)
    assert resumed.result is not None
    assert resumed.result.env_steps == 60
    assert_same_state(whole.algorithm.training_state(), resumed.algorithm.training_state())


# --- refusals --------------------------------------------------------------------------------


@each(
    ("options", "message"),
    [
        ({"dataset": None}, r"^dataset: at algo_kwargs.offline_batch_ratio 0.5 rlpd learns from"),
        (
            {"dataset": None, "offline_batch_ratio": 0.0, "offline_pretrain_updates": 5},
            r"^algo_kwargs.offline_pretrain_updates: 5 updates of pretraining need prior data; add",
        ),
        (
            {"dataset": "cartpole-mixed"},
            "'cartpole-mixed' is made in CartPole-v1, not in Pendulum-v1",
        ),
        ({"learning_starts": 100}, r"^algo_kwargs.learning_starts: 100 random steps leave nothing"),
        ({"total_timesteps": None}, r"^total_timesteps: rlpd learns in the environment; give"),
        (
            {"learning_starts": 99, "gradient_updates_per_step": 2.5},
            r"^algo_kwargs.gradient_updates_per_step: 2.5 makes no whole update in the 1 steps",
        ),
    ],
)
def test_refused_before_a_folder_exists(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    values = {"dataset": "pendulum-mixed", "total_timesteps": 100, **SMALL, **options}
    agent = RLPD("Pendulum-v1", output_dir=str(tmp_path), **values)
    with pytest.raises(RLTrainingError, match=message) as caught:
        agent.learn(progress=False)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@each(
    ("options", "message"),
    [
        ({"total_updates": 5}, "total_updates: RLPD learns from data and in the environment"),
        ({"total_epochs": 5}, "total_epochs: RLPD learns from data and in the environment"),
        ({"offline_batch_ratio": 1.5}, "offline_batch_ratio: expected a value less than or equal"),
        ({"offline_batch_ratio": -0.5}, "offline_batch_ratio: expected a value greater than or"),
        (
            {"num_critics": 3, "num_min_critics": 4},
            "algo_kwargs.num_min_critics: 4 critics cannot be chosen from the 3 of num_critics; "
            "set at most 3",
        ),
        (
            {"batch_size": 1},
            "algo_kwargs.offline_batch_ratio: a batch_size of 1 cannot hold both parts at the "
            "ratio 0.5; raise batch_size to 2 or more",
        ),
        (
            {"batch_size": 8, "offline_batch_ratio": 0.05},
            "a batch_size of 8 cannot hold both parts at the ratio 0.05; raise batch_size to 11",
        ),
    ],
)
def test_refused_with_the_configuration(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RLTrainingError, match=message) as caught:
        RLPD("Pendulum-v1", dataset="pendulum-mixed", **{**SMALL, **options})
    assert "\n" not in str(caught.value)


@each(("size", "ratio"), [(11, 0.05), (2, 0.5), (3, 0.25), (67, 0.0075)])
def test_the_advice_on_the_batch_size_is_the_least_that_works(size: int, ratio: float) -> None:
    RLPD("Pendulum-v1", batch_size=size, offline_batch_ratio=ratio)
    with pytest.raises(RLTrainingError, match=f"raise batch_size to {size} or more"):
        RLPD("Pendulum-v1", batch_size=size - 1, offline_batch_ratio=ratio)


def test_data_of_other_spaces_are_refused() -> None:
    wide = load_transition_dataset("pendulum-mixed")
    arrays = {name: getattr(wide, name) for name in ("rewards", "terminations", "truncations")}
    obs = np.zeros((len(wide), 4), np.float32)
    arrays |= {"observations": obs, "next_observations": obs, "actions": wide.actions}
    with pytest.raises(RLTrainingError, match="is 4 wide but the environment's observations are 3"):
        RLPD("Pendulum-v1", dataset=arrays)
    far = {**arrays, "observations": obs[:, :3], "next_observations": obs[:, :3]}
    with pytest.raises(RLTrainingError, match="outside the action space"):
        RLPD("Pendulum-v1", dataset={**far, "actions": wide.actions + 4.0})
