"""Several seeds at once in worlds on the device: equal to runs of their own, and exact resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.process import Request
from benchmarks.speed.device_envs_job import Kill, KilledError, seeds

from rl_training import ManagedAlgorithm, TrainConfig, learn_seeds, load
from rl_training.api.seeds import resume_seeds
from rl_training.experiment.errors import EnvironmentFailure, RLTrainingError
from rl_training.models.policies import GaussianPolicy
from rl_training.runtime.build import build_algorithm, build_clock, task_spaces
from rl_training.runtime.seeds import seed_config

from ..contract.test_updates import HOST_SYNCS, OperationLog, assert_same_state
from ..each import each
from .test_device_runs import KNOBS, REACH, SMALL_PPO, config_of, newest

SEEDS = [3, 5, 9]
PLAIN: dict[str, dict[str, Any]] = {**KNOBS, "dqn": {**KNOBS["dqn"], "prioritized": False}}


def clock_of(config: TrainConfig) -> Any:
    spaces = task_spaces(config)
    agents = [build_algorithm(seed_config(config, seed), spaces) for seed in config.seeds or ()]
    return build_clock(config, agents)


def state_of(run: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = load(run).algorithm.state_dict()
    return state


def test_a_seed_learns_as_in_a_run_of_its_own_whatever_runs_beside_it(tmp_path: Path) -> None:
    """Alone to within rounding, which is another in a batched product; beside others exactly."""
    for number, env_id in enumerate((REACH, "torch/CartPole-v1")):
        changes: dict[str, Any] = {"env_id": env_id, "final_eval": False}
        folder = tmp_path / str(number)
        for name, chosen in (("many", SEEDS), ("few", [5, 11])):
            learn_seeds(config_of(folder, run_name=name, **changes), chosen, progress=False)
        one = ManagedAlgorithm(config_of(folder, run_name="one", seed=5, **changes))
        one.learn(progress=False)
        own, beside = one.algorithm.state_dict(), state_of(folder / "many" / "seed-5")
        assert_same_state(beside, state_of(folder / "few" / "seed-5"))
        for name, value in own.items():
            torch.testing.assert_close(beside[name], value, rtol=1e-4, atol=1e-6)
        worlds = newest(folder / "one")["collector"]["tensors"]
        others = newest(folder / "many" / "seed-5")["collector"]["tensors"]
        for name, value in worlds.items():
            torch.testing.assert_close(others[name], value, rtol=1e-4, atol=1e-4)
        assert not torch.equal(beside["update_count"], torch.tensor(0))
        other = state_of(folder / "many" / "seed-9")
        assert any(not torch.equal(value, other[name]) for name, value in beside.items())


def test_replays_of_seeds_are_their_own(tmp_path: Path) -> None:
    """Rows, random actions and updates of a seed do not depend on the seeds beside it."""
    for algo in ("sac", "td3", "dqn"):
        found = []
        for chosen in (SEEDS, [5, 11]):
            clock = clock_of(config_of(tmp_path, algo, algo_kwargs=PLAIN[algo], seeds=chosen))
            clock.advance(120)
            run = chosen.index(5)
            assert clock.loops[run].progress.updates == 25
            parts = {name: x.training_state() for name, x in clock.loops[run].components().items()}
            parts["algorithm"] = clock.agents[run].state_dict()
            found.append(parts)
            if len(chosen) == 3:
                others = [clock.replays.of_runs[i].everything().obs for i in (0, 2)]
                own = clock.replays.of_runs[run].everything()
                assert not any(torch.equal(own.obs, other) for other in others)
        assert_same_state(*found)


@each("algo", ["ppo", "sac"])
def test_resumed_seeds_equal_uninterrupted_ones(algo: str, tmp_path: Path) -> None:
    judged = {"final_eval": algo == "ppo"}
    whole = learn_seeds(
        config_of(tmp_path, algo, run_name="whole", **judged), SEEDS, progress=False
    )
    config = config_of(tmp_path, algo, run_name="killed", checkpoint_interval=60, **judged)
    with pytest.MonkeyPatch.context() as patch:
        kill = Kill(66)
        patch.setattr("rl_training.api.seeds.LiveReport.callbacks", lambda self: (kill,))
        with pytest.raises(KilledError):
            learn_seeds(config, SEEDS, progress=False)
    torch.manual_seed(2)
    resumed = resume_seeds(tmp_path / "killed", progress=False)
    assert (resumed.last is not None) == judged["final_eval"]
    assert resumed.last == whole.last
    for seed in SEEDS:
        ends = [newest(tmp_path / run / f"seed-{seed}") for run in ("killed", "whole")]
        for part in ends[0].keys() - {"trainer"}:
            assert_same_state(ends[0][part], ends[1][part])


def test_a_diverged_seed_leaves_the_others_alone(tmp_path: Path) -> None:
    config = config_of(tmp_path).replace(seeds=SEEDS)
    found = []
    for broken in (False, True):
        clock = clock_of(config)
        if broken:
            with torch.no_grad():
                clock.agents[1].actor.log_std.fill_(torch.nan)
        clock.advance(60)
        healthy = [agent.first_nonfinite() is None for agent in clock.agents]
        assert healthy == [True, not broken, True]
        found.append([clock.agents[i].state_dict() for i in (0, 2)])
    for own, other in zip(*found, strict=True):
        assert_same_state(own, other)


def test_seeds_go_on_exactly_beside_one_that_had_diverged(tmp_path: Path) -> None:
    """Its counters, which a batched update reads for all, are those of the others."""
    unjudged: dict[str, Any] = {"final_eval": False}
    ends = []
    for name, until in (("whole", 0), ("stopped", 60)):
        config = config_of(tmp_path, run_name=name, total_timesteps=until or 120, **unjudged)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GaussianPolicy, "__init__", _first_is_broken(GaussianPolicy.__init__))
            found = learn_seeds(config, SEEDS, progress=False)
        assert list(found.failures) == [3]
        if until:
            found = resume_seeds(tmp_path / name, progress=False, total_timesteps=120)
            assert list(found.failures) == [3]
        ends.append([newest(tmp_path / name / f"seed-{seed}")["algorithm"] for seed in (5, 9)])
    assert_same_state(*ends)


def _first_is_broken(original: Any) -> Any:
    """The policy of the first seed has diverged before it begins."""
    made: list[int] = []

    def begin(self: GaussianPolicy, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        made.append(1)
        if len(made) == 2:  # the first one reads the spaces
            with torch.no_grad():
                self.log_std.fill_(torch.nan)

    return begin


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_seeds_agree_with_eager_ones(tmp_path: Path) -> None:
    for algo in ("ppo", "sac", "dqn"):
        found = []
        for engine in ("eager", "graph"):
            options = {"device": "cuda", "engine": engine, "algo_kwargs": PLAIN[algo]}
            clock = clock_of(config_of(tmp_path, algo, **options, seeds=SEEDS))
            clock.advance(60)
            assert not clock.link.notes
            assert clock.experience.engine.mode == engine
            tensors = (*clock.worlds.tensors().values(), *clock.stack.stacked)
            found.append([x.cpu() for x in tensors])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("no_branches")
def test_steps_and_updates_of_all_seeds_wait_for_nothing(tmp_path: Path) -> None:
    cartpole = {"env_id": "torch/CartPole-v1"}
    for algo, changes in (("ppo", {}), ("ppo", cartpole), ("sac", {}), ("dqn", cartpole)):
        knobs = {"algo_kwargs": PLAIN[algo]}
        clock = clock_of(config_of(tmp_path, algo, **changes, **knobs, seeds=SEEDS))
        for learner in (clock.experience.engine.learner, clock.engine.learner):
            logs = []
            for _ in range(3):
                with OperationLog() as log:
                    learner.update()
                logs.append(log.operations)
            assert not [op for op, _ in logs[0] if op in HOST_SYNCS]
            assert logs[0] == logs[1] == logs[2]


def test_the_benchmark_of_many_seeds_runs_on_a_cpu(tmp_path: Path) -> None:
    spec = {"what": "seeds", "config": "ppo/cartpole_torch", "num_envs": 16, "quick": True}
    found = seeds(Request(spec, 0, {}, tmp_path))
    assert found["seeds"] == 3
    assert found["ratio"] == found["seconds"]["many"] / found["seconds"]["one"] > 0


def test_what_seeds_cannot_be_is_refused_in_one_sentence(tmp_path: Path) -> None:
    many = {"seeds": SEEDS}
    knobs: dict[str, Any] = {**SMALL_PPO, "target_kl": 0.01}
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"env_id": "CartPole-v1"}, r"seeds: PPO .* only in worlds on the device.*'CartPole-v1'"),
        ({"algo_kwargs": knobs}, "algo_kwargs.target_kl: several seeds at once"),
        ({"algo": "dqn"}, "algo_kwargs.prioritized: a replay by priority is kept for one seed"),
        ({"num_envs": 1_000_000, "total_timesteps": 10**10,
          "algo_kwargs": {**SMALL_PPO, "rollout_length": 10_000, "batch_size": 1000}},
         "num_envs: rollouts of 10,000 steps of 3,000,000 worlds would take"),
    )  # fmt: skip
    for changes, message in cases:
        with pytest.raises(RLTrainingError, match=message) as raised:
            clock_of(config_of(tmp_path, **changes, **many))
        assert "\n" not in str(raised.value)
    failing = config_of(tmp_path, run_name="failing", train_env_kwargs={"fails_at": 8})
    with pytest.raises(EnvironmentFailure, match=r"world 2 of the run 1 of 3 \(seed \d+, step 8\)"):
        learn_seeds(failing, SEEDS, progress=False)
    kept = [newest(tmp_path / "failing" / f"seed-{seed}")["trainer"] for seed in SEEDS]
    assert len({part["progress"]["env_steps"] for part in kept}) == 1
