"""Records a video of an evaluation episode."""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

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

Image = NDArray[np.uint8]
"""(height, width, 3)"""

DEFAULT_FPS = 30.0
GIF_FPS_LIMIT = 50.0
"""Viewers slow a faster GIF down to 10 frames per second."""

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
    episode: int = 0,
) -> EvalResult:
    """Record one evaluation episode as an .mp4 or .gif, which appears complete or not at all."""
    _check_target(path, overwrite)
    package = _encoder(path)
    with _no_screen_needed(), _no_empty_folders(path):
        env = _rendering_env(env_id, env_kwargs)
        try:
            fps = _frames_per_second(env)
            with draft_of(path) as draft, _Recording(package, draft, fps) as recording:
                evaluator = Evaluator(env_id, env_kwargs, spaces, [seed], max_steps)
                evaluator.add_env(_Recorded(env, env_id, recording.add))
                result = evaluator.run(act, 1, first=episode)
                recording.finish()
            return result
        except OSError as error:
            raise ConfigError(
                f"video: '{path}' cannot be written ({error.strerror or error}); make room or "
                "choose another name"
            ) from None
        finally:
            close_env(env)


def _check_target(path: Path, overwrite: bool) -> None:
    """Raise an error if the file cannot be written, before anything is made."""
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"video: '{path}' must end in {' or '.join(_SUFFIXES)}; rename it")
    if path.is_dir():
        raise ConfigError(f"video: '{path}' is a folder; give the name of a file in it")
    if path.exists() and not overwrite:
        raise ConfigError(
            f"video: '{path}' exists already; choose another name or overwrite it (--overwrite, "
            "or overwrite=True)"
        )


def _encoder(path: Path) -> Any:
    """The package of the extra, with the program that it brings or that the machine has."""
    package = optional_module("imageio_ffmpeg", "video", f"the video '{path}'")
    try:
        package.get_ffmpeg_exe()
        return package
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


def _frames_per_second(env: gym.Env[Any, Any]) -> float:
    fps = env.metadata.get("render_fps")
    return float(fps) if isinstance(fps, (int, float)) and fps > 0 else DEFAULT_FPS


@contextmanager
def _no_screen_needed() -> Iterator[None]:
    """Without a display, let pygame and MuJoCo render offscreen, unless configured otherwise."""
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
    """Remove folders that were made for a file that was not written."""
    made = [folder for folder in path.absolute().parents if not folder.exists()]
    try:
        yield
    except BaseException:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


class _Recorded(gym.Wrapper[Any, Any, Any, Any]):
    """Passes an image of every state to `show`."""

    def __init__(self, env: gym.Env[Any, Any], env_id: str, show: Callable[[Image], None]) -> None:
        super().__init__(env)
        self._env_id, self._show = env_id, show

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        started = self.env.reset(**options)
        self._show(self._image())
        return started

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        stepped = self.env.step(action)
        self._show(self._image())
        return stepped

    def _image(self) -> Image:
        try:
            with warnings.catch_warnings():  # reported below
                warnings.simplefilter("ignore")
                image: Any = self.env.render()
        except Exception as error:  # noqa: BLE001  (foreign code may raise anything)
            if isinstance(error, gym.error.DependencyNotInstalled) and "pygame" in str(error):
                raise MissingExtraError("pygame", "video", f"rendering '{self._env_id}'") from None
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise EnvironmentSetupError(
                f"video: environment '{self._env_id}' cannot be rendered: {reason}; install what "
                "it draws with (MuJoCo without a screen: a library for MUJOCO_GL=egl or osmesa)"
            ) from None
        pixels = np.asarray(image)
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            found = f"{pixels.dtype} numbers of shape {pixels.shape}"
            raise EnvironmentSetupError(
                f"video: environment '{self._env_id}' rendered "
                f"{'nothing' if image is None else found}, expected uint8 numbers of shape "
                "(height, width, 3); correct its render()"
            )
        return pixels


class _Recording:
    """Images of one size, encoded into a file by ffmpeg."""

    def __init__(self, package: Any, path: Path, fps: float) -> None:
        self._package, self._path, self._fps = package, path, fps
        self._shape: tuple[int, ...] = ()
        self._count = 0
        self._frames: Generator[None, bytes, None] | None = None

    def __enter__(self) -> _Recording:
        return self

    def __exit__(self, *_: object) -> None:
        if self._frames is not None:
            self._frames.close()

    def add(self, image: Image) -> None:
        if self._frames is None:
            self._shape = image.shape
            self._frames = self._started()
        if image.shape != self._shape:
            raise EnvironmentSetupError(
                f"video: the rendered images change their shape from {self._shape} to "
                f"{image.shape}; make the environment's render() keep to one"
            )
        try:
            self._frames.send(image.tobytes())
        except OSError:  # its text is the whole command
            raise OSError("ffmpeg ended early") from None
        self._count += 1

    def finish(self) -> None:
        """Wait until the file is complete; OSError where it is not."""
        assert self._frames is not None
        self._frames.close()
        # The package ignores ffmpeg's exit code, so the file itself is checked.
        expected = self._count * min(1.0, self._fastest / self._fps)
        try:
            found, _ = self._package.count_frames_and_secs(str(self._path))
        except RuntimeError:
            found = 0
        if abs(found - expected) > 1.0:
            raise OSError(f"ffmpeg wrote {found:,} of {expected:,.0f} images")

    @property
    def _is_gif(self) -> bool:
        return self._path.suffix.lower() == ".gif"

    @property
    def _fastest(self) -> float:
        return GIF_FPS_LIMIT if self._is_gif else math.inf

    def _started(self) -> Generator[None, bytes, None]:
        height, width, _ = self._shape
        frames: Generator[None, bytes, None] = self._package.write_frames(
            f"file:{self._path}",
            (width, height),
            fps=self._fps,
            quality=None,
            macro_block_size=1,
            ffmpeg_log_level="quiet",
            ffmpeg_timeout=0,
            **(_as_gif(self._fps) if self._is_gif else _as_mp4()),
        )
        next(frames)  # starts the program
        return frames


def _as_mp4() -> dict[str, Any]:
    # yuv420p, which every player can show, needs even sides
    even = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]
    encoder = ["-preset", "veryfast", "-crf", "20", "-movflags", "+faststart", "-f", "mp4"]
    return {"codec": "libx264", "pix_fmt_out": "yuv420p", "output_params": [*even, *encoder]}


def _as_gif(fps: float) -> dict[str, Any]:
    # a palette per image: one for all would hold the whole video in memory
    palettes = "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1"
    filters = ["-filter_complex", f"fps={min(fps, GIF_FPS_LIMIT):g},{palettes}", "-f", "gif"]
    return {"codec": "gif", "pix_fmt_out": "pal8", "output_params": filters}
