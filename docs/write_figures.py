"""Draws the figures of the pages: `make generated`.

The README's comes from stored results of the benchmarks. The one of architecture.md is drawn here,
because a diagram in a language of its own would need a script from the network in a browser.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "benchmarks" / "results" / "offline"
FIGURE = DOCS / "figures" / "offline_beside_d3rlpy.png"
ALGORITHMS = ("bc", "cql", "awac", "iql", "crr")
OURS, PEER, REFERENCE = "#0072b2", "#e69f00", "#555555"


def stored(job: str) -> list[dict[str, Any]]:
    """Results of a job, one per seed."""
    files = sorted(RESULTS.glob(f"{job}-s[0-9].json"))
    return [json.loads(file.read_text(encoding="utf-8"))["result"] for file in files]


def mean_of(job: str, key: str) -> tuple[float, float]:
    """Mean over seeds, and its standard error."""
    values = [result[key] for result in stored(job)]
    return statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5


def draw() -> Figure:
    figure = Figure(figsize=(9.0, 3.3), dpi=150, layout="constrained")
    returns, seconds = figure.subplots(1, 2, width_ratios=(3, 2))
    for axes, key in ((returns, "return_mean"), (seconds, "train_seconds")):
        for shift, prefix, color, label in (
            (-0.2, "", OURS, "rl-training"),
            (0.2, "d3rlpy-", PEER, "d3rlpy 2.8.1"),
        ):
            found = [mean_of(prefix + algo, key) for algo in ALGORITHMS]
            places = [row + shift for row in range(len(found))]
            values, errors = [value for value, _ in found], [error for _, error in found]
            axes.barh(places, values, 0.38, xerr=errors, color=color, label=label)
        axes.set_yticks(range(len(ALGORITHMS)), [algo.upper() for algo in ALGORITHMS])
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    (data,) = stored("data")
    for name, style, words in (
        ("pendulum-mixed", "--", "mean episode of the data"),
        ("pendulum-expert", ":", "their better half"),
    ):
        returned = data[name]["return_mean"]
        returns.axvline(returned, color=REFERENCE, linestyle=style, label=words)
    returns.set(title="Return of the last policy: short bars are good", xlabel="mean return")
    returns.legend(fontsize="x-small", loc="lower left")
    seconds.set(title="Training time", xlabel="seconds on one core")
    figure.suptitle(
        "Pendulum-v1, 200 episodes, half of them random; 10,000 updates (CQL 8,000), 3 seeds",
        fontsize="medium",
    )
    return figure


BOXES = {
    # column and row of a box, its name and where its code is
    "config": (0, 0, "TrainConfig", "experiment/config.py"),
    "file": (1, 0, "data set", "data/sources.py"),
    "env": (2, 0, "environments", "envs/"),
    "build": (0, 1, "build_loop", "runtime/build.py"),
    "table": (1, 1, "TransitionTable", "replay/table.py"),
    "collector": (2, 1, "Collector", "envs/collector.py"),
    "loop": (1, 2, "Loop", "runtime/loops/"),
    "buffer": (2, 2, "replay, rollouts", "replay/"),
    "trainer": (0, 3, "Trainer", "runtime/trainer.py"),
    "learner": (1, 3, "Learner", "runtime/agents.py"),
    "engine": (2, 3, "Engine: eager,\ncompiled, CUDA graph", "runtime/engine.py"),
    "folder": (0, 4, "run folder: metrics,\ncheckpoints, result", "experiment/"),
    "update": (1, 4, "Algorithm.update", "algorithms/"),
    "networks": (2, 4, "networks", "models/"),
    "load": (0, 5, "load, resume", "api/managed.py"),
    "policy": (1, 5, "ActingPolicy", "runtime/policy.py"),
    "use": (2, 5, "evaluate, predict,\ncollect, export, serve", "api/, export/, serve/"),
}
ARROWS = (
    "config build, build loop, file table, table loop, env collector, collector buffer, "
    "buffer loop, loop learner, loop trainer, learner engine, learner update, update networks, "
    "update policy, trainer folder, folder load, load policy, policy use"
)
WIDE, HIGH = 3.4, 1.25


def draw_way_of_data() -> Figure:
    """Boxes on a grid, with arrows from each to where it leads."""
    figure = Figure(figsize=(8.2, 6.6), dpi=150, layout="constrained")
    axes = figure.subplots()
    places = {key: (WIDE * column, -HIGH * row) for key, (column, row, *_) in BOXES.items()}
    for key, (_, _, name, home) in BOXES.items():
        text = f"{name}\n{home}"
        style = {"boxstyle": "round,pad=0.4", "facecolor": "#eef4fa", "edgecolor": OURS}
        axes.text(*places[key], text, ha="center", va="center", fontsize=8.5, bbox=style)
    for pair in ARROWS.split(", "):
        start, end = (places[key] for key in pair.split())
        look = {"arrowstyle": "-|>", "color": REFERENCE, "shrinkA": 22, "shrinkB": 22}
        if start[0] != end[0]:
            look |= {"shrinkA": 52, "shrinkB": 52}
        axes.annotate("", end, start, arrowprops=look)
    axes.set(xlim=(-WIDE / 2, 2.5 * WIDE), ylim=(-5.5 * HIGH, HIGH / 2))
    axes.axis("off")
    return figure


if __name__ == "__main__":
    FIGURE.parent.mkdir(exist_ok=True)
    draw().savefig(FIGURE, metadata={"Software": None})
    draw_way_of_data().savefig(FIGURE.with_name("way_of_data.png"), metadata={"Software": None})
