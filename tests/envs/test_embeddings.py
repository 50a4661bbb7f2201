"""Choices and categories among observations as learned vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import BC, DQN, IQL, PPO, Dreamer, learn_seeds, load
from rl_training.envs.layout import Layout, Part
from rl_training.envs.make import env_spaces
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import DataError, EnvironmentSetupError
from rl_training.models.encoders import ChoiceEncoder

from ..contract.small_runs import LOOP_KNOBS
from ..data.test_tables import KEYS, stays

EMBEDDED = {"choice_embedding": 5}
SMALL: dict[str, Any] = {"hidden_sizes": [16], "tensorboard": False, "eval_episodes": 2}


def test_the_encoder_looks_vectors_up_and_keeps_other_numbers() -> None:
    layout = Layout(
        (
            Part(("age",), ()),
            Part(("ward",), (), (3,), (2,)),
            Part(("pair",), (2,), (2, 4), (0, 0)),
            Part(("pulse",), (2,)),
        )
    ).embedded(5)
    assert [tuple(place) for place in layout.embeddings] == [(1, 3, 5), (4, 2, 5), (6, 4, 5)]
    torch.manual_seed(0)
    encoder = ChoiceEncoder(layout.width, layout.embeddings)
    rows = {"age": [1.5, 2.5], "ward": [4, 2], "pair": [[1, 3], [0, 2]], "pulse": [[7, 8], [9, 6]]}
    vectors, _ = layout.named_rows({key: np.asarray(x) for key, x in rows.items()}, "x")
    found = encoder(torch.from_numpy(vectors)).detach().numpy()
    ward, first, second = (table.detach().numpy() for table in encoder.tables)
    for i in range(2):
        pair = rows["pair"][i]
        expected = [[rows["age"][i]], ward[rows["ward"][i] - 2], first[pair[0]], second[pair[1]]]
        np.testing.assert_allclose(found[i], np.concatenate([*expected, rows["pulse"][i]]), 1e-6)
    assert found.shape == (2, encoder.out_dim)
    stored = Layout.from_list(layout.to_list())
    assert stored == layout


def test_states_by_number_resume_and_export(tmp_path: Path) -> None:
    made: dict[str, Any] = {**SMALL, "output_dir": tmp_path, "env_kwargs": EMBEDDED}
    cases: tuple[tuple[Any, dict[str, Any]], ...] = (
        (DQN, {"learning_starts": 20, "batch_size": 8}),
        (PPO, {"rollout_length": 16, "batch_size": 16, "epochs": 1}),
    )
    for cls, knobs in cases:
        half = cls("FrozenLake-v1", **made, **knobs).learn(total_timesteps=48, progress=False)
        whole = cls("FrozenLake-v1", **made, **knobs)
        tables = [p for p in whole.algorithm.parameters() if p.shape == (16, 5) and p.requires_grad]
        assert tables
        before = [table.detach().clone() for table in tables]
        whole.learn(total_timesteps=80, progress=False)
        assert all(not torch.equal(*pair) for pair in zip(before, tables, strict=True))
        resumed = cls.resume(half.run_dir, total_timesteps=80, progress=False)
        pairs = zip(whole.algorithm.parameters(), resumed.algorithm.parameters(), strict=True)
        assert all(bool((one == other).all()) for one, other in pairs), cls
        again = load(half.run_dir)
        assert again.predict(np.arange(16))[0].tolist() == [again.predict(i)[0] for i in range(16)]
    spaces = env_spaces("Taxi-v4", EMBEDDED)  # with a mask behind the choice
    assert Spaces.from_dict(spaces.to_dict()) == spaces
    assert spaces.layout is not None
    assert spaces.layout.embeddings == [(0, 500, 5)]


def test_categories_of_a_table(tmp_path: Path) -> None:
    source = {"frame": stays(), **KEYS, "spaces": {"choice_embedding": 4}}
    for cls in (BC, IQL):
        agent = cls(dataset=source, **SMALL, output_dir=tmp_path)
        assert any(p.shape == (3, 4) for p in agent.algorithm.policy.parameters())
        result = agent.learn(6, progress=False)
        again = load(result.run_dir)
        assert again.algorithm.spaces == agent.algorithm.spaces
        seen = {"age": 61.0, "pulse": 80, "ward": "icu"}
        assert again.predict(seen)[0] == agent.predict(seen)[0]
    path = tmp_path / "ward.csv"
    stays().to_csv(path, index=False)
    keys = {**KEYS, "kind": "csv", "path": str(path), "spaces": {"choice_embedding": 4}}
    alone = BC(dataset=keys, **SMALL, output_dir=tmp_path, seed=1)
    alone.learn(6, progress=False)
    both = learn_seeds(alone.config.replace(seed=0, total_updates=6), [0, 1], progress=False)
    own = load(Path(both.run_dir) / "seed-1").algorithm.parameters()
    for mine, theirs in zip(own, alone.algorithm.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_what_cannot_be_embedded_is_refused_in_one_sentence() -> None:
    with pytest.raises(EnvironmentSetupError, match="not vectors with choices among them"):
        env_spaces("CartPole-v1", EMBEDDED)
    for wrong in (0, 2.5, "wide", True):
        with pytest.raises(EnvironmentSetupError, match="choice_embedding: expected a whole"):
            env_spaces("FrozenLake-v1", {"choice_embedding": wrong})
    with pytest.raises(EnvironmentSetupError, match="takes choices one-hot"):
        Dreamer("FrozenLake-v1", env_kwargs=EMBEDDED, **LOOP_KNOBS["world_model"])
    numbers = {**KEYS, "columns": {**KEYS["columns"], "observations": ["age", "pulse"]}}
    with pytest.raises(DataError, match="no categories or choices to embed"):
        BC(dataset={"frame": stays(), **numbers, "spaces": {"choice_embedding": 4}})
