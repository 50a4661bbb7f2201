"""Imports point down, and importing the package is cheap."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "src" / "rl_training"
ORDER = [
    "experiment",
    "execution",
    "models",
    "envs",
    "data",
    "replay",
    "algorithms",
    "runtime",
    "ope",
    "reports",
    "export",
    "serve",
    "api",
    "search",
    "cli",
    "extend",
]


RANK = {name: i for i, name in enumerate(ORDER)}


def named_by(node: ast.AST) -> list[str]:
    """Modules that a statement imports, or that a string names as an import would."""
    if isinstance(node, ast.ImportFrom) and node.level > 1:  # to another folder of the package
        return [f"rl_training.{node.module or alias.name}" for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        below = [f"{node.module}.{alias.name}" for alias in node.names]
        return below if node.module == "rl_training" else [node.module]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        # of importlib.import_module and __import__, and the targets "package.module:name"
        return re.findall(r"^rl_training\.[\w.]+(?=$|:)", node.value)
    if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        start = str(node.values[0].value)  # what follows is not known, but its layer may be
        return re.findall(r"^rl_training\.\w+(?=\.)", start)
    return []


def upward(source: str, here: str) -> list[str]:
    """Layers above `here` that a file of it names."""
    parts = [name.split(".")[1] for node in ast.walk(ast.parse(source)) for name in named_by(node)
             if name.startswith("rl_training.")]  # fmt: skip
    return [there for there in parts if there in RANK and RANK[there] > RANK[here]]


def test_imports_point_down() -> None:
    wrong = []
    for file in ROOT.rglob("*.py"):
        here = file.relative_to(ROOT).parts[0].removesuffix(".py")
        found = upward(file.read_text(), here) if here in RANK else []
        if file.name == "registry.py":  # the group of entry points has the name of a layer
            found.remove("algorithms")
        wrong += [f"{file.name}: {here} imports {there}" for there in found]
    assert not wrong, "\n".join(wrong)


def test_tunnels_are_seen() -> None:
    for line in (
        "importlib.import_module('rl_training.envs')",
        "__import__('rl_training.envs.make')",
        "TARGET = 'rl_training.algorithms.bc:BCAlgorithm'",
        "from rl_training import envs",
        "def f():\n    import rl_training.envs.make",
        "from ..envs import make",
        "from .. import envs",
        "importlib.import_module(f'rl_training.envs.{name}')",
    ):
        assert upward(line, "experiment"), line
    assert not upward("from rl_training.experiment import errors", "experiment")


def test_the_lowest_layer_runs_without_those_above() -> None:
    """Which algorithms there are is entered from outside: the layer itself holds none."""
    code = (
        "import pkgutil, sys, types\n"
        "package = types.ModuleType('rl_training')\n"
        f"package.__path__ = [{str(ROOT)!r}]\n"
        "sys.modules['rl_training'] = package  # without its __init__, which enters them\n"
        "import rl_training.experiment as layer\n"
        "for module in pkgutil.iter_modules(layer.__path__, 'rl_training.experiment.'):\n"
        "    __import__(module.name)\n"
        "from rl_training.experiment.config import load_config\n"
        "from rl_training.experiment.registry import ConfigError\n"
        "try:\n"
        "    load_config('sac')\n"
        "except ConfigError as error:\n"
        "    assert 'unknown algorithm' in str(error), error\n"
        "else:\n"
        "    raise SystemExit('it found an algorithm')\n"
        "print(*{m.split('.')[1] for m in sys.modules if m.startswith('rl_training.')})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["experiment"]


def test_a_loop_knows_no_controls_and_the_trainer_no_data() -> None:
    words = {
        "runtime/loops/offline.py": ("evaluat", "checkpoint_interval", "metrics.jsonl", "lr_"),
        "runtime/trainer.py": ("replay", "rollout", "TransitionTable"),
    }
    for name, forbidden in words.items():
        tree = ast.parse((ROOT / name).read_text())
        names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        names |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        for word in forbidden:
            assert not [n for n in names if word in n], f"{name} mentions {word}"


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, rl_training\n"
        "assert not {'pydantic', 'yaml', 'rich', 'typer'} & set(sys.modules)\n"
        "import rl_training.cli\n"
        "heavy = {'torch', 'gymnasium', 'numpy', 'tensorboard'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_architecture_page_is_the_truth() -> None:
    """Its table has the layers in their order, and every file that it names exists."""
    page = (ROOT.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.split("## Layers")[1].split("##")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == ORDER
    named = re.findall(rf"\b(?:{'|'.join(ORDER)})/[\w/]*(?:\.py)?", page)
    assert len(named) > 30
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing, missing


def test_the_reading_list_of_a_step_is_what_it_runs() -> None:
    from rl_training import TrainConfig
    from rl_training.envs.make import env_spaces
    from rl_training.runtime.build import build_algorithm, build_loop

    page = (ROOT.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split("## Reading one step of SAC")[1].split("##")[0]
    listed = set(re.findall(r"`([\w/]+\.py)`", section))
    assert len(listed) == 12
    knobs = {"hidden_sizes": [4], "learning_starts": 3, "batch_size": 2, "buffer_capacity": 9}
    config = TrainConfig(
        algo="sac",
        env_id="Pendulum-v1",
        total_timesteps=9,
        device="cpu",
        engine="eager",
        algo_kwargs=knobs,
    )
    loop = build_loop(config, build_algorithm(config, env_spaces("Pendulum-v1", None)))
    loop.advance(5)
    ran: set[str] = set()
    sys.setprofile(lambda frame, event, argument: ran.add(frame.f_code.co_filename))
    loop.advance(1)
    sys.setprofile(None)
    loop.close()
    ours = {str(Path(name).relative_to(ROOT)) for name in ran if name.startswith(str(ROOT))}
    assert listed <= ours, listed - ours
