"""Networks of a user in every algorithm: built, trained, captured, resumed, stacked, refused."""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rl_training import AWR, IQL, PPO, SAC, TD3, learn_seeds, load
from rl_training.algorithms.base import Algorithm
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.registry import algorithm_class, algorithm_names
from rl_training.models import MLP, CategoricalPolicy, EnsembleMLP, OwnNetwork
from rl_training.models.dreamer import Head

from ..each import each
from . import own_networks
from .small_runs import LOOP_KNOBS, cases, small_config, small_learner
from .test_updates import HOST_SYNCS, OperationLog, assert_same_state

HERE = own_networks.__name__
ALL = f"{HERE}:all_of_them"


def own_knobs(algo: str, factory: str = ALL) -> dict[str, Any]:
    """The knobs that give an algorithm networks of one's own."""
    if "networks" in algorithm_class(algo).Params.model_fields:
        return {"networks": factory}
    assert algo == "gail", "an algorithm without networks of one's own"
    return {"ppo": {**LOOP_KNOBS["imitation"]["ppo"], "networks": factory}}


def own_modules(algorithm: Algorithm) -> list[OwnNetwork]:
    return [module for module in algorithm.modules() if isinstance(module, OwnNetwork)]


@pytest.mark.usefixtures("no_branches")
@pytest.mark.parametrize(("algo", "kind"), cases())
def test_every_algorithm_learns_with_networks_of_ones_own(algo: str, kind: str) -> None:
    """They take the place of the usual ones, learn, stay capturable and come back from a state."""
    config = small_config(algo, kind, algo_kwargs=own_knobs(algo))
    algorithm, table = small_learner(config)
    own = own_modules(algorithm)
    roles = {module.out_dim for module in own}
    assert own
    assert 5 in roles, "no encoder"
    trained = {id(p) for o in algorithm.optimizers.values() for p in o.parameters}
    learning = [module for module in own if any(id(p) in trained for p in module.parameters())]
    before = [deepcopy(module.state_dict()) for module in learning]
    for _ in range(2):
        algorithm.step(table.sample(32))
    assert all(torch.isfinite(p).all() for p in algorithm.parameters())
    for module, then in zip(learning, before, strict=True):
        now = module.state_dict()
        assert any(not torch.equal(now[name], then[name]) for name in then)
    logs = []
    for _ in range(2):
        with OperationLog() as log:
            algorithm.step(table.sample(32))
        logs.append(log.operations)
    assert not [op for op, _ in logs[0] if op in HOST_SYNCS]
    assert logs[0] == logs[1]
    copy, _ = small_learner(config.replace(seed=99))
    copy.load_training_state(deepcopy(algorithm.training_state()))
    batch, states = table.sample(32), []
    for one in (algorithm, copy):
        torch.manual_seed(7)
        one.step(batch)
        states.append(one.training_state())
    assert_same_state(*states)
    obs = torch.randn(6, algorithm.spaces.obs_dim)
    assert len(algorithm.act(obs, explore=True).action) == 6


@pytest.mark.parametrize("algo", algorithm_names())
def test_an_encoder_alone_stands_before_the_usual_networks(algo: str) -> None:
    factory = f"{HERE}:encoder_alone"
    algorithm, table = small_learner(small_config(algo, algo_kwargs=own_knobs(algo, factory)))
    assert all(isinstance(m.module, own_networks.Encoder) for m in own_modules(algorithm))
    assert any(isinstance(m, (MLP, EnsembleMLP, Head)) for m in algorithm.modules())
    algorithm.step(table.sample(32))


QUICK: dict[str, Any] = {
    "hidden_sizes": [6],
    "batch_size": 16,
    "eval_episodes": 1,
    "env_kwargs": {"max_episode_steps": 4},
    "tensorboard": False,
    "device": "cpu",
    "threads": 1,
    "networks": own_networks.all_of_them,  # from Python as a function
}


