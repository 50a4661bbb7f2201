"""The machine that a result was made on."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any


@cache
def hardware() -> dict[str, Any]:
    """Processor, cores and memory."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "gpu": _gpu_model(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpu_model() -> str:
    """As the kernel names it, with family and model number, since clouds hide the name."""
    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    except OSError:
        return platform.processor() or "unknown"
    name = fields.get("model name", "unknown")
    return f"{name} (family {fields.get('cpu family')}, model {fields.get('model')})"


def _gpu_model() -> str | None:
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("Model:"):
                return line.partition(":")[2].strip()
    return None


def has_gpu() -> bool:
    """Whether jobs for a GPU can run here."""
    return _gpu_model() is not None
