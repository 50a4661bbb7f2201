"""Episodes that are set aside, and what is measured on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rl_training
from rl_training import AWR, BC, IQL, TD3BC, Callback
from rl_training.api.managed import ManagedAlgorithm
from rl_training.data.sources import load_transition_dataset
from rl_training.experiment.config import OFFLINE_METRICS, TrainConfig
from rl_training.experiment.errors import ConfigError, DataError
from rl_training.runtime.build import build_loop
from tests.runtime.test_data_alone import SMALL, clinic, parameters

SPLIT = {"holdout": 0.25, "seed": 3}


def split(arrays: dict[str, Any], **keys: Any) -> Any:
    path = keys.pop("path")
    np.savez(path, **arrays)
    return load_transition_dataset({"kind": "npz", "path": str(path), "split": SPLIT, **keys})


def rows_of(dataset: Any) -> set[bytes]:
    return {row.tobytes() for row in dataset.observations}


def test_whole_episodes_are_set_aside_and_groups_stay_together(tmp_path: Path) -> None:
    arrays = clinic(episodes=12)
    data = split(arrays, path=tmp_path / "a.npz")
    assert (data.num_episodes, data.held_out.num_episodes) == (9, 3)
    assert not rows_of(data) & rows_of(data.held_out)
    assert len(rows_of(data) | rows_of(data.held_out)) == 60
    assert set(data.held_out.episode_lengths()) == {5}
    again = split(arrays, path=tmp_path / "b.npz")
    assert again.fingerprint() == data.fingerprint()
    other = split(arrays, path=tmp_path / "c.npz", split={"holdout": 0.25, "seed": 4})
    assert rows_of(other) != rows_of(data)
    # three stays per patient: a patient is on one side only
    patients = np.repeat(np.array(["ann", "bob", "cyd", "dan"]), 15)
    grouped = split({**arrays, "patient": patients}, path=tmp_path / "d.npz", group="patient")
    assert grouped.held_out.num_episodes == 3
    assert len(set(grouped.held_out.groups)) == 1
    assert not set(grouped.held_out.groups) & set(grouped.groups)
    assert "of 1 groups" in grouped.notes[-1]
    with pytest.raises(DataError, match="missing key 'patent'"):
        split({**arrays, "patient": patients}, path=tmp_path / "e.npz", group="patent")
    patients[2] = "zoe"
    with pytest.raises(DataError, match="'patient' changes from ann to zoe after row 1"):
        split({**arrays, "patient": patients}, path=tmp_path / "f.npz", group="patient")
    with pytest.raises(ConfigError, match="has one episode"):
        split(clinic(episodes=1), path=tmp_path / "g.npz")


def test_rewards_of_held_out_episodes_are_scaled_by_the_others(tmp_path: Path) -> None:
    arrays = clinic(episodes=12)
    raw = split(arrays, path=tmp_path / "a.npz")
    rewards = {"return_range": 10.0, "shift": 1.0}
    scaled = split(arrays, path=tmp_path / "b.npz", rewards=rewards)
    returns = raw.episode_returns()
    factor = 10.0 / (returns.max() - returns.min())
    np.testing.assert_allclose(
        scaled.held_out.rewards, raw.held_out.rewards * factor + 1.0, rtol=1e-5
    )


def test_only_the_best_episodes_are_kept(tmp_path: Path) -> None:
    arrays = clinic(episodes=20)
    path = tmp_path / "a.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    whole = load_transition_dataset(path)
    returns = whole.episode_returns()
    source = {"kind": "npz", "path": str(path)}
    top = load_transition_dataset({**source, "keep": {"top": 0.1}})
    np.testing.assert_allclose(sorted(top.episode_returns()), sorted(returns)[-2:])
    cut = float(np.median(returns))
    above = load_transition_dataset({**source, "keep": {"return_at_least": cut}})
    assert above.num_episodes == int((returns >= cut).sum())
    assert "2 of 20 episodes are kept" in top.notes[-1]
    mixed = {"mix": [{**source, "weight": 3}, {**source}], "keep": {"top": 0.05}}
    assert load_transition_dataset(mixed).num_episodes == 2
    for wrong, message in (
        ({"return_at_least": 1e9}, "no episode .* returns 1e\\+09"),
        ({}, "give either the key 'top'"),
        ({"top": 0.0}, "top"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_transition_dataset({**source, "keep": wrong})
    del arrays["rewards"]
    np.savez(tmp_path / "b.npz", **arrays)  # type: ignore[arg-type]
    silent = {**source, "path": str(tmp_path / "b.npz"), "keep": {"top": 0.1}}
    with pytest.raises(DataError, match=r"dataset\.keep: data set .* has no rewards, so that no"):
        load_transition_dataset(silent, needs_rewards=False)  # as GAIL does
    agent = BC(dataset={**source, "keep": {"top": 0.1}}, output_dir=tmp_path, **SMALL)
    assert any("2 of 20" in note for note in agent.learn(3, progress=False).data_notes)


def measures(agent: ManagedAlgorithm, config: TrainConfig) -> tuple[dict[str, float], Any]:
    loop: Any = build_loop(config, agent.algorithm, agent.data_in_memory)
    return loop.held_out.measure(agent.algorithm), loop


def test_measures_agree_with_their_definitions(tmp_path: Path) -> None:
    """Against plain NumPy, from what the agent says of every state and action."""
    for cls, discrete in (
        (IQL, False),
        (IQL, True),
        (TD3BC, False),
        (AWR, True),
        (BC, True),
        (BC, False),
    ):
        arrays = clinic(discrete=discrete, episodes=16)
        path = tmp_path / f"{cls.__name__}{discrete}.npz"
        np.savez(path, **arrays)  # type: ignore[arg-type]
        section = {"kind": "npz", "path": str(path), "split": SPLIT, "normalize_observations": True}
        agent: Any = cls(dataset=section, output_dir=tmp_path, total_updates=30, **SMALL)
        agent.learn(progress=False)
        found, loop = measures(agent, agent.config)
        data: Any = load_transition_dataset(section).held_out
        algorithm = agent.algorithm
        gamma = algorithm.gamma
        mode = agent.predict(data.observations)[0]
        inner = algorithm.spaces.from_env
        if discrete:
            agrees = mode == data.actions
        else:
            agrees = (np.abs(inner(mode) - inner(data.actions)) <= 0.1).all(1)
        expected: dict[str, Any] = {"action_agreement": agrees.mean()}

        def value(obs: Any, agent: Any = agent) -> Any:
            return agent.value(obs)

        if cls is not BC:
            following = value(data.next_observations)
            target = data.rewards + np.where(data.terminations, 0.0, gamma) * following
            if cls is AWR:
                now = value(data.observations)
            else:
                now = agent.q_values(data.observations, data.actions)
                own = agent.q_values(data.observations, mode)
                expected["action_gap"] = (own - now).mean()
            expected["td_error"] = np.abs(target - now).mean()
            expected["value_start"] = value(data.observations[data.episode_starts]).mean()
        if cls is not TD3BC:
            log_prob = agent.log_prob(data.observations, data.actions)
            if not discrete:  # per unit of the environment's, not of the box [-1, 1]
                low, high = (
                    np.asarray(x)
                    for x in (algorithm.spaces.action_low, algorithm.spaces.action_high)
                )
                log_prob = log_prob + np.log((high - low) / 2.0).sum()
            expected["log_likelihood"] = log_prob.mean()
        distance = found.pop("offline/data_distance")
        assert {k.partition("/")[2] for k in found} == set(expected)
        for name, number in expected.items():
            np.testing.assert_allclose(found[f"offline/{name}"], number, rtol=2e-4, atol=2e-5)
        # a policy that does what was logged is exactly as near to the data as the log is
        batch = loop.held_out.table.everything()
        actions = batch.action

        class Copy(torch.nn.Module):
            has_density = False

            def mode(self, obs: Any, actions: Any = actions) -> Any:
                return actions

        held = loop.held_out
        seen = batch._replace(obs=algorithm.network_input(batch.obs))
        near = type("A", (), {"acting_policy": Copy(), "spaces": algorithm.spaces})
        assert held.data_distance(near, seen) == 0.0
        assert np.isfinite(distance)


@pytest.mark.parametrize("env_id", [None, "Pendulum-v1"])
def test_metrics_serve_stopping_and_choosing(tmp_path: Path, env_id: str | None) -> None:
    seen: list[dict[str, float]] = []

    class Watch(Callback):
        def on_eval(self, event: Any) -> None:
            seen.append(dict(event.metrics))
            assert (event.result is None) == (env_id is None)

    dataset = {"kind": "scripted", "name": "pendulum-mixed", "max_episodes": 12, "split": SPLIT}
    options: dict[str, Any] = {**SMALL, "eval_interval": 10, "eval_episodes": 1, "seed": 2}
    agent = IQL(
        env_id,
        dataset=dataset,
        output_dir=tmp_path,
        best_metric="offline/log_likelihood",
        early_stopping={"metric": "offline/td_error", "patience": 1, "min_delta": 1e9},
        **options,
    )
    assert agent.config.early_stopping is not None
    assert agent.config.early_stopping.mode == "min"
    result = agent.learn(total_updates=50, callbacks=Watch(), progress=False)
    assert "offline/td_error has not improved" in result.stop_reason
    # the fitted value takes long: only where it is asked for
    assert set(OFFLINE_METRICS) - set(seen[0]) == {"offline/fitted_value"}
    assert ("eval/return_mean" in seen[0]) == (env_id is not None)
    best = max(range(len(seen)), key=lambda i: seen[i]["offline/log_likelihood"])
    assert result.best_tick == 10 * (best + 1)
    stored = json.loads((result.run_dir / "result.json").read_text())
    assert stored["last_eval"] == dict(result.metrics) == seen[-1]
    assert stored["best"]["metric"] == "offline/log_likelihood"
    lines = [json.loads(x) for x in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [x["offline/td_error"] for x in lines if "offline/td_error" in x] == [
        one["offline/td_error"] for one in seen
    ]
    rl_training.load(result.run_dir, checkpoint="best")


def test_measuring_changes_nothing_and_resumes_exactly(tmp_path: Path) -> None:
    dataset = {"path": str(tmp_path / "a.npz"), "kind": "npz", "split": SPLIT}
    np.savez(dataset["path"], **clinic())  # type: ignore[arg-type]
    made: dict[str, Any] = {"dataset": dataset, "output_dir": tmp_path, **SMALL}
    plain = AWR(**made)
    plain.learn(total_updates=30, progress=False)
    often = AWR(**made, eval_interval=4)
    run = often.learn(total_updates=14, progress=False).run_dir
    resumed = AWR.resume(run, total_updates=30, progress=False)
    for one, other in zip(parameters(plain), parameters(resumed), strict=True):
        np.testing.assert_array_equal(one, other)
    assert resumed.result is not None
    assert resumed.result.best_metric == "offline/td_error"
    assert resumed.result.best_score is not None
    assert resumed.result.best_value == -resumed.result.best_score > 0


def test_several_seeds_are_measured(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **clinic())  # type: ignore[arg-type]
    section = {"kind": "npz", "path": str(path), "split": SPLIT}
    config = BC(dataset=section, output_dir=str(tmp_path), eval_interval=5, **SMALL).config
    result = rl_training.learn_seeds(config, 2, total_updates=10, progress=False)
    stored = json.loads((result.run_dir / "result.json").read_text())
    ones = [r.metrics["offline/log_likelihood"] for r in result.results.values()]
    np.testing.assert_allclose(stored["last_eval"]["offline/log_likelihood"], np.mean(ones))


def test_measures_that_are_missing_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **clinic())  # type: ignore[arg-type]
    whole = {"kind": "npz", "path": str(path)}
    held = {**whole, "split": SPLIT}
    runs: tuple[tuple[Any, dict[str, Any], str], ...] = (
        (BC, {"dataset": held, "best_metric": "offline/td_error"}, "BC has nothing to measure"),
        (BC, {"dataset": whole, "best_metric": "offline/td_error"}, "set dataset.split.holdout"),
        (BC, {"dataset": held, "best_metric": "eval/return_mean"}, "and there is none; name"),
        (BC, {"dataset": held, "best_metric": "offline/td_eror"}, "did you mean 'offline/td_e"),
        (BC, {"dataset": {**whole, "split": {"holdout": 1.0}}}, "dataset.split.holdout"),
        (
            IQL,
            {"env_or_config": "Pendulum-v1", "total_timesteps": 9, "dataset": held},
            "dataset.split: IQL learns from data and in the environment",
        ),
    )
    for cls, options, message in runs:
        with pytest.raises(ConfigError, match=message):
            cls(**options, output_dir=tmp_path, **SMALL).learn(10, progress=False)
    assert not list(tmp_path.glob("bc-*"))
