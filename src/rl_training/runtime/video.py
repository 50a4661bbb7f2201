"""A video of one episode: the first that an evaluation runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.data.files import optional_module
from rl_training.envs.contract import close_env
from rl_training.envs.make import make_env
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import ConfigError, EnvironmentSetupError, MissingExtraError
from rl_training.experiment.files import draft_of
from rl_training.runtime.evaluation import ActFunction, EvalResult, Evaluator

Picture = NDArray[np.uint8]
"""(height, width, 3)"""

DEFAULT_FPS = 30.0
GIF_FPS_LIMIT = 50.0
"""Viewers slow a faster GIF down to 10 pictures a second."""

_SUFFIXES = (".mp4", ".gif")


def record_episode(
    act: ActFunction,
    env_id: str,
    env_kwargs: Mapping[str, Any],
    spaces: Spaces,
    seed: int,
    path: Path,
    *,
    max_steps: int,
    overwrite: bool = False,
) -> EvalResult:
    """Film evaluation episode 0 into an .mp4 or .gif, which appears whole or not at all."""
    _check_target(path, overwrite)
    ffmpeg = _ffmpeg(path)
    with _no_screen_needed(), _no_empty_folders(path):
        env = _rendering_env(env_id, env_kwargs)
        try:
            with draft_of(path) as draft, _Film(ffmpeg, draft, _pictures_per_second(env)) as film:
                filmed = _Filmed(env, env_id, film.add)
                evaluator = Evaluator(env_id, env_kwargs, spaces, [seed], max_steps)
                evaluator.add_env(filmed)
                result = evaluator.run(act, 1)
                film.finish()
            return result
        except OSError as error:
            raise ConfigError(
                f"video: '{path}' cannot be written ({error.strerror or error}); make room or "
                "choose another name"
            ) from None
        finally:
            close_env(env)


def _check_target(path: Path, overwrite: bool) -> None:
    """Refuse a file that could not be written, before anything is made for it."""
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"video: '{path}' must end in {' or '.join(_SUFFIXES)}; rename it")
    if path.is_dir():
        raise ConfigError(f"video: '{path}' is a folder; give the name of a file in it")
    if path.exists() and not overwrite:
        raise ConfigError(
            f"video: '{path}' exists already; choose another name or overwrite it (--overwrite, "
            "or overwrite=True)"
        )


def _ffmpeg(path: Path) -> str:
    """The program that the extra brings, or that the machine has."""
    package = optional_module("imageio_ffmpeg", "video", f"the video '{path}'")
    try:
        return str(package.get_ffmpeg_exe())
    except RuntimeError:
        raise ConfigError(
            f"video: '{path}' needs the program ffmpeg, which was not found; install it, or name "
            "it in the variable IMAGEIO_FFMPEG_EXE"
        ) from None


def _rendering_env(env_id: str, env_kwargs: Mapping[str, Any]) -> gym.Env[Any, Any]:
    plain = {key: value for key, value in env_kwargs.items() if key != "render_mode"}
    env = make_env(env_id, plain)
    modes = list(env.metadata.get("render_modes") or ())
    close_env(env)
    if "rgb_array" not in modes:
        raise EnvironmentSetupError(
            f"video: environment '{env_id}' cannot be recorded, because it does not render "
            f"'rgb_array' (its render modes: {', '.join(map(str, modes)) or 'none'}); "
            "evaluate without a video"
        )
    return make_env(env_id, {**plain, "render_mode": "rgb_array"})


def _pictures_per_second(env: gym.Env[Any, Any]) -> float:
    fps = env.metadata.get("render_fps")
    return float(fps) if isinstance(fps, (int, float)) and fps > 0 else DEFAULT_FPS


@contextmanager
def _no_screen_needed() -> Iterator[None]:
    """Where there is no screen, let pygame and MuJoCo draw without one, unless told how."""
    missing: dict[str, str] = {}
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ):
        drivers = {"SDL_VIDEODRIVER": "dummy", "MUJOCO_GL": "egl"}
        missing = {key: value for key, value in drivers.items() if key not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for key in missing:
            os.environ.pop(key, None)


@contextmanager
def _no_empty_folders(path: Path) -> Iterator[None]:
    """Remove folders that were made for a file which did not come to be."""
    made = [folder for folder in path.absolute().parents if not folder.exists()]
    try:
        yield
    except BaseException:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


class _Filmed(gym.Wrapper[Any, Any, Any, Any]):
    """Hands a picture of every state to `show`."""

    def __init__(
        self, env: gym.Env[Any, Any], env_id: str, show: Callable[[Picture], None]
    ) -> None:
        super().__init__(env)
        self._env_id, self._show = env_id, show

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        started = self.env.reset(**options)
        self._show(self._picture())
        return started

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        stepped = self.env.step(action)
        self._show(self._picture())
        return stepped

    def _picture(self) -> Picture:
        try:
            with warnings.catch_warnings():  # what is wrong is said below
                warnings.simplefilter("ignore")
                picture: Any = self.env.render()
        except Exception as error:  # noqa: BLE001  (foreign code may raise anything)
            if isinstance(error, gym.error.DependencyNotInstalled) and "pygame" in str(error):
                raise MissingExtraError("pygame", "video", f"rendering '{self._env_id}'") from None
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise EnvironmentSetupError(
                f"video: environment '{self._env_id}' cannot be rendered: {reason}; install what "
                "it draws with (MuJoCo without a screen: a library for MUJOCO_GL=egl or osmesa)"
            ) from None
        pixels = np.asarray(picture)
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            found = f"{pixels.dtype} numbers of shape {pixels.shape}"
            raise EnvironmentSetupError(
                f"video: environment '{self._env_id}' rendered "
                f"{'nothing' if picture is None else found}, expected uint8 numbers of shape "
                "(height, width, 3); correct its render()"
            )
        return pixels


class _Film:
    """Pictures of one size, piped through ffmpeg into a file."""

    def __init__(self, ffmpeg: str, path: Path, fps: float) -> None:
        self._ffmpeg, self._path, self._fps = ffmpeg, path, fps
        self._process: subprocess.Popen[bytes] | None = None
        self._shape: tuple[int, ...] = ()
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in __exit__)

    def __enter__(self) -> _Film:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            with suppress(BrokenPipeError):
                self._pipe.close()
        self._said.close()

    def add(self, picture: Picture) -> None:
        if self._process is None:
            self._shape = picture.shape
            self._process = self._start()
        if picture.shape != self._shape:
            raise EnvironmentSetupError(
                f"video: the rendered pictures change their shape from {self._shape} to "
                f"{picture.shape}; make the environment's render() keep to one"
            )
        try:
            self._pipe.write(picture.tobytes())
        except BrokenPipeError:
            self.finish()  # which says why
            raise

    def finish(self) -> None:
        """Wait until the file is whole; OSError where it cannot be."""
        assert self._process is not None
        with suppress(BrokenPipeError):
            self._pipe.close()
        code = self._process.wait()
        if code != 0:
            self._said.seek(0)
            lines = self._said.read().decode(errors="replace").strip().splitlines()
            raise OSError(lines[-1] if lines else f"ffmpeg ended with {code}")

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process is not None
        assert self._process.stdin is not None
        return self._process.stdin

    def _start(self) -> subprocess.Popen[bytes]:
        height, width, _ = self._shape
        command = [self._ffmpeg, "-y", "-v", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
        command += ["-s", f"{width}x{height}", "-r", f"{self._fps:g}", "-i", "-", "-an"]
        encode = _as_gif(self._fps) if self._path.suffix.lower() == ".gif" else _as_mp4()
        return subprocess.Popen(
            [*command, *encode, f"file:{self._path}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
        )


def _as_mp4() -> list[str]:
    # yuv420p, which every player knows, needs even sides
    even = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p"]
    encoder = ["-c:v", "libx264", "-preset", "veryfast", "-crf", "20"]
    return [*even, *encoder, "-movflags", "+faststart", "-f", "mp4"]


def _as_gif(fps: float) -> list[str]:
    # a palette per picture: one for all would hold the whole film in memory
    palettes = "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1"
    return ["-filter_complex", f"fps={min(fps, GIF_FPS_LIMIT):g},{palettes}", "-f", "gif"]
