"""A run that is trained again: more of it, no more of it, and what its budget decides."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from rl_training import Callback, ManagedAlgorithm, RLTrainingError, TrainConfig
from rl_training.api.seeds import learn_seeds, resume_seeds
from rl_training.experiment.errors import CheckpointError, ConfigError, TrainingDivergedError
from rl_training.runtime.callbacks import EvalEvent, SaveEvent, StepEvent
from rl_training.runtime.controls import EarlyStopping
from rl_training.runtime.saving import Autosave

from ..contract.test_updates import assert_same_state
from ..each import each
from .test_resume import config_for, curve, final_state

PLAIN = {"lr_schedule": {"kind": "constant"}, "early_stopping": None, "eval_interval": 0}


def agent_for(algo: str, folder: Path, **changes: Any) -> ManagedAlgorithm:
    return ManagedAlgorithm(TrainConfig(**config_for(algo, folder, **{**PLAIN, **changes})))


# --- learn, and learn again ------------------------------------------------------------------


def test_learn_again_trains_on_or_says_why_not(tmp_path: Path) -> None:
    for algo, unit, total in (("bc", "updates", 61), ("sac", "timesteps", 63)):
        agent = agent_for(algo, tmp_path / algo)
        first = agent.learn(progress=False)
        words = rf"learn: the run in .* is complete after {total} .*learn\(more_{unit}=...\)"
        for options in ({}, {f"total_{unit}": 40}):
            with pytest.raises(ConfigError, match=words):
                agent.learn(progress=False, **options)
        again = agent.learn(progress=False, **{f"more_{unit}": 12})
        assert again.run_dir == first.run_dir
        done = again.updates if algo == "bc" else again.env_steps
        assert done == total + 12
        for options in (
            {f"more_{unit}": 0},
            {f"more_{unit}": 1.5},
            {f"more_{unit}": 5, f"total_{unit}": 100},
        ):
            with pytest.raises(ConfigError, match=f"more_{unit}"):
                agent.learn(progress=False, **options)
        assert ManagedAlgorithm.resume(first.run_dir, progress=False).result is not None
    fresh = agent_for("bc", tmp_path / "fresh")
    assert fresh.learn(more_updates=9, progress=False).updates == 9


# --- a smaller budget on resume ----------------------------------------------------------------


def written(run_dir: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}


@each(
    ("algo", "loop", "spent", "words"),
    [
        ("bc", "offline", {"total_updates": 30}, "total_updates: 61 updates"),
        ("bc", "offline", {"total_updates": 60}, "total_updates: 61 updates"),
        ("sac", "off_policy", {"total_timesteps": 40}, "total_timesteps: 63 env steps"),
        ("sac", "off_policy", {"total_timesteps": 63}, "total_timesteps: 63 env steps"),
        # fewer than the learning_starts of 12, which a resume could not lower
        ("sac", "off_policy", {"total_timesteps": 9}, "total_timesteps: 63 env steps"),
        ("ppo", "on_policy", {"total_timesteps": 24}, "total_timesteps: 72 env steps"),
        ("ppo", "on_policy", {"total_timesteps": 6}, "total_timesteps: 72 env steps"),
        # 21 more ticks are updates of the pretraining
        ("rlpd", "offline_to_online", {"total_timesteps": 30}, "total_timesteps: 42 env steps"),
        ("dreamer", "world_model", {"total_timesteps": 30}, "total_timesteps: 63 env steps"),
        ("gail", "imitation", {"total_timesteps": 30}, "total_timesteps: 72 env steps"),
    ],
)
def test_a_smaller_budget_than_what_is_done_is_refused(
    algo: str, loop: str, spent: dict[str, int], words: str, tmp_path: Path
) -> None:
    config = config_for(algo, tmp_path, loop, **PLAIN, final_eval=False)
    run_dir = ManagedAlgorithm(TrainConfig(**config)).learn(progress=False).run_dir
    before, done = written(run_dir), words.split()[1]
    with pytest.raises(ConfigError, match=f"^{words} are done already; give more than {done}$"):
        ManagedAlgorithm.resume(run_dir, progress=False, **spent)
    assert written(run_dir) == before
    (key,) = spent
    for kept in ({}, {key: config[key]}):  # its own budget, though it is spent
        result = ManagedAlgorithm.resume(run_dir, progress=False, **kept).result
        assert result is not None
        assert result.stop_reason.endswith("spent")


def test_fewer_epochs_than_are_done_are_refused(tmp_path: Path) -> None:
    agent = agent_for("bc", tmp_path, total_updates=None, total_epochs=3)
    run_dir = agent.learn(progress=False).run_dir
    before = written(run_dir)
    for epochs in (2, 1):
        words = r"^total_epochs: [\d,]+ updates are done already; give more than 3$"
        with pytest.raises(ConfigError, match=words):
            ManagedAlgorithm.resume(run_dir, progress=False, total_epochs=epochs)
    assert written(run_dir) == before
    on = ManagedAlgorithm.resume(run_dir, progress=False, total_epochs=4).result
    assert on is not None


def test_a_smaller_budget_for_seeds_is_refused(tmp_path: Path) -> None:
    config = TrainConfig(**config_for("bc", tmp_path, **PLAIN))
    run_dir = learn_seeds(config, [1, 2], progress=False).run_dir
    before = written(run_dir)
    with pytest.raises(ConfigError, match=r"^total_updates: 61 updates are done already;"):
        resume_seeds(run_dir, progress=False, total_updates=30)
    assert written(run_dir) == before
    assert len(resume_seeds(run_dir, progress=False, total_updates=61).results) == 2
    again = resume_seeds(run_dir, progress=False, total_updates=62)
    assert {one.updates for one in again.results.values()} == {62}


# --- early stopping --------------------------------------------------------------------------


class CutOff(Callback):
    """Keeps a copy of the run as a kill at its n-th evaluation would have left it."""

    def __init__(self, copy: Path, at: int, run_dirs: Path) -> None:
        self.copy, self.at, self.runs, self.count = copy, at, run_dirs, 0

    def on_eval(self, event: EvalEvent) -> None:
        self.count += 1

    def on_save(self, event: SaveEvent) -> None:
        if self.count == self.at and not self.copy.exists():
            (run_dir,) = self.runs.iterdir()
            shutil.copytree(run_dir, self.copy)


def test_a_run_that_has_stopped_early_stays_stopped(tmp_path: Path) -> None:
    for name, stopping in (
        ("patience", {"patience": 2, "min_delta": 1e9}),
        ("target", {"target": -1e9}),
    ):
        folder, cut = tmp_path / name, tmp_path / f"{name}-cut"
        changes = {"early_stopping": stopping, "eval_interval": 10, "checkpoint_interval": 10}
        agent = agent_for("bc", folder, **changes)
        at = 3 if name == "patience" else 1
        result = agent.learn(progress=False, callbacks=[CutOff(cut, at, folder)])
        assert result.updates == 10 * at
        assert result.stop_reason.startswith("early stopping")
        killed = ManagedAlgorithm.resume(cut, progress=False).result
        again = ManagedAlgorithm.resume(result.run_dir, progress=False).result
        for one in (killed, again):
            assert one is not None
            assert (one.updates, one.stop_reason) == (10 * at, result.stop_reason)
        assert_same_state(final_state(cut), final_state(result.run_dir))
        assert curve(cut) == curve(result.run_dir)
        with pytest.raises(ConfigError, match="early_stopping=None"):
            agent.learn(progress=False)
        on = ManagedAlgorithm.resume(result.run_dir, progress=False, early_stopping=None)
        assert on.result is not None
        assert on.result.updates == 61


def test_seeds_that_have_stopped_early_stay_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"early_stopping": {"target": -1e9}, "eval_interval": 10, "checkpoint_interval": 10}
    config = TrainConfig(**config_for("bc", tmp_path, **{**PLAIN, **changes}))
    result = learn_seeds(config, [1, 2], progress=False)
    for seed in (1, 2):  # as if killed between the checkpoint and the result
        (result.run_dir / f"seed-{seed}" / "result.json").unlink()
    again = resume_seeds(result.run_dir, progress=False)
    assert {one.updates for one in again.results.values()} == {10}
    assert again.stop_reason == result.stop_reason
    for weights in (result.run_dir / "seed-1").glob("checkpoints/*/algorithm.pt"):
        weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="no checkpoint of seed 1, which is done, is whole"):
        resume_seeds(result.run_dir)
    said = " ".join(capsys.readouterr().err.split())
    assert "differs from its checksum" in said
    assert "starting from the beginning" not in said


def test_a_target_is_remembered_by_the_newest_evaluation() -> None:
    """It may be reached without being better than the best by enough to count."""
    config = TrainConfig(
        algo="sac",
        env_id="Pendulum-v1",
        total_timesteps=1000,
        eval_interval=10,
        early_stopping={"target": 10.0, "min_delta": 1.0},
    ).early_stopping
    assert config is not None
    before, after = EarlyStopping(config), EarlyStopping(config)
    assert before.observe({"eval/return_mean": 9.5}) is None
    reason = before.observe({"eval/return_mean": 10.0})
    assert reason is not None
    after.load_training_state(before.training_state())
    assert after.reason() == reason


# --- schedules and the budget ----------------------------------------------------------------


def test_a_larger_budget_moves_no_schedule(tmp_path: Path) -> None:
    knobs = {
        "learning_starts": 12,
        "batch_size": 12,
        "hidden_sizes": [8],
        "prioritized": True,
        "epsilon_fraction": 0.5,
    }
    values = config_for("dqn", tmp_path, **PLAIN) | {"algo_kwargs": knobs}
    agent = ManagedAlgorithm(TrainConfig(**values))
    seen: list[tuple[int, float]] = []

    class Watching(Callback):
        def on_step(self, event: StepEvent) -> None:
            seen.append((event.tick, agent.algorithm.fraction))

    agent.learn(progress=False, callbacks=[Watching()])
    assert seen[-1][1] == pytest.approx(60 / 61)
    agent.learn(more_timesteps=30, progress=False, callbacks=[Watching()])
    agent.learn(more_timesteps=30, progress=False, callbacks=[Watching()])  # the horizon is kept
    assert all(fraction >= 1.0 for tick, fraction in seen if tick > 64)

    for algo, section in (("ppo", {}), ("gail", {"ppo": {}})):
        linear = {"clip_schedule": {"kind": "linear"}}
        values = config_for(algo, tmp_path / algo, **PLAIN)
        inner = values["algo_kwargs"]["ppo"] if section else values["algo_kwargs"]
        inner |= linear
        bound = ManagedAlgorithm(TrainConfig(**values))
        bound.learn(progress=False)
        key = "algo_kwargs.ppo.clip_schedule" if section else "algo_kwargs.clip_schedule"
        with pytest.raises(ConfigError, match=rf"would change {key}.*{key}\.over set"):
            bound.learn(more_timesteps=100, progress=False)
        inner |= {"clip_schedule": {"kind": "linear", "over": 500, "end": 0.5}}
        free = ManagedAlgorithm(TrainConfig(**values))
        free.learn(progress=False)
        assert free.learn(more_timesteps=12, progress=False).env_steps > 61


# --- checkpoints by the clock ----------------------------------------------------------------


def test_runs_save_by_the_clock_and_not_too_often(tmp_path: Path) -> None:
    now = [0.0]
    autosave, never = (Autosave(minutes, clock=lambda: now[0]) for minutes in (10.0, 0.0))
    now[0] = 599.0
    assert not autosave.due()
    now[0] = 601.0
    assert autosave.due()
    autosave.saved(took=2.0)
    now[0] += 599.0
    assert not autosave.due()
    now[0] += 2.0
    assert autosave.due()
    autosave.saved(took=100.0)  # a twentieth of the time at most
    now[0] += 1999.0
    assert not autosave.due()
    now[0] += 2.0
    assert autosave.due()
    assert not never.due()


def test_the_first_evaluation_is_saved_in_any_case(tmp_path: Path) -> None:
    saved: list[int] = []

    class Noting(Callback):
        def on_save(self, event: SaveEvent) -> None:
            saved.append(event.tick)

    agent = agent_for("bc", tmp_path, eval_interval=20, keep_best=False, checkpoint_interval=0)
    agent.learn(progress=False, callbacks=[Noting()])
    assert saved == [20, 61]


# --- divergence ------------------------------------------------------------------------------


def test_policies_over_discrete_actions_diverge_in_a_sentence(tmp_path: Path) -> None:
    for algo in ("ppo", "gail"):
        values = config_for(algo, tmp_path / algo, **PLAIN)
        values |= {"env_id": "CartPole-v1", "num_envs": 1, "total_timesteps": 400}
        knobs = {"rollout_length": 16, "batch_size": 16, "epochs": 1, "hidden_sizes": [8]}
        values["algo_kwargs"] = {**knobs, "lr": 1e30}
        if algo == "gail":
            data = {"kind": "scripted", "name": "cartpole-mixed", "max_episodes": 8}
            values |= {"dataset": data, "algo_kwargs": {"ppo": {**knobs, "lr": 1e30}}}
        with pytest.raises(TrainingDivergedError) as diverged:
            ManagedAlgorithm(TrainConfig(**values)).learn(progress=False)
        assert "\n" not in str(diverged.value)


# --- threads ---------------------------------------------------------------------------------


def test_other_threads_cannot_change_what_is_learned(tmp_path: Path) -> None:
    whole = agent_for("sac", tmp_path / "whole").learn(progress=False).run_dir
    other = agent_for("sac", tmp_path / "other")
    found: dict[str, str] = {}

    def meanwhile() -> None:
        obs = [1.0, 0.0, 0.0]
        tries: dict[str, Any] = {
            "learn": lambda: other.learn(progress=False),
            "make": lambda: agent_for("sac", tmp_path / "more"),
            "evaluate": lambda: other.evaluate(1),
            "draw": lambda: other.predict(obs, deterministic=False),
            "collect": lambda: other.collect(episodes=1),
            "predict": lambda: other.predict(obs),
        }
        for name, attempt in tries.items():
            try:
                attempt()
                found[name] = "done"
            except RLTrainingError as error:
                found[name] = str(error)

    class Busy(Callback):
        def on_step(self, event: StepEvent) -> None:
            if not found:
                thread = threading.Thread(target=meanwhile)
                thread.start()
                thread.join()
                agent.predict([1.0, 0.0, 0.0], deterministic=False)  # in this one it may

    agent = agent_for("sac", tmp_path / "watched")
    run_dir = agent.learn(progress=False, callbacks=[Busy()]).run_dir
    assert found.pop("predict") == "done"
    assert all("another thread of this process is training" in text for text in found.values())
    assert_same_state(final_state(whole), final_state(run_dir))
    thread = threading.Thread(target=meanwhile)
    thread.start()
    thread.join()
    assert set(found.values()) == {"done"}
