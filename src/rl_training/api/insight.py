"""Values, probabilities and densities that an agent has learned, in the user's units.

Each question is refused in one sentence where an algorithm has no answer to it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.envs.contract import all_finite
from rl_training.envs.packed import packed_rows
from rl_training.envs.pixels import as_bytes
from rl_training.experiment.errors import (
    ConfigError,
    DataError,
    EnvironmentSetupError,
    did_you_mean,
)
from rl_training.models import ChoicePolicy

Array = np.ndarray[Any, Any]


def observation_rows(algorithm: Algorithm, observation: Any, asked: str) -> tuple[Array, bool]:
    """(B, ...) observations, and whether a single one was given; `asked` is the caller's name."""
    spaces = algorithm.spaces
    shape = spaces.obs_shape
    obs: Array
    if spaces.packing is not None and spaces.layout and spaces.layout.has_parts(observation):
        return packed_rows(spaces.layout, spaces.frame_stack, observation, asked)
    if spaces.layout is not None and spaces.layout.has_parts(observation):
        if spaces.has_mask:
            raise DataError(f"{asked}: the task has action masks; give action_mask, too")
        obs, alone = spaces.layout.named_rows(observation, asked)
        if not all_finite(obs):
            raise DataError(f"{asked}: the observation holds NaN, infinity or a number too large")
        return obs, alone
    obs = np.asarray(observation)
    if spaces.is_image:
        obs = as_bytes(obs, f"{asked}: the image")
    elif obs.dtype != spaces.obs_dtype:
        if obs.dtype.kind not in "fiub":  # of complex numbers a part would be lost
            raise DataError(
                f"{asked}: observations must be numbers, got {obs.dtype}; give a list of them, as "
                "JSON on the command line"
            )
        with np.errstate(over="ignore"):  # refused below
            obs = obs.astype(np.float32)
    if obs.shape != shape and obs.shape[1:] != shape:
        raise EnvironmentSetupError(
            f"{asked}: observations must have the shape {shape} or {('n', *shape)}, "
            f"got {obs.shape}".replace("'n'", "n")
        )
    if not all_finite(obs):
        raise DataError(
            f"{asked}: the observation holds NaN, infinity or a number beyond float32; give finite "
            "numbers"
        )
    alone = obs.shape == shape
    return (obs[None] if alone else obs), alone


def user_actions(algorithm: Algorithm, actions: Array) -> Array:
    """Actions as the user's data have them: in their shape, and by name where they have names."""
    spaces = algorithm.spaces
    if not spaces.action_labels:
        return spaces.outside(actions)
    named: Array = np.asarray(spaces.action_labels)[np.asarray(actions) - spaces.action_start]
    return named


def inner_actions(algorithm: Algorithm, action: Any, rows: int, asked: str) -> Tensor:
    """One action per observation in inner units, checked."""
    spaces = algorithm.spaces
    given = np.asarray(action)
    if spaces.action_labels and given.dtype.kind == "U":
        known = {label: i + spaces.action_start for i, label in enumerate(spaces.action_labels)}
        unknown = [name for name in given.reshape(-1).tolist() if name not in known]
        if unknown:
            raise DataError(
                f"{asked}: there is no action '{unknown[0]}'{did_you_mean(unknown[0], known)}; "
                f"there are {', '.join(known)}"
            )
        given = np.vectorize(known.__getitem__, otypes=[np.int64])(given)
    shape = spaces.inner_action_shape if spaces.action_shape is None else spaces.action_shape
    if given.shape == shape:
        given = given[None]
    if given.shape != (rows, *shape):
        raise DataError(
            f"{asked}: expected {rows} action{'s' if rows > 1 else ''} of the shape {shape}, got "
            f"the shape {given.shape}; give one per observation"
        )
    if given.dtype.kind not in "fiub" or not all_finite(given):
        raise DataError(f"{asked}: actions must be finite numbers")
    given = spaces.inside(given)
    if not spaces.is_box:
        first = np.asarray(spaces.starts)
        last = first + np.asarray(spaces.choices) - 1
        rows_of_parts = given.reshape(rows, -1)
        wrong = (rows_of_parts < first) | (rows_of_parts > last) | (rows_of_parts % 1 != 0)
        if wrong.any():
            part = int(np.nonzero(wrong)[1][0])
            which = "" if spaces.is_discrete else f" in part {part}"
            raise DataError(
                f"{asked}: actions must be whole numbers from {first[part]} to {last[part]}{which}"
            )
        given = given.astype(np.int64)
    else:
        low, high = np.asarray(spaces.action_low), np.asarray(spaces.action_high)
        if ((given < low - 1e-4) | (given > high + 1e-4)).any():
            raise DataError(
                f"{asked}: actions must lie within the action space, which is {spaces.in_full()}"
            )
        given = given.astype(np.float32)
    return torch.as_tensor(spaces.from_env(given), device=algorithm.update_count.device)


