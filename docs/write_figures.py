"""Draws the README's figure from stored results of the benchmarks: `make generated`."""

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


if __name__ == "__main__":
    FIGURE.parent.mkdir(exist_ok=True)
    draw().savefig(FIGURE, metadata={"Software": None})
