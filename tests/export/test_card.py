"""The policy card: filled from files, complete about what it does not hold; and support."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from rl_training import AWR, BC
from rl_training.api.managed import ManagedAlgorithm, load
from rl_training.api.support import find_checkpoint
from rl_training.api.worth import record
from rl_training.data.sources import load_transition_dataset
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ExportError
from rl_training.export.evidence import Evidence
from rl_training.export.exported import load_policy
from rl_training.export.support import support_of

from ..conftest import Command
from ..contract.small_runs import small_config
from ..data.test_tables import KEYS, stays
from .exporting import export


def test_a_card_from_a_run_says_where_the_policy_comes_from(
    cli: Command, bc_run: Path, awr_run: Path, tmp_path: Path
) -> None:
    words = ("--intended-use", "Teaching.", "--limits", "Not for real pendulums.", "--strict")
    done = cli(
        *("export", bc_run, "--checkpoint", "15", "--out", tmp_path / "a", "-n", 2, *words),
        *("--compare", awr_run, "--quiet"),
    )
    assert done.code == 0, done.err
    card = json.loads((tmp_path / "a" / "card.json").read_text())
    assert card["missing"] == ["by_group"]
    assert card["intended_use"] == "Teaching."
    assert card["selection"]["checkpoint"] == 15
    assert card["selection"]["evaluations"] >= 2
    assert card["origin"]["data_fingerprint"] == card["data"]["fingerprint_of_data_found"]
    assert [one["name"] for one in card["comparison"]] == [
        "behaviour in the data",
        "run awr-run (awr)",
    ]
    simulator = card["performance"]["simulator"]
    assert simulator["episodes"] == 2
    assert simulator["mean_95"][0] <= simulator["mean"] <= simulator["mean_95"][1]
    assert "Pomerleau" in card["algorithm"]["reading_of_the_paper"]
    assert "rl-training export RUN --checkpoint 15 --out FOLDER" in card["reproduce"]["commands"]
    text = (tmp_path / "a" / "card.md").read_text()
    for line in ("Not for real pendulums.", "- checkpoint: 15", "Not known: by group."):
        assert line in text, line
    assert str(tmp_path) not in text
    settings = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    config = load(bc_run).config
    assert config == TrainConfig(**settings, device=config.device, output_dir=config.output_dir)
    low, high = (f"{bound:,.4g}" for bound in simulator["mean_95"])
    assert f"  - mean (95 % interval): {low} to {high}\n" in text
    source = text.partition("## Data")[2].partition("## Algorithm")[0]
    assert "not known" not in source

    again = cli("export", bc_run, "--checkpoint", "15", "--out", tmp_path / "b", "-n", 2, *words)
    assert again.code == 0
    other = json.loads((tmp_path / "b" / "card.json").read_text())
    assert other == {**card, "comparison": card["comparison"][:1]}

    with pytest.raises(ExportError, match="is not a run folder with an evaluation"):
        export(load(bc_run), tmp_path / "c", compare=[tmp_path])
    assert not (tmp_path / "c").exists()


def test_a_card_of_a_log_holds_estimates_held_out_measures_and_a_clone(tmp_path: Path) -> None:
    small: dict[str, Any] = {"hidden_sizes": [8], "tensorboard": False, "output_dir": tmp_path}
    for name, seed in (("train", 0), ("test", 1)):
        stays(40, seed).to_csv(tmp_path / f"{name}.csv", index=False)
    log = {"kind": "csv", "path": str(tmp_path / "train.csv"), **KEYS, "split": {"holdout": 0.25}}
    runs = {}
    for made in (BC, AWR):
        agent = made(dataset=log, **small)
        runs[made] = Path(agent.learn(total_updates=4, progress=False).run_dir)
        test = {"kind": "csv", "path": str(tmp_path / "test.csv"), **KEYS}
        found = agent.estimate(test, estimators=["wis"], stochastic=True, progress=False)
        for _ in range(2):
            record(find_checkpoint(runs[made], "latest"), found)
    folder = export(load(runs[AWR]), tmp_path / "awr", compare=[runs[BC]]).folder
    card = json.loads((folder / "card.json").read_text())
    (estimate,) = card["performance"]["off_policy"]
    named = {one["name"]: one for one in estimate["estimates"]}
    assert set(named) == {"wis", "behaviour"}
    low, high = named["wis"]["interval"]
    assert low <= named["wis"]["value"] <= high
    assert estimate["times_looked_at"] == 2
    aside = card["performance"]["held_out_data"]
    assert aside["episodes"] == 10
    assert aside["log_likelihood_95"][0] < aside["log_likelihood"] < aside["log_likelihood_95"][1]
    held_out = load_transition_dataset(log).held_out
    assert held_out is not None
    agreed = load(runs[AWR]).predict(held_out.observations)[0]
    labels = np.asarray(held_out.spaces.action_labels)[held_out.actions]
    assert aside["action_agreement"] == pytest.approx((agreed == labels).mean())
    assert card["comparison"][1]["name"].endswith("(bc)")
    assert card["comparison"][1]["off_policy"][0]["log"] == estimate["log"]
    limits = " ".join(card["known_limits"])
    assert "looked at 2 times" in limits
    assert "clone" not in limits
    text = (folder / "card.md").read_text()
    assert "wis" in text
    alone = export(load(runs[AWR]), tmp_path / "alone", episodes=0).folder
    limits = " ".join(json.loads((alone / "card.json").read_text())["known_limits"])
    assert "not compared with a clone" in limits


def test_support_is_uniform_on_held_out_data_and_low_for_random_actions() -> None:
    data = load_transition_dataset("pendulum-mixed")
    support = support_of(data.spaces, data.observations, data.actions)
    assert support is not None
    rng = np.random.default_rng(0)
    rows = np.setdiff1d(np.arange(len(data)), support.rows)
    rows = rng.choice(rows, 1_000, replace=False)
    obs = torch.from_numpy(data.observations[rows])
    inner = torch.from_numpy(data.spaces.from_env(data.actions[rows])).float()
    held_out = support.of(obs, inner).numpy()
    for level in (0.05, 0.2, 0.4, 0.6):  # above, many rows lie on one another: a pendulum at rest
        assert abs((held_out < level).mean() - level) < 0.05, level
    far = support.of(obs + torch.tensor([0.0, 0.0, 30.0]), inner)
    assert float(far.max()) < 0.05

    data = load_transition_dataset("cartpole-mixed")
    support = support_of(data.spaces, data.observations, data.actions)
    assert support is not None
    obs = torch.from_numpy(data.observations[:500])
    both = sum(support.of(obs, torch.full((500,), action)) for action in (0, 1))
    np.testing.assert_allclose(both, 1.0, atol=1e-6)


def test_support_is_exported_and_groups_are_kept_apart(tmp_path: Path) -> None:
    agent = ManagedAlgorithm(small_config("bc", "box"))
    agent.algorithm.update_count += 1
    folder = export(agent, tmp_path / "bc", further=["support"]).folder
    data = load_transition_dataset("pendulum-mixed").take_episodes(6)
    evidence = Evidence(data, agent.algorithm)
    obs = data.observations[:50]
    found = load_policy(folder).run({"observation": np.ascontiguousarray(obs)})
    assert evidence.support is not None
    inner = torch.from_numpy(data.spaces.from_env(found["action"]))
    expected = evidence.support.of(torch.from_numpy(obs), inner)
    np.testing.assert_allclose(found["support"], expected, atol=2e-3)

    def predict(obs: Any, state: Any) -> Any:
        return agent.predict(obs, state)

    assert evidence.by_group(predict) is None
    groups = np.where(np.arange(len(data)) <= data.episode_ends[2], "a", "b")
    split = Evidence(replace(data, groups=groups), agent.algorithm).by_group(predict)
    assert split is not None
    assert [(entry["group"], entry["episodes"]) for entry in split] == [("a", 3), ("b", 3)]
    returns = data.episode_returns()
    assert split[0]["behaviour_return"] == pytest.approx(returns[:3].mean())


def test_a_policy_without_an_environment_is_exported_and_checked_on_its_data(
    tmp_path: Path,
) -> None:
    data = load_transition_dataset("pendulum-mixed").take_episodes(4)
    arrays = data.to_arrays()
    agent = ManagedAlgorithm(
        small_config("iql", "box").replace(env_id=None, dataset=None), dataset=arrays
    )
    agent.algorithm.update_count += 1
    result = export(agent, tmp_path / "iql")
    assert result.returns is None
    assert "data" in result.parity.observations
    card = json.loads((tmp_path / "iql" / "card.json").read_text())
    assert card["task"]["env_id"] is None
    assert card["support"]["states"] > 0
