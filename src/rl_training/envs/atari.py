"""Atari games with the usual preprocessing: small frames, frame skip, sticky actions."""

from __future__ import annotations

import importlib
import math
import re
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.envs.atari_rules import ATARI_ID, rules_of
from rl_training.experiment.errors import ConfigError, MissingExtraError, did_you_mean


class AtariFrames(gym.Wrapper[NDArray[Any], int, Any, Any]):
    """Returns one small frame per `frame_skip` frames of the emulator.

    An action is repeated for `frame_skip` frames. Each pixel is the maximum over the last two
    frames, because sprites flicker, and the image is resized to `screen_size` squared by area
    averaging. Every episode starts from the same emulator state and depends only on its seed
    and its actions: the seed samples 1 to `noop_max` no-op frames, in each frame the previous
    action is repeated with `repeat_action_probability`, and in each step the action is
    replaced by a uniformly random one with probability `random_actions`. With `fire`, the fire
    button is pressed for games that wait for it at the start or after a lost life. With
    `life_loss`, a lost life sets `info["life_lost"]`: training takes it as a termination, and the
    game goes on.
    `clip_rewards` returns the sign of the reward; use it for training only. At the end of a
    game `info["episode"]` holds its true score and its steps, "r" and "l".
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        frame_skip: int,
        noop_max: int,
        repeat_action_probability: float,
        random_actions: float,
        screen_size: int,
        grayscale: bool,
        fire: bool,
        life_loss: bool,
        clip_rewards: bool,
    ) -> None:
        super().__init__(env)
        emulator: Any = env.unwrapped
        self._ale = emulator.ale
        # A seeded reset reloads the game, which takes 0.1 s. Restoring a saved state takes
        # microseconds and includes the emulator's random generator.
        emulator.seed_game(0)
        emulator.load_game()
        self._ale.reset_game()
        self._start = self._ale.cloneSystemState()
        self._generator = np.random.default_rng()
        self._sticky, self._random = repeat_action_probability, random_actions
        self._actions = list(emulator._action_set)
        buttons = type(self._actions[0])
        self._noop_button, self._fire_button = buttons.NOOP, buttons.FIRE
        self._in_force = self._noop_button
        self._frame_skip, self._noop_max = frame_skip, noop_max
        self._life_loss, self._clip = life_loss, clip_rewards
        self._fire = fire and self._fire_button in self._actions
        height, width = self._ale.getScreenDims()
        channels = () if grayscale else (3,)
        self._read = self._ale.getScreenGrayscale if grayscale else self._ale.getScreenRGB
        self._screens = np.zeros((2, height, width, *channels), np.uint8)
        self._start_screen = self._read()
        # sums over rows alone fit into 16 bits, as screens have at most 250 of them
        self._rows = _AreaSums(height, screen_size, 0, np.uint16)
        self._area = self._rows.weight * (width // math.gcd(width, screen_size))
        wide = np.uint16 if 255 * self._area < 2**16 else np.uint32
        self._columns = _AreaSums(width, screen_size, 1, wide, math.prod(channels))
        shape = (screen_size, screen_size, *channels)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self._lives = 0
        self._score, self._steps = 0.0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        if seed is not None:
            self._generator = np.random.default_rng(seed)
        self._ale.restoreSystemState(self._start)
        self._in_force = self._noop_button
        self._score, self._steps = 0.0, 0
        idle = self._generator.integers(1, self._noop_max + 1) if self._noop_max else 0
        for _ in range(idle):
            self._before_the_episode(self._noop_button)
        self._lives = self._ale.lives()
        if self._fire:
            self._before_the_episode(self._fire_button)
        if idle or self._fire:
            self._look(0)
        else:  # a restored state has no screen before its first frame
            self._screens[0] = self._start_screen
        self._screens[1] = self._screens[0]
        return self._small_frame(), {}

    def step(self, action: int) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        ale, reward = self._ale, 0.0
        if self._random and self._generator.random() < self._random:
            action = int(self._generator.integers(len(self._actions)))
        wanted = self._actions[action]
        obeyed = [True] * self._frame_skip
        if self._sticky:
            obeyed = (self._generator.random(self._frame_skip) >= self._sticky).tolist()
        for left in reversed(range(self._frame_skip)):
            if obeyed[left]:
                self._in_force = wanted
            reward += ale.act(self._in_force)
            if left < 2:
                self._look(left)
            if ale.game_over():
                self._look(0)
                break
        lost = ale.lives() < self._lives
        if lost and self._fire and not ale.game_over():
            # One more frame in this step: its reward counts, and its action stays in effect.
            self._in_force = self._fire_button
            reward += ale.act(self._in_force)
        terminated, truncated = ale.game_over(with_truncation=False), ale.game_truncated()
        self._lives = ale.lives()
        self._score += reward
        self._steps += 1
        info: dict[str, Any] = {}
        if terminated or truncated:
            info["episode"] = {"r": self._score, "l": self._steps}
        elif lost and self._life_loss:
            info["life_lost"] = True
        if self._clip:
            reward = float(np.sign(reward))
        return self._small_frame(), float(reward), terminated, truncated, info

    def _before_the_episode(self, button: Any) -> None:
        """Run one frame; if the game ends in it, start the game again."""
        self._ale.act(button)
        if self._ale.game_over():
            self._ale.restoreSystemState(self._start)

    def _look(self, which: int) -> None:
        self._read(self._screens[which])

    def _small_frame(self) -> NDArray[Any]:
        screen = self._screens[0] if self._frame_skip == 1 else np.maximum(*self._screens)
        sums = self._columns(self._rows(screen.reshape(len(screen), -1)))
        means = np.divide(sums, self._area, dtype=np.float32)
        frame: NDArray[Any] = np.rint(means, out=means).astype(np.uint8)
        return frame.reshape(self.observation_space.shape)


class LastFrames(gym.Wrapper[NDArray[Any], int, Any, Any]):
    """Observations of the last `stack_size` frames, the newest last; an episode begins with copies
    of its first one. As Gymnasium's `FrameStackObservation`, in a twentieth of its time."""

    def __init__(self, env: gym.Env[Any, Any], stack_size: int) -> None:
        super().__init__(env)
        self.stack_size = stack_size
        space = env.observation_space
        assert isinstance(space, gym.spaces.Box)
        self._frames = np.zeros((stack_size, *space.shape), np.uint8)
        self.observation_space = gym.spaces.Box(0, 255, self._frames.shape, np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        first, info = self.env.reset(seed=seed, options=options)
        self._frames = np.repeat(first[None], self.stack_size, 0)
        return self._frames, info

    def step(self, action: int) -> tuple[NDArray[Any], Any, bool, bool, dict[str, Any]]:
        frame, reward, terminated, truncated, info = self.env.step(action)
        stack = np.empty_like(self._frames)
        stack[:-1] = self._frames[1:]
        stack[-1] = frame
        self._frames = stack
        return stack, reward, terminated, truncated, info


def make_atari(
    game: str | None = None,
    protocol: str | None = None,
    render_mode: str | None = None,
    **changes: Any,
) -> gym.Env[Any, Any]:
    """Make a game by its name, such as "breakout" or "SpaceInvaders", wrapped in `AtariFrames`.

    Its rules are those of `protocol`, which `changes` override.
    """
    rules = rules_of(protocol, changes)
    if game is None:
        raise ConfigError(
            f"env_kwargs.game: '{ATARI_ID}' needs the name of a game; set it, such as breakout or "
            "space_invaders"
        )
    try:
        ale_py: Any = importlib.import_module("ale_py")
        known = importlib.import_module("ale_py.roms").get_all_rom_ids()
    except ImportError:
        raise MissingExtraError("ale-py", "atari", f"environment '{ATARI_ID}'") from None
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(game)).lower()
    if name not in known:
        raise ConfigError(
            f"env_kwargs.game: there is no Atari game '{game}'{did_you_mean(name, known)}; "
            "use the name of a ROM, such as breakout or space_invaders"
        )
    if render_mode not in (None, "rgb_array"):
        raise ConfigError(
            f"env_kwargs.render_mode: expected rgb_array or null, got {render_mode!r}; to watch a "
            "policy, record a video"
        )
    full_action_space, max_frames = rules.pop("full_action_space"), rules.pop("max_frames")
    frame_stack = rules.pop("frame_stack")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner
    env: gym.Env[Any, Any] = AtariFrames(
        ale_py.AtariEnv(
            name,
            obs_type="ram",  # never read
            frameskip=1,
            repeat_action_probability=0.0,  # sampled from the episode's own generator instead
            full_action_space=full_action_space,
            max_num_frames_per_episode=max_frames,
            render_mode=render_mode,
        ),
        **rules,
    )
    return LastFrames(env, frame_stack) if frame_stack > 1 else env


