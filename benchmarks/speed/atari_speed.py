"""Frames per second of whole training runs on Atari with many games, beside Stable-Baselines3."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import gates
from benchmarks.gates import Verdict
from benchmarks.jobs import Job, Records
from benchmarks.markdown import number, table
from benchmarks.peers.environment import SB3, SB3_VERSION
from benchmarks.speed.ratios import only
from benchmarks.suites import Options, Section, Suite

NAME, MODULE = "atari_speed", "benchmarks.speed.atari_speed_job"
SECONDS, WARM_SECONDS = 20.0, 8.0
CORES = (1, 2, 4, 8, 16)
"""Worker processes whose collection is measured, as far as the machine has cores."""


@dataclass(frozen=True)
class Case:
    """A run that is measured."""

    title: str
    side: str
    config: str
    changes: tuple[str, ...] = ()
    least: float | None = None
    """Frames per second to reach on a GPU and 16 cores."""


CASES = {
    "dqn": Case("DQN", "ours", "dqn/breakout_fast", least=10_000),
    "dqn-sb3": Case("DQN of Stable-Baselines3", "sb3", "dqn/breakout_fast"),
    "ppo": Case("PPO", "ours", "ppo/breakout_fast", least=20_000),
    "ppo-sb3": Case("PPO of Stable-Baselines3", "sb3", "ppo/breakout_fast"),
    "dqn-after": Case(
        "DQN, updates after a step", "ours", "dqn/breakout_fast", ("overlap_updates=false",)
    ),
}
PEER = {"dqn": "dqn-sb3", "dqn-after": "dqn-sb3", "ppo": "ppo-sb3"}
COMMON = ("algo_kwargs.learning_starts=6400",)
"""Of DQN: fewer random steps before the first update, which are not measured."""
SMALL = ("num_envs=4", "env_workers=2")


def atari_speed_jobs(options: Options) -> list[Job]:
    """One job per run, one at a time; seeds play no part."""
    quick, jobs = options.quick, list[Job]()
    for name, case in CASES.items():
        changes = [*case.changes, *(COMMON if case.config.startswith("dqn") else ())]
        if quick:
            changes += SMALL
        spec: dict[str, Any] = {
            "what": "train",
            "side": case.side,
            "config": case.config,
            "changes": changes,
            "seconds": 1.0 if quick else SECONDS,
            "warm_seconds": 0.0 if quick else WARM_SECONDS,
        }
        peer = SB3 if case.side == "sb3" else None
        if peer is not None:
            spec["stable-baselines3"] = SB3_VERSION
        cost = 60 + 5 * (len(CASES) - len(jobs))  # in this order
        jobs.append(Job(NAME, name, 0, MODULE, spec, peer=peer, cost=cost, gpu=True))
    spec = {"what": "collect", "config": "ppo/breakout_fast", "workers": list(CORES)}
    spec |= {"changes": list(SMALL) if quick else [], "seconds": 0.5 if quick else 5.0}
    jobs.append(Job(NAME, "collect", 0, MODULE, spec, cost=40))
    return jobs


def atari_speed_report(records: Records, _: Path) -> Section:
    verdicts: list[Verdict] = []
    rows, said = [], []
    for name, case in CASES.items():
        record = only(records, name)
        result = record.result if record else {}
        speed, verdict = result.get("frames_per_second"), ""
        if case.least is not None:
            gate = gates.at_least(
                f"{case.title}: frames/s", [speed] if speed is not None else [], case.least
            )
            verdicts.append(gate)
            verdict = gate.text
        peer = only(records, PEER.get(name, ""))
        ratio = ""
        if speed is not None and peer is not None:
            ratio = f"{speed / peer.result['frames_per_second']:.2f}"
            if case.least is not None:
                said.append(f"{case.title} {number(speed)} ({ratio})")
        cells = [number(result.get(key)) for key in ("num_envs", "frames_per_second", "updates")]
        rows.append((case.title, f"`{case.config}`", *cells, ratio, number(case.least), verdict))
    parts = [
        "Whole training runs: acting, games, storing and updates, without evaluation and "
        "checkpoints. A step is four frames. Both sides play this package's games with the same "
        f"preprocessing; Stable-Baselines3 {SB3_VERSION} has each in a process of its own "
        "(`SubprocVecEnv`), with the same sizes, batches, updates per step and length of the "
        f"replay. {WARM_SECONDS:.0f} seconds of learning warm up, {SECONDS:.0f} are measured.",
        table(
            ("run", "config", "games", "frames/s", "updates", "of SB3's", "asked", ""),
            rows,
        ),
    ]
    collected = only(records, "collect")
    if collected is not None:
        result = collected.result
        speeds = [(f"{w}", number(speed)) for w, speed in result["frames_per_second"].items()]
        parts += [
            f"Games alone: {result['num_envs']} with random actions, by the number of worker "
            "processes (0: in this process).",
            table(("processes", "frames/s"), speeds),
        ]
    short = (
        "Frames per second of training on Atari with a GPU and 16 cores, and in brackets in "
        f"multiples of Stable-Baselines3's: {', '.join(said)}."
    )
    return Section("\n\n".join(parts), tuple(verdicts), short if said else "")


SUITE = Suite(
    NAME,
    "Speed of training on Atari with many games",
    atari_speed_jobs,
    atari_speed_report,
    alone=True,
)
