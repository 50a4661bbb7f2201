"""What belongs to an algorithm is there: config, test, page, managed class, exports."""

from __future__ import annotations

import ast
import math
import pickle
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import rl_training
from rl_training import algorithms
from rl_training.algorithms.params import Params
from rl_training.api.algorithms import managed_class
from rl_training.envs.spaces import Spaces
from rl_training.experiment import registry
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.config_files import packaged_config_names
from rl_training.experiment.errors import ConfigError, EnvironmentSetupError

from ..each import each
from .small_runs import LOOP_KNOBS, known_knobs

ROOT = Path(__file__).resolve().parents[2]


@each("name", registry.algorithm_names())
def test_an_algorithm_comes_with_everything(name: str) -> None:
    cls = registry.algorithm_class(name)
    short = cls.name()
    missing = [
        what
        for what, there in {
            f"assets/configs/{name}/<env>.yaml": any(
                config.startswith(f"{name}/") for config in packaged_config_names()
            ),
            f"tests/algorithms/test_{name}.py": (
                ROOT / "tests" / "algorithms" / f"test_{name}.py"
            ).is_file(),
            f"docs/algorithms/{name}.md": (ROOT / "docs" / "algorithms" / f"{name}.md").is_file(),
            f"rl_training.{short}": getattr(rl_training, short) is managed_class(name),
            f"rl_training.algorithms.{short}": getattr(algorithms, short, None) is cls,
            f"rl_training.algorithms.{short}Algorithm": (
                getattr(algorithms, f"{short}Algorithm", None) is cls
            ),
            "a line in the README": f"docs/algorithms/{name}.md"
            in (ROOT / "README.md").read_text(),
            "a summary": bool(cls.summary),
            "a paper": bool(cls.paper),
        }.items()
        if not there
    ]
    assert not missing, f"{name} lacks: {'; '.join(missing)}"


@each("name", packaged_config_names())
def test_packaged_configs_are_valid_and_hold_only_differences(name: str) -> None:
    from rl_training.experiment.config import read_config_values

    config = load_config(name)
    folder = name.split("/")[0]
    assert {"rainbow": "c51"}.get(folder, folder) == config.algo
    values = read_config_values(name)
    repeated = [
        key
        for key, value in values.items()
        if key in TrainConfig.model_fields and value == TrainConfig.model_fields[key].default
    ]
    fields = type(config.params).model_fields
    repeated += [k for k, v in values.get("algo_kwargs", {}).items() if v == fields[k].default]
    assert not repeated, f"{name} repeats defaults: {repeated}"


def test_the_configs_link_is_the_packaged_folder() -> None:
    assert (ROOT / "configs").resolve() == ROOT / "src" / "rl_training" / "assets" / "configs"


def test_a_name_is_written_once_outside_its_own_files() -> None:
    """Tables, exports and managed classes come from one line; messages list what is registered."""
    source = ROOT / "src" / "rl_training"
    own = {source / "algorithms" / f"{name}.py" for name in algorithms.BUILT_IN}
    own |= set((source / "ope").glob("*.py"))  # is built on two of them, and names an estimator so
    lower = ("experiment", "models", "envs", "data", "replay", "execution.py")
    mentions: dict[str, list[str]] = {name: [] for name in algorithms.BUILT_IN}
    for file in set(source.rglob("*.py")) - own:
        tree = ast.parse(file.read_text())
        below = file.relative_to(source).parts[0] in lower
        nodes = list(ast.walk(tree))
        prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        texts = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in prose]
        names = [getattr(node, "id", getattr(node, "attr", None)) for node in nodes]
        for name, public in algorithms.BUILT_IN.items():
            word = re.compile(rf"\b({name}|{public})\b")
            found = names.count(public) + sum(
                isinstance(node.value, str)
                and (node.value == name or bool(below and word.search(node.value)))
                for node in texts
            )
            mentions[name] += [str(file.relative_to(source))] * found
    assert mentions == {name: ["algorithms/__init__.py"] for name in algorithms.BUILT_IN}


