"""The public surface: what is exported is importable, documented and typed."""

from __future__ import annotations

import ast
import inspect
import pydoc
from pathlib import Path

import pytest

import rl_training
from rl_training import algorithms, api, extend, models
from rl_training.api.algorithms import managed_class
from rl_training.api.stubs import FILE, stubs
from rl_training.experiment.registry import algorithm_class, algorithm_names

SHORT_NAMES = [algorithm_class(name).name() for name in algorithm_names()]
PROMISED = {
    rl_training: (
        *SHORT_NAMES,
        *("ManagedAlgorithm", "TrainConfig", "load", "learn_seeds", "resume_seeds", "register"),
        *("ExportedPolicy", "evaluate_runs"),
        *("Callback", "EvalResult", "TrainResult", "SeedsResult", "RLTrainingError"),
        *("TransitionDataset", "load_transition_dataset"),
    ),
    api: (*SHORT_NAMES, "ManagedAlgorithm", "load", "learn_seeds", "resume_seeds"),
    algorithms: (
        *SHORT_NAMES,
        *(f"{name}Algorithm" for name in SHORT_NAMES),
        *("Algorithm", "Params", "Act"),
        *("awr_loss", "marwil_loss", "crr_loss", "iql_loss", "awac_loss", "cql_loss", "bc_loss"),
        *("dqn_loss", "quantile_huber_loss", "fqf_fraction_loss", "ppo_loss", "dynamics_loss"),
        *("gail_discriminator_loss", "gail_reward", "mopo_reward", "lambda_return", "kl_balance"),
    ),
    models: (
        *("MLPIQLModel", "MLPSACModel", "MLPMOPOEnsembleModel", "MLPFQFNetwork"),
        "MLPGAILDiscriminator",
    ),
}
"""Names that may not disappear: users and the pages of the documentation import them."""


def test_every_promised_name_is_exported() -> None:
    for module, names in PROMISED.items():
        missing = set(names) - set(module.__all__)
        assert not missing, f"{module.__name__} lacks {sorted(missing)}"


def test_everything_exported_is_importable_and_documented() -> None:
    for module in PROMISED:
        for name in module.__all__:
            thing = getattr(module, name)
            documented = thing.__doc__ or not isinstance(thing, type)  # an alias has none
            assert name == "__version__" or documented, f"{module.__name__}.{name}"


def test_both_namespaces_hold_the_same_managed_classes() -> None:
    for name in api.__all__:
        assert getattr(api, name) is getattr(rl_training, name), name


def test_unknown_names_are_attribute_errors() -> None:
    for module in (rl_training, algorithms):
        assert not hasattr(module, "NoSuchAlgorithm")
        assert dir(module)


def test_the_editor_sees_what_is_exported() -> None:
    """The TYPE_CHECKING imports, the stubs of the classes and the lazy table say the same."""
    tree = ast.parse(inspect.getsource(rl_training))
    imported = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rl_training.")
        for alias in node.names
    } - {None}
    classes = {
        node.name for node in ast.parse(FILE.read_text()).body if isinstance(node, ast.ClassDef)
    }
    assert imported | classes - {"RunKeys"} == set(rl_training.__all__) - {"__version__"}


def test_the_stubs_are_up_to_date() -> None:
    assert FILE.read_text(encoding="utf-8") == stubs(), "write them anew with: make generated"


USE = """
from rl_training.api.algorithms import AWR, GAIL, SAC

SAC("Pendulum-v1", tau=0.01, hidden_sizes=[64], seed=3, device="cpu", total_timesteps=100)
AWR("Pendulum-v1", dataset="pendulum-mixed", temperature=1, max_weight=3.0)
GAIL("CartPole-v1", generator="ppo", ppo={"epochs": 3})
SAC("Pendulum-v1", tau="fast")  # E: tau
SAC("Pendulum-v1", temperatur=0.5)  # E: temperatur
AWR("Pendulum-v1", tau=0.01)  # E: tau
GAIL("CartPole-v1", generator="dqn")  # E: generator
SAC("Pendulum-v1", seed="first")  # E: seed
"""


def test_type_checkers_check_the_knobs(tmp_path: Path) -> None:
    """With the stubs alone: what they import is left out, which would take a minute to check."""
    checker = pytest.importorskip("mypy.api")
    file = tmp_path / "use.py"
    file.write_text(USE)
    options = ["--follow-imports=skip", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    out, problems, _ = checker.run([*options, str(FILE), str(file)])
    assert not problems
    found = {int(line.split(":")[1]): line for line in out.splitlines() if "error:" in line}
    lines = USE.splitlines()
    expected = {i: text.split("# E: ")[1] for i, text in enumerate(lines, 1) if "# E: " in text}
    assert found.keys() == expected.keys(), out
    for i, name in expected.items():
        assert f'"{name}"' in found[i], found[i]


def test_help_lists_the_knobs_and_repr_says_what_an_agent_is() -> None:
    for algo in algorithm_names():
        cls = managed_class(algo)
        text = pydoc.plain(pydoc.render_doc(cls))
        signature = inspect.signature(cls).parameters
        for name, field in algorithm_class(algo).Params.model_fields.items():
            assert f"{name} = " in text, (algo, name)
            assert field.description in text, (algo, name)
            assert signature[name].default == field.default
        for unreadable in ("Annotated", "FieldInfo", "BeforeValidator", " at 0x"):
            assert unreadable not in str(inspect.signature(cls)), (algo, unreadable)
    shown = str(inspect.signature(rl_training.SAC))
    assert "hidden_sizes: tuple[int, ...] = (256, 256), grad_clip: float | None = None" in shown
    agent = rl_training.SAC("Pendulum-v1", seed=4, hidden_sizes=[4], tau=0.1, device="cpu")
    expected = "<SAC('Pendulum-v1', seed=4, hidden_sizes=[4], tau=0.1) after 0 updates on cpu>"
    assert repr(agent) == expected


def test_the_surface_for_authors() -> None:
    assert set(extend.__all__) >= {"Algorithm", "Params", "Batch", "Spaces", "Loss", "Metrics"}
    for name in extend.__all__:
        assert getattr(extend, name) is not None
    public = {name for name in vars(extend) if not name.startswith("_")} - {"annotations"}
    assert public == set(extend.__all__)
