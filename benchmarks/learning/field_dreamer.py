"""Dreamer on five games of Atari 100k, the whole budget."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.learning.field import Field, Published, Run

CONFIG = "dreamer/boxing_atari"
AUTHORS = {"boxing": 87.0, "pong": -5.0, "breakout": 11.2, "freeway": 0.0, "krull": 8604.0}
"""Mean of five seeds with a model of 200M parameters, over the games of the training that ended
between 390,000 and 400,000 frames (danijar/dreamerv3, issues 138 and 177)."""
UNMOVED = 20.0
CURVE = {"eval_interval": 50_000, "eval_episodes": 5, "eval_max_steps": 10_000}
"""A game may wait for a button for the rest of its 27,000 steps."""
RATIO = {"gradient_updates_per_step": 0.125}
"""The paper's replay ratio of 128; the authors' code has 256, as the packaged config has."""


def _runs() -> list[Run]:
    runs = []
    for game, score in AUTHORS.items():
        changes = {"env_kwargs": {"game": game, "protocol": "atari100k"}, **CURVE}
        known = Published(score, "authors, five seeds, 200m", in_training=True)
        run = Run(game, "Dreamer, 12m", game.capitalize(), CONFIG, changes, RATIO)
        runs.append(replace(run, published=known))
    twin = Run("boxing-twin", "twin: shuffled actions", "Boxing", CONFIG, CURVE, RATIO)
    runs.append(replace(twin, most=UNMOVED, sabotage="shuffled_actions"))
    return [replace(run, drawn=True) for run in runs]


TEXT = (
    "100,000 steps, 400,000 frames, protocol `atari100k` (no-op frames, no sticky actions, whole "
    "games, colour images of 64x64), size `12m`, an update per eight steps, which is the paper's "
    "ratio. Mean score of the last policy over 20 games of at most 10,000 steps with drawn "
    "actions. *In training* is the mean score of the games that ended in the last twentieth of the "
    "training, and curves are of games in training. The authors' means are of such games, too, "
    "those of the last fortieth, over five seeds with 200M parameters. Runs share the card, three "
    "to five at a time, so *seconds* are not those of a run alone."
)
SUITE = Field(
    "field_dreamer",
    "Dreamer on Atari 100k",
    TEXT,
    _runs(),
    seeds=3,
    episodes=20,
    training=True,
    headline="Scores of Dreamer with 12M parameters after 100,000 steps of Atari, while learning, "
    "and in brackets its authors' with 200M",
).suite()
