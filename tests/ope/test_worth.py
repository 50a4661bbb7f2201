"""Estimates, support and selection on logs of a chain whose values are exact."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

import rl_training
from rl_training.api.worth import trained_share
from rl_training.data.convert import save_dataset
from rl_training.data.dataset import TransitionDataset
from rl_training.data.sources import load_transition_dataset
from rl_training.experiment.errors import ConfigError, DataError, RLTrainingError
from rl_training.ope import last_layer, model_based
from rl_training.ope.behaviour import estimated_behaviour, recorded_behaviour
from rl_training.ope.fitted import fit_critics
from rl_training.ope.found import verdict_of
from rl_training.ope.model_based import model_based_value
from rl_training.ope.options import Options
from rl_training.ope.support import Abstaining, fit_support
from rl_training.runtime import fitted_critics
from rl_training.runtime.statistics import Interval

from ..algorithms.test_fqe import chain, exact, policy_with
from ..conftest import Command

QUICK: dict[str, Any] = {
    "gamma": 0.9,
    "stochastic": True,
    "replicates": 3,
    "updates": 150,
    "tau": 0.05,
    "hidden_sizes": (32,),
    "critic_lr": 3e-3,
    "resamples": 100,
    "progress": False,
}
KNOWN = np.array([0.4, 0.6])
"""What the chain's behaviour does in every state."""


def with_probabilities(episodes: int, seed: int, folder: Path) -> str:
    data = chain(episodes, seed)
    path = folder / f"log-{seed}.npz"
    np.savez(path, **data, beta=KNOWN[data["actions"]])
    return str(path)


def test_estimates_are_near_the_exact_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, log = policy_with(0.8, tmp_path), with_probabilities(400, 3, tmp_path)
    agent = rl_training.load(start)
    everything = ("fqe", "wdr", "wdr_full", "dr", "wis", "pdwis", "is", "pdis")
    truth = exact(0.8, 0.9, 400)
    bounded = {**QUICK, "value_range": (0.0, 1.0)}
    for behaviour in ("beta", None):
        found = agent.estimate(log, behaviour=behaviour, estimators=everything, **bounded)
        if behaviour == "beta":
            assert found.lower_bound is not None
            assert 0.2 < found.lower_bound < truth
        else:
            assert found.lower_bound is None, "bounds need the log's own probabilities"
        assert set(found.estimates) == set(everything)
        for name, one in found.estimates.items():
            assert one.value == pytest.approx(truth, abs=0.1), (behaviour, name)
            assert one.low <= one.value <= one.high
        assert 30.0 < (found.effective_size or 0.0) < 400.0
        assert not any("not settled" in note for note in found.notes)
    dataset = load_transition_dataset(log, spaces=agent.algorithm.spaces)
    for gamma, horizon in ((0.9, None), (0.9, 5), (1.0, 30)):
        few = Options(
            gamma=gamma,
            horizon=horizon,
            stochastic=True,
            updates=1,
            replicates=2,
            hidden_sizes=(64,),
        )
        solved = fit_critics(agent.config, agent.algorithm, dataset, few, None)
        wanted = exact(0.8, gamma, horizon or 400)
        assert solved.estimate(dataset, few).value == pytest.approx(wanted, abs=0.06), few
    monkeypatch.setattr(last_layer, "MOST_UNKNOWNS", 0)
    monkeypatch.setattr(last_layer, "LEFT", 0.9)  # one step of solving, from an untrained network
    short = agent.estimate(log, behaviour="beta", estimators=["fqe"], **{**QUICK, "updates": 1})
    assert any(note.startswith("fqe has not settled") for note in short.notes), short.notes
    assert short.verdict.startswith("not known yet")
    assert found.behaviour.value == pytest.approx(exact(0.6, 0.9, 400), abs=0.05)
    assert found.supported
    assert found.verdict.startswith("better than the behaviour"), found.verdict
    assert found.extra["rows_trained_on"] is None or found.extra["rows_trained_on"] >= 0.0
    said = str(found).splitlines()
    assert said[0].startswith(f"fqe {found.value.value:.4g}, 95% interval [")
    assert said[-1] == f"verdict: {found.verdict}"


