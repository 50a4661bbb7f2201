"""Several seeds at once are several runs: equal to separate ones, apart in what goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import PendulumEnv

import rl_training
from rl_training import TrainConfig, learn_seeds, resume_seeds
from rl_training.algorithms.bc import BCAlgorithm
from rl_training.data.convert import save_dataset
from rl_training.data.sources import load_transition_dataset
from rl_training.experiment.checkpoint_store import CheckpointStore
from rl_training.experiment.errors import CheckpointError, ConfigError, RLTrainingError
from rl_training.experiment.registry import algorithm_class, algorithm_names, register
from rl_training.experiment.seeding import derive_seed
from rl_training.runtime import randomness
from rl_training.runtime.signals import TerminatedRun
from rl_training.runtime.statistics import Summary, interquartile_mean
from tests.conftest import failing_saves

from ..conftest import QUICK, Command
from ..contract.small_runs import small_config

OFFLINE = [name for name in algorithm_names() if algorithm_class(name).loop == "offline"]
SEEDS = (3, 0, 11)


def config_for(algo: str, folder: Path, **changes: Any) -> TrainConfig:
    values = {
        "total_updates": 24,
        "eval_interval": 8,
        "checkpoint_interval": 8,
        "log_interval": 4,
        "eval_episodes": 2,
        "output_dir": str(folder),
        "lr_schedule": {"kind": "linear", "end": 0.1},
    }
    return small_config(algo, **{**values, **changes})


def events(run_dir: Path) -> list[dict[str, Any]]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if "time" not in k} for line in lines]


def state(run_dir: Path) -> dict[str, torch.Tensor]:
    return rl_training.load(run_dir).algorithm.state_dict()


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("in_stacks", [False, True])
@pytest.mark.parametrize("algo", OFFLINE)
def test_each_agent_is_what_a_run_of_its_own_makes(
    algo: str, in_stacks: bool, tmp_path: Path, stacking: Callable[[], None]
) -> None:
    """Weights, optimisers, curves and evaluations, also where networks are stacked as on a GPU."""
    knobs = {"grad_clip": 1.0}
    config = config_for(algo, tmp_path, algo_kwargs=knobs)
    alone = {}
    for seed in SEEDS:
        agent = rl_training.ManagedAlgorithm(config.replace(seed=seed))
        alone[seed] = agent.learn(progress=False).run_dir
    if in_stacks:
        stacking()
    result = learn_seeds(config, SEEDS, progress=False)
    assert tuple(result.results) == SEEDS
    for seed, one in result.results.items():
        assert one.run_dir == result.run_dir / f"seed-{seed}"
        expected, found = state(alone[seed]), state(one.run_dir)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)
        curves = [events(folder) for folder in (alone[seed], one.run_dir)]
        assert [e["tick"] for e in curves[0]] == [e["tick"] for e in curves[1]]
        for first, second in zip(*curves, strict=True):
            assert first.keys() == second.keys()
            assert first.pop("event") == second.pop("event")
            for key, value in first.items():
                assert second[key] == pytest.approx(value, rel=2e-3, abs=2e-3), key


def test_agents_differ(tmp_path: Path) -> None:
    result = learn_seeds(config_for("bc", tmp_path), 3, progress=False)
    assert tuple(result.results) == (0, 1, 2)
    first = [
        next(iter(rl_training.load(r.run_dir).algorithm.parameters()))
        for r in result.results.values()
    ]
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[1], first[2])


class StopError(Exception):
    """Stands for a killed process."""


@pytest.mark.parametrize("algo", ["iql", "cql"])
def test_a_stopped_run_goes_on_exactly(algo: str, tmp_path: Path) -> None:
    """Killed while the checkpoints of one tick were being written: some have it, some have not."""
    config = config_for(algo, tmp_path / "whole")
    whole = learn_seeds(config, SEEDS, progress=False)
    cut = config.replace(output_dir=str(tmp_path / "cut"))
    last = lambda folder, tick: tick == 16 and "seed-11" in str(folder)  # noqa: E731
    with failing_saves(StopError(), when=last) as saved, pytest.raises(StopError):
        learn_seeds(cut, SEEDS, progress=False)
    assert 16 in saved
    (run_dir,) = (tmp_path / "cut").iterdir()
    resumed = resume_seeds(run_dir, progress=False)
    assert resumed.last == whole.last
    for seed in SEEDS:
        cut, straight = run_dir / f"seed-{seed}", whole.run_dir / f"seed-{seed}"
        assert events(cut) == events(straight)
        for name, value in state(straight).items():
            assert torch.equal(state(cut)[name], value), name
    assert events(run_dir) == events(whole.run_dir)


class Ending(PendulumEnv):
    """Sends a signal to this process after a number of steps of all its episodes."""

    steps, signal_at = 0, 0

    def step(self, action: Any) -> Any:
        Ending.steps += 1
        if Ending.steps == Ending.signal_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().step(action)


def test_a_signal_does_not_wait_for_an_evaluation(tmp_path: Path) -> None:
    """Left undone for every seed, and made up for in the resumed run."""
    gym.register("tests/Ending-v0", Ending, max_episode_steps=200)
    log = load_transition_dataset({"kind": "random", "steps": 400}, env_id="Pendulum-v1")
    save_dataset(log, tmp_path / "log.npz")
    data = {"kind": "npz", "path": str(tmp_path / "log.npz")}
    config = config_for("bc", tmp_path / "whole", env_id="tests/Ending-v0", dataset=data)
    whole = learn_seeds(config, SEEDS, progress=False)
    per_step = len(SEEDS) * config.eval_episodes
    Ending.signal_at = Ending.steps + 3 * per_step
    last = Ending.signal_at + per_step  # after a step of all episodes at most
    with pytest.raises(TerminatedRun) as ended:
        learn_seeds(config.replace(output_dir=str(tmp_path / "part")), SEEDS, progress=False)
    assert ended.value.code == 143
    part = ended.value.result
    assert part.interrupted
    assert Ending.steps < last
    assert all(one.last_eval is None for one in part.results.values())
    resumed = resume_seeds(part.run_dir, progress=False)
    assert not resumed.interrupted
    for seed in SEEDS:
        folders = [run.run_dir / f"seed-{seed}" for run in (whole, resumed)]
        assert events(folders[0]) == events(folders[1])
        expected, found = (state(folder) for folder in folders)
        assert all(torch.equal(found[name], value) for name, value in expected.items())


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def checkpoint_of(run_dir: Path, seed: int, tick: int) -> Path:
    return run_dir / f"seed-{seed}" / "checkpoints" / f"{tick:012d}"


def test_one_damaged_file_costs_a_tick_of_all_seeds_and_nothing_else(tmp_path: Path) -> None:
    whole = learn_seeds(config_for("bc", tmp_path / "whole"), SEEDS, progress=False)
    for file in ("algorithm.pt", "trainer.pt", "manifest.json"):
        run_dir = Path(shutil.copytree(whole.run_dir, tmp_path / file))
        flip(checkpoint_of(run_dir, 0, 24) / file)
        resumed = resume_seeds(run_dir, progress=False)
        assert resumed.last == whole.last
        for seed in SEEDS:
            cut, straight = run_dir / f"seed-{seed}", whole.run_dir / f"seed-{seed}"
            assert events(cut) == events(straight)
            for name, value in state(straight).items():
                assert torch.equal(state(cut)[name], value), name


def test_seeds_without_a_whole_tick_in_common_are_refused(tmp_path: Path) -> None:
    config = config_for("bc", tmp_path / "whole")
    whole = learn_seeds(config, SEEDS, progress=False).run_dir

    def all_manifests(run_dir: Path) -> None:
        for manifest in (run_dir / "seed-0").glob("checkpoints/*/manifest.json"):
            flip(manifest)

    def every_weight(run_dir: Path) -> None:
        for weights in (run_dir / "seed-11").glob("checkpoints/*/algorithm.pt"):
            flip(weights)

    damages: dict[str, Callable[[Path], object]] = {
        "manifests": all_manifests,
        "weights": every_weight,
        "folder": lambda run_dir: shutil.rmtree(run_dir / "seed-3"),
        "checkpoints": lambda run_dir: shutil.rmtree(run_dir / "seed-3" / "checkpoints"),
    }
    for name, damage in damages.items():
        run_dir = Path(shutil.copytree(whole, tmp_path / name))
        damage(run_dir)
        before = sorted((run_dir / "seed-0").rglob("*"))
        with pytest.raises(CheckpointError, match="no tick at which the checkpoints of all seeds"):
            resume_seeds(run_dir, progress=False)
        assert sorted((run_dir / "seed-0").rglob("*")) == before, name


def test_seeds_killed_at_their_first_save_begin_again(tmp_path: Path) -> None:
    config = config_for("bc", tmp_path / "whole")
    whole = learn_seeds(config, SEEDS, progress=False)
    cut = config.replace(output_dir=str(tmp_path / "cut"))
    of_last_seed = lambda folder, _: "seed-11" in str(folder)  # noqa: E731
    with failing_saves(StopError(), when=of_last_seed), pytest.raises(StopError):
        learn_seeds(cut, SEEDS, progress=False)
    (run_dir,) = (tmp_path / "cut").iterdir()
    assert resume_seeds(run_dir, progress=False).last == whole.last


def test_a_part_can_be_resumed_alone(tmp_path: Path) -> None:
    config = config_for("bc", tmp_path, lr_schedule={"kind": "constant"})
    result = learn_seeds(config, 2, progress=False)
    agent = rl_training.BC.resume(result.run_dir / "seed-1", progress=False, total_updates=30)
    assert agent.config.seed == 1
    assert agent.config.seeds is None
    assert agent.result is not None
    assert agent.result.updates == 30


class Spoilt(BCAlgorithm):
    """Its weights are NaN from the start for some seeds."""

    seeds: ClassVar[tuple[int, ...]] = ()

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if torch.initial_seed() in [derive_seed(seed, "init") for seed in self.seeds]:
            next(iter(self.parameters())).data.fill_(float("nan"))


class SecondSpoilt(Spoilt):
    seeds = (1,)


class AllSpoilt(Spoilt):
    seeds = (0, 1)


@pytest.mark.usefixtures("own_names")
def test_a_diverging_agent_leaves_the_others_alone(tmp_path: Path) -> None:
    register("second_spoilt", SecondSpoilt)
    healthy = learn_seeds(config_for("bc", tmp_path), 3, progress=False)
    result = learn_seeds(config_for("second_spoilt", tmp_path), 3, progress=False)
    assert set(result.results) == {0, 2}
    assert "became NaN or infinite at update 1" in result.failures[1]
    for seed in (0, 2):
        assert result.results[seed].last_eval == healthy.results[seed].last_eval
    stored = json.loads((result.run_dir / "result.json").read_text())
    assert stored["status"] == "finished"
    assert list(stored["failures"]) == ["1"]
    assert json.loads((result.run_dir / "seed-1" / "result.json").read_text())["status"] == "failed"
    again = resume_seeds(result.run_dir, progress=False, total_updates=24)
    assert set(again.failures) == {1}
    assert again.last == result.last


@pytest.mark.usefixtures("own_names")
def test_all_diverging_is_an_error(tmp_path: Path) -> None:
    register("all_spoilt", AllSpoilt)
    with pytest.raises(RLTrainingError, match="became NaN or infinite at update 1"):
        learn_seeds(config_for("all_spoilt", tmp_path), 2, progress=False)


def test_agents_stop_early_one_by_one(tmp_path: Path) -> None:
    config = config_for("bc", tmp_path, lr_schedule={"kind": "constant"})
    returns = {
        seed: run.last_eval.return_mean  # type: ignore[union-attr]
        for seed, run in learn_seeds(
            config.replace(total_updates=8), SEEDS, progress=False
        ).results.items()
    }
    ordered = sorted(returns.values())
    stopping = {"target": (ordered[1] + ordered[2]) / 2}  # the best one has reached it by then
    config = config.replace(early_stopping=stopping)
    result = learn_seeds(config, SEEDS, progress=False)
    best = max(returns, key=lambda seed: returns[seed])
    assert result.results[best].updates == 8
    assert "reached the target" in result.results[best].stop_reason
    stored = CheckpointStore(result.run_dir / f"seed-{best}" / "checkpoints", 1, True).latest()
    assert stored is not None
    assert stored.tick == 8
    again = resume_seeds(result.run_dir, progress=False)
    assert again.results[best].updates == 8
    assert again.results[best].last_eval == result.results[best].last_eval
    assert result.held_out is not None
    assert (again.held_out, again.best_held_out) == (result.held_out, result.best_held_out)


def test_a_checkpoint_holds_its_own_agent_alone(tmp_path: Path) -> None:
    config = config_for("bc", tmp_path, algo_kwargs={"hidden_sizes": [64, 64]})
    sizes = {}
    for count in (1, 8):
        run_dir = learn_seeds(config, count, progress=False).run_dir
        files = list((run_dir / "seed-0" / "checkpoints").glob("*/algorithm.pt"))
        sizes[count] = files[0].stat().st_size
    assert sizes[8] == pytest.approx(sizes[1], rel=0.05)


def test_data_in_memory_are_kept_once(tmp_path: Path) -> None:
    dataset = rl_training.load_transition_dataset("pendulum-mixed").take_episodes(3)
    config = config_for("iql", tmp_path)
    result = learn_seeds(config, 2, dataset=dataset, progress=False)
    assert [p.parent.name for p in tmp_path.rglob("dataset.npz")] == [result.run_dir.name]
    more = resume_seeds(result.run_dir, progress=False, eval_interval=4)
    assert more.last == result.last


def test_random_numbers_depend_on_seed_and_update_alone() -> None:
    kinds = [lambda g, n: torch.rand(n, 3, generator=g), lambda g, n: torch.randn(n, generator=g)]
    device = torch.device("cpu")
    both = randomness.RandomBlocks(kinds, [5, 6], device)
    alone = randomness.RandomBlocks(kinds, [6], device)
    assert both.prepare(0) == randomness.BLOCK
    assert alone.prepare(randomness.BLOCK + 7) == randomness.BLOCK - 7
    later = [x.clone() for x in alone.numbers]
    alone.prepare(3)
    for k in range(2):
        assert torch.equal(both.numbers[k][1], alone.numbers[k][0])
        assert not torch.equal(both.numbers[k][0], both.numbers[k][1])
        assert not torch.equal(later[k], alone.numbers[k])
    alone.prepare(randomness.BLOCK)
    assert all(torch.equal(a, b) for a, b in zip(later, alone.numbers, strict=True))


def test_summary_by_hand() -> None:
    scores = [1.0, 100.0, 2.0, 3.0, -50.0, 4.0, 5.0, 6.0]
    summary = Summary.of(scores)
    assert summary.mean.value == pytest.approx(np.mean(scores))
    assert summary.iqm.value == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert interquartile_mean(np.array([1.0, 2.0, 9.0])) == pytest.approx(4.0)
    assert summary.mean.low < summary.mean.value < summary.mean.high
    assert summary.iqm.high - summary.iqm.low < summary.mean.high - summary.mean.low
    assert Summary.of([7.0]).mean == Summary.of([7.0]).iqm
    spread = np.random.default_rng(1).normal(10.0, 2.0, 400)
    wide = Summary.of(list(spread)).mean
    assert wide.high - wide.low == pytest.approx(2 * 1.96 * 2.0 / 20.0, rel=0.15)


def test_what_is_refused(tmp_path: Path) -> None:
    for algo in ("dqn", "ppo", "rlpd", "mopo", "gail"):
        with pytest.raises(ConfigError, match=f"seeds: {algo.upper()} trains .* worlds on the dev"):
            learn_seeds(small_config(algo, output_dir=str(tmp_path)), 2)
    config = config_for("bc", tmp_path)
    with pytest.raises(ConfigError, match=r"seeds: each may occur once, got \[1, 1\]"):
        learn_seeds(config, [1, 1])
    with pytest.raises(ConfigError, match="seeds: expected how many agents to train, at least 1"):
        learn_seeds(config, 0)
    with pytest.raises(ConfigError, match="learn_seeds"):
        rl_training.BC(config.replace(seeds=[1, 2])).learn()
    assert not list(tmp_path.iterdir())
    run_dir = learn_seeds(config, 2, progress=False).run_dir
    with pytest.raises(CheckpointError, match=r"an agent per seed; choose one, such as .*seed-0"):
        rl_training.load(run_dir)
    with pytest.raises(ConfigError, match="several seeds; go on with"):
        rl_training.BC.resume(run_dir)
    with pytest.raises(ConfigError, match="run of one seed"):
        resume_seeds(run_dir / "seed-0")
    with pytest.raises(ConfigError, match="seeds"):
        resume_seeds(run_dir, seeds=[0, 1, 2])


def test_from_the_command_line(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli("train", "bc/pendulum", *QUICK, "--seeds", "2", "--seed", "5")
    assert done.code == 0, done.err
    assert "mean" in done.out
    assert "over 2 seeds" in done.out
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert {p.name for p in run_dir.glob("seed-*")} == {"seed-5", "seed-6"}
    again = cli("resume", run_dir)
    assert again.code == 0, again.err
    judged = cli("eval", run_dir, "--episodes", 1)
    assert judged.code == 0, judged.err
    assert "2 policies" in judged.out
    listed = cli("list")
    assert f"{run_dir.name}  finished, 20 of 20, eval/return_mean" in listed.out
