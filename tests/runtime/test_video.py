"""Films: the first evaluation episode, every picture of it, at the environment's own pace."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rl_training import DQN, SAC
from rl_training.experiment.errors import ConfigError, EnvironmentSetupError, MissingExtraError
from rl_training.runtime.evaluation import HELD_OUT_STATES, start_seed
from tests.conftest import PATIENCE_S

from ..each import each

ffmpeg = pytest.importorskip("imageio_ffmpeg")
pytest.importorskip("pygame")

STEPS, SIDES = 30, (33, 47)
TINY: dict[str, Any] = {"hidden_sizes": (8,), "device": "cpu"}


class Blinker(gym.Env[Any, Any]):
    """Every state has a shade of its own; the sides of its pictures are odd."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 20}
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.time = render_mode, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return np.zeros(2, np.float32), 1.0, self.time == STEPS, False, {}

    def render(self) -> Any:
        return np.full((*SIDES, 3), 8 * self.time, np.uint8)


class Fast(Blinker):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 100}


class Timeless(Blinker):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}


class Invisible(Blinker):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human"]}


class Blank(Blinker):
    def render(self) -> Any:
        return None


class Fractional(Blinker):
    def render(self) -> Any:
        return np.zeros((*SIDES, 3), np.float32)


class Growing(Blinker):
    def render(self) -> Any:
        return np.zeros((SIDES[0] + self.time, SIDES[1], 3), np.uint8)


class Failing(Blinker):
    def render(self) -> Any:
        if self.time == 5:
            raise RuntimeError("the lamp broke.\nsecond line")
        return super().render()


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    kinds = (Blinker, Fast, Timeless, Invisible, Blank, Fractional, Growing, Failing)
    for kind in kinds:
        gym.register(f"{kind.__name__}-v0", kind)
    yield
    for kind in kinds:
        gym.registry.pop(f"{kind.__name__}-v0")


def pictures(path: Path) -> tuple[dict[str, Any], NDArray[Any]]:
    """What a film says about itself, and its pictures (T, height, width, 3)."""
    frames = ffmpeg.read_frames(str(path))
    about = next(frames)
    width, height = about["size"]
    decoded = [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in frames]
    return about, np.stack(decoded)


# --- what is filmed ------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["mp4", "gif"])
def test_the_video_shows_evaluation_episode_0(tmp_path: Path, suffix: str) -> None:
    agent = DQN("CartPole-v1", seed=4, **TINY)
    path = tmp_path / f"film.{suffix}"
    filmed = agent.record_video(path)
    assert filmed == agent.evaluate(1), "the same start state, the same actions"
    assert agent.evaluate(1, seed=5) != filmed, "another seed would be another episode"

    env = gym.make("CartPole-v1", render_mode="rgb_array")
    observation, _ = env.reset(seed=start_seed(HELD_OUT_STATES, 0))
    wanted, done = [env.render()], False
    while not done:
        observation, _, ended, cut, _ = env.step(int(agent.predict(observation)[0]))
        wanted.append(env.render())
        done = ended or cut
    env.close()
    about, shown = pictures(path)
    assert len(shown) == len(wanted) == filmed.lengths[0] + 1
    assert about["fps"] == 50
    assert about["size"] == (600, 400)
    differences = np.abs(shown.astype(int) - np.stack(wanted)).mean((1, 2, 3))
    assert differences.max() < 1.0
    assert np.abs(shown[0].astype(int) - shown[-1]).mean() > 2 * differences.max(), "it moves"


@each(
    ("kind", "suffix", "seconds", "count"),
    [
        ("Blinker", "mp4", 31 / 20, 31),
        ("Blinker", "gif", 31 / 20, 31),
        ("Timeless", "mp4", 31 / 30, 31),
        ("Fast", "mp4", 31 / 100, 31),
        ("Fast", "gif", 31 / 100, 16),  # half of the pictures, for the same time
    ],
)
def test_a_video_lasts_as_long_as_its_episode(
    tmp_path: Path, kind: str, suffix: str, seconds: float, count: int
) -> None:
    path = tmp_path / f"film.{suffix}"
    assert SAC(f"{kind}-v0", **TINY).record_video(path).returns == (float(STEPS),)
    assert ffmpeg.count_frames_and_secs(str(path)) == (count, pytest.approx(seconds, abs=0.03))
    height, width = SIDES
    odd_or_even = (height, width) if suffix == "gif" else (height + 1, width + 1)
    shades = pictures(path)[1]
    assert shades.shape[1:3] == odd_or_even
    inside = shades[:, :height, :width].mean((1, 2, 3))
    np.testing.assert_allclose(inside, np.linspace(0, 8 * STEPS, count), atol=6)