def test_a_policy_that_follows_no_logged_episode_has_no_estimate_by_weights(
    tmp_path: Path,
) -> None:
    agent = rl_training.load(policy_with(0.3, tmp_path))  # likeliest: never on, which ends nothing
    data = chain(60, 3)
    ended = np.flatnonzero(data["terminations"] | data["truncations"])
    on = np.logical_or.reduceat(data["actions"] == 1, np.append(0, ended[:-1] + 1))
    assert on.all(), "each logged episode goes on at least once"
    given = {**QUICK, "stochastic": False, "behaviour": KNOWN[data["actions"]]}
    found = agent.estimate(data, **given)
    assert set(found.estimates) == {"fqe", "wdr"}
    assert found.effective_size == 0.0
    assert any(note.startswith("wis, pdwis are left out: every logged") for note in found.notes)
    # without weights the critics decide: far from the return of the log, about 0.8
    assert found.estimates["wdr"].value == pytest.approx(0.0, abs=0.2)
    with pytest.raises(DataError, match=r"^estimators: wis need episodes that the policy could"):
        agent.estimate(data, **{**given, "estimators": "wis"})


def test_behaviour_by_record_and_by_cloning() -> None:
    data = chain(300, 1)
    dataset = load_transition_dataset(data)
    cloned = estimated_behaviour(dataset, updates=400, hidden_sizes=(16,))
    assert cloned.probabilities is not None
    np.testing.assert_allclose(cloned.probabilities.sum(1), 1.0)
    np.testing.assert_allclose(cloned.probabilities[:, 1], 0.6, atol=0.1)
    rows = len(dataset)
    every = np.tile(KNOWN, (rows, 1))
    given = recorded_behaviour(dataset, every)
    np.testing.assert_allclose(given.log_probs, np.log(KNOWN[dataset.actions]))
    zero, off, negative = KNOWN[dataset.actions].copy(), every.copy(), every.copy()
    zero[3], off[5], negative[4] = 0.0, 0.4, (-0.2, 1.2)
    for wrong, said in (
        (zero, "row 3 has probability 0 for the action that was taken"),
        (off, "probabilities of row 5 sum to 0.8"),
        (negative, "row 4 holds -0.2, which is no probability"),
        (np.log(zero + 1.0) + 2.0, "give no logarithms"),
        (zero[:-1], "expected probabilities of the shape"),
    ):
        with pytest.raises(DataError, match=said):
            recorded_behaviour(dataset, wrong)


def test_densities_of_box_actions_are_in_units_of_the_environment() -> None:
    data = box_log(30, 2)
    data["actions"] = 5.0 + 3.0 * data["actions"]  # from 2 to 8
    spaces: dict[str, Any] = {"actions": {"kind": "box", "low": 2.0, "high": 8.0}}
    agent = rl_training.BC(dataset=data, spaces=spaces, hidden_sizes=[8], device="cpu")
    own = np.exp(agent.log_prob(data["observations"], data["actions"]))
    found = agent.estimate(data, behaviour=own, estimators="is,wis", **QUICK)
    assert found.effective_size == pytest.approx(30.0), "the policy itself: all ratios are 1"
    assert found.estimates["is"].value == pytest.approx(found.behaviour.value, rel=1e-4)


