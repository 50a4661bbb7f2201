"""The command line: thin, every command a call into the package.

Heavy imports happen inside the commands, so that `--help` and `list` answer at once.
"""

from rl_training.cli.main import app, main

__all__ = ["app", "main"]
