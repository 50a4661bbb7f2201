"""The command line: every command is a thin call into the package.

Heavy imports happen inside the commands, so that `--help` and `list` are fast.
"""

from rl_training.cli.main import app, main

__all__ = ["app", "main"]
