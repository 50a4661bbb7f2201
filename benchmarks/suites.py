"""What a suite is: a list of jobs and a report with gates. Adding one is adding a line below."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gates import Verdict
from benchmarks.jobs import Job, Records


@dataclass(frozen=True)
class Options:
    """What the command line says about the jobs."""

    seeds: tuple[int, ...]
    quick: bool
    """Tiny budgets: does everything run? The numbers mean nothing."""
    scratch: Path
    """For files that jobs share; gone when the benchmark ends."""
    minutes: float | None = None
    """After which long jobs save their state and end, to go on the next time."""


@dataclass(frozen=True)
class Section:
    """A part of RESULTS.md and the gates in it."""

    markdown: str
    verdicts: tuple[Verdict, ...]
    short: str = ""
    """What a user wants to know of it, in a sentence or two, for the top of the page."""


@dataclass(frozen=True)
class Suite:
    """Jobs and what their results say."""

    name: str
    title: str
    jobs: Callable[[Options], list[Job]]
    report: Callable[[Records, Path], Section]
    """From the stored results and the folder for figures; called with at least one result."""
    alone: bool = False
    """One job at a time, because time is what it measures."""
    long: bool = False
    """Runs of hours in pieces, which run only where the suite is named. Its report also says what
    is asked where nothing has run."""


SUITES = {
    "speed": "benchmarks.speed.offline_cpu",
    "online_speed": "benchmarks.speed.online_cpu",
    "serving": "benchmarks.speed.serving",
    "search": "benchmarks.speed.search",
    "scale": "benchmarks.speed.scale",
    "gpu_speed": "benchmarks.speed.gpu",
    "older_speed": "benchmarks.speed.older",
    "atari": "benchmarks.speed.atari",
    "atari_speed": "benchmarks.speed.atari_speed",
    "device_envs": "benchmarks.speed.device_envs",
    "large_data": "benchmarks.speed.large_data",
    "reports": "benchmarks.speed.reports",
    "offline": "benchmarks.learning.offline",
    "discrete": "benchmarks.learning.discrete",
    "ope": "benchmarks.learning.ope",
    "online": "benchmarks.learning.online",
    "spaces": "benchmarks.learning.spaces",
    "humanoid": "benchmarks.learning.humanoid",
    "masks_and_memory": "benchmarks.learning.masks_and_memory",
    "zoo": "benchmarks.learning.zoo",
    "zoo_discrete": "benchmarks.learning.zoo_discrete",
    "zoo_critics": "benchmarks.learning.zoo_critics",
    "offline_to_online": "benchmarks.learning.offline_to_online",
    "fine_tuning": "benchmarks.learning.fine_tuning",
    "offline_to_online_gpu": "benchmarks.learning.offline_to_online_gpu",
    "imitation": "benchmarks.learning.imitation",
    "ensemble_speed": "benchmarks.speed.ensemble",
    "model_based": "benchmarks.learning.model_based",
    "model_based_gpu": "benchmarks.learning.model_based_gpu",
    "mopo_zoo": "benchmarks.learning.mopo_zoo",
    "model_speed": "benchmarks.speed.model",
    "world_model": "benchmarks.learning.world_model",
    "world_model_gpu": "benchmarks.learning.world_model_gpu",
    "world_model_speed": "benchmarks.speed.world_model",
    "field_atari": "benchmarks.learning.field_atari",
    "field_mujoco": "benchmarks.learning.field_mujoco",
    "field_dreamer": "benchmarks.learning.field_dreamer",
    "field_imitation": "benchmarks.learning.field_imitation",
}
"""Modules with a `SUITE`, in the order in which they run."""


def load_suite(name: str) -> Suite:
    suite: Suite = importlib.import_module(SUITES[name]).SUITE
    return suite
