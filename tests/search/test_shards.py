"""Collecting in shards: the same bytes whatever the number of workers, and nothing done twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training import ManagedAlgorithm
from rl_training.data.sources import load_transition_dataset
from rl_training.experiment.config import load_config
from rl_training.experiment.errors import DataError
from rl_training.search.shards import (
    CollectionPlan,
    ShardFolder,
    counts,
    fingerprint,
    shard_file,
    write_shards,
)
from tests.conftest import Command
from tests.search.test_sweep import KNOBS

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> ManagedAlgorithm:
    keys = [*KNOBS, "total_updates=4", "final_eval=false"]
    place = tmp_path_factory.mktemp("agent")
    trained = ManagedAlgorithm(load_config("bc/pendulum", [*keys, f"output_dir={place}"]))
    trained.learn(progress=False)
    return trained


def plan_for(agent: ManagedAlgorithm, **changed: Any) -> CollectionPlan:
    assert agent.run_dir is not None
    (checkpoint,) = (agent.run_dir / "checkpoints").iterdir()
    plan = CollectionPlan(
        checkpoint=str(checkpoint),
        fingerprint=fingerprint(checkpoint),
        unit="episodes",
        amount=7,
        shard=3,
        noise=0.1,
        epsilon=0.2,
        deterministic=True,
        seed=5,
        trust=False,
    )
    return replace(plan, **changed)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}


def test_shards_hold_the_data_of_one_collection(agent: ManagedAlgorithm, tmp_path: Path) -> None:
    plan = plan_for(agent)
    (tmp_path / "all.parquet" / "logs").mkdir(parents=True)  # cut off before there was a plan
    target = ShardFolder(tmp_path / "all.parquet", plan)
    write_shards(target.folder, 0, plan.shards)
    assert target.missing() == []
    whole = agent.collect(plan.amount, noise=0.1, epsilon=0.2, seed=5)
    read = load_transition_dataset({"kind": "parquet", "path": str(target.folder)})
    for name in ("observations", "actions", "rewards", "terminations", "truncations"):
        np.testing.assert_array_equal(getattr(read, name), getattr(whole, name))
    found = [counts(shard_file(target.folder, i)) for i in range(plan.shards)]
    assert [each["episodes"] for each in found] == [3, 3, 1]
    assert sum(each["returns"] for each in found) == pytest.approx(whole.episode_returns().sum())


def test_the_bytes_are_the_same_whoever_writes_them_and_what_is_there_is_kept(
    agent: ManagedAlgorithm, cli: Command, tmp_path: Path
) -> None:
    plan = plan_for(agent, unit="steps", amount=23, shard=12)
    one = ShardFolder(tmp_path / "one.parquet", plan).folder
    for index in (1, 0):
        write_shards(one, index, index + 1)
    assert [counts(shard_file(one, i))["steps"] for i in range(2)] == [12, 11]

    two = tmp_path / "two.parquet"
    command = ["data", "collect", agent.run_dir, "--steps", 23, "--shard", 12, "--workers", 2]
    command += ["--noise", 0.1, "--epsilon", 0.2, "--seed", 5, "--out", two, "--quiet"]
    made = cli(*command)
    assert made.code == 0, made.err
    assert "2 shards, 23 steps" in made.out
    assert files_of(one) == files_of(two)
    dataset = load_transition_dataset(str(two))
    # of five steps at most; every shard ends the episode that it cuts
    assert dataset.episode_lengths().tolist() == [5, 5, 2, 5, 5, 1]

    kept = shard_file(two, 0).stat()
    shard_file(two, 1).unlink()
    assert [job.name for job in ShardFolder(two, plan).jobs(1)] == ["shards-00001-00001"]
    write_shards(two, 0, plan.shards)
    assert files_of(one) == files_of(two)
    assert shard_file(two, 0).stat() == kept


def test_what_cannot_be_collected_in_shards_is_refused(
    agent: ManagedAlgorithm, cli: Command, tmp_path: Path
) -> None:
    plan = plan_for(agent)
    target = ShardFolder(tmp_path / "a.parquet", plan)
    for changed, words in (
        ({"seed": 6}, "another seed, 5 instead of 6"),
        ({"fingerprint": "x"}, "another fingerprint"),
    ):
        with pytest.raises(DataError, match=words):
            ShardFolder(target.folder, replace(plan, **changed))
    other = ShardFolder(tmp_path / "b.parquet", replace(plan, fingerprint="x"))
    with pytest.raises(DataError, match="has changed since the collection began"):
        write_shards(other.folder, 0, 1)
    (target.folder / "collection.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        ShardFolder(target.folder, plan)
    collect = ("data", "collect", agent.run_dir, "--steps", 10, "--out")
    for arguments, words in (
        ((tmp_path / "c", "--shard", 5), "end it in .parquet"),
        ((tmp_path / "c.parquet", "--workers", 2), "add --shard"),
        ((tmp_path / "c.parquet", "--shard", 5, "--noise", "nan"), "noise"),
        ((tmp_path / "c.parquet", "--shard", 5, "--overwrite"), "never replaced"),
    ):
        refused = cli(*collect, *arguments)
        assert refused.code == 2
        assert words in refused.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "b.parquet"]
