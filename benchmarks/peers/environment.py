"""The environment of the libraries we compare with, made on first use.

d3rlpy pins an older Gymnasium than this package needs, so the two cannot share one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.process import ROOT

D3RLPY_VERSION = "2.8.1"
SB3_VERSION = "2.9.2"
"""Of stable-baselines3 and of sb3-contrib, which are released together."""
REQUIREMENTS = (
    "torch",
    f"d3rlpy=={D3RLPY_VERSION}",
    f"stable-baselines3=={SB3_VERSION}",
    f"sb3-contrib=={SB3_VERSION}",
)
FOLDER = ROOT / ".venv-peers"
_STAMP = FOLDER / ".installed"


class PeerEnvironmentError(RuntimeError):
    """The environment could not be made; the message ends with pip's last lines."""


def peer_python() -> Path:
    """Python of the peers' environment, which `ensure_peers` makes."""
    return FOLDER / "bin" / "python"


def ensure_peers(say: Callable[[str], None]) -> Path:
    """Make or complete the environment where it is not as required; its Python."""
    wanted = " ".join(REQUIREMENTS)
    if _STAMP.is_file() and _STAMP.read_text(encoding="utf-8").strip() == wanted:
        return peer_python()
    say(f"making {FOLDER.name} with {wanted} (once, a few minutes)")
    _run([sys.executable, "-m", "venv", str(FOLDER)])
    pip = [str(peer_python()), "-m", "pip", "install", "--quiet"]
    # The constraints keep PyTorch at the version, and so the build, that we run ourselves.
    _run([*pip, "-c", str(ROOT / "constraints.txt"), *REQUIREMENTS])
    _STAMP.write_text(wanted + "\n", encoding="utf-8")
    return peer_python()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise PeerEnvironmentError(f"'{' '.join(command[1:4])} …' failed:\n{tail}")
