"""An average of the policy's weights that acts while the policy itself learns on."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

import rl_training
from rl_training import ManagedAlgorithm, learn_seeds
from rl_training.experiment.registry import algorithm_class, algorithm_names
from tests.conftest import without_branches

from ..contract.small_runs import small_config
from .helpers import BOX, make_learner, random_batch, weights_of

AVERAGING = [
    name
    for name in algorithm_names()
    if "policy_average" in algorithm_class(name).Params.model_fields
]
RATE = 0.3


def test_offline_algorithms_with_a_policy_have_it() -> None:
    assert (
        sorted(
            ["awac", "awr", "bc", "cql", "crr", "iql", "marwil", "mopo", "rebrac", "td3_bc"],
            key=algorithm_names().index,
        )
        == AVERAGING
    )


def test_the_average_acts_and_the_policy_learns_as_without_it() -> None:
    """Its first weights are a plain mean; planted: those of a fixed rate from the start differ."""
    for algo in AVERAGING:
        plain, learner = (make_learner(algo, policy_average=rate) for rate in (0.0, RATE))
        captured = copy.deepcopy(learner)
        expected = naive = weights_of(learner.policy)
        for t in range(1, 7):
            batch = random_batch(seed=t)
            for one in (plain, learner):
                torch.manual_seed(t)
                one.step(batch)
            with without_branches():  # as in a graph, where nothing may be asked
                torch.manual_seed(t)
                captured.step(batch)
            now = weights_of(learner.policy)
            expected = expected + max(RATE, 1.0 / t) * (now - expected)
            naive = naive + RATE * (now - naive)
        found = weights_of(learner.averaged_policy)
        torch.testing.assert_close(found, expected, msg=algo)
        torch.testing.assert_close(weights_of(captured.averaged_policy), expected, msg=algo)
        assert not torch.allclose(naive, expected)
        assert torch.equal(weights_of(plain.policy), weights_of(learner.policy)), algo
        obs = random_batch(BOX).obs
        acted = learner.act(obs, explore=False).action
        torch.testing.assert_close(acted, learner.averaged_policy.mode(obs))
        assert not torch.equal(acted, learner.policy.mode(obs))


def test_seeds_together_and_a_saved_policy_have_it(tmp_path: Path) -> None:
    knobs: dict[str, Any] = {"policy_average": RATE}
    quiet = {"output_dir": str(tmp_path), "engine": "eager", "final_eval": False}
    config = small_config("iql", algo_kwargs=knobs, **quiet)
    together = learn_seeds(config, (3, 0), progress=False)
    for seed, one in together.results.items():
        alone = ManagedAlgorithm(config.replace(seed=seed)).learn(progress=False)
        first, second = (rl_training.load(run.run_dir) for run in (alone, one))
        averages = [weights_of(agent.algorithm.averaged_policy) for agent in (first, second)]
        torch.testing.assert_close(*averages, rtol=1e-4, atol=1e-5)
        obs = torch.randn(5, 3)
        expected = first.algorithm.averaged_policy.mode(obs)
        found, _ = first.predict(obs.numpy())
        torch.testing.assert_close(
            torch.from_numpy(found), 2.0 * expected.detach(), rtol=1e-5, atol=1e-5
        )
