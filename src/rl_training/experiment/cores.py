"""How many cores a process may use, which a scheduler or a container may limit."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rl_training.experiment.memory import PROC, group_folders


def usable_cores(proc: Path = PROC) -> int:
    """Cores that this process is bound to, at most as many as its control groups grant; at least
    one."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    granted = [_granted(folder) for folder in group_folders(proc, "cpu")]
    return max(1, int(min([bound or 1, *(share for share in granted if share is not None)])))


def _granted(folder: Path) -> float | None:
    """Cores by the quota of a control group; None without a quota."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            text = " ".join((folder / name).read_text(encoding="utf-8") for name in names)
        except OSError:
            continue
        if found := re.fullmatch(r"(\d+)\s+(\d+)\s*", text):  # "max" and -1 are no limit
            return int(found[1]) / max(1, int(found[2]))
    return None
