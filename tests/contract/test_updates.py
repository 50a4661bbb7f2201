"""Every algorithm builds, updates, acts, is capturable, and keeps its state complete."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rl_training.experiment.registry import algorithm_names

from .small_runs import cases, small_config, small_learner

HOST_SYNCS = ("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "unique")


class OperationLog(TorchDispatchMode):
    """Records every operation with its output shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[str, Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        shape = tuple(out.shape) if isinstance(out, torch.Tensor) else None
        self.operations.append((func.overloadpacket.__name__, shape))
        return out


@pytest.mark.parametrize(("algo", "kind"), cases())
def test_update_moves_weights_and_reports_detached_scalars(algo: str, kind: str) -> None:
    algorithm, table = small_learner(small_config(algo, kind))
    before = {k: v.clone() for k, v in algorithm.state_dict().items()}
    metrics = algorithm.step(table.sample(32))
    assert metrics, "an update reports something"
    for name, value in metrics.items():
        assert value.shape == (), name
        assert value.dtype == torch.float32, name  # as a checkpoint is checked for
        assert not value.requires_grad, name
        assert torch.isfinite(value), name
    after = algorithm.state_dict()
    for name in set(algorithm.optimizers) - set(algorithm.outside_update):
        params = {id(p) for p in algorithm.optimizers[name].parameters}
        moved = [
            key
            for key, p in algorithm.named_parameters()
            if id(p) in params and not torch.equal(before[key], after[key])
        ]
        assert moved, f"optimiser '{name}' moved nothing"


@pytest.mark.usefixtures("no_branches")
@pytest.mark.parametrize(("algo", "kind"), cases())
def test_update_is_capturable(algo: str, kind: str) -> None:
    """No host sync, no data-dependent shape, and the same operations at every update."""
    algorithm, table = small_learner(small_config(algo, kind, algo_kwargs={"grad_clip": 1.0}))
    algorithm.step(table.sample(32))  # optimisers make their state at the first step
    logs = []
    for _ in range(3):
        with OperationLog() as log:
            algorithm.step(table.sample(32))
        logs.append(log.operations)
    synced = [op for op, _ in logs[0] if op in HOST_SYNCS]
    assert not synced, f"host syncs inside the update: {synced}"
    assert logs[0] == logs[1] == logs[2], "operations differ from update to update"


@pytest.mark.parametrize("algo", algorithm_names())
def test_branches_on_the_cpu_change_nothing(algo: str, request: pytest.FixtureRequest) -> None:
    knobs = {"target_update_interval": 3} if "dqn" in algo or algo in ("iqn", "fqf") else {}
    states = []
    for branch in (True, False):
        if not branch:
            request.getfixturevalue("no_branches")
        algorithm, table = small_learner(small_config(algo, algo_kwargs=knobs))
        torch.manual_seed(0)
        for _ in range(5):
            algorithm.step(table.sample(32))
        for parameter in algorithm.parameters():
            parameter.data.fill_(float("nan"))
        algorithm.step(table.sample(32))
        assert algorithm.first_nonfinite() is not None
        assert algorithm.first_nonfinite()[1] == 6  # type: ignore[index]
        state = {name: value.nan_to_num(7.0) for name, value in algorithm.state_dict().items()}
        states.append({**state, "at": algorithm.nonfinite_at})
    assert_same_state(*states)


@pytest.mark.parametrize(("algo", "kind"), cases())
def test_acts_within_the_space(algo: str, kind: str) -> None:
    algorithm, _ = small_learner(small_config(algo, kind))
    obs = torch.randn(64, algorithm.spaces.obs_dim) * 10
    for explore in (False, True):
        action = algorithm.act(obs, explore=explore).action
        if kind == "box":
            assert action.shape == (64, algorithm.spaces.action_dim)
            assert bool((action.abs() <= 1).all())
        else:
            assert action.shape == (64, *algorithm.spaces.inner_action_shape)
            choices = torch.tensor(algorithm.spaces.choices)
            assert bool(((action.reshape(64, -1) < choices) & (action.reshape(64, -1) >= 0)).all())
    mode = algorithm.act(obs, explore=False).action
    assert torch.equal(mode, algorithm.act(obs, explore=False).action), "the mode is no draw"


@pytest.mark.parametrize(("algo", "kind"), cases())
def test_state_is_complete_by_construction(algo: str, kind: str) -> None:
    """A copy restored from the state goes on exactly as the original does."""
    config = small_config(algo, kind)
    original, table = small_learner(config)
    for _ in range(3):
        original.step(table.sample(32))
    batches = [table.sample(32) for _ in range(3)]
    copy, _ = small_learner(config.replace(seed=99))
    state = deepcopy(original.training_state())
    torch.manual_seed(5)
    copy.load_training_state(state)
    streams = []
    for algorithm in (original, copy):
        torch.manual_seed(7)
        for batch in batches:
            algorithm.step(batch)
        streams.append(algorithm.training_state())
    assert_same_state(streams[0], streams[1])


def assert_same_state(a: Any, b: Any, where: str = "") -> None:
    """Equal to the last bit, at any depth."""
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same_state(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same_state(x, y, f"{where}/{i}")
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    else:
        assert a == b, where


@pytest.mark.parametrize(("algo", "kind"), cases())
def test_the_learning_rate_reaches_every_optimizer_and_every_loss_is_watched(
    algo: str, kind: str
) -> None:
    extra = {"lagrange_threshold": 1.0} if algo == "cql" else {}
    algorithm, table = small_learner(small_config(algo, kind, algo_kwargs=extra))
    algorithm.set_lr_factor(0.0)
    before = {key: p.clone() for key, p in algorithm.named_parameters()}
    targets = {key for key in before if "target" in key or "slow" in key}
    metrics = algorithm.step(table.sample(32))
    for key, p in algorithm.named_parameters():
        if key not in targets:
            assert torch.equal(before[key], p), f"{key} moved at learning rate 0"
    assert set(algorithm.losses) == {name for name in metrics if name.endswith("_loss")}


def test_normalised_observations_travel_with_the_policy() -> None:
    config = small_config("bc")
    config = config.replace(dataset={**config.to_dict()["dataset"], "normalize_observations": True})
    algorithm, table = small_learner(config)
    assert table.statistics is not None
    mean, std = table.statistics
    algorithm.normalizer.set_statistics(torch.from_numpy(mean), torch.from_numpy(std))
    raw = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    seen = torch.from_numpy((raw - mean) / std)
    expected = algorithm.policy.mode(seen)
    assert torch.allclose(algorithm.act(torch.from_numpy(raw), explore=False).action, expected)
