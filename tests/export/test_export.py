"""What an export folder holds, its options, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.api.export import on_cpu
from rl_training.api.managed import ManagedAlgorithm, load
from rl_training.experiment.errors import ConfigError, ExportError, MissingExtraError
from rl_training.export import parity
from rl_training.export.contract import read_contract
from rl_training.export.exported import ExportedPolicy, load_policy
from rl_training.export.graph import PolicyGraph

from ..conftest import Command
from ..contract.small_runs import small_config
from .exporting import agent_of, export

FILES = {"policy.onnx", "contract.json", "sample.npz", "run_policy.py", "card.md", "card.json"}
WITHOUT = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "rl_training", "gymnasium"):
            raise ImportError(name)
sys.meta_path.insert(0, Refused())
sys.argv = sys.argv[1:]
import runpy
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_the_command_writes_a_folder_whose_runner_needs_no_pytorch(
    cli: Command, bc_run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "policy"
    done = cli("export", bc_run, "--checkpoint", "best", "--out", folder, "-n", 2)
    assert done.code == 0, done.err
    assert "acts as the agent on" in done.out
    assert {path.name for path in folder.iterdir()} == FILES
    run = [sys.executable, "-c", WITHOUT, str(folder / "run_policy.py")]
    sample = subprocess.run(run, capture_output=True, text=True, check=True)
    assert float(sample.stdout.split()[-1]) <= 1e-5
    one = subprocess.run([*run, "[1.0, 0.0, 0.5]"], capture_output=True, text=True, check=True)
    agent = load(bc_run, checkpoint="best")
    expected = agent.predict([1.0, 0.0, 0.5])[0]
    assert json.loads(one.stdout) == pytest.approx(expected.tolist(), abs=1e-5)

    asked = cli("predict", folder, "[1.0, 0.0, 0.5]")
    assert json.loads(asked.out) == pytest.approx(expected.tolist(), abs=1e-5)
    shown = json.loads(cli("eval", folder, "-n", 3, "--json").out)
    table = cli("eval", folder, "-n", 3)
    assert (table.code, table.out.split()[:2]) == (0, [agent.config.algo, "on"])
    assert f"{shown['eval/return_mean']:,.1f}" in table.out
    returns = agent.evaluate(3).returns
    assert shown["eval/returns"] == pytest.approx(returns, abs=1e-2)
    for wrong, sentence in (
        (("eval", folder, "--checkpoint", "best"), "no checkpoints"),
        (("export", folder, "--out", tmp_path / "again"), "is an exported policy"),
    ):
        refused = cli(*wrong)
        assert (refused.code, sentence in refused.error_lines[0]) == (2, True), refused.err


def test_an_agent_of_another_device_is_exported_by_a_copy_on_the_cpu() -> None:
    agent = agent_of("sac")
    agent.algorithm.normalizer.active = False  # as its config says, by which the copy is made
    copied = on_cpu(agent)
    assert copied.config.device == "cpu"
    assert copied.algorithm is not agent.algorithm
    obs = np.ones((3, 3), np.float32)
    np.testing.assert_array_equal(copied.predict(obs)[0], agent.predict(obs)[0])


def test_exporting_twice_gives_the_same_bytes_but_for_the_time(tmp_path: Path) -> None:
    agent = agent_of("sac")
    one, other = (export(agent, tmp_path / name).folder for name in ("one", "other"))
    for path in sorted(one.iterdir()):
        mine, theirs = path.read_bytes(), (other / path.name).read_bytes()
        if path.name == "contract.json":
            first, second = json.loads(mine), json.loads(theirs)
            assert first.pop("made_at")
            assert second.pop("made_at")
            assert first == second
        else:
            assert mine == theirs, path.name


def test_the_model_says_what_the_contract_says_and_nothing_of_the_machine(bc_export: Path) -> None:
    import onnx

    model = onnx.load(bc_export / "policy.onnx")
    stored = {entry.key: entry.value for entry in model.metadata_props}
    inside, outside = json.loads(stored["contract"]), read_contract(bc_export)
    assert inside["inputs"] == outside["inputs"]
    assert inside["outputs"] == outside["outputs"]
    assert inside["parity"] == outside["parity"]
    assert outside["inputs"][0]["low"] == [-1.0, -1.0, -8.0]
    assert outside["normalization"]["active"] is True
    for path in bc_export.iterdir():
        assert b"site-packages" not in path.read_bytes(), path.name
        assert str(Path.home()).encode() not in path.read_bytes(), path.name


def test_further_outputs_half_weights_and_a_program(tmp_path: Path) -> None:
    agent = agent_of("iql", "box")
    folder = tmp_path / "iql"
    export(agent, folder, further=("value", "q", "density"), program=True)
    policy, algorithm = load_policy(folder), agent.algorithm
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    found = policy.run({"observation": obs})
    with torch.no_grad():
        seen = algorithm.normalizer(torch.from_numpy(obs))
        inner = algorithm.policy.mode(seen)
        networks: dict[str, Any] = algorithm.other_networks()
        expected = {
            "value": networks["value"](seen),
            "q": networks["critics"](seen, inner).amin(0),
            "density_mean": algorithm.policy(seen)[0],
            "density_log_std": algorithm.policy(seen)[1],
        }
    assert set(found) == {"action", *expected}
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values.numpy(), rtol=1e-4, atol=1e-5)
    program = torch.export.load(folder / "policy.pt2").module()
    with torch.no_grad():
        action = program(torch.from_numpy(obs))[0].numpy()
    np.testing.assert_allclose(action, found["action"], atol=1e-5)

    wide = ManagedAlgorithm(small_config("bc", "box", algo_kwargs={"hidden_sizes": [64, 64]}))
    wide.algorithm.update_count += 1
    whole, half = (
        export(wide, tmp_path / weights, weights=weights) for weights in ("float32", "float16")
    )
    sizes = [(result.folder / "policy.onnx").stat().st_size for result in (whole, half)]
    assert sizes[1] < 0.75 * sizes[0]
    assert whole.parity.largest_error < half.parity.largest_error < 1e-2

    greedy = agent_of("dqn")
    folder = export(greedy, tmp_path / "dqn", further=("q",)).folder
    obs = np.zeros((2, 4), np.float32)
    found = load_policy(folder).run({"observation": obs})
    assert found["q"].argmax(-1).tolist() == found["action"].tolist()


def test_an_export_that_acts_otherwise_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = agent_of("bc", "box")
    exact = PolicyGraph.in_env_units
    monkeypatch.setattr(PolicyGraph, "in_env_units", lambda self, x: exact(self, x) + 1e-4)
    with pytest.raises(ExportError, match=r"does not act as the agent: .* nothing was written"):
        export(agent, tmp_path / "policy")
    assert not list(tmp_path.iterdir())


def test_ties_are_no_difference_and_differences_are_no_ties(tmp_path: Path) -> None:
    agent = agent_of("dqn")
    network: Any = agent.algorithm.policy
    last = network.head.actions.layers[-1]
    with torch.no_grad():  # both actions are worth the same
        last.weight[1] = last.weight[0]
        last.bias[1] = last.bias[0]
    export(agent, tmp_path / "policy")
    graph, policy = PolicyGraph(agent.algorithm, draws=False), load_policy(tmp_path / "policy")
    sources = {"random": np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)}

    def last_of_the_best(obs: Any, state: Any) -> tuple[Any, Any]:
        with torch.no_grad():
            q = network.q_values(agent.algorithm.normalizer(torch.from_numpy(obs)))
        return 1 - q.flip(-1).argmax(-1).numpy(), state

    found = parity.check(graph, last_of_the_best, policy, sources, half=False)
    assert found.ties > 0
    with torch.no_grad():
        last.bias[0] += 1e-3
    with pytest.raises(ExportError, match="does not act as the agent"):
        parity.check(
            graph, lambda obs, _: (np.ones(len(obs), np.int64), None), policy, sources, False
        )


def test_a_state_that_is_not_the_agents_is_refused_also_where_actions_agree(
    dreamer_export: Path,
) -> None:
    cell = np.array([[20.0, 0.5], [0.1, 0.2]], np.float32)
    for error, rounding, far in ((2e-5, 0.0, [False, True]), (2e-5, 1e-4, [False, False])):
        assert parity.strayed(cell, cell + error, 1e-5, rounding).tolist() == far
    assert parity.strayed(cell, cell * np.nan, 1e-5).all()

    agent, policy = agent_of("dreamer"), load_policy(dreamer_export)
    graph = PolicyGraph(agent.algorithm, draws=False)
    width = agent.algorithm.spaces.obs_dim
    sources = {"random": np.random.default_rng(0).normal(size=(64, width)).astype(np.float32)}
    parity.check(graph, agent.predict, policy, sources, half=False)
    name, policy_class = policy.states[0]["name"], type(policy)

    class Slipping(policy_class):  # type: ignore[misc, valid-type]
        slip = 1.0

        def next_state(self, found: Any) -> Any:
            exact = super().next_state(found)
            return {**exact, name: exact[name] * np.float32(self.slip)}

    policy = Slipping(dreamer_export)
    for slip in (1.0001, 1.1):
        policy.slip = slip
        with pytest.raises(ExportError, match=f"'next_{name}' is not the agent's state"):
            parity.check(graph, agent.predict, policy, sources, half=False)


def test_what_cannot_be_exported_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, agent = tmp_path / "policy", agent_of("bc", "box")
    untrained = ManagedAlgorithm(small_config("bc", "box"))
    broken = agent_of("bc", "box")
    with torch.no_grad():
        next(iter(broken.algorithm.policy.parameters())).fill_(float("nan"))
    (tmp_path / "notes").mkdir()
    cases: list[tuple[type[Exception], str, ManagedAlgorithm, Path, dict[str, Any]]] = [
        (ExportError, "has not been trained", untrained, folder, {}),
        (ExportError, "is NaN or infinite", broken, folder, {}),
        (ConfigError, "--out: .* exists already", agent, tmp_path / "notes", {"overwrite": True}),
        (ConfigError, "unknown output 'valu'.*did you mean", agent, folder, {"further": ["valu"]}),
        (ConfigError, "BC has no 'q' to export", agent, folder, {"further": ["q"]}),
        (ConfigError, "expected float32 or float16", agent, folder, {"weights": "int8"}),
        (ConfigError, "needs its intended use", agent, folder, {"strict": True}),
        (ConfigError, "nothing to sample", agent_of("dqn"), folder, {"stochastic": True}),
    ]
    for kind, message, culprit, where, options in cases:
        with pytest.raises(kind, match=message) as refusal:
            export(culprit, where, **options)
        assert "\n" not in str(refusal.value)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match="pip install"):
        export(agent, folder)


def test_an_exported_recurrent_policy_is_used_like_the_agent(dreamer_export: Path) -> None:
    agent, policy = agent_of("dreamer"), ExportedPolicy(dreamer_export)
    obs = (
        np.random.default_rng(1)
        .normal(size=(6, 3, *policy.policy.seen[0].shape))
        .astype(np.float32)
    )
    mine: Any = None
    theirs: Any = None
    for step, seen in enumerate(obs):
        first = np.array([step == 0, step == 2, False])
        expected, mine = agent.predict(seen, mine, episode_start=first)
        found, theirs = policy.predict(seen, theirs, episode_start=first)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ConfigError, match="for 2 observations"):
        policy.predict(obs[0][:2], theirs)
    with pytest.raises(ConfigError, match="exported without --stochastic"):
        policy.predict(obs[0], deterministic=False)
