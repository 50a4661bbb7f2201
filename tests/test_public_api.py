"""The public surface: what is exported is importable, documented and typed."""

from __future__ import annotations

import rl_training
from rl_training import algorithms


def test_everything_exported_is_importable_and_documented() -> None:
    for name in rl_training.__all__:
        thing = getattr(rl_training, name)
        assert name == "__version__" or thing.__doc__, name
    for name in algorithms.__all__:
        assert getattr(algorithms, name).__doc__, name


def test_unknown_names_are_attribute_errors() -> None:
    for module in (rl_training, algorithms):
        assert not hasattr(module, "NoSuchAlgorithm")
        assert dir(module)


def test_the_editor_sees_what_is_exported() -> None:
    """The TYPE_CHECKING imports and the lazy table say the same."""
    import ast
    import inspect

    tree = ast.parse(inspect.getsource(rl_training))
    imported = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rl_training.")
        for alias in node.names
    }
    assert imported == set(rl_training.__all__) - {"__version__"}