@pytest.mark.parametrize("kind", ["offline", "online"])
def test_runs_resume_exactly_and_come_back_from_their_name(tmp_path: Path, kind: str) -> None:
    if kind == "offline":
        cls: Any = IQL
        agents = [
            IQL("Pendulum-v1", dataset="pendulum-mixed", output_dir=str(tmp_path / str(i)), **QUICK)
            for i in range(2)
        ]
        budget, half = {"total_updates": 20}, {"total_updates": 9}
    else:
        cls = SAC
        agents = [
            SAC("Pendulum-v1", learning_starts=5, output_dir=str(tmp_path / str(i)), **QUICK)
            for i in range(2)
        ]
        budget, half = {"total_timesteps": 24}, {"total_timesteps": 13}
    agents[0].learn(**budget, progress=False)
    agents[1].learn(**half, progress=False)
    assert agents[1].run_dir is not None
    resumed = cls.resume(agents[1].run_dir, progress=False, **budget)
    assert_same_state(agents[0].algorithm.training_state(), resumed.algorithm.training_state())
    stored = load(agents[1].run_dir)
    assert stored.config.algo_kwargs["networks"] == ALL
    obs = torch.randn(3, 3).numpy()
    assert (stored.predict(obs)[0] == resumed.predict(obs)[0]).all()


def test_several_seeds_train_networks_of_ones_own_together(tmp_path: Path) -> None:
    source = AWR("Pendulum-v1", dataset="pendulum-mixed", total_updates=12, **QUICK).config
    together = learn_seeds(source, [3, 8], progress=False, output_dir=str(tmp_path / "all"))
    alone = AWR(source, seed=8, output_dir=str(tmp_path / "one"))
    alone.learn(progress=False)
    stacked = load(together.run_dir / "seed-8").algorithm.state_dict()
    for name, value in alone.algorithm.state_dict().items():
        torch.testing.assert_close(stacked[name], value, rtol=1e-4, atol=1e-5)


def test_a_policy_of_ones_own_can_be_started_from(tmp_path: Path) -> None:
    first = SAC("Pendulum-v1", learning_starts=5, output_dir=str(tmp_path), **QUICK)
    run = first.learn(total_timesteps=10, progress=False).run_dir
    second = SAC("Pendulum-v1", init_from=run, seed=4, output_dir=str(tmp_path), **QUICK)
    obs = torch.randn(3, 3).numpy()
    assert (first.predict(obs)[0] == second.predict(obs)[0]).all()
    usual = {name: value for name, value in QUICK.items() if name != "networks"}
    with pytest.raises(ConfigError, match=r"^init_from: .* networks from a factory and this"):
        SAC("Pendulum-v1", init_from=run, output_dir=str(tmp_path), **usual)
    data = {"dataset": {"kind": "scripted", "name": "pendulum-mixed"}}
    data["dataset"]["normalize_observations"] = True  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"^init_from: .* normalises observations and this run"):
        AWR("Pendulum-v1", init_from=run, action_distribution="tanh_gaussian", **data, **QUICK)


WRONG = {
    "too_wide": r"policy makes the shape \(2, \d\) of inputs \(2, 3\), expected \(2, \d\); co",
    "flat": r"encoder makes the shape \(4,\) of inputs \(2, 3\), expected \(2, any width\); co",
    "no_module": r"encoder is of the type list; return a torch\.nn\.Module, or None",
    "fails": r"encoder fails on inputs of the shape \(2, 3\) \(RuntimeError",
    "whole_numbers": r"encoder makes torch\.int64, expected a tensor of floats; correct",
    "with_dropout": r"encoder has a layer Dropout, which draws random numbers",
    "with_batch_norm": r"encoder has a layer BatchNorm1d, which keeps statistics of batches",
    "shared": r"encoder has weights that another network has already; make a new module",
    "raises": r"fails when it is asked for the encoder \(ValueError: no such\); correct it",
    "without_a_request": r"fails when it is asked for the encoder \(TypeError: .*0 positional arg",
    "NOT_A_FUNCTION": r"of the type int, expected a function that takes a rl_training\.NetworkReq",
    "missing": r"cannot be imported \(AttributeError",
}


