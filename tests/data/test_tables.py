"""Tables: Parquet, CSV, data frames, presets, categories, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
import yaml

import rl_training
from rl_training import AWR, BC, IQL
from rl_training.data.convert import save_dataset
from rl_training.data.sources import load_transition_dataset, pack_source
from rl_training.data.summary import inspect_file
from rl_training.experiment.errors import ConfigError, DataError, RLTrainingError
from tests.conftest import Command
from tests.runtime.test_data_alone import SMALL, clinic, parameters
from tests.test_bad_input import assert_refused

WARDS = np.array(["north", "south", "icu"])
DRUGS = np.array(["none", "low", "high"])


def stays(episodes: int = 10, seed: int = 0) -> pd.DataFrame:
    """A ward's log, four hours per stay, in the order in which it was written down."""
    rng = np.random.default_rng(seed)
    rows = 4 * episodes
    return pd.DataFrame(
        {
            "stay": np.repeat(np.arange(episodes) + 100, 4),
            "hour": np.tile(np.arange(4), episodes),
            "age": rng.normal(60, 9, rows).round(2),
            "pulse": rng.integers(50, 120, rows),
            "ward": WARDS[rng.integers(0, 3, rows)],
            "drug": DRUGS[rng.integers(0, 3, rows)],
            "score": rng.normal(size=rows),
            "patient": np.repeat(np.arange(episodes) // 2, 4),
        }
    )


KEYS: dict[str, Any] = {
    "columns": {"observations": ["age", "pulse", "ward"], "actions": "drug", "rewards": "score"},
    "episode": "stay",
    "order": "hour",
    "dones": "terminated",
    "group": "patient",
}


def same(one: Any, other: Any) -> None:
    for name, array in one.to_arrays().items():
        np.testing.assert_array_equal(array, getattr(other, name), err_msg=name)
    assert one.spaces == other.spaces


def test_every_way_to_a_table_gives_the_same_rows(tmp_path: Path) -> None:
    frame = stays()
    whole = load_transition_dataset({"frame": frame, **KEYS})
    # the encoding, written out here
    wards = sorted(WARDS)
    one_hot = np.stack([(frame.ward == ward).to_numpy(float) for ward in wards], 1)
    expected = np.concatenate([frame[["age", "pulse"]].to_numpy(), one_hot], 1)
    np.testing.assert_allclose(whole.observations, expected, rtol=1e-6)
    assert whole.actions.tolist() == [sorted(DRUGS).index(drug) for drug in frame.drug]
    assert whole.spaces.action_labels == tuple(sorted(DRUGS))
    assert whole.terminations.tolist() == (frame.hour == 3).tolist()
    np.testing.assert_allclose(whole.next_observations[:3], expected[1:4], rtol=1e-6)
    shuffled = frame.sample(frac=1.0, random_state=1)
    first = list(dict.fromkeys(shuffled.stay))
    resorted = pd.concat([frame[frame.stay == stay] for stay in first])
    same(
        load_transition_dataset({"frame": shuffled, **KEYS}),
        load_transition_dataset({"frame": resorted, **KEYS}),
    )
    same(whole, load_transition_dataset({"frame": pl.from_pandas(frame), **KEYS}))
    same(whole, load_transition_dataset({"frame": pa.Table.from_pandas(frame), **KEYS}))
    frame.to_csv(tmp_path / "log.csv", index=False)
    frame.to_parquet(tmp_path / "log.parquet")
    same(whole, load_transition_dataset({"path": str(tmp_path / "log.csv"), "kind": "csv", **KEYS}))
    parquet = {"kind": "parquet", "path": str(tmp_path / "log.parquet"), **KEYS}
    same(whole, load_transition_dataset(parquet))
    folder = tmp_path / "parts"
    folder.mkdir()
    for i, start in enumerate(range(0, 40, 10)):  # stays span files
        frame[start : start + 10].to_parquet(folder / f"{i}.parquet")
    for path in (folder, f"{folder}/*.parquet"):
        same(whole, load_transition_dataset({**parquet, "path": str(path)}))
    with pytest.raises(DataError, match=r"episode 102 spans two files.*dataset\.order"):
        load_transition_dataset({**parquet, "path": str(folder), "order": None})
    numbers = load_transition_dataset({"frame": frame, **KEYS, "categories": ["pulse"]})
    assert numbers.spaces.obs_dim == 1 + frame.pulse.nunique() + 3


def test_a_run_stores_its_categories_and_predicts_by_name(tmp_path: Path, cli: Command) -> None:
    frame = stays()
    path = tmp_path / "log.csv"
    frame.to_csv(path, index=False)
    section = {"kind": "csv", "path": str(path), "split": {"holdout": 0.2}, **KEYS}
    made: dict[str, Any] = {"output_dir": tmp_path, **SMALL}
    whole = AWR(dataset=section, **made)
    run = whole.learn(total_updates=20, progress=False).run_dir
    stored = yaml.safe_load((run / "config.yaml").read_text())["dataset"]["spaces"]
    assert stored["layout"][2]["labels"] == ["icu", "north", "south"]
    assert stored["actions"]["labels"] == ["high", "low", "none"]
    half = AWR(dataset=section, **made)
    cut = half.learn(total_updates=10, progress=False).run_dir
    resumed = AWR.resume(cut, total_updates=20, progress=False)
    for one, other in zip(parameters(whole), parameters(resumed), strict=True):
        np.testing.assert_array_equal(one, other)
    agent = rl_training.load(run)
    seen: dict[str, Any] = {"age": 61.0, "pulse": 80, "ward": "icu"}
    action, _ = agent.predict(seen)
    assert action in DRUGS
    plain = np.array([61.0, 80, 1, 0, 0], np.float32)
    assert agent.predict(plain)[0] == action
    for table in (frame, pl.from_pandas(frame)):
        several, _ = agent.predict(table)
        assert several.shape == (40,)
    assert (agent.predict({k: frame[k].to_numpy() for k in seen})[0] == several).all()
    assert agent.log_prob(seen, action) == agent.log_prob(plain, action)
    shown = cli("predict", run, json.dumps(seen), "--explain")
    assert json.loads(shown.out)["action"] == action
    assert_refused(cli("predict", run, json.dumps({**seen, "ward": "nort"})), "mean 'north'")
    for wrong, message in (
        (
            {**seen, "ward": "west"},
            "'ward' has the category 'west', which the training data do not",
        ),
        ({"age": 61.0, "pulse": 80}, "the observation has no 'ward'"),
        ({**seen, "age": "old"}, "'age' must hold numbers"),
        ({**seen, "age": np.nan}, "NaN"),
    ):
        with pytest.raises(DataError, match=message):
            agent.predict(wrong)
    with pytest.raises(DataError, match=r"no action 'hgh'.*'high'"):
        agent.log_prob(seen, "hgh")
    # the same data with a category that was not there
    frame.loc[5, "ward"] = "west"
    frame.to_csv(path, index=False)
    with pytest.raises(DataError, match=r"category 'west' in row 5, which dataset\.spaces"):
        AWR.resume(cut, total_updates=20, progress=False)


def test_data_frames_train_and_resume(tmp_path: Path) -> None:
    agent = BC(dataset={"frame": stays(), **KEYS}, output_dir=tmp_path, **SMALL)
    run = agent.learn(total_updates=5, progress=False).run_dir
    again = BC.resume(run, total_updates=10, progress=False)
    one = {"age": 61.0, "pulse": 80, "ward": "icu"}
    assert again.predict(one)[0] in DRUGS
    usual = stays().rename(columns={"drug": "actions", "score": "rewards", "age": "observations"})
    usual = usual.assign(terminations=usual.hour == 3)
    assert load_transition_dataset(usual).num_episodes == 10


def test_columns_of_lists_and_presets_equal_the_arrays(tmp_path: Path) -> None:
    arrays = clinic(discrete=False, episodes=6)
    arrays["next_observations"] = np.roll(arrays["observations"], -1, 0)
    plain = load_transition_dataset(arrays)
    lists = {key: list(array) for key, array in arrays.items() if array.ndim == 2}
    episode = np.repeat(np.arange(6), 5)
    rllib = pa.table(
        {
            "eps_id": [f"e{i}" for i in episode],
            "agent_id": ["a"] * 30,
            "obs": pa.array(lists["observations"]),
            "new_obs": pa.array(lists["next_observations"]),
            "actions": pa.array(lists["actions"]),
            "rewards": arrays["rewards"],
            "terminateds": arrays["terminations"],
            "truncateds": arrays["truncations"],
        }
    )
    pq.write_table(rllib, tmp_path / "rllib.parquet")
    source = {"kind": "parquet", "path": str(tmp_path / "rllib.parquet"), "layout": "rllib"}
    found = load_transition_dataset(source)
    for name, array in plain.to_arrays().items():
        np.testing.assert_array_equal(array, getattr(found, name))
    folder = tmp_path / "robot" / "data" / "chunk-000"
    folder.mkdir(parents=True)
    (tmp_path / "robot" / "meta").mkdir()
    pq.write_table(pa.table({"episode_index": [0]}), tmp_path / "robot" / "meta" / "x.parquet")
    for i, rows in enumerate((slice(15, 30), slice(0, 15))):  # not in the order of time
        robot = pa.table(
            {
                "observation.state": pa.array(lists["observations"][rows]),
                "action": pa.array(lists["actions"][rows]),
                "next.reward": arrays["rewards"][rows],
                "next.done": arrays["terminations"][rows],
                "episode_index": episode[rows],
                "frame_index": (np.arange(30) % 5)[rows],
                "timestamp": np.arange(30.0)[rows],
            }
        )
        pq.write_table(robot, folder / f"file-00{1 - i}.parquet")
    source = {"kind": "parquet", "path": str(tmp_path / "robot"), "layout": "lerobot"}
    found = load_transition_dataset({**source, "dones": "terminated"})
    for name in ("observations", "actions", "rewards", "terminations"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(found, name))
    with pytest.raises(DataError, match=r"'next\.done' does not say whether.*set dataset"):
        load_transition_dataset(source)
    bare = robot.drop(["next.reward", "next.done"])
    for file in folder.iterdir():
        file.unlink()
    pq.write_table(bare, folder / "file-000.parquet")
    assert not load_transition_dataset(source, needs_rewards=False).has_rewards
    agent = BC(dataset=source, **SMALL)
    assert agent.learn(3, output_dir=str(tmp_path), progress=False).updates == 3
    with pytest.raises(DataError, match="no column is called rewards"):
        IQL(dataset=source, **SMALL)


def test_conversion_both_ways(tmp_path: Path, cli: Command) -> None:
    for discrete in (True, False):
        data = load_transition_dataset(clinic(discrete, episodes=5))
        for name in ("a.parquet", "a.csv", "a.npz", "a.hdf5"):
            target = tmp_path / f"{discrete}-{name}"
            save_dataset(data, target)
            back = load_transition_dataset(target)
            for key, array in data.to_arrays().items():
                np.testing.assert_array_equal(array, getattr(back, key), err_msg=f"{name} {key}")
    path = tmp_path / "log.csv"
    stays().to_csv(path, index=False)
    keys = ["episode=stay", "order=hour", "dones=terminated", "columns.rewards=score"]
    keys += ["columns.observations=[age, ward]", "columns.actions=drug"]
    done = cli("data", "convert", path, tmp_path / "b.npz", *keys)
    assert done.code == 0, done.err
    assert load_transition_dataset(tmp_path / "b.npz").num_episodes == 10
    shown = cli("data", "inspect", path, *keys)
    assert shown.code == 0, shown.err
    assert "10" in shown.out
    assert_refused(cli("data", "inspect", path), "no column is called observations")


def test_a_list_of_episodes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    episodes: list[dict[str, Any]] = [
        {
            "observations": rng.normal(size=(steps + 1, 2)),
            "actions": rng.integers(0, 3, steps),
            "rewards": rng.normal(size=steps),
            "terminated": steps == 3,
            "truncated": steps != 3,
            "group": f"p{steps}",
        }
        for steps in (3, 5, 4)
    ]
    data = load_transition_dataset(episodes)
    assert data.episode_lengths().tolist() == [3, 5, 4]
    assert data.terminations.tolist() == [False, False, True, *[False] * 9]
    np.testing.assert_allclose(data.next_observations[7], episodes[1]["observations"][-1], 1e-6)
    assert data.groups is not None
    assert data.groups[[0, 3, 11]].tolist() == ["p3", "p5", "p4"]
    BC(dataset=episodes, output_dir=tmp_path, **SMALL).learn(3, progress=False)
    first = episodes[0]
    endless = {k: v for k, v in first.items() if k not in ("terminated", "truncated")}
    free = {k: v for k, v in first.items() if k != "rewards"}
    for wrong, message in (
        (endless, "episode 0: nothing says how it ended"),
        (free, "episode 1: array 'rewards' is in some episodes"),
        ({**first, "rewards": [0.0, 1.0]}, "episode 0: array 'rewards' has 2 rows and actions 3"),
        ({**first, "observation": 1}, "array 'observation' is not known"),
        ({**first, "observations": np.zeros((4, 3))}, r"of the shapes \(2,\) and \(3,\)"),
        ({**first, "actions": np.zeros(0)}, "it has no step"),
    ):
        with pytest.raises(DataError, match=message):
            load_transition_dataset([wrong, *episodes[1:]])


def test_dones_alone_with_what_they_mean(tmp_path: Path) -> None:
    arrays = clinic(episodes=4)
    plain = load_transition_dataset(arrays)
    ends = arrays.pop("terminations")
    del arrays["truncations"]
    np.savez(tmp_path / "a.npz", **arrays, dones=ends)  # type: ignore[arg-type]
    source = {"kind": "npz", "path": str(tmp_path / "a.npz")}
    same(plain, load_transition_dataset({**source, "dones": "terminated"}))
    assert load_transition_dataset({**source, "dones": "truncated"}).truncations.sum() == 4
    with pytest.raises(DataError, match=r"set dataset\.dones to terminated or truncated"):
        load_transition_dataset(source)


def test_what_is_wrong_with_a_table_is_said_in_one_sentence(tmp_path: Path) -> None:
    frame = stays()
    gap = frame.copy()
    gap.loc[6, "age"] = np.nan
    void = pl.from_pandas(frame).with_columns(age=pl.Series([None] + [1.0] * 39))
    twice = frame.copy()
    twice.loc[2, "hour"] = 1
    mixed = frame.sample(frac=1.0, random_state=1)
    dated = frame.assign(age=pd.Timestamp("2026-01-01"))
    ragged = frame.assign(age=[[1.0, 2.0]] * 3 + [[1.0]] * 37)
    flagged = frame.assign(end=frame.hour == 1)
    texted = frame.assign(pulse=["oops", *map(str, frame.pulse[1:])])
    columns = KEYS["columns"]
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (gap, {}, "'age, pulse, ward' holds NaN at row 6|'age' has no value in row 6"),
        (void, {}, "column 'age' has no value in row 0"),
        (twice, {}, "two rows of episode 100 have the same 'hour', 1"),
        (mixed, {"order": None}, "rows of episode .* are not consecutive; .*dataset.order"),
        (dated, {}, "column 'age' holds timestamp.*expected numbers"),
        (ragged, {}, "'age' holds 1 numbers in row 3 and 2 in row 0"),
        (frame, {"episode": "stays"}, "no column 'stays'.*'stay'.*dataset.episode"),
        (frame, {"episode": None}, "dataset.order sorts the rows of an episode"),
        (frame, {"episode": None, "order": None}, "nothing says where episodes end"),
        (frame, {"dones": None}, "the last row of an episode does not say whether"),
        (frame, {"categories": ["wad"]}, "no column 'wad'.*'ward'"),
        (frame, {"columns": {**columns, "rewards": "scor"}}, "'scor'.*'score'.*columns.rewards"),
        (frame, {"columns": {**columns, "rewards": None}}, "no column is called rewards"),
        (
            flagged,
            {"columns": {**columns, "terminations": "end"}},
            "row 1 of the sorted table ends an episode, but column 'stay' goes on",
        ),
        (frame[:0], {}, "the table has no rows"),
        (texted, {}, "column 'pulse' holds text such as 'oops' among numbers; .*categories"),
    ]
    for table, change, message in cases:
        with pytest.raises(RLTrainingError, match=message):
            load_transition_dataset({"frame": table, **KEYS, **change})
    assert load_transition_dataset({"frame": texted, **KEYS, "categories": ["pulse"]}).spaces
    texted.to_csv(tmp_path / "texted.csv", index=False)
    with pytest.raises(DataError, match="text such as 'oops' among numbers"):
        pack_source({"kind": "csv", "path": str(tmp_path / "texted.csv"), **KEYS}, tmp_path / "x")
    lines = frame.to_csv(index=False).splitlines()
    lines[0] = lines[0].replace("pulse", "age")
    (tmp_path / "twice.csv").write_text("\n".join(lines))
    report = inspect_file(tmp_path / "twice.csv")  # which shows what there is
    assert "age" in {array.key for array in report.arrays}
    with pytest.raises(DataError, match="there are two columns 'age'; rename one"):
        load_transition_dataset({"kind": "csv", "path": str(tmp_path / "twice.csv"), **KEYS})
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no more")
    (tmp_path / "empty").mkdir()
    for path, message in (
        ("broken.parquet", "not a parquet file, or is damaged"),
        ("empty", "has no parquet file"),
        ("log-*.parquet", "no file matches"),
        ("nothing.parquet", "does not exist"),
    ):
        with pytest.raises(DataError, match=message):
            load_transition_dataset({"kind": "parquet", "path": str(tmp_path / path), **KEYS})
    with pytest.raises(ConfigError, match=r"key 'name' belongs to .* set it to null, or give"):
        load_transition_dataset({"kind": "csv", "path": "a.csv", "name": "pendulum-mixed"})
    with pytest.raises(ConfigError, match="key 'episode' belongs to kind parquet or csv"):
        load_transition_dataset({"kind": "npz", "path": "a.npz", "episode": "stay"})


