"""How far a long run is, by what it has logged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.jobs import Job

TAIL = 200_000
"""Bytes at the end of a log that are read: hundreds of lines."""


def how_far(job: Job) -> str | None:
    """Steps, rate, time left and score of a run that is cut into pieces; None of other jobs, and
    before it has logged something."""
    if "folder" not in job.inputs:
        return None
    events = _newest_events(Path(job.inputs["folder"]))
    trained = [event for event in events if event["event"] == "train"]
    if not trained:
        return None
    last, total = trained[-1], job.spec["config"]["total_timesteps"]
    rate = last["time/env_steps_per_second"]
    text = f"{last['tick']:,} of {total:,} steps, {rate:,.0f}/s"
    if rate > 0:
        text += f", {max(total - last['tick'], 0) / rate / 60:.0f} min left"
    for name, words in (("rollout/score_mean", "score"), ("rollout/return_mean", "return")):
        found = [event[name] for event in trained if name in event]
        if found:
            text += f", {words} {found[-1]:,.1f}"
            break
    evaluated = [event for event in events if event["event"] == "eval"]
    if evaluated:
        newest = evaluated[-1]
        text += f", evaluated {newest['eval/return_mean']:,.1f} at {newest['tick']:,}"
    return text


def _newest_events(folder: Path) -> list[dict[str, Any]]:
    """Of the newest run in a folder; none where there is none yet."""
    from rl_training.experiment.tracking import METRICS_FILE

    logs = sorted(folder.glob(f"*/{METRICS_FILE}"))
    if not logs:
        return []
    with logs[-1].open("rb") as log:
        size = log.seek(0, 2)
        log.seek(max(0, size - TAIL))
        lines = log.read().splitlines(keepends=True)
    if size > TAIL:
        lines = lines[1:]  # begins in the middle
    return [json.loads(line) for line in lines if line.endswith(b"\n")]