@each("name", WRONG)
def test_wrong_networks_are_refused_when_the_agent_is_made(name: str) -> None:
    own_networks._shared.clear()
    knobs = {**QUICK, "networks": f"{HERE}:{name}"}
    sentence = rf"^algo_kwargs\.networks: .*'{HERE}:{name}' .*{WRONG[name]}"
    for cls in (SAC, TD3, PPO):
        with pytest.raises(ConfigError, match=sentence) as refused:
            cls("Pendulum-v1", **knobs)
        assert "\n" not in str(refused.value)


def test_names_that_are_none() -> None:
    for wrong, sentence in (
        ("no_colon", r"^algo_kwargs\.networks: .*'no_colon'"),
        ("os:", r"^algo_kwargs\.networks: "),
        (lambda request: None, r"^algo_kwargs\.networks: a run stores the function by its name"),
        ("no_such_module_here:make", r"^algo_kwargs\.networks: .* cannot be imported \(ModuleNotF"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            SAC("Pendulum-v1", **{**QUICK, "networks": wrong})


def test_files_need_trust_for_the_module_of_their_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "networks_of_a_stranger"
    (tmp_path / f"{name}.py").write_text(f"from {HERE} import all_of_them\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    knobs = {**QUICK, "networks": f"{name}:all_of_them"}
    agent = AWR("Pendulum-v1", dataset="pendulum-mixed", output_dir=str(tmp_path / "r"), **knobs)
    run = agent.learn(3, progress=False).run_dir
    del sys.modules[name]
    for use in (load, AWR.resume):
        with pytest.raises(ConfigError, match=rf"algo_kwargs\.networks names the module '{name}'"):
            use(run)  # type: ignore[operator]
    assert name not in sys.modules
    load(run, trust=True)
    del sys.modules[name]
    (tmp_path / f"{name}.py").unlink()
    with pytest.raises(ConfigError, match=r"^algo_kwargs\.networks: .* cannot be imported \(Mod"):
        load(run, trust=True)


def layers_of(net: nn.Module) -> tuple[Any, ...]:
    assert isinstance(net, (MLP, EnsembleMLP))
    norms = net.norms if isinstance(net, MLP) else net.norm_scales
    return net.hidden_sizes, net.activation, len(norms)


def test_knobs_of_the_usual_networks() -> None:
    sizes = {"policy_hidden_sizes": [5, 6], "critic_hidden_sizes": [7], "activation": "tanh"}
    plain = {name: value for name, value in QUICK.items() if name != "networks"} | sizes
    sac = SAC("Pendulum-v1", layer_norm=True, **plain).algorithm.model
    assert layers_of(sac.policy.net) == ((5, 6), "tanh", 0)
    assert layers_of(sac.critics.net) == ((7,), "tanh", 1)
    ppo = PPO("Pendulum-v1", **plain).algorithm
    assert layers_of(ppo.actor.net) == ((5, 6), "tanh", 0)
    assert layers_of(ppo.value.net) == ((7,), "tanh", 0)
    data = {"dataset": "pendulum-mixed"}
    iql = IQL("Pendulum-v1", layer_norm=True, **data, **plain).algorithm
    assert layers_of(iql.model.value.net) == layers_of(iql.critics.net) == ((7,), "tanh", 1)
    assert isinstance(
        IQL(
            "CartPole-v1", dataset="cartpole-mixed", **{**plain, "env_kwargs": {}}
        ).algorithm.policy,
        CategoricalPolicy,
    )
    for activation, function in (
        ("relu", torch.relu),
        ("silu", nn.functional.silu),
        ("gelu", nn.functional.gelu),
        ("elu", nn.functional.elu),
        ("tanh", torch.tanh),
    ):
        x, net = torch.randn(4, 3), MLP(3, (8,), 2, activation, layer_norm=True)  # type: ignore[arg-type]
        first, last = net.layers
        hidden = function(nn.functional.layer_norm(first(x), (8,)))
        torch.testing.assert_close(net(x), last(hidden))