def test_masks_and_several_choices_in_columns(tmp_path: Path) -> None:
    """A column of lists and a column per action are the array of an npz file."""
    frame = stays()
    rng = np.random.default_rng(3)
    taken = rng.integers(0, 3, len(frame))
    mask = rng.random((len(frame), 3)) < 0.5
    mask[np.arange(len(frame)), taken] = True
    frame["taken"], frame["allowed"] = taken, mask.tolist()
    for i in range(3):
        frame[f"may_{i}"] = mask[:, i].astype(int)
    keys = {**KEYS, "columns": {**KEYS["columns"], "actions": "taken"}}
    found = []
    for columns in ("allowed", ["may_0", "may_1", "may_2"]):
        source = {"frame": frame, **keys, "columns": {**keys["columns"], "action_mask": columns}}
        found.append(load_transition_dataset(source))
        assert found[-1].spaces.has_mask
        assert found[-1].spaces.layout is not None
        np.testing.assert_array_equal(found[-1].observations[:, -3:], mask)
    same(*found)
    agent = BC(dataset=source, **SMALL)
    seen = {"age": 60.0, "pulse": 80, "ward": "icu"}
    for only in range(3):
        assert agent.predict(seen, action_mask=np.eye(3)[only])[0] == only
    for target in ("masks.csv", "masks.parquet", "masks.npz"):
        again = load_transition_dataset(save_dataset(found[0], tmp_path / target))
        np.testing.assert_array_equal(again.observations, found[0].observations)
    forbidden = frame.assign(allowed=[[True, False, False]] * len(frame))
    with pytest.raises(DataError, match="is one that array 'allowed' forbids"):
        load_transition_dataset(
            {**source, "frame": forbidden, "columns": {**keys["columns"], "action_mask": "allowed"}}
        )
    frame["dose"], frame["given"] = rng.integers(1, 4, len(frame)), rng.random(len(frame)) < 0.5
    several = {**KEYS, "columns": {**KEYS["columns"], "actions": ["dose", "given"]}}
    parts = load_transition_dataset({"frame": frame, **several})
    assert parts.spaces.action_choices == (4, 2)
    np.testing.assert_array_equal(parts.actions[:, 0], frame["dose"])
    box = {"actions": {"kind": "box", "low": 0, "high": 4}}
    assert load_transition_dataset({"frame": frame, **several, "spaces": box}).spaces.is_box