def _answer(
    algorithm: Algorithm,
    observation: Any,
    asked: str,
    question: Callable[[Tensor], Tensor | None],
    missing: str,
) -> Array:
    """The result of a function of network inputs; without its first axis for one observation."""
    rows, alone = observation_rows(algorithm, observation, asked)
    if algorithm.recurrent:
        raise ConfigError(
            f"{asked}: the policy of {algorithm.name()} looks at whole episodes and cannot judge "
            "an observation alone; use predict with its state"
        )
    with torch.inference_mode():
        obs = torch.as_tensor(np.ascontiguousarray(rows), device=algorithm.update_count.device)
        found = question(algorithm.network_input(obs))
    if found is None:
        raise ConfigError(f"{asked}: {algorithm.name()} {missing}")
    answer: Array = found.cpu().numpy()
    return answer[0] if alone else answer


def action_probabilities(algorithm: Algorithm, observation: Any) -> Array | list[Array]:
    """Probabilities of every Discrete action, or of every choice of each MultiDiscrete part."""
    asked = "action_probabilities"
    if algorithm.spaces.is_box:
        raise ConfigError(
            f"{asked}: Box actions have densities and no probabilities; use log_prob(obs, action)"
        )

    def question(obs: Tensor) -> Tensor | None:
        policy = algorithm.acting_policy
        return policy(obs).exp() if isinstance(policy, ChoicePolicy) else None

    missing = "always takes its best action and has no probabilities; use q_values(obs)"
    found = _answer(algorithm, observation, asked, question, missing)
    if algorithm.spaces.is_discrete:
        return found
    return np.split(found, np.cumsum(algorithm.spaces.action_choices)[:-1], axis=-1)


def log_prob(algorithm: Algorithm, observation: Any, action: Any) -> Array:
    asked, spaces = "log_prob", algorithm.spaces
    # a density is per unit of what it is a density of
    half = [
        (high - low) / 2 for low, high in zip(spaces.action_low, spaces.action_high, strict=True)
    ]
    units = float(np.log(half).sum()) if half else 0.0

    def question(obs: Tensor) -> Tensor | None:
        inner = inner_actions(algorithm, action, len(obs), asked)
        found = algorithm.log_probs(obs, inner)
        return None if found is None else found - units

    missing = "has one action for each observation and no density"
    return _answer(algorithm, observation, asked, question, missing)


def value(algorithm: Algorithm, observation: Any) -> Array:
    missing = "has learned no values of states"
    return _answer(algorithm, observation, "value", algorithm.state_values, missing)


def q_values(algorithm: Algorithm, observation: Any, action: Any | None) -> Array:
    asked = "q_values"
    if action is None and not algorithm.spaces.is_discrete:
        raise ConfigError(f"{asked}: Box actions cannot be listed; give the actions to be valued")

    def question(obs: Tensor) -> Tensor | None:
        if action is None:
            return algorithm.every_action_value(obs)
        return algorithm.action_values(obs, inner_actions(algorithm, action, len(obs), asked))

    return _answer(algorithm, observation, asked, question, "has learned no values of actions")


def everything_known(algorithm: Algorithm, observation: Any, action: Any) -> dict[str, Any]:
    """Everything that can be computed about observations and their actions, by name."""
    questions: dict[str, Callable[[], Any]] = {
        "action_probabilities": lambda: action_probabilities(algorithm, observation),
        "log_prob": lambda: log_prob(algorithm, observation, action),
        "value": lambda: value(algorithm, observation),
        "q_value": lambda: q_values(algorithm, observation, action),
        "q_values": lambda: q_values(algorithm, observation, None),
    }
    known = {}
    for name, question in questions.items():
        with suppress(ConfigError):
            known[name] = question()
    return known
