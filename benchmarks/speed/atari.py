"""Memory and time of a resumed run on Atari images."""

from __future__ import annotations

from pathlib import Path

from benchmarks.jobs import Job, Records
from benchmarks.markdown import table
from benchmarks.suites import Options, Section, Suite

NAME = "atari"
JOB = "benchmarks.speed.atari_job"
STEPS = 100_000
QUICK_STEPS = 600


def atari_jobs(options: Options) -> list[Job]:
    """One job; seeds play no part."""
    steps = QUICK_STEPS if options.quick else STEPS
    changes = [
        f"algo_kwargs.buffer_capacity={steps}",
        f"algo_kwargs.learning_starts={steps - 200}",
        "checkpoint_interval=0",
        "eval_interval=0",
        "final_eval=false",
        "tensorboard=false",
        "device=cpu",
        "threads=1",
    ]
    spec = {"config": "dqn/breakout", "changes": changes, "steps": steps, "further": 40}
    return [Job(NAME, "dqn-breakout", 0, JOB, spec, cost=120.0)]


def atari_report(records: Records, _: Path) -> Section:
    (record,) = records.of("dqn-breakout")
    r = record.result
    rows = [
        ("transitions in the replay", f"{r['steps']:,}"),
        ("replay in memory, each frame once", _size(r["replay_bytes"])),
        ("the same with stacks on both sides", _size(r["stacked_bytes"])),
        ("checkpoint on disk, everything included", _size(r["checkpoint_bytes"])),
        ("to save it", f"{r['save_seconds']:.1f} s"),
        ("from `resume` to the first further steps", f"{r['resume_seconds']:.1f} s"),
        ("largest memory of the resumed process", _size(r["resumed_peak_bytes"])),
        ("a replay of 1,000,000 would take", _size(r["million_bytes"])),
    ]
    text = (
        "`dqn/breakout` with a replay of as many steps as it takes, saved in the middle of a game "
        "with all of its state, and resumed in a process of its own. That such a run goes on bit "
        "for bit is tested in `tests/runtime/test_resume_environments.py`. Collecting ran at "
        f"{r['steps'] / r['train_seconds']:,.0f} steps/s on one core (random actions; an "
        "environment step is four frames)."
    )
    return Section("\n\n".join((text, table(("what", "measured"), rows))), ())


def _size(count: float) -> str:
    return f"{count / 1e9:,.2f} GB"


SUITE = Suite(NAME, "Keeping and resuming a run on Atari images", atari_jobs, atari_report, True)
