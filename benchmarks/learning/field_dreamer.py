"""Dreamer on five games of Atari 100k, the whole budget."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.learning.field import Field, Published, Run

CONFIG = "dreamer/boxing_atari"
AUTHORS = {"boxing": 87.0, "pong": -5.0, "breakout": 11.2, "freeway": 0.0, "krull": 8604.0}
"""Mean of five seeds after 400,000 frames, with a model of 200M parameters."""
UNMOVED = 20.0
CURVE = {"eval_interval": 25_000, "eval_episodes": 5, "eval_max_steps": 10_000}
"""A game may wait for a button for the rest of its 27,000 steps."""


def _runs() -> list[Run]:
    runs = []
    for game, score in AUTHORS.items():
        changes = {"env_kwargs": {"game": game, "protocol": "atari100k"}, **CURVE}
        known = Published(score, "authors, five seeds, 200m")
        runs.append(Run(game, "Dreamer, 12m", game.capitalize(), CONFIG, changes, published=known))
    twin = "twin: shuffled actions"
    spoilt = "shuffled_actions"
    runs.append(Run("boxing-twin", twin, "Boxing", CONFIG, CURVE, most=UNMOVED, sabotage=spoilt))
    return [replace(run, drawn=True) for run in runs]


TEXT = (
    "100,000 steps, 400,000 frames, protocol `atari100k` (no-op frames, no sticky actions, whole "
    "games, colour images of 64x64), size `12m`. Mean score of the last policy over 20 games of at "
    "most 10,000 steps with drawn actions, as the authors play; curves are of the likeliest. "
    "The authors' means are of five seeds with 200M parameters."
)
SUITE = Field("field_dreamer", "Dreamer on Atari 100k", TEXT, _runs(), seeds=3, episodes=20).suite()
