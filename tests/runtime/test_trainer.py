"""The shared controls, as a user meets them in a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import BC, Callback, load
from rl_training.data.sources import load_transition_dataset
from rl_training.experiment.config import load_config
from rl_training.runtime.build import build_loop, choose_threads
from rl_training.runtime.callbacks import EvalEvent, SaveEvent, StepEvent, TrainResult
from rl_training.runtime.evaluation import SELECTION_STATES
from rl_training.runtime.loops.offline import OfflineLoop


def agent(tmp_path: Path, **options: Any) -> BC:
    defaults: dict[str, Any] = {
        "dataset": {"kind": "scripted", "name": "pendulum-mixed", "max_episodes": 4},
        "output_dir": str(tmp_path),
        "tensorboard": False,
        "eval_episodes": 1,
        "hidden_sizes": [8],
        "batch_size": 16,
    }
    return BC("Pendulum-v1", **{**defaults, **options})


def events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_intervals_fire_at_their_ticks_and_the_end_is_evaluated(tmp_path: Path) -> None:
    learner = agent(tmp_path, eval_interval=30, log_interval=25, checkpoint_interval=40)
    result = learner.learn(100, progress=False)
    assert [e["tick"] for e in events(result.run_dir, "eval")] == [30, 60, 90, 100]
    assert [e["tick"] for e in events(result.run_dir, "train")] == [25, 50, 75, 100]
    assert result.stop_reason == "budget of 100 updates spent"
    assert result.updates == 100
    stored = json.loads((result.run_dir / "result.json").read_text())
    assert stored["status"] == "finished"
    assert stored["versions"]["torch"] == torch.__version__
    assert stored["last_eval_tick"] == 100


def test_budget_in_epochs(tmp_path: Path) -> None:
    result = agent(tmp_path, total_epochs=2, batch_size=64).learn(progress=False)
    assert result.updates == 2 * -(-800 // 64), "an epoch reads 4 episodes of 200 steps once"


def test_learning_rate_follows_the_schedule(tmp_path: Path) -> None:
    learner = agent(
        tmp_path, lr_schedule={"kind": "linear", "warmup": 0.5}, log_interval=10, lr=1e-2
    )
    result = learner.learn(20, progress=False)
    # the rate in force during the update before the tick
    rates = {e["tick"]: e["lr/policy"] for e in events(result.run_dir, "train")}
    assert rates[10] == pytest.approx(1e-2 * 0.9, rel=1e-5)
    assert rates[20] == pytest.approx(1e-2 * (1 - 9 / 10), rel=1e-5)


def test_early_stopping_at_a_target(tmp_path: Path) -> None:
    learner = agent(tmp_path, eval_interval=10, early_stopping={"target": -1e9})
    result = learner.learn(100, progress=False)
    assert result.updates == 10
    assert result.stop_reason.startswith("early stopping: eval/return_mean reached the target")


def test_keep_last_and_the_true_best(tmp_path: Path) -> None:
    scores = {}

    class Remember(Callback):
        def on_eval(self, event: EvalEvent) -> None:
            scores[event.tick] = event.result.return_mean

    learner = agent(tmp_path, eval_interval=7, checkpoint_interval=10, keep_last=2, lr=0.05)
    result = learner.learn(60, progress=False, callbacks=[Remember()])
    kept = {int(path.name) for path in (result.run_dir / "checkpoints").iterdir()}
    best = max(scores, key=lambda tick: (scores[tick], -tick))
    assert best in kept
    assert kept - {best} <= {50, 60, *scores}
    assert len(kept) <= 3
    assert result.best_tick == best
    assert result.best_score == scores[best]
    best_agent = BC.load(result.run_dir, checkpoint="best")
    assert best_agent.evaluate(1, seed=SELECTION_STATES).return_mean == scores[best]


def test_callbacks_see_typed_events_can_stop_and_cannot_disturb(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Nosy(Callback):
        def on_step(self, event: StepEvent) -> None:
            torch.rand(1000)  # must not change the run
            seen.append(event)
            if event.tick >= 50:
                event.request_stop("seen enough")

        def on_save(self, event: SaveEvent) -> None:
            seen.append(event)

        def on_end(self, event: TrainResult) -> None:
            seen.append(event)

    stopped = agent(tmp_path, log_interval=10).learn(100, progress=False, callbacks=[Nosy()])
    assert stopped.stop_reason == "seen enough"
    assert stopped.updates == 50
    assert {type(event) for event in seen} == {StepEvent, SaveEvent, TrainResult}
    quiet = agent(tmp_path, log_interval=10).learn(50, progress=False)
    policies = [BC.load(r.run_dir).algorithm.state_dict() for r in (stopped, quiet)]
    assert all(torch.equal(policies[0][key], policies[1][key]) for key in policies[0])


def test_a_failing_callback_is_the_users_error_and_is_recorded(tmp_path: Path) -> None:
    class Broken(Callback):
        def on_step(self, event: StepEvent) -> None:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError):
        agent(tmp_path).learn(10, progress=False, callbacks=[Broken()])
    (run,) = tmp_path.iterdir()
    assert json.loads((run / "result.json").read_text())["status"] == "failed"


def test_learn_again_goes_on_in_the_same_run(tmp_path: Path) -> None:
    learner = agent(tmp_path)
    first = learner.learn(30, progress=False)
    second = learner.learn(60, progress=False)
    assert first.run_dir == second.run_dir
    assert second.updates == 60
    straight = agent(tmp_path).learn(60, progress=False)
    states = [BC.load(r.run_dir).algorithm.state_dict() for r in (second, straight)]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_a_run_leaves_the_callers_randomness_and_threads_alone(tmp_path: Path) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    threads, products = torch.get_num_threads(), torch.backends.cuda.matmul
    before = products.allow_tf32, products.allow_bf16_reduced_precision_reduction
    agent(tmp_path, threads=2).learn(5, progress=False)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads
    assert (products.allow_tf32, products.allow_bf16_reduced_precision_reduction) == before


def test_threads_that_the_caller_allows() -> None:
    """One for small vectors; for pictures what PyTorch was told, and `threads` before all."""
    config = load_config("bc/pendulum")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert choose_threads(config, images=False) == 1
        assert choose_threads(config, images=True) == 3
        assert choose_threads(config.replace(threads=2), images=True) == 2
    finally:
        torch.set_num_threads(before)


def test_tensorboard_curves_continue_after_a_resume(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    learner = agent(tmp_path, tensorboard=True, log_interval=10)
    run_dir = learner.learn(30, progress=False).run_dir
    BC.resume(run_dir, progress=False, total_updates=60)
    curves = EventAccumulator(str(run_dir / "tensorboard"))
    curves.Reload()
    steps = [event.step for event in curves.Scalars("train/policy_loss")]
    assert steps == [10, 20, 30, 40, 50, 60]


@pytest.mark.parametrize("mixed", [False, True])
def test_data_in_memory_are_kept_with_the_run_and_resumed(tmp_path: Path, mixed: bool) -> None:
    from rl_training import TransitionDataset, load_transition_dataset

    good = load_transition_dataset("pendulum-expert").take_episodes(3)
    data = good
    if mixed:
        bad = load_transition_dataset("pendulum-random").take_episodes(3)
        data = TransitionDataset.concatenate([good, bad], [1.0, 3.0])
    options = {"dataset": data, "checkpoint_interval": 7}
    whole = agent(tmp_path / "a", **options).learn(40, progress=False)
    cut = agent(tmp_path / "b", **options).learn(20, progress=False)
    resumed = BC.resume(cut.run_dir, progress=False, total_updates=40)
    states = [BC.load(whole.run_dir).algorithm.state_dict(), resumed.algorithm.state_dict()]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_an_offline_run_prepares_its_data_once(tmp_path: Path) -> None:
    """Rewards are scaled once, and the policy carries the statistics of the observations."""
    section = {"kind": "scripted", "name": "pendulum-mixed", "max_episodes": 4}
    data = load_transition_dataset(section)
    prepared = {**section, "normalize_observations": True, "rewards": {"scale": 0.5, "shift": 1.0}}
    learner = agent(tmp_path, dataset=prepared, total_updates=3)
    loop = build_loop(learner.config, learner.algorithm)
    assert isinstance(loop, OfflineLoop)
    rewards = loop.data.table.everything().reward.numpy()
    np.testing.assert_allclose(rewards, data.rewards * 0.5 + 1.0, rtol=1e-5)

    result = learner.learn(progress=False)
    mean, std = data.observations.mean(0), data.observations.std(0) + 1e-3
    for one in (learner, load(learner.save(tmp_path / "saved")), load(result.run_dir)):
        normalizer = one.algorithm.normalizer
        np.testing.assert_allclose(normalizer.mean.numpy(), mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(normalizer.std.numpy(), std, rtol=1e-4)
        raw = data.observations[:5]
        seen = torch.from_numpy(((raw - mean) / std).astype(np.float32))
        expected = 2.0 * one.algorithm.policy.mode(seen).detach().numpy()
        np.testing.assert_allclose(one.predict(raw)[0], expected, rtol=1e-3, atol=1e-4)


def test_other_data_pass_through_the_same_preparation(tmp_path: Path) -> None:
    section = {"kind": "scripted", "name": "pendulum-mixed", "rewards": {"scale": 0.5}}
    config = agent(tmp_path, dataset=section).config
    assert config.dataset is not None
    for data in ("pendulum-expert", load_transition_dataset("pendulum-expert")):
        other = BC(config, dataset=data).config.dataset
        assert other is not None
        assert other.rewards == config.dataset.rewards