def box_log(episodes: int, seed: int) -> dict[str, Any]:
    """Actions near the observation's sine; each episode elsewhere."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(episodes, 20, 2)).astype(np.float32)
    actions = np.clip(np.sin(obs[..., :1]) * 0.5 + 0.05 * rng.normal(size=(episodes, 20, 1)), -1, 1)
    ends = np.zeros((episodes, 20), bool)
    ends[:, -1] = True
    flat = {"observations": obs, "actions": actions.astype(np.float32), "next_observations": obs}
    return {
        **{name: x.reshape(episodes * 20, -1) for name, x in flat.items()},
        "rewards": np.ones(episodes * 20, np.float32),
        "terminations": ends.reshape(-1),
        "truncations": np.zeros(episodes * 20, bool),
    }


def test_support_is_uniform_on_the_behaviour_and_low_elsewhere() -> None:
    spaces: dict[str, Any] = {"actions": {"kind": "box", "low": -1.0, "high": 1.0}}
    agent = rl_training.BC(dataset=box_log(10, 9), spaces=spaces, hidden_sizes=[8], device="cpu")
    agent.fit_support(box_log(150, 0))
    fresh = box_log(60, 1)
    found = np.sort(agent.support(fresh["observations"], fresh["actions"]))
    even = (np.arange(len(found)) + 0.5) / len(found)
    assert np.abs(found - even).max() < 0.1, "quantiles of held-out behaviour are uniform"
    far = -np.sign(fresh["observations"][:, :1]) * 0.9
    assert (agent.support(fresh["observations"], far.astype(np.float32)) < 0.05).mean() > 0.9
    action, _, quantile = agent.predict(fresh["observations"][0], with_support=True)
    assert quantile == agent.support(fresh["observations"][0], action)
    careful = agent.abstaining(below=0.05)
    chosen = careful.predict(fresh["observations"])[0]
    assert careful.decisions == 1_200
    assert 0 < careful.fallbacks <= 1_200
    assert (agent.support(fresh["observations"], chosen) < 0.05).mean() < 0.3
    with pytest.raises(ConfigError, match="below: expected a quantile"):
        agent.abstaining(2.0)
    with pytest.raises(ConfigError, match=r"^support: call fit_support\(data\) first"):
        rl_training.BC(dataset=box_log(5, 0), spaces=spaces, device="cpu").support([0, 0], [0.0])


def test_abstaining_counts_and_takes_the_likeliest_discrete_action() -> None:
    dataset = load_transition_dataset(chain(200, 2))
    support = fit_support(dataset)
    seen = dataset.observations[:50]
    never = Abstaining(lambda obs: np.zeros(len(obs), np.int64), support, below=0.9)
    assert (never(seen) == 1).any(), "action 1 is the log's likeliest"
    assert never.decisions == 50
    assert never.fallbacks == int((never(seen) == 1).sum())


def test_actions_that_a_mask_forbids_have_no_support_and_are_never_fallen_back_to() -> None:
    rng = np.random.default_rng(0)
    rows = 600
    mask = np.ones((rows, 3), bool)
    mask[np.arange(rows), rng.integers(0, 2, rows)] = False  # of actions 0 and 1 one is allowed
    often = np.where(mask[:, 0], 0, 1)
    data = {
        "observations": rng.normal(size=(rows, 2)).astype(np.float32),
        "actions": np.where(rng.random(rows) < 0.8, often, 2),
        "rewards": np.ones(rows, np.float32),
        "terminations": np.arange(rows) % 5 == 4,
        "truncations": np.zeros(rows, bool),
        "action_mask": mask,
    }
    agent = rl_training.BC(dataset=data, hidden_sizes=[8], device="cpu")
    agent.fit_support(data)
    seen = np.concatenate([data["observations"], mask], 1).astype(np.float32)
    assert agent.support(seen, 1 - often).max() < 0.01, "none of the log's actions is as unusual"
    assert np.median(agent.support(seen, often)) > 0.3
    careful = agent.abstaining(below=0.99)
    chosen = careful.predict(seen)[0]
    assert mask[np.arange(rows), chosen].all()
    assert careful.fallbacks > 0
    apart, _ = careful.predict(data["observations"][0], action_mask=mask[0])
    assert apart == chosen[0]
    with pytest.raises(ConfigError, match=r"^deterministic: an abstaining policy"):
        careful.predict(seen, deterministic=False)
    cloned = estimated_behaviour(load_transition_dataset(data), updates=100, hidden_sizes=(8,))
    assert cloned.probabilities is not None
    assert (cloned.probabilities[~mask] == 0.0).all()
    np.testing.assert_allclose(cloned.probabilities.sum(1), 1.0)


def chain_table(episodes: int, seed: int) -> pd.DataFrame:
    """The chain with names in place of numbers, and with the probabilities of its behaviour."""
    data = chain(episodes, seed)
    ended = data["terminations"] | data["truncations"]
    episode = np.append(0, np.cumsum(ended)[:-1])
    columns = {
        "episode": episode,
        "time": np.arange(len(ended)),
        "state": np.array(["first", "second", "third"])[data["observations"].argmax(1)],
        "chosen": np.array(["stay", "go"])[data["actions"]],
        "paid": data["rewards"],
        "over": data["terminations"].astype(int),
        "beta": KNOWN[data["actions"]],
        "pi_0": np.full(len(ended), KNOWN[1]),  # "go" comes before "stay"
        "pi_1": np.full(len(ended), KNOWN[0]),
    }
    return pd.DataFrame(columns)


def test_a_table_is_read_as_that_of_the_run_with_its_probabilities(
    tmp_path: Path, cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reading = {
        "columns": {
            "observations": "state",
            "actions": "chosen",
            "rewards": "paid",
            "terminations": "over",
        },
        "episode": "episode",
        "order": "time",
    }
    chain_table(30, 0).to_csv("train.csv", index=False)
    agent = rl_training.BC(
        dataset={"path": "train.csv", **reading}, total_updates=3, hidden_sizes=[8], device="cpu",
        output_dir=str(tmp_path), tensorboard=False,
    )  # fmt: skip
    run = agent.learn(progress=False).run_dir
    log = chain_table(30, 1)
    shuffled = log.sample(frac=1.0, random_state=0)
    shuffled.to_csv("test.csv", index=False)
    shuffled.to_parquet("test.parquet")
    held = load_transition_dataset({"frame": log, **reading}, spaces=agent.algorithm.spaces)
    asked = {**QUICK, "estimators": "is,pdis", "updates": 3}
    known = log["beta"].to_numpy()
    wanted = agent.estimate(held, behaviour=known, **asked)
    assert not np.isclose(wanted.estimates["is"].value, wanted.behaviour.value, rtol=1e-3)
    whole = {**reading, "path": "test.csv"}
    for data, behaviour in (
        ("test.csv", "beta"),
        ("test.csv", "pi"),
        (Path("test.parquet"), "beta"),
        (whole, "pi"),
        (log, "beta"),
        ({"frame": shuffled, **reading}, "beta"),
    ):
        found = rl_training.load(run).estimate(data, behaviour=behaviour, **asked)
        for name, one in wanted.estimates.items():
            assert found.estimates[name].value == pytest.approx(one.value), (data, behaviour)
    framed = rl_training.BC(
        dataset={"frame": chain_table(30, 0), **reading}, hidden_sizes=[8], device="cpu"
    )
    unlearned = framed.estimate(log, behaviour="beta", **asked)
    assert unlearned.behaviour.value == pytest.approx(wanted.behaviour.value)
    saved = framed.learn(3, output_dir=str(tmp_path), tensorboard=False, progress=False).run_dir
    resumed = rl_training.BC.resume(saved, total_updates=6, progress=False)
    for one in (resumed, rl_training.load(saved)):
        found = one.estimate("test.csv", behaviour="pi", **asked)
        assert found.behaviour.value == pytest.approx(wanted.behaviour.value)
    file = str(save_dataset(held, tmp_path / "test.npz"))
    with np.load(file) as arrays:
        np.savez(tmp_path / "beside.npz", **arrays, beta=known)
        with h5py.File("beside.h5", "w") as stored:
            for key in arrays.files:
                stored[key] = arrays[key]
            stored["beta"] = known
        given = {**arrays, "beta": known}
    for source in ("beside.npz", "beside.h5", given):
        found = agent.estimate(source, behaviour="beta", **asked)
        assert found.estimates["is"].value == pytest.approx(wanted.estimates["is"].value)
    words = ["ope", str(run), "--gamma", "0.9", "--estimators", "is", "--quiet", "--stochastic"]
    shown = cli(*words, "--data", "{path: test.csv}", "--behaviour", "beta", "--json")
    assert json.loads(shown.out)["estimates"]["is"]["value"] == pytest.approx(
        wanted.estimates["is"].value
    )
    for words_of_data, message in (
        (["test.csv", "--behaviour", "betta"], r"no column 'betta' \(did you mean 'beta'\?\)"),
        (["test.csv", "--behaviour", "chosen"], "column 'chosen' holds string"),
        (["beside.npz", "--behaviour", "bet"], r"no array 'bet' \(did you mean 'beta'\?\)"),
        (["{path: test.csv, order: state}"], "column 'state'"),
        (["{path: test.csv"], "--data is not valid YAML"),
    ):
        refused = cli(*words, "--data", *words_of_data)
        assert refused.code == 2, refused
        assert len(refused.error_lines) == 1
        assert re.search(message, refused.error_lines[0]), refused.error_lines
    with pytest.raises(ConfigError, match="'beta' is read from"):
        agent.estimate(held, behaviour="beta", **asked)


def test_selection_the_command_and_what_it_leaves_behind(tmp_path: Path, cli: Command) -> None:
    log = with_probabilities(120, 4, tmp_path)
    paths = []
    for i, goes_on in enumerate((0.3, 0.9, 0.6)):
        folder = tmp_path / f"candidate-{i}"
        folder.mkdir()
        paths.append(policy_with(goes_on, folder))
    found = rl_training.select(paths, log, behaviour="beta", **QUICK)
    assert [one.path.parent.name[-1] for one in found.candidates] == ["1", "2", "0"]
    assert found.best.path == Path(paths[1])
    assert found.looks == 3
    again = rl_training.select(paths[:2], log, behaviour="beta", **{**QUICK, "updates": 5})
    assert again.looks == 4
    assert "looked at 4 times" in again.caution
    stored = json.loads((Path(paths[0]) / "ope.json").read_text())["evaluations"]
    assert len(stored) == 2
    assert stored[0]["estimates"]["fqe"]["value"] == pytest.approx(
        found.candidates[2].evaluation.value.value
    )
    words = [paths[1], "--data", log, "--gamma", "0.9", "--updates", "5", "--replicates", "2"]
    outcome = cli("ope", *words, "--stochastic", "--behaviour", "beta", "--quiet")
    assert outcome.code == 0, outcome
    for word in (
        "fqe",
        "wdr",
        "behaviour",
        "effective sample size",
        "verdict:",
        "such intervals held the truth in",
        "nominal 95% intervals of pdwis held the exact value in",
        "looked at 3 times",
    ):
        assert word in outcome.out, word


def test_looks_at_checkpoints_of_one_run_are_counted_once(tmp_path: Path) -> None:
    run = rl_training.BC(
        dataset=chain(20, 0), total_updates=4, checkpoint_interval=2, keep_last=2,
        hidden_sizes=[8], device="cpu", output_dir=str(tmp_path), tensorboard=False,
    )  # fmt: skip
    folder = run.learn(progress=False).run_dir
    paths = sorted((folder / "checkpoints").iterdir())
    assert len(paths) == 2
    asked = {**QUICK, "updates": 2, "estimators": "fqe"}
    log = chain(20, 1)
    assert rl_training.select(paths, log, **asked).looks == 2
    assert rl_training.select(paths, log, **asked).looks == 4
    assert len(json.loads((folder / "ope.json").read_text())["evaluations"]) == 4


def test_the_table_of_a_selection_names_every_run_and_tells_what_is_said_of_each(
    tmp_path: Path, cli: Command
) -> None:
    np.savez(tmp_path / "test.npz", **box_log(6, 0))
    spaces: dict[str, Any] = {"actions": {"kind": "box", "low": -1.0, "high": 1.0}}
    paths = []
    for name, seed in (("trained-on-the-same-data", 0), ("trained-on-other-data", 1)):
        np.savez(tmp_path / f"{seed}.npz", **box_log(6, seed))
        agent = rl_training.BC(
            dataset=tmp_path / f"{seed}.npz", spaces=spaces, hidden_sizes=[8], loss="mse",
            device="cpu", seed=seed,
        )  # fmt: skip
        paths.append(agent.save(tmp_path / f"candidate-with-a-long-name-{name}"))
    words = ["--data", str(tmp_path / "test.npz"), "--gamma", "0.9", "--updates", "3"]
    outcome = cli("select", *map(str, paths), *words, "--replicates", "2", "--quiet")
    assert outcome.code == 0, outcome
    assert "…" not in outcome.out, "no name is cut"
    assert outcome.out.count("was trained on, so") == 1, outcome.out
    assert outcome.out.count("are left out") == 1, "what is said of all is said once"


def steps_to_the_end(discrete: bool) -> dict[str, Any]:
    """Each step pays 1 and adds 0.5 (actions near 1) or 0.25 (near 0); over at 1.88."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(300):
        place = 0.02 * rng.normal()
        while place < 1.88:
            action = int(rng.random() < 0.5) if discrete else float(rng.uniform(-1.0, 1.0))
            share = action if discrete else 0.5 + 0.5 * action
            following = place + 0.25 + 0.25 * share
            rows.append((place, action, following, following >= 1.88))
            place = following
    place_, action_, following_, over = (np.array(x) for x in zip(*rows, strict=True))
    actions = action_ if discrete else action_[:, None].astype(np.float32)
    return {
        "observations": place_[:, None].astype(np.float32),
        "actions": actions,
        "rewards": np.ones(len(rows), np.float32),
        "next_observations": following_[:, None].astype(np.float32),
        "terminations": over,
        "truncations": over & False,
    }