def test_third_parties_can_register(
    own_names: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    registry.register("bc_twin", "rl_training.algorithms.bc:BCAlgorithm")
    assert registry.algorithm_class("bc_twin").name() == "BC"
    registry.register("bc_twin", algorithms.BCAlgorithm)
    assert managed_class("bc_twin").__name__ == "BcTwin"
    assert pickle.loads(pickle.dumps(managed_class("bc_twin"))) is managed_class("bc_twin")

    class Local(algorithms.BCAlgorithm):
        pass

    refusals: dict[tuple[str, Any], str] = {
        ("bc_twin", "other:Thing"): "already registered as rl_training.algorithms.bc",
        ("x", "nonsense"): r"must have the form 'package\.module:Class'",
        ("x", 5): r"must have the form 'package\.module:Class'",
        ("My Algorithm", "a:B"): "the name 'My Algorithm' must be a word of lower-case letters",
        (3, "a:B"): "the name 3 must be a word",
        ("x", Local): "so that other processes find the class",
    }
    for (name, target), words in refusals.items():
        with pytest.raises(ConfigError, match=words):
            registry.register(name, target)
    module = types.ModuleType("half_written")
    module.NoPaper = type("NoPaper", (algorithms.Algorithm,), {"Params": Params, "loop": "offline"})
    said = {"Params": dict, "loop": "offline", "paper": "none", "summary": "none"}
    module.NoParams = type("NoParams", (algorithms.Algorithm,), said)
    own = type("OwnParams", (Params,), {"__annotations__": {"seed": int}, "seed": 3})
    module.Clash = type("Clash", (algorithms.Algorithm,), {**said, "Params": own})
    monkeypatch.setitem(sys.modules, "half_written", module)
    (tmp_path / "unwritten.py").write_text("def :")
    monkeypatch.syspath_prepend(tmp_path)
    broken = {
        "unwritten:Thing": r"cannot be imported \(SyntaxError: .*install or repair",
        "no_such_package:Thing": "cannot be imported .*install or repair",
        "rl_training.algorithms.bc:Missing": "cannot be imported .*Missing",
        "rl_training.algorithms.bc:bc_loss": "is not an algorithm; expected a subclass",
    }
    for number, (target, words) in enumerate(broken.items()):
        registry.register(f"broken_{number}", target)
        with pytest.raises(ConfigError, match=f"^algo: 'broken_{number}' is registered .*{words}"):
            registry.algorithm_class(f"broken_{number}")
    for name, lacking in {"NoPaper": "paper", "NoParams": "Params"}.items():
        registry.register(name.lower(), f"half_written:{name}")
        with pytest.raises(
            ConfigError, match=f"^algo: half_written:{name} has no '{lacking}'; decl"
        ):
            registry.algorithm_class(name.lower())
    registry.register("clash", "half_written:Clash")
    with pytest.raises(ConfigError, match=r"^algo: the knob 'seed' of clash has the name of a key"):
        TrainConfig(algo="clash", env_id="Pendulum-v1")
    assert "bc_twin" in registry.working_algorithms()
    assert "broken_0" not in registry.working_algorithms()


def test_unknown_algorithm_is_named_with_a_guess() -> None:
    with pytest.raises(ConfigError, match="did you mean 'awr'"):
        registry.algorithm_class("awrr")


def _images(*shape: int) -> dict[str, Any]:
    return {"obs_dim": math.prod(shape), "image_shape": shape}


BOX: dict[str, Any] = {
    "action_kind": "box",
    "action_dim": 2,
    "action_low": (-1.0, -1.0),
    "action_high": (1.0, 1.0),
}
DISCRETE: dict[str, Any] = {"action_kind": "discrete", "action_dim": 3}
PARTS: dict[str, Any] = {
    "action_kind": "multi_discrete",
    "action_dim": 2,
    "action_choices": (3, 2),
    "action_starts": (0, 0),
}
OBSERVED: dict[str, dict[str, Any]] = {
    "vectors": {"obs_dim": 5},
    "Atari": _images(4, 84, 84) | {"frame_stack": 4},
    "colours": _images(64, 64, 3),
    "stacked colours": _images(4, 64, 64, 3) | {"frame_stack": 4},
    "odd images": _images(50, 50),
}
KINDS = {"Box": BOX, "Discrete": DISCRETE, "MultiDiscrete": PARTS}
SPACES = {f"{o}, {k}": Spaces(**OBSERVED[o], **KINDS[k]) for o in OBSERVED for k in KINDS}
SPACES["masked vectors"] = Spaces(obs_dim=8, has_mask=True, **DISCRETE)


def learns_from(algo: str) -> set[str]:
    """Data, an environment, or both: what a reader of advice has at hand."""
    of_loops = {
        "offline": "data",
        "model_based_offline": "data",
        "offline_to_online": "data and environment",
        "imitation": "data and environment",
    }
    return {of_loops.get(loop, "environment") for loop in registry.algorithm_class(algo).loops()}


@each("name", SPACES)
def test_exactly_the_algorithms_that_take_a_task_are_recommended_for_it(name: str) -> None:
    spaces, taken, advice = SPACES[name], [], {}
    for algo in registry.algorithm_names():
        cls = registry.algorithm_class(algo)
        knobs = {"hidden_sizes": [8], **LOOP_KNOBS[cls.loop]}
        try:
            cls(spaces, cls.Params(**known_knobs(algo, knobs)), False)
            taken.append(algo)
        except EnvironmentSetupError as error:
            found = re.search(
                r"(?:choose (?:one of )?|for images \()([a-z0-9_, ]+?)(?:, or |\)|$)", str(error)
            )
            if found:
                advice[algo] = found[1].split(", ")
    assert taken
    for algo, names in advice.items():
        given = learns_from(algo)
        able = [a for a in taken if any(need in has for need in learns_from(a) for has in given)]
        assert names == (able or taken), algo
    assert advice or len(taken) == len(registry.algorithm_names())
