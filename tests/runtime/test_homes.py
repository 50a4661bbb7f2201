"""Device, host and disk: the same run, whatever home its data live in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.algorithms.loops import loop_family
from rl_training.api.managed import ManagedAlgorithm, load
from rl_training.api.seeds import learn_seeds
from rl_training.data.convert import save_dataset
from rl_training.data.sources import load_transition_dataset, pack_source
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.registry import algorithm_class, algorithm_names
from rl_training.runtime import staging
from tests.contract.small_runs import TASKS, data_section, default_kind, small_config

HOMES = ("device", "host", "disk")
OFFLINE = [
    (name, loop)
    for name in algorithm_names()
    for loop in algorithm_class(name).loops()
    if loop_family(loop).needs_data and not loop_family(loop).needs_env
]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Packed data of each kind of action; a folder each."""
    folder = tmp_path_factory.mktemp("packed")
    found = {}
    for kind, (env_id, _) in TASKS.items():
        dataset = load_transition_dataset(data_section(kind), env_id=env_id)
        save_dataset(dataset, folder / f"{kind}.npz")
        pack_source(str(folder / f"{kind}.npz"), folder / kind, env_id=env_id)
        found[kind] = str(folder / kind)
    return found


@pytest.fixture
def short_spans(short_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans and blocks that a short run crosses."""
    monkeypatch.setattr(staging, "SPANS", (5,))


def run(
    config: TrainConfig, folder: Path, path: str, home: str, engine: str = "eager", **keys: Any
) -> ManagedAlgorithm:
    section = {"kind": "packed", "path": path, "home": home, **keys}
    rewards = config.dataset.rewards if config.dataset else None
    data = {**section, "rewards": rewards.model_dump() if rewards else {}}
    changed = config.replace(dataset=data, output_dir=str(folder), engine=engine)
    return ManagedAlgorithm(changed)


def weights(agent: ManagedAlgorithm) -> torch.Tensor:
    return torch.cat([p.detach().double().flatten() for p in agent.algorithm.state_tensors()])


@pytest.mark.usefixtures("short_spans")
def test_every_offline_algorithm_learns_the_same_in_every_home(
    packed: dict[str, str], tmp_path: Path
) -> None:
    """13 updates: two blocks, three spans."""
    assert {"iql", "awr", "marwil", "cql", "bc", "mopo"} <= {name for name, _ in OFFLINE}
    for algo, loop in OFFLINE:
        kind = default_kind(algo)
        config = small_config(
            algo, kind, loop, total_updates=13, total_timesteps=None, final_eval=False
        )
        found = {}
        for home in HOMES:
            prepared = {"normalize_observations": algo != "fqe", "split": {"holdout": 0.3}}
            agent = run(config, tmp_path, packed[kind], home, **prepared)
            agent.learn(progress=False)
            found[home] = weights(agent)
        for home in HOMES[1:]:
            assert torch.equal(found["device"], found[home]), (algo, home)


@pytest.mark.usefixtures("short_spans")
def test_a_run_resumes_in_another_home(packed: dict[str, str], tmp_path: Path) -> None:
    config = small_config("iql", "box", total_updates=23, checkpoint_interval=8, final_eval=False)
    whole = run(config, tmp_path, packed["box"], "device")
    whole.learn(progress=False)
    before = run(config.replace(total_updates=8), tmp_path, packed["box"], "disk")
    result = before.learn(progress=False)
    assert any("lives on disk (asked for)" in note for note in result.data_notes)
    assert before.config.dataset is not None
    moved = {**before.config.dataset.model_dump(), "home": "host"}
    agent = ManagedAlgorithm.resume(result.run_dir, total_updates=23, dataset=moved, progress=False)
    assert torch.equal(weights(whole), weights(agent))
    assert agent.config.hash() == whole.config.hash()


def test_several_seeds_learn_from_disk(packed: dict[str, str], tmp_path: Path) -> None:
    config = small_config("iql", "box", total_updates=3, final_eval=False, engine="eager")
    found = []
    for home in ("device", "disk"):
        section = {"kind": "packed", "path": packed["box"], "home": home}
        result = learn_seeds(
            config.replace(dataset=section, output_dir=str(tmp_path)), 2, progress=False
        )
        found.append([weights(load(one.run_dir)) for one in result.results.values()])
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(*found[0])


def test_resampled_episodes_need_the_device(packed: dict[str, str], tmp_path: Path) -> None:
    names = [n for n in algorithm_names() if "bootstrap" in algorithm_class(n).Params.model_fields]
    config = small_config(names[0], algo_kwargs={"bootstrap": True}, total_updates=2)
    agent = run(config, tmp_path, packed[default_kind(names[0])], "disk")
    with pytest.raises(ConfigError, match=r"algo_kwargs\.bootstrap"):
        agent.learn(progress=False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_homes_are_equal_on_a_gpu(engine: str, packed: dict[str, str], tmp_path: Path) -> None:
    """430 updates: three blocks, with graphs of ten updates and of one."""
    config = small_config("awr", "box", total_updates=430, final_eval=False, device="cuda")
    found = []
    for home in HOMES:
        agent = run(config, tmp_path, packed["box"], home, engine=engine)
        agent.learn(progress=False)
        found.append(weights(agent))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
