"""Every misbehaving environment, in the forms that stay in this process; some in workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

from tests.fuzz.environments import ENV_ID, KINDS, register, verdict


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register()
    yield
    del gym.registry[ENV_ID]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["sync", "evaluate", "collect"])
def test_every_kind_is_refused_in_one_sentence_or_lived_with(form: str, tmp_path: Path) -> None:
    met = [kind for kind in KINDS if form in kind.forms]
    assert len(met) >= 60
    found = {kind.name: verdict(kind, form, tmp_path / str(i)) for i, kind in enumerate(met)}
    wrong = {name: what for name, what in found.items() if what}
    assert not wrong, json.dumps(wrong, indent=1)


@pytest.mark.filterwarnings("ignore")
def test_workers_say_what_this_process_says(tmp_path: Path) -> None:
    """Some of each group: the rest is met by the command."""
    names = (
        "observation dict",
        "terminated 'False'",
        "old reset",
        "sys.exit in step",
        "exits in step",
        "segfaults",
        "raises what no one catches",
        "raises in close",
    )
    found = {k.name: verdict(k, "async", tmp_path / k.name) for k in KINDS if k.name in names}
    assert len(found) == len(names)
    wrong = {name: what for name, what in found.items() if what}
    assert not wrong, json.dumps(wrong, indent=1)