def test_only_what_has_to_be_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    torch.manual_seed(1)
    before, stream = dict(os.environ), torch.get_rng_state()
    DQN("CartPole-v1", **TINY).record_video(tmp_path / "one" / "two" / "film.gif")
    assert dict(os.environ) == before
    assert torch.equal(torch.get_rng_state(), stream)
    assert [path.name for path in (tmp_path / "one" / "two").iterdir()] == ["film.gif"]


def test_a_render_mode_of_the_users_gives_way(tmp_path: Path) -> None:
    agent = SAC("Blinker-v0", env_kwargs={"render_mode": "rgb_array"}, **TINY)
    agent.record_video(tmp_path / "film.GIF")
    assert (tmp_path / "film.GIF").stat().st_size > 1_000


def test_overwriting_is_asked_for(tmp_path: Path) -> None:
    path, agent = tmp_path / "film.gif", SAC("Blinker-v0", **TINY)
    path.write_text("precious", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^video: '.*film.gif' exists already; .*--overwrite"):
        agent.record_video(path)
    assert path.read_text(encoding="utf-8") == "precious"
    agent.record_video(str(path), overwrite=True)
    assert path.read_bytes().startswith(b"GIF8")


# --- refusals ------------------------------------------------------------------------------------

CANNOT_BE_FILMED = [
    ("Invisible", r"'Invisible-v0' .*does not render 'rgb_array' \(its render modes: human\)"),
    ("Blank", r"'Blank-v0' rendered nothing, expected uint8"),
    ("Fractional", r"'Fractional-v0' rendered float32 numbers of shape \(33, 47, 3\)"),
    ("Growing", r"change their shape from \(33, 47, 3\) to \(34, 47, 3\)"),
    ("Failing", r"'Failing-v0' cannot be rendered: the lamp broke; install"),
]


@each(("kind", "message"), CANNOT_BE_FILMED)
@each("old", [False, True], ids=["new", "old"])
def test_environments_that_cannot_be_recorded(
    tmp_path: Path, kind: str, message: str, old: bool
) -> None:
    path = tmp_path / "film.mp4" if old else tmp_path / "new" / "folder" / "film.mp4"
    if old:
        path.write_text("precious", encoding="utf-8")
    with pytest.raises(EnvironmentSetupError, match=f"^video: .*{message}"):
        SAC(f"{kind}-v0", **TINY).record_video(path, overwrite=old)
    assert list(tmp_path.iterdir()) == ([path] if old else [])
    assert not old or path.read_text(encoding="utf-8") == "precious"


@each(
    ("name", "message"),
    [
        ("film.avi", r"must end in \.mp4 or \.gif"),
        ("film", r"must end in \.mp4 or \.gif"),
        ("folder.gif", "is a folder"),
        ("file/film.gif", "cannot be written"),
        ("/proc/none/film.mp4", "cannot be written"),
    ],
)
def test_targets_that_cannot_be_written(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder.gif").mkdir()
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"^video: '.*{name}' .*{message}"):
        SAC("Blinker-v0", **TINY).record_video(tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder.gif"]


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingExtraError, match=r"film.mp4' needs .* 'imageio-ffmpeg>="):
        SAC("Blinker-v0", **TINY).record_video(tmp_path / "film.mp4")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(
        MissingExtraError, match=r"'Pendulum-v1' needs .*'gymnasium\[classic-control\]"
    ):
        SAC("Pendulum-v1", **TINY).record_video(tmp_path / "film.mp4")
    assert not list(tmp_path.iterdir())


def _no_large_files() -> None:
    """As on a full disk: writing beyond 6 KB fails, whoever asks."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, 6_000))


@pytest.mark.parametrize("suffix", ["mp4", "gif"])
def test_a_full_disk_leaves_nothing(tmp_path: Path, suffix: str) -> None:
    SAC("Pendulum-v1", env_kwargs={"max_episode_steps": 60}, **TINY).save(tmp_path / "agent")
    films = tmp_path / "films"
    films.mkdir()
    command = [sys.executable, "-m", "rl_training", "eval", str(tmp_path / "agent")]
    done = subprocess.run(
        [*command, "--video", str(films / f"film.{suffix}")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        preexec_fn=_no_large_files,
        check=False,
    )
    assert done.returncode == 2, done
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"error: video: '{films}/film.{suffix}' cannot be written (")
    assert not list(films.iterdir())
