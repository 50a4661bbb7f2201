"""The environments of the libraries we compare with, each made on first use.

d3rlpy, imitation and mbrl-lib pin older versions of Gymnasium than this package needs, and not the
same ones, so they cannot share an environment with it or with one another.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.process import ROOT

D3RLPY_VERSION = "2.8.1"
SB3_VERSION = "2.9.2"
"""Of stable-baselines3 and of sb3-contrib, which are released together."""
IMITATION_VERSION = "1.0.1"
MBRL_VERSION = "0.2.0"


class PeerEnvironmentError(RuntimeError):
    """An environment could not be made; the message ends with pip's last lines."""


@dataclass(frozen=True)
class PeerEnvironment:
    """A folder with a Python of its own, and what is installed there."""

    folder: str
    requirements: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    """Installed last, against what the others pin."""
    optional: bool = False
    """Whether its jobs are left out where it is missing, instead of failing."""

    @property
    def python(self) -> Path:
        """Exists once `ensure` has run."""
        return ROOT / self.folder / "bin" / "python"

    def ensure(self, say: Callable[[str], None]) -> None:
        """Make or complete the environment where it is not as required."""
        wanted = " ".join((*self.requirements, *self.overrides))
        stamp = ROOT / self.folder / ".installed"
        if stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == wanted:
            return
        say(f"making {self.folder} with {wanted} (once, a few minutes)")
        _run([sys.executable, "-m", "venv", str(ROOT / self.folder)])
        pip = [str(self.python), "-m", "pip", "install", "--quiet"]
        # The constraints keep PyTorch at the version, and so the build, that we run ourselves.
        pip += ["-c", str(ROOT / "constraints.txt")]
        for requirements in filter(None, (self.requirements, self.overrides)):
            _run([*pip, *requirements])
        stamp.write_text(wanted + "\n", encoding="utf-8")


@dataclass(frozen=True)
class ThisEnvironment(PeerEnvironment):
    """The environment that the benchmark runs in, where a peer is installed, too."""

    advice: str = "install the extra 'dev'"
    """What to do where it is not."""

    @property
    def python(self) -> Path:
        return Path(sys.executable)

    def ensure(self, say: Callable[[str], None]) -> None:
        for requirement in self.requirements:
            package = requirement.partition(".")[0]  # whose module find_spec imports
            if find_spec(package) is None or find_spec(requirement) is None:
                raise PeerEnvironmentError(f"{requirement} is not installed here; {self.advice}")


SB3 = ThisEnvironment("", ("stable_baselines3",))
SB3_GAMES = ThisEnvironment(
    "",
    ("stable_baselines3", "cv2"),
    advice="'pip install opencv-python-headless' runs the jobs sb3-* on Atari",
    optional=True,
)
CONTRIB = ThisEnvironment("", ("sb3_contrib",))
# No extra has it: its versions follow JAX, and JAX's the machine's CUDA.
BRAX = ThisEnvironment(
    "",
    ("brax", "mujoco.mjx"),
    advice="pip install brax mujoco-mjx, with a JAX that finds the GPU, runs the jobs brax-*",
    optional=True,
)
SHARED = PeerEnvironment(
    ".venv-peers",
    (
        "torch",
        f"d3rlpy=={D3RLPY_VERSION}",
        f"stable-baselines3=={SB3_VERSION}",
        f"sb3-contrib=={SB3_VERSION}",
        "gymnasium[mujoco]",
    ),
)
# Gymnasium before 1.0 asks NumPy for names that NumPy 2 no longer has.
IMITATION = PeerEnvironment(
    ".venv-peers-imitation", ("torch", "numpy<2", f"imitation=={IMITATION_VERSION}")
)
# The Gymnasium that it pins has no v5 of the walking tasks; GAIL itself runs with newer ones.
IMITATION_HERE = ThisEnvironment(
    "",
    ("imitation", "stable_baselines3"),
    advice=f"install the extra 'dev', then 'pip install --no-deps imitation=={IMITATION_VERSION}'",
)
MBRL = PeerEnvironment(
    ".venv-peers-mbrl",
    ("torch", "numpy<2", f"mbrl=={MBRL_VERSION}"),
    # the one that it pins cannot be imported by Python 3.11
    ("hydra-core==1.3.2",),
)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise PeerEnvironmentError(f"'{' '.join(command[1:4])} …' failed:\n{tail}")