def register_atari() -> None:
    """Register `rl_training/Atari-v0` with Gymnasium."""
    if ATARI_ID not in gym.registry:
        gym.register(
            ATARI_ID,
            entry_point=f"{__name__}:make_atari",
            disable_env_checker=True,
            order_enforce=False,
        )


class _AreaSums:
    """Sums over `parts` equal segments of the rows (axis 0) or columns (1) of a matrix, `length`
    pixels each way, exact in whole numbers of type `dtype`.

    A pixel counts as many times as it has units in the segment, a unit being the largest length
    of which pixels and segments are multiples: `weight` units in all. The numbers of a pixel's
    `channels` follow each other. A matrix product would be as short, but its library may start
    threads, which stall when processes share cores.
    """

    def __init__(
        self, length: int, parts: int, axis: int, dtype: type[np.generic], channels: int = 1
    ) -> None:
        repeats = math.gcd(length, parts)
        pixel, self.weight = parts // repeats, length // repeats
        begins = np.arange(parts) * self.weight
        ends = begins + self.weight
        first, last = begins // pixel, (ends - 1) // pixel
        self._axis, self._dtype = axis, dtype
        self._pixels = []
        """Of all segments the first pixel, the second one and so on, and their units."""
        for place in range(int((last - first).max()) + 1):
            index = np.minimum(first + place, last)
            units = np.minimum(ends, (index + 1) * pixel) - np.maximum(begins, index * pixel)
            units = np.where(first + place <= last, units, 0)
            numbers = index[:, None] * channels + np.arange(channels)
            weights = np.repeat(units, channels).astype(dtype)
            self._pixels.append((numbers.ravel(), np.expand_dims(weights, 1 - axis)))

    def __call__(self, values: NDArray[Any]) -> NDArray[Any]:
        values = values.astype(self._dtype, copy=False)
        sums: NDArray[Any] = np.zeros((), self._dtype)
        for place, (index, weights) in enumerate(self._pixels):
            pixels = values.take(index, self._axis)
            pixels *= weights
            sums = np.add(sums, pixels, out=sums) if place else pixels
        return sums
