"""Every example runs to its end, here with a budget that teaches nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

SHORT: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # options, and what has to be printed
    "demo.py": (
        ("--total-updates", "20"),
        ("behaviour cloning", "AWR", "the scripted expert", "comparison.html"),
    ),
    "fqf_cartpole_reference.py": (
        ("--timesteps", "1500"),
        ("fractions moved", "entropy", "1,500", "best return", "of the largest entropy"),
    ),
    "mbpo_pendulum_reference.py": (
        ("--timesteps", "1050"),
        ("real steps", "calibration", "1,000", "Errors are squared", "Run folder"),
    ),
    "gail_cartpole_reference.py": (
        ("--timesteps", "2048"),
        ("expert in the middle", "left edge", "random", "rl-training train gail/cartpole"),
    ),
    "dreamer_atari_reference.py": (
        ("--game", "catch", "--timesteps", "2540"),
        ("Return of the policy", "steps ahead", "error of the model", "--video"),
    ),
    "own_callback_and_logger.py": (
        ("--timesteps", "1024"),
        ("ppo in", "512 steps  return", "ended: ", "finished", "metrics.csv"),
    ),
    "own_environment_and_algorithm.py": (
        ("--total-updates", "20"),
        ("how much closer", "<BC('Hold-v0', seed=0", "<BestSteps('Hold-v0'", "after 20 updates"),
    ),
    "own_network.py": (
        ("--timesteps", "1050"),
        ("MLP alone: return", "Fourier features: return", "networks: __main__:fourier_networks"),
    ),
    "offline_to_online.py": (
        ("--timesteps", "520", "--total-updates", "20"),
        ("SAC, simulator alone", "RLPD", "rl-training train rlpd/pendulum", "the data"),
    ),
    "collect_then_offline.py": (
        ("--timesteps", "1500", "--episodes", "3", "--total-updates", "20"),
        ("6 episodes", "mixed.npz", "AWR, from the data", "DQN itself", "rl-training eval"),
    ),
}

REGISTERING = {"own_environment_and_algorithm.py"}
"""Examples that register an algorithm; they run in processes of their own. The others run in the
process of the tests, which saves the start of a Python and the import of PyTorch."""


def test_every_example_is_listed_above() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SHORT)


@pytest.mark.parametrize("name", SHORT)
def test_example_runs(
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    run_script: Callable[..., str],
) -> None:
    options, printed = SHORT[name]
    command = [str(EXAMPLES / name), *options, "--seed", "0"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    if name in REGISTERING:
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        shown = done.stdout
    else:
        shown = run_script(*command)
    assert list((tmp_path / "runs").glob("*/result.json"))
    for words in printed:
        assert words in shown
