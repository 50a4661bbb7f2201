"""Imports point down, and importing the package is cheap."""

from __future__ import annotations

import ast
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
    "export",
    "serve",
    "api",
    "cli",
]


def test_imports_point_down() -> None:
    rank = {name: i for i, name in enumerate(ORDER)}
    wrong = []
    for file in ROOT.rglob("*.py"):
        here = file.relative_to(ROOT).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                if not name.startswith("rl_training."):
                    continue
                there = name.split(".")[1]
                if here in rank and rank[there] > rank[here]:
                    wrong.append(f"{file.name}: {here} imports {there}")
    assert not wrong, "\n".join(wrong)


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
        "import sys, rl_training, rl_training.cli\n"
        "heavy = {'torch', 'gymnasium', 'numpy', 'tensorboard'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
