"""The long form; see the package's docstring."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
import tempfile
from collections.abc import Sequence

import tests.fuzz
from tests.fuzz.runner import fuzz

MODULES = [name for _, name, _ in pkgutil.iter_modules(tests.fuzz.__path__)]
OWN = ("runner", "__main__", "test_")
KINDS = [name for name in MODULES if not name.startswith(OWN)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=tests.fuzz.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"{', '.join(KINDS)}; all")
    parser.add_argument("--count", type=int, help="attempts of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--attempt", type=int, help="only the attempt of this number")
    parser.add_argument("--minutes", type=float, default=1e9, help="for each kind, at most")
    chosen = parser.parse_args(arguments)
    unknown = [kind for kind in chosen.kinds if kind not in KINDS]
    if unknown:
        parser.error(f"unknown kind '{unknown[0]}'; known are {', '.join(KINDS)}")
    failed = False
    with tempfile.TemporaryDirectory(prefix="fuzz-cache-") as cache:
        os.environ.setdefault("RL_TRAINING_CACHE", cache)
        for kind in chosen.kinds or KINDS:
            count = chosen.count or importlib.import_module(f"tests.fuzz.{kind}").LONG
            numbers = list(range(count)) if chosen.attempt is None else [chosen.attempt]
            report = fuzz(kind, numbers, chosen.seed, chosen.minutes)
            for problem in report.problems:
                print(problem)
            if chosen.attempt is not None:
                print(report.verdicts)
            print(report, flush=True)
            failed |= bool(report.problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
