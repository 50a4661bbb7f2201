"""Observation and action spaces, and the map between inner and environment units."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from rl_training.envs.layout import Layout, Packing, packing_of
from rl_training.experiment.errors import EnvironmentSetupError
from rl_training.experiment.state import LARGEST_COUNT, Stored

ActionKind = Literal["box", "discrete", "multi_discrete"]
ACTION_NAMES = {"box": "Box", "discrete": "Discrete", "multi_discrete": "MultiDiscrete"}
"""Of the kinds of actions, in messages."""
_FLOAT32 = np.dtype(np.float32)  # NumPy has a single object for it


class BoxMap:
    """The affine map of Box actions from [-1, 1] to the environment's units, all float32."""

    def __init__(self, low: tuple[float, ...], high: tuple[float, ...]) -> None:
        self.low, self.high = np.asarray(low, np.float32), np.asarray(high, np.float32)
        half_range = np.float32(0.5) * (self.high - self.low)  # exact
        self._is_scaled = bool((half_range != 1.0).any())
        self._numbers = (np.ones_like(self.low), half_range, self.low, self.high)
        # For one action, arrays of equal shape take half the time of those to be broadcast.
        self._of_a_row = tuple(numbers[None] for numbers in self._numbers)
        self._row_shape = (1, len(self.low))

    def __call__(self, action: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        is_row = action.shape == self._row_shape
        one, half_range, low, high = self._of_a_row if is_row else self._numbers
        result: np.ndarray[Any, Any] = action + one
        if result.dtype is not _FLOAT32:
            result = np.add(action, one, dtype=np.float32)
        if self._is_scaled:
            result *= half_range
        result += low
        np.maximum(result, low, out=result)
        np.minimum(result, high, out=result)
        return result


@dataclass(frozen=True)
class Spaces:
    """Vector or image observations, and Box, Discrete or MultiDiscrete actions.

    Inner Box actions are in [-1, 1]; `to_env` and `from_env` are the affine map to and from
    environment units. Inner Discrete actions are 0..n-1, those of the environment
    start..start+n-1; so is every part of MultiDiscrete actions, of which MultiBinary ones are
    those with two choices per part. Actions of several components are flat, also those given to
    environments (see `envs.flat_actions`); `outside` and `inside` map to and from the shape that
    they have for users. Observations have no inner units: they are (obs_dim,) float32, or uint8
    images of `image_shape`, whose first axis has `frame_stack` frames if the environment
    stacks them.
    """

    obs_dim: int  # numbers in an observation
    action_kind: ActionKind
    action_dim: int  # components of an action; of Discrete ones the number of choices
    action_low: tuple[float, ...] = ()  # Box only
    action_high: tuple[float, ...] = ()
    action_start: int = 0  # Discrete only
    image_shape: tuple[int, ...] = ()  # empty for vectors
    frame_stack: int = 1
    has_mask: bool = False  # Discrete only: observations end with `action_dim` numbers, 1 or 0
    layout: Layout | None = None  # of observations that are several parts outside
    action_labels: tuple[str, ...] = ()  # names of Discrete actions, where data have them
    action_choices: tuple[int, ...] = ()  # MultiDiscrete only: of each part
    action_starts: tuple[int, ...] = ()  # MultiDiscrete only: the smallest choice of each part
    action_shape: tuple[int, ...] | None = None  # outside, where it is not the flat one

    @classmethod
    def of(cls, env: gym.Env[Any, Any]) -> Spaces:
        """Read the spaces of an environment, including the size of Gymnasium's frame stack."""
        try:
            stack = int(env.get_wrapper_attr("stack_size"))
        except AttributeError:
            stack = 1
        seen, done = (getattr(env, f"{kind}_space", None) for kind in ("observation", "action"))
        found: dict[str, Any] = {}  # what wrappers of the package say
        for field, attribute in (
            ("has_mask", "has_action_mask"),
            ("layout", "observation_layout"),
            ("action_shape", "outer_action_shape"),
        ):
            with suppress(AttributeError):
                found[field] = env.get_wrapper_attr(attribute)
        if packing_of(found.get("layout")) is not None:
            assert seen is not None
            bytes_of = gym.spaces.Box(0, 255, (math.prod(seen.shape or ()),), np.uint8)
            found |= {"image_shape": seen.shape, "frame_stack": stack}
            return replace(cls.from_gymnasium(bytes_of, done), **found)
        return replace(cls.from_gymnasium(seen, done, stack), **found)

    @classmethod
    def from_gymnasium(
        cls,
        observation_space: gym.Space[Any] | None,
        action_space: gym.Space[Any] | None,
        frame_stack: int = 1,
    ) -> Spaces:
        frames = image_shape(observation_space, frame_stack)
        shape: tuple[int, ...] = getattr(observation_space, "shape", None) or ()
        if not frames and (
            not isinstance(observation_space, gym.spaces.Box) or len(shape) != 1 or not shape[0]
        ):
            raise EnvironmentSetupError(
                f"observation space {observation_space} is not supported: expected a flat "
                "Box of shape (n,) or uint8 images; wrap the environment, for example with "
                "gymnasium.wrappers.FlattenObservation"
            )
        seen: dict[str, Any] = {"obs_dim": math.prod(shape)}
        if frames:
            seen |= {"image_shape": frames, "frame_stack": frame_stack}
        if isinstance(action_space, gym.spaces.Discrete):
            return cls(
                action_kind="discrete",
                action_dim=int(action_space.n),
                action_start=int(action_space.start),
                **seen,
            )
        if isinstance(action_space, gym.spaces.MultiDiscrete) and len(action_space.shape) == 1:
            choices, starts = (
                tuple(int(n) for n in side) for side in (action_space.nvec, action_space.start)
            )
            return cls(
                action_kind="multi_discrete",
                action_dim=len(choices),
                action_choices=choices,
                action_starts=starts,
                **seen,
            )
        if (
            not isinstance(action_space, gym.spaces.Box)
            or len(action_space.shape) != 1
            or not action_space.shape[0]
        ):
            raise EnvironmentSetupError(
                f"action space {action_space} is not supported: expected Box, Discrete, "
                "MultiDiscrete or MultiBinary; register a version of the environment whose action "
                "wrapper (gymnasium.ActionWrapper) makes it so"
            )
        low, high = action_space.low, action_space.high
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise EnvironmentSetupError(
                f"action space {action_space} is not supported: every bound must be finite and "
                "low < high; give the bounds to act within, such as "
                "env_kwargs.action_bounds='{low: -1, high: 1}'"
            )
        return cls(
            action_kind="box",
            action_dim=int(action_space.shape[0]),
            action_low=tuple(float(x) for x in low),
            action_high=tuple(float(x) for x in high),
            **seen,
        )

    # cached, because acting asks for them at every step

    @cached_property
    def is_image(self) -> bool:
        return bool(self.image_shape)

    @cached_property
    def packing(self) -> Packing | None:
        """What lies in the bytes of an image beside other parts."""
        return packing_of(self.layout)

    @cached_property
    def obs_shape(self) -> tuple[int, ...]:
        return self.image_shape or (self.obs_dim,)

    @cached_property
    def obs_dtype(self) -> type[np.uint8] | type[np.float32]:
        return np.uint8 if self.is_image else np.float32

    @cached_property
    def is_discrete(self) -> bool:
        return self.action_kind == "discrete"

    @property
    def is_box(self) -> bool:
        return self.action_kind == "box"

    @property
    def inner_action_shape(self) -> tuple[int, ...]:
        return () if self.is_discrete else (self.action_dim,)

    @property
    def choices(self) -> tuple[int, ...]:
        """Of each part of an action; () for Box actions."""
        return (self.action_dim,) if self.is_discrete else self.action_choices

    @property
    def starts(self) -> tuple[int, ...]:
        """The smallest choice of each part; () for Box actions."""
        return (self.action_start,) if self.is_discrete else self.action_starts

    def outside(self, actions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """(..., *shape) actions in the shape that the environment itself takes."""
        if self.action_shape is None:
            return actions
        return actions.reshape((*actions.shape[:-1], *self.action_shape))

    def inside(self, actions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Flat actions from (..., *shape) ones in the shape that the environment itself takes."""
        if self.action_shape is None:
            return actions
        leading = actions.shape[: actions.ndim - len(self.action_shape)]
        return actions.reshape((*leading, self.action_dim))

    def to_dict(self) -> dict[str, Any]:
        values = asdict(replace(self, layout=None))
        for name in _LATER_FIELDS:  # what earlier versions do not have is left out when unused
            if values[name] == getattr(type(self), name):
                del values[name]
        if self.layout is not None:
            values["layout"] = self.layout.to_list()
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Spaces:
        """Read the result of `to_dict` from a file; impossible values are refused."""
        stored = Stored(values, "spaces")
        kind = stored["action_kind"]
        if kind not in ACTION_NAMES:
            raise stored.wrong("action_kind", " or ".join(ACTION_NAMES))
        given: dict[str, Any] = {
            "obs_dim": stored.whole("obs_dim", least=1),
            "action_kind": kind,
            "action_dim": stored.whole("action_dim", least=1),
        }
        bounds = given["action_dim"] if kind == "box" else 0
        for key in ("action_low", "action_high"):
            given[key] = tuple(stored.numbers(key, bounds)) if bounds or key in stored else ()
        ranges = list(zip(given["action_low"], given["action_high"], strict=True))
        if not all(-math.inf < low < high < math.inf for low, high in ranges):
            raise stored.wrong("action_low", "finite and below action_high")
        if "action_start" in stored:
            given["action_start"] = stored.whole("action_start", least=-LARGEST_COUNT)
        if "frame_stack" in stored:
            given["frame_stack"] = stored.whole("frame_stack", least=1)
        if "has_mask" in stored and stored.flag("has_mask"):
            given["has_mask"] = True
            if kind != "discrete" or given["obs_dim"] <= given["action_dim"]:
                raise stored.wrong("has_mask", "false, since masks are for Discrete actions")
        if "image_shape" in stored:
            count = len(stored.entries("image_shape"))
            given["image_shape"] = shape = tuple(stored.wholes("image_shape", count, least=1))
            flat = count == 1 and "layout" not in stored  # bytes of an image beside other parts
            if shape and (math.prod(shape) != given["obs_dim"] or count > 4 or flat):
                raise stored.wrong("image_shape", f"of {given['obs_dim']} numbers")
        if "action_labels" in stored:
            given["action_labels"] = labels = tuple(stored.entries("action_labels"))
            if len(labels) != given["action_dim"] or not all(isinstance(x, str) for x in labels):
                raise stored.wrong("action_labels", f"{given['action_dim']} names")
        if kind == "multi_discrete":
            for key, least in (("action_choices", 1), ("action_starts", -LARGEST_COUNT)):
                given[key] = tuple(stored.wholes(key, given["action_dim"], least=least))
        if "action_shape" in stored:
            axes = len(stored.entries("action_shape"))
            given["action_shape"] = shape = tuple(stored.wholes("action_shape", axes, least=1))
            if kind == "discrete" or math.prod(shape) != given["action_dim"]:
                raise stored.wrong("action_shape", f"of {given['action_dim']} numbers")
        if "layout" in stored:
            given["layout"] = layout = Layout.from_list(stored.entries("layout"))
            masks = given["action_dim"] if given.get("has_mask") else 0
            packing = packing_of(layout)
            frames = given.get("frame_stack", 1)
            width = layout.width + masks if packing is None else packing.size * frames
            if width != given["obs_dim"]:
                raise stored.wrong("layout", f"of {given['obs_dim'] - masks} numbers")
        return cls(**given)

    @cached_property
    def _box(self) -> BoxMap:
        return BoxMap(self.action_low, self.action_high)

    def to_env(self, action: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Map actions from inner to environment units: float32, or integers.

        Training, evaluation and prediction all use this map, so that actions agree bit for bit.
        Box actions are returned in a new array, which an environment may keep.
        """
        if self.action_kind == "box":
            return self._box(action)
        if self.action_starts:
            return action + np.asarray(self.action_starts, np.int64)
        return action + self.action_start if self.action_start else action

    def from_env(self, action: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Map actions from environment to inner units; Box actions are clipped to +-(1 - 1e-5),
        where the density of a squashed policy is finite."""
        if self.is_discrete:
            return action - self.action_start
        if self.action_starts:
            return action - np.asarray(self.action_starts, np.int64)
        low, high = self._box.low, self._box.high
        inner = (action - low) / (high - low) * 2.0 - 1.0
        bound = np.float32(1.0 - 1e-5)
        inside: np.ndarray[Any, Any] = np.clip(inner, -bound, bound)
        return inside

    def describe(self) -> str:
        actions = f"masked {self._named_actions()}" if self.has_mask else self._named_actions()
        return f"{self.named_observations()}, {actions} actions"

    def named_observations(self) -> str:
        """Kind and shape of the observations, for messages."""
        if self.packing is not None:
            return f"images {self.packing.pixels} beside {self.packing.numbers} numbers"
        return f"{'images' if self.is_image else 'observations'} {self.obs_shape}"

    def _named_actions(self) -> str:
        if self.is_discrete:
            return f"Discrete({self.action_dim})"
        if self.is_box:
            shape = (self.action_dim,) if self.action_shape is None else self.action_shape
            return f"Box{shape}"
        # a list as long as a keyboard's would hide the rest of a sentence
        few = len(self.action_choices) <= 8
        listed = list(self.action_choices) if few else f"{len(self.action_choices)} parts"
        return f"MultiDiscrete({listed})"

    def in_full(self) -> str:
        """Describe all in which two tasks may differ: shapes, dtypes, frames, bounds, actions."""
        frames = f" of {self.frame_stack} frames" if self.frame_stack > 1 else ""
        seen = f"{self.obs_shape} {np.dtype(self.obs_dtype)}{frames}"
        if self.layout is not None:
            seen += f" of {len(self.layout.parts)} parts"
        if self.is_discrete:
            masked = "masked " if self.has_mask else ""
            done = f"{self.action_dim} {masked}Discrete actions from {self.action_start}"
        elif self.action_choices:
            done = f"MultiDiscrete({list(self.action_choices)}) actions"
            done += f" from {list(self.action_starts)}" if any(self.action_starts) else ""
        else:
            low, high = _bounds(self.action_low), _bounds(self.action_high)
            done = f"{self._named_actions()} actions from {low} to {high}"
        return f"{'images' if self.is_image else 'observations'} {seen} and {done}"

    def refuse_other(
        self, found: Spaces, where: str, key: str = "env_id", fix: str | None = None
    ) -> None:
        """Raise an error if a task's spaces are not these, for which a policy was made."""
        if found != self:
            usual = (
                "use the environment, its arguments and the version of its package that the policy "
                "was trained with, or train a new policy"
            )
            raise EnvironmentSetupError(
                f"{key}: {where} has {found.in_full()}, but the policy was made for "
                f"{self.in_full()}; {fix or usual}"
            )


_LATER_FIELDS = ("layout", "action_labels", "action_choices", "action_starts", "action_shape")


def _bounds(values: tuple[float, ...]) -> str:
    """One number if all components are equal."""
    same = len(set(values)) == 1
    return f"{values[0]:g}" if same else "[" + ", ".join(f"{x:g}" for x in values) + "]"


def image_shape(space: gym.Space[Any] | None, frame_stack: int) -> tuple[int, ...]:
    """Shape of image observations, or () for others. A frame has 2 axes, or 3 with channels."""
    if not isinstance(space, gym.spaces.Box) or space.dtype != np.uint8:
        return ()
    axes_of_a_frame = len(space.shape) - (frame_stack > 1)
    return tuple(int(n) for n in space.shape) if axes_of_a_frame in (2, 3) else ()
