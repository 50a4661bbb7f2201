"""A page of results per area of the field, written from the stored results as RESULTS.md is.

Each says what was asked, what ran, under which protocol, for how long and with which command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gates import Verdict
from benchmarks.markdown import INTERVAL, table
from benchmarks.suites import Section, Suite

HEAD = (
    "Made by `python -m benchmarks.run` from the JSON files under `benchmarks/results/`; do not "
    "edit. [RESULTS.md](RESULTS.md) has all suites."
)


@dataclass(frozen=True)
class Area:
    """A page."""

    file: str
    title: str
    text: str
    suites: tuple[str, ...]
    """In the order of their sections."""


AREAS = (
    Area(
        "ATARI.md",
        "Results on Atari",
        "Scores compare only under one protocol, which every run names: `machado2018` (sticky "
        "actions, whole games), `mnih2015` (no-op frames, random actions in evaluations, a lost "
        "life ends an episode for learning) or `atari100k`. Scores are those of whole games, with "
        "unclipped rewards.",
        ("field_atari", "atari_speed", "atari"),
    ),
    Area(
        "MUJOCO.md",
        "Results on MuJoCo",
        "Gymnasium's v5 tasks, in which scores differ from those of v2 to v4: constant parts of "
        "observations and a mistake in Walker2d's friction are gone. Published figures name their "
        "version.",
        (
            "field_mujoco",
            "humanoid",
            "device_envs",
            "model_based_gpu",
            "offline_to_online_gpu",
            "zoo",
            "zoo_critics",
            "mopo_zoo",
        ),
    ),
    Area(
        "WORLD_MODELS.md",
        "Results of world models",
        "Dreamer, which plans in a learned model, from pixels and from vectors, beside its "
        "authors' published scores, with twins whose model is spoilt.",
        ("field_dreamer", "world_model_gpu", "world_model", "world_model_speed"),
    ),
    Area(
        "DEMONSTRATIONS.md",
        "Results from demonstrations and logs",
        "Imitation of experts, and learning from logs that mix good and bad policies.",
        (
            "field_imitation",
            "imitation",
            "zoo_discrete",
            "discrete",
            "offline",
            "offline_to_online",
            "fine_tuning",
        ),
    ),
)


def write_areas(
    folder: Path,
    suites: Mapping[str, Suite],
    sections: Mapping[str, Section],
    provenance: Callable[[Suite], str],
    empty: Callable[[Suite], Section],
) -> None:
    """Write all pages; `empty` is the section of a suite without results."""
    for area in AREAS:
        rows, parts = [], []
        for name in area.suites:
            suite = suites[name]
            ran = name in sections
            section = sections[name] if ran else empty(suite)
            rows.append([f"[{suite.title}](#{anchor_of(suite.title)})", *_state(section, ran)])
            command = f"`python -m benchmarks.run {name}`"
            note = provenance(suite) if ran else f"Nothing has run: {command} does."
            parts += [f"## {suite.title}", section.markdown, note]
        summary = table(("part", "gates that hold", "state"), rows)
        page = "\n\n".join((f"# {area.title}", HEAD, f"{area.text} {INTERVAL}", summary, *parts))
        (folder / area.file).write_text(page + "\n", encoding="utf-8")


def _state(section: Section, ran: bool) -> tuple[str, str]:
    verdicts = section.verdicts
    holds = f"{_count(verdicts, True)} of {len(verdicts)}" if verdicts else "–"
    if not ran:
        return holds, "not run"
    missed, missing = _count(verdicts, False), _count(verdicts, None)
    return holds, f"{missed} missed, {missing} not run" if missed or missing else "run"


def _count(verdicts: tuple[Verdict, ...], passed: bool | None) -> int:
    return sum(verdict.passed is passed for verdict in verdicts)


def anchor_of(title: str) -> str:
    """Where a heading is within its page."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")
