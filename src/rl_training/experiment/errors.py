"""Errors that users see.

Each message is one sentence that names the offending key or file, what was expected and how to
correct it. The command line prints it and exits with code 2.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence


class RLTrainingError(Exception):
    """Base of every error that a user can correct."""


class RenamedKeyWarning(FutureWarning):
    """A key was given by its name in an earlier version."""


class ConfigError(RLTrainingError):
    """A configuration that cannot be run."""


class DataError(RLTrainingError):
    """A data set that cannot be trained on."""


class EnvironmentSetupError(RLTrainingError):
    """An environment that cannot be built, or whose spaces are not supported."""


class EnvironmentFailure(RLTrainingError):  # noqa: N818  (what it is, to a reader of the log)
    """An environment raised, returned invalid values, or its process died."""


class CheckpointError(RLTrainingError):
    """A checkpoint that is missing, damaged, of another program, or cannot be written."""


class NewerFormatError(CheckpointError):
    """A checkpoint written by a later version of this package."""


class UnfitStateError(CheckpointError):
    """A value of a checkpoint that does not fit its component."""


class ExportError(RLTrainingError):
    """A policy that cannot be exported, or an exported one that cannot be used."""


class RunInUseError(RLTrainingError):
    """A run folder in which another process is training."""


class TrainingDivergedError(RLTrainingError):
    """A loss or a weight became NaN or infinite; the last good checkpoint is kept."""


class MissingExtraError(RLTrainingError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed; "
            f"run: {install_command(extra)}"
        )
        self._given = (package, extra, purpose)

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str, str]]:
        return type(self), self._given  # so that it can be pickled in a worker process


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra, wherever this package came from."""
    from importlib import metadata  # slow to import, and seldom needed

    try:
        declared = metadata.requires("rl-training") or []
    except metadata.PackageNotFoundError:  # run from its sources
        declared = []
    marked = (line.partition(";") for line in declared)
    of_extra = re.compile(rf"""extra\s*==\s*['"]{extra}['"]""")
    wanted = [needed.strip() for needed, _, marker in marked if of_extra.search(marker)]
    return "pip install " + " ".join(f"'{one}'" for one in wanted or [f"rl-training[{extra}]"])


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the closest known word, or an empty string."""
    word, candidates = str(word), sorted(known)
    close = difflib.get_close_matches(word, candidates, n=3, cutoff=0.55)
    close = close or [name for name in candidates if word and name.startswith(word)]
    if not close:
        return ""
    # Of equally similar words the one of most similar length: 'arw' means 'awr', not 'marwil'.
    best = max(close, key=lambda name: (_similarity(name, word), -abs(len(name) - len(word))))
    return f" (did you mean '{best}'?)"


def _similarity(name: str, word: str) -> float:
    return difflib.SequenceMatcher(None, name, word).ratio()


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    *rest, last = words
    return f"{', '.join(rest)} and {last}" if rest else last


def describe_exception(error: BaseException) -> str:
    """Type and first line of an exception, for the middle of a sentence."""
    first = (str(error).strip().splitlines() or [""])[0].rstrip(".;")
    return f"{type(error).__name__}{': ' if first else ''}{first}"


def printable(text: str) -> str:
    """Replace control characters except line ends, so that a terminal may show the text."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
