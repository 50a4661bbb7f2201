"""Where the time goes, without changing what happens."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from rl_training import ManagedAlgorithm
from rl_training.runtime import trainer
from rl_training.runtime.profile import Part, Profile

from ..contract.small_runs import small_config
from ..contract.test_updates import assert_same_state


class Nested:
    def outer(self) -> str:
        time.sleep(0.02)
        self.inner()
        return "done"

    def inner(self) -> None:
        time.sleep(0.05)


def test_a_part_does_not_count_what_runs_inside_it() -> None:
    nested, profile, began = Nested(), Profile(torch.device("cpu")), time.perf_counter()
    profile.watch([Part(nested, "outer", "outer"), Part(nested, "inner", "inner")])
    assert nested.outer() == "done"
    elapsed = time.perf_counter() - began
    outer, inner = profile.seconds["outer"], profile.seconds["inner"]
    assert outer > 0.015
    assert inner > 0.045
    assert outer + inner <= elapsed, "an inner call counts once"
    assert profile.calls == {"outer": 1, "inner": 1}
    text = profile.lines(0.25)
    largest = "inner" if inner > outer else "outer"
    assert text[1].split()[0] == largest, "the largest first"
    more = float(text[-1].split()[-3].replace(",", ""))
    assert more == pytest.approx(3 * profile.total, abs=1.0)
    assert "more" not in profile.lines(1.0)[-1]


@pytest.mark.parametrize(
    ("algo", "parts"),
    [
        ("bc", {"update"}),
        ("dqn", {"update", "environment", "policy", "buffer"}),
        ("ppo", {"update", "environment", "policy", "buffer"}),
    ],
)
def test_a_run_says_where_its_time_went(
    algo: str,
    parts: set[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainer, "PROFILE_AFTER_S", 0.0)
    config = small_config(algo, output_dir=str(tmp_path), log_interval=8)
    plain = ManagedAlgorithm(config)
    plain.learn(progress=False)
    agent = ManagedAlgorithm(config.replace(profile=True))
    result = agent.learn()
    said = capsys.readouterr().err
    assert said.count("where the time goes:") == 2
    assert said.count("at this rate the run takes") == 1
    stored = json.loads((result.run_dir / "result.json").read_text())["profile"]
    assert set(stored) == parts | {"evaluation", "checkpoints", "logging"}
    assert all(stored[name] > 0.0 for name in parts if name != "buffer")
    assert sum(stored.values()) <= result.wall_seconds + 0.1
    states = (a.algorithm.training_state() for a in (plain, agent))
    assert_same_state(*states)
