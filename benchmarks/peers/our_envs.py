"""Environments of this package for a peer's Python, in which the package is not installed.

Run by the peers' Python.
"""

from __future__ import annotations

import importlib.util
import sys

from benchmarks.process import ROOT


def register_fixed_cartpole() -> None:
    """Make `rl_training/FixedCartPole-v0` known; its module needs Gymnasium and NumPy alone."""
    path = ROOT / "src" / "rl_training" / "envs" / "toys" / "fixed_cartpole.py"
    spec = importlib.util.spec_from_file_location("fixed_cartpole", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # by which Gymnasium finds its entry point
    spec.loader.exec_module(module)
    module.register_fixed_cartpole()
