"""An installed package of others: the command line and Python find its algorithm by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULE = '''
from typing import ClassVar

from rl_training.extend import (
    Algorithm, Batch, CloningParams, Loss, Metrics, Policy, Positive, Spaces,
)


class TinyParams(CloningParams):
    lr: Positive = 3e-4
    """Learning rate of the policy."""


class TinyCloneAlgorithm(Algorithm[TinyParams, Batch]):
    """Cloning in a few lines."""

    Params = TinyParams
    loop: ClassVar[str] = "offline"
    paper: ClassVar[str] = "none"
    summary: ClassVar[str] = "cloning from another package"
    losses: ClassVar[tuple[str, ...]] = ("policy_loss",)

    def __init__(self, spaces: Spaces, params: TinyParams, normalize: bool = False) -> None:
        super().__init__(spaces, params, normalize)
        self._policy = self.make_policy(params.action_distribution)
        self.add_optimizer("policy", self._policy.parameters(), params.lr)

    @property
    def policy(self) -> Policy:
        return self._policy

    def update(self, batch: Batch) -> Metrics:
        def loss() -> Loss:
            likelihood = self.policy.log_prob(batch.obs, batch.action)
            return Loss(-likelihood.mean(), {"policy_loss": -likelihood.mean()})

        return self.minimize(loss, "policy")
'''
SCRIPT = """
import contextlib, io, pickle, sys
import rl_training
from rl_training.api.algorithms import TinyClone
from rl_training.cli.main import main

agent = rl_training.load(sys.argv[1])
assert type(agent) is TinyClone, type(agent)
assert pickle.loads(pickle.dumps(agent)).config == agent.config
again = TinyClone.resume(sys.argv[1], total_updates=4, progress=False)
assert again.result.updates == 4, again.result

for words in (["list"], ["train", "half_removed"], ["train", "tiny_clone", "algo_kwargs.rl=1"]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        print("code", end.code or 0, *words)
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """An environment in which the package is installed, as pip leaves it; and a broken one."""
    site = tmp_path / "site"
    packages = {
        "tiny-clone": "tiny_clone = tiny_clone:TinyCloneAlgorithm\nsac = tiny_clone:Other\n",
        "half-removed": "half_removed = no_longer_there:Algorithm\n",
    }
    for name, lines in packages.items():
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[rl_training.algorithms]\n{lines}")
    (site / "tiny_clone.py").write_text(MODULE)
    paths = [str(site), str(ROOT / "src")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "400"}


def test_the_command_line_trains_and_python_loads(
    installed: dict[str, str], tmp_path: Path
) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        return subprocess.run(command, env=installed, cwd=tmp_path, capture_output=True, text=True)

    keys = ["env_id=Pendulum-v1", "dataset.kind=random", "dataset.steps=200", "total_updates=2"]
    keys += ["algo_kwargs.hidden_sizes=[4]", "algo_kwargs.lr=0.01", "tensorboard=false"]
    keys += ["eval_episodes=1", "device=cpu", "output_dir=runs"]
    trained = run("-m", "rl_training", "train", "tiny_clone", *keys, "--quiet")
    assert trained.returncode == 0, trained.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    used = run("-c", SCRIPT, str(folder))
    assert used.returncode == 0, used.stderr
    assert "cloning from another package (none)" in used.stdout
    assert "'half_removed' is registered as 'no_longer_there:Algorithm', which" in used.stdout
    assert "the plugin 'sac' of tiny-clone is left out" in used.stderr
    ends = ["code 0 list", "code 2 train half_removed", "code 2 train tiny_clone algo_kwargs.rl=1"]
    assert [line for line in used.stdout.splitlines() if line.startswith("code ")] == ends
    errors = [line for line in used.stderr.splitlines() if line.startswith("error: ")]
    assert errors[0].startswith("error: algo: 'half_removed' is registered as 'no_longer_there:")
    assert any(line.startswith("error: algo_kwargs.rl: unknown key") for line in errors)
    assert "Traceback" not in used.stderr