def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {
        "model_hidden_sizes": (64, 64), "model_batch_size": 64, "num_members": 2, "num_elites": 2,
    }  # fmt: skip
    monkeypatch.setattr(model_based, "PARAMS", model_based.PARAMS.model_copy(update=small))


def test_a_model_of_the_log_follows_the_policy_to_learned_ends_and_the_horizon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_models(monkeypatch)
    kinds: dict[bool, Any] = {
        True: {"kind": "discrete", "n": 2},
        False: {"kind": "box", "low": -1.0, "high": 1.0},
    }
    for discrete, fast, horizon, value in (
        (False, True, 20, 4.0),
        (False, False, 20, 8.0),
        (True, False, 20, 8.0),
        (True, True, 2, 2.0),
    ):
        data = steps_to_the_end(discrete)
        spaces = {"obs_dim": 1, "actions": kinds[discrete]}
        agent = rl_training.BC(dataset=data, spaces=spaces, hidden_sizes=[4], device="cpu")
        dataset = load_transition_dataset(data, spaces=agent.algorithm.spaces)
        net: Any = agent.algorithm.policy.net
        last = net.layers[-1]
        with torch.no_grad():
            last.weight.zero_()
            last.bias[0] = (-9.0 if fast else 9.0) if discrete else (3.0 if fast else -3.0)
        options = Options(gamma=1.0, horizon=horizon)
        found = model_based_value(agent.config, agent.algorithm, dataset, options)
        assert found.value == pytest.approx(value, rel=0.2), (discrete, fast, horizon)
        assert found.low <= found.value <= found.high


