"""An environment that kills a study in the middle of a run, whatever the speed of the machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

ENVIRONMENT = '''
import os, signal, time
from pathlib import Path
from gymnasium.envs.classic_control import PendulumEnv

FUSE = Path(__file__).with_name("fuse")


def kill_node(worker):
    """The parent of a worker of Ray is the raylet, which is the node."""
    status = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()
    raylet = int(status[1])
    assert Path(f"/proc/{raylet}/comm").read_text().strip() == "raylet"
    os.kill(raylet, signal.SIGKILL)


class Deadly(PendulumEnv):
    """Kills the study, and its own process or its Ray node where the fuse says so, at a reset."""

    def reset(self, *, seed=None, options=None):
        if FUSE.exists():
            left, own = FUSE.read_text().split()
            FUSE.write_text(f"{int(left) - 1} {own}")
            if left == "1":
                FUSE.unlink()
                study = os.getppid()
                if own == "node":
                    kill_node(study)
                os.kill(study, signal.SIGKILL)
                while os.getppid() == study:
                    time.sleep(0.01)
                if own in ("both", "node"):
                    os.kill(os.getpid(), signal.SIGKILL)
        return super().reset(seed=seed, options=options)
'''


@pytest.fixture
def light_fuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], str]:
    """Sets the evaluation that kills "study", "both" or "node"; returns the override of env_id."""
    (tmp_path / "deadly.py").write_text(ENVIRONMENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def light(resets: int, what: str) -> str:
        (tmp_path / "fuse").write_text(f"{resets} {what}")
        return "env_id=deadly:Deadly"

    return light
