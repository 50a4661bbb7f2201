"""What `make test-versions` would try."""

from __future__ import annotations

import sys

from tests.versions import NEWEST, OWN, Trial, declared, interpreter, planned, usual_torch


def test_the_edges_of_what_is_declared_are_tried() -> None:
    pythons, lowest = declared()
    assert pythons == ["3.11", "3.12", "3.13", "3.14"]
    trials = planned(pythons)
    edge = Trial("3.11", f"{lowest['torch']}.0", f"{lowest['gymnasium']}.0", lowest=True)
    assert edge in trials
    for name in ("numpy", "pydantic", "typer"):
        assert f"{name}=={lowest[name]}.*" in edge.requirements()
    assert Trial("3.14", NEWEST, NEWEST) in trials
    assert {trial.python for trial in trials if trial.torch == usual_torch()} == set(pythons)
    assert Trial("3.11", "2.13.0", NEWEST).requirements() == ["torch==2.13.0", "gymnasium"]
    assert Trial("3.13", OWN, "1.1.0").requirements() == ["gymnasium==1.1.0"]


def test_interpreters_are_asked_for_their_version() -> None:
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert interpreter(own) is not None
    assert interpreter("3.99") is None