def test_a_model_of_the_log_learns_where_episodes_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row in twenty is a first one and moves as sin(2 x); the others hardly move. The
    likelihood alone takes those moves for noise with a standard deviation of 0.75."""
    small_models(monkeypatch)
    rng, count = np.random.default_rng(0), 4_000
    first = np.arange(count) % 20 == 0
    obs = np.stack([rng.uniform(-1, 1, count), np.where(first, 2, rng.uniform(-1, 1, count))], 1)
    moves = np.stack([0.1 * obs[:, 1], np.sin(2.0 * obs[:, 0]) * first], 1)
    data = {
        "observations": obs.astype(np.float32),
        "actions": rng.uniform(-1, 1, (count, 1)).astype(np.float32),
        "rewards": np.ones(count, np.float32),
        "next_observations": (obs + moves).astype(np.float32),
        "terminations": np.zeros(count, bool),
        "truncations": np.roll(first, -1),
    }
    agent = rl_training.BC(
        dataset=data,
        spaces={"obs_dim": 2, "actions": {"kind": "box", "low": -1.0, "high": 1.0}},
        hidden_sizes=[4],
        device="cpu",
    )
    dataset = load_transition_dataset(data, spaces=agent.algorithm.spaces)
    torch.manual_seed(0)
    model, _ = model_based.fitted_model(agent.config, agent.algorithm, dataset)
    seen = (torch.from_numpy(data[name][first]) for name in ("observations", "actions"))
    with torch.no_grad():
        mean, _ = model.predict(*seen)
    error = (mean[..., 2] - torch.from_numpy(moves[first, 1])).square().mean().sqrt()
    assert error < 0.3


def test_a_run_can_depend_on_the_fitted_value_of_held_out_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitted_critics, "QUICK_UPDATES", 500)
    dataset = load_transition_dataset(chain(150, 5))
    values = []
    for goes_on in (0.8, 0.3):  # likeliest actions: always on, and never
        folder = tmp_path / str(goes_on)
        folder.mkdir()
        agent = rl_training.load(policy_with(goes_on, folder))
        values.append(fitted_critics.fitted_value(agent.config, agent.algorithm, dataset))
    assert values[0] == pytest.approx(0.99**2, abs=0.12)
    assert values[1] < 0.4
    monkeypatch.setattr(fitted_critics, "QUICK_UPDATES", 3)
    np.savez(tmp_path / "log.npz", **chain(40, 6))
    run = rl_training.BC(
        dataset={"kind": "npz", "path": str(tmp_path / "log.npz"), "split": {"holdout": 0.3}},
        total_updates=4, eval_interval=2, best_metric="offline/fitted_value", hidden_sizes=[8],
        early_stopping={"metric": "offline/fitted_value", "patience": 5}, device="cpu",
        output_dir=str(tmp_path), tensorboard=False,
    )  # fmt: skip
    result = run.learn(progress=False)
    lines = (result.run_dir / "metrics.jsonl").read_text().splitlines()
    measured = [
        json.loads(line)["offline/fitted_value"]
        for line in lines
        if '"offline/fitted_value"' in line
    ]
    assert len(measured) >= 2
    assert all(np.isfinite(measured))


def test_refusals_are_one_sentence(tmp_path: Path) -> None:
    start, log = policy_with(0.8, tmp_path), with_probabilities(5, 1, tmp_path)
    agent = rl_training.load(start)
    data = chain(5, 1)
    endless = {
        **data,
        "terminations": data["terminations"] & False,
        "truncations": data["truncations"] & False,
    }
    other = box_log(5, 0)
    for asked, said in (
        (lambda: agent.estimate(log, gamma=1.0), "^horizon: without a discount"),
        (lambda: agent.estimate(log, estimators=["wiz"]), "unknown estimator 'wiz'"),
        (lambda: agent.estimate(log, estimators=[]), "^estimators: give at least one of fqe"),
        (lambda: agent.estimate(log, value_range=3), "^value_range: expected two numbers"),
        (lambda: agent.estimate(log, value_range=(1.0, 0.0)), "^value_range: expected two numbers"),
        (
            lambda: agent.estimate(log, value_range=(0.0, 0.5), behaviour="beta", progress=False),
            r"^value_range: \[0, 0.5\] does not hold the logged returns",
        ),
        (lambda: agent.estimate(log, horizon=2.5), "^horizon: expected an integer, got 2.5"),
        (lambda: agent.estimate(log, gamma="x"), "^gamma: expected a number, got 'x'"),
        (lambda: agent.estimate(log, resamples=0), "^resamples: expected at least 1"),
        (lambda: agent.estimate(log, seed=-1), "^seed: expected at least 0"),
        (lambda: rl_training.select([start, start], log), "is given twice"),
        (lambda: agent.estimate(log, hoizon=3), "did you mean 'horizon'"),
        (lambda: agent.estimate(endless, progress=False), "holds no complete episode"),
        (lambda: agent.estimate(other), "."),
        (lambda: agent.estimate(log, behaviour="bete"), "did you mean 'beta'"),
        (lambda: rl_training.select([start], log), "^runs: give at least two"),
    ):
        with pytest.raises(RLTrainingError, match=said) as caught:
            asked()
        assert "\n" not in str(caught.value)
    spaces: dict[str, Any] = {"actions": {"kind": "box", "low": -1.0, "high": 1.0}}
    box = rl_training.BC(dataset=other, spaces=spaces, hidden_sizes=[8], loss="mse", device="cpu")
    with pytest.raises(ConfigError, match=r"^estimators: wis need .* use fqe or mb"):
        box.estimate(other, estimators=["wis"], progress=False)
    trained = box.estimate(
        other, progress=False, updates=20, replicates=2, hidden_sizes=(8,), gamma=0.9
    )
    assert set(trained.estimates) == {"fqe"}
    assert any("left out" in note for note in trained.notes)


def test_a_verdict_counts_the_errors_of_both_values() -> None:
    own = Interval(0.5, 0.4, 0.6)
    for value, margin, said in (
        (0.7, 0.1, "better than the behaviour"),
        (0.58, 0.01, "not shown to differ"),  # its interval is above 0.5, but not by the log's own
        (0.42, 0.01, "not shown to differ"),
        (0.3, 0.1, "worse than the behaviour"),
        (0.6, 0.2, "not shown to differ"),
    ):
        found = {"fqe": Interval(value, value - margin, value + margin)}
        verdict, supported = verdict_of(found, own, 0.05, None, Options(), settled=True)
        assert verdict.startswith(said), (value, verdict)
        assert supported


def test_cut_episodes_are_not_compared_with_values_that_count_on() -> None:
    data = box_log(30, 3)  # pays 1 at each of 20 steps
    data["terminations"], data["truncations"] = data["truncations"], data["terminations"]
    spaces: dict[str, Any] = {"actions": {"kind": "box", "low": -1.0, "high": 1.0}}
    agent = rl_training.BC(
        dataset=data, spaces=spaces, hidden_sizes=[16], lr=1e-2, total_updates=300, loss="mse",
        device="cpu",
    )  # fmt: skip
    agent.learn(progress=False)
    quick = {**QUICK, "stochastic": False}
    endless = agent.estimate(data, **quick)
    assert endless.value.value == pytest.approx(10.0, abs=0.1)
    assert endless.behaviour.value == pytest.approx(10.0 * (1.0 - 0.9**20), abs=1e-4)
    assert endless.verdict.startswith("not known: logged episodes were cut where 12% of the disc")
    counted = agent.estimate(data, horizon=20, **quick)
    assert counted.value.value == pytest.approx(counted.behaviour.value, abs=0.1)
    assert not counted.verdict.startswith("not known")


def test_rows_that_trained_the_policy_are_counted_and_warned_of(tmp_path: Path) -> None:
    for name, seed in (("own", 0), ("other", 1)):
        np.savez(tmp_path / f"{name}.npz", **box_log(6, seed))
    spaces: dict[str, Any] = {"actions": {"kind": "box", "low": -1.0, "high": 1.0}}
    agent = rl_training.BC(
        dataset=tmp_path / "own.npz", spaces=spaces, hidden_sizes=[8], loss="mse", device="cpu"
    )
    quick: dict[str, Any] = {"updates": 3, "replicates": 2, "hidden_sizes": (8,), "gamma": 0.9}
    for name, share in (("own", 1.0), ("other", 0.0)):
        found = agent.estimate(tmp_path / f"{name}.npz", progress=False, **quick)
        assert found.to_dict()["rows_trained_on"] == share
        assert any("was trained on, so" in note for note in found.notes) == (share > 0.0)
    # few distinct states: rows coincide by chance, episodes do not
    few = [walks(40, seed) for seed in (0, 1)]
    assert trained_share(few[0], few[1]) == 0.0
    assert trained_share(few[0], few[0]) == 1.0
    half = few[0].choose_episodes(np.arange(40) < 20)
    assert trained_share(half, few[0]) == pytest.approx(0.5, abs=0.1)
    # one action from one state: even whole episodes coincide, and nothing can be said
    short = load_transition_dataset(chain(60, 1))
    ones = load_transition_dataset({**chain(60, 2)})
    assert trained_share(short.choose_episodes(short.episode_lengths() < 4), ones) is None
    held = rl_training.BC(dataset=box_log(6, 0), spaces=spaces, hidden_sizes=[8], device="cpu")
    again = held.estimate(box_log(6, 0), progress=False, **quick)
    assert again.extra["rows_trained_on"] == 1.0, "data in memory are known, too"


def walks(episodes: int, seed: int) -> TransitionDataset:
    """Thirty steps each to the left or right of six places."""
    rng = np.random.default_rng(seed)
    moves = rng.integers(0, 2, (episodes, 30))
    places = np.clip(np.cumsum(2 * moves - 1, axis=1), 0, 5)
    rows = moves.size
    return load_transition_dataset(
        {
            "observations": places.reshape(rows, 1).astype(np.float32),
            "actions": moves.reshape(rows),
            "rewards": np.ones(rows, np.float32),
            "terminations": np.arange(rows) % 30 == 29,
            "truncations": np.zeros(rows, bool),
        }
    )
