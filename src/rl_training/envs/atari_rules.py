"""Rules by which Atari games are played: published protocols, and changes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rl_training.experiment.errors import ConfigError, did_you_mean

ATARI_ID = "rl_training/Atari-v0"


@dataclass(frozen=True)
class Protocol:
    """Published rules of play, under which scores can be compared."""

    summary: str
    kwargs: Mapping[str, Any]
    """Keyword arguments of the environment, in training and in evaluation."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the training environments alone."""


UNNAMED: Mapping[str, Any] = {
    "frame_skip": 4,
    "noop_max": 30,
    "screen_size": 84,
    "grayscale": True,
    "frame_stack": 4,
    "fire": True,
    "life_loss": False,
    "clip_rewards": False,
    "repeat_action_probability": 0.25,
    "random_actions": 0.0,
    "full_action_space": False,
    "max_frames": 108_000,
}
"""Values where no protocol is named: sticky actions and no-op frames together, as no paper has."""

PROTOCOLS: Mapping[str, Protocol] = {
    # Machado et al. 2018, with the frame skip and the buttons of Dopamine (Castro et al. 2018)
    "machado2018": Protocol(
        "sticky actions (0.25), whole games, no no-op frames; training clips rewards",
        {"repeat_action_probability": 0.25, "noop_max": 0, "fire": False},
        {"clip_rewards": True},
    ),
    # Mnih et al. 2015; fire is pressed as in OpenAI's baselines and Stable-Baselines3. Without
    # random actions a policy that draws none plays the same few games of Breakout.
    "mnih2015": Protocol(
        "1 to 30 no-op frames, no sticky actions, whole games with 0.05 random actions; training "
        "adds none, clips rewards, and a lost life ends an episode for learning",
        {"repeat_action_probability": 0.0, "noop_max": 30, "fire": True, "random_actions": 0.05},
        {"clip_rewards": True, "life_loss": True, "random_actions": 0.0},
    ),
    # Kaiser et al. 2020, with the images of DreamerV3 (Hafner et al. 2023)
    "atari100k": Protocol(
        "1 to 30 no-op frames, no sticky actions, whole games, colour images of 64x64 pixels "
        "without a stack; 100,000 steps are 400,000 frames",
        {
            "repeat_action_probability": 0.0,
            "noop_max": 30,
            "fire": False,
            "screen_size": 64,
            "grayscale": False,
            "frame_stack": 1,
        },
    ),
}


NO_RULES = {"game", "protocol", "render_mode"}
"""Keyword arguments that are no rule of play."""
EVALUATION_ONLY = "random_actions"
"""What `env_kwargs` say of it is for evaluations; training has the protocol's own."""


def for_training(
    env_id: str,
    env_kwargs: Mapping[str, Any],
    train_env_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Keyword arguments that training has beside `env_kwargs`: for a game those that its protocol
    adds, and `train_env_kwargs` above them.

    Rules that `env_kwargs` change are not among the protocol's, but `EVALUATION_ONLY` is.
    """
    own = train_env_kwargs or {}
    name = env_kwargs.get("protocol") if env_id == ATARI_ID else None
    if env_id == ATARI_ID and "protocol" in own:
        raise ConfigError(
            "train_env_kwargs.protocol: a protocol has rules of training and of evaluation; set "
            "env_kwargs.protocol, and single rules here"
        )
    if name is None:
        return dict(own)
    changed = set(env_kwargs) - {EVALUATION_ONLY}
    rules = _protocol(name).training
    return {**{key: rule for key, rule in rules.items() if key not in changed}, **own}


def protocol_of(
    env_id: str | None,
    env_kwargs: Mapping[str, Any],
    train_env_kwargs: Mapping[str, Any] | None = None,
) -> str | None:
    """A sentence that says under which rules a game is played, and which of them training changes
    besides; None for other environments."""
    if env_id != ATARI_ID:
        return None
    name = env_kwargs.get("protocol")
    if name is None:
        return "no named protocol: scores compare with no published ones"
    parts = [f"{name}: {_protocol(name).summary}"]
    for what, given in (("changed", env_kwargs), ("changed in training", train_env_kwargs or {})):
        changed = sorted(set(given) - NO_RULES)
        if changed:
            parts.append(f"{what}: {', '.join(changed)}")
    return "; ".join(parts)


def _protocol(name: Any) -> Protocol:
    if not isinstance(name, str) or name not in PROTOCOLS:
        raise ConfigError(
            f"env_kwargs.protocol: there is no protocol '{name}'"
            f"{did_you_mean(str(name), PROTOCOLS)}; use {', '.join(PROTOCOLS)}"
        )
    return PROTOCOLS[name]


def rules_of(protocol: str | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """All rules of a game: those of the protocol, or `UNNAMED` without one, and `changes` above
    them, checked."""
    known_keys = ("game", "protocol", *UNNAMED)
    for key in sorted(set(changes) - set(UNNAMED)):
        raise ConfigError(
            f"env_kwargs.{key}: unknown key{did_you_mean(key, known_keys)}; "
            f"use {', '.join(known_keys)}"
        )
    published = _protocol(protocol).kwargs if protocol is not None else {}
    rules = {**UNNAMED, **published, **changes}
    _check(rules)
    return rules


def _check(rules: Mapping[str, Any]) -> None:
    """Refuse values of another type or range."""
    limits = {"frame_skip": 1, "noop_max": 0, "screen_size": 8, "frame_stack": 1, "max_frames": 1}
    for key, value in rules.items():
        is_switch = isinstance(value, bool)
        if key in limits:
            expected = f"a whole number, at least {limits[key]}"
            fits = isinstance(value, int) and not is_switch and value >= limits[key]
        elif isinstance(UNNAMED[key], bool):
            expected, fits = "true or false", is_switch
        else:
            expected = "a number from 0 to below 1"
            fits = isinstance(value, (int, float)) and not is_switch and 0.0 <= value < 1.0
        if not fits:
            raise ConfigError(f"env_kwargs.{key}: expected {expected}, got {value!r}")
