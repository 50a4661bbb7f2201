"""The moderate form of the fuzzing: a few attempts of each kind, the same ones every time."""

from __future__ import annotations

import importlib

import pytest

from tests.fuzz.__main__ import KINDS
from tests.fuzz.runner import fuzz

SHORT = {kind: importlib.import_module(f"tests.fuzz.{kind}").SHORT for kind in KINDS}


@pytest.mark.parametrize(("kind", "count"), [pair for pair in SHORT.items() if pair[1]])
def test_everything_is_refused_in_a_sentence_or_right(kind: str, count: int) -> None:
    report = fuzz(kind, list(range(count)), seed=0)
    assert not report.problems, "\n".join(report.problems)
    assert len(report.verdicts) == count
