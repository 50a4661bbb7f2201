"""Checks before allocation whether memory suffices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import torch

from rl_training.experiment.errors import ConfigError, DataError

PROC = Path("/proc")

_LIMIT_FILES = (
    # limit, usage, and the key in memory.stat for file caches that can be reclaimed
    (("memory.max", "memory.high"), "memory.current", "inactive_file"),  # version 2
    (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),  # version 1
)


class Claim(NamedTuple):
    """Memory that a part of a run will allocate."""

    what: str  # as a sentence names it: "a replay"
    rows: int  # transitions
    needed: int  # bytes
    key: str = "algo_kwargs.buffer_capacity"  # what to lower


def available_memory(device: torch.device) -> int | None:
    """Free bytes on `device`; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return host_memory() if device.type == "cpu" else None


def host_memory(proc: Path = PROC) -> int | None:
    """Bytes that this process can allocate: the minimum of what the machine, its control groups
    (containers, Slurm, systemd) and its limit on address space leave; None if unknown."""
    known = (_machine_leaves(proc), *_groups_leave(proc), _limit_leaves(proc))
    least = min((room for room in known if room is not None), default=None)
    return None if least is None else max(least, 0)


def require_memory(device: torch.device, *claims: Claim, held: int = 0) -> None:
    """Raise an error if the claims do not fit on `device`; `held` bytes are allocated already.

    The memory of a replay is used only as it fills, so the free memory does not account for
    earlier claims: all claims of a run must be checked together.
    """
    free = available_memory(device)
    total = sum(claim.needed for claim in claims)
    if free is None or total <= free + held:
        return
    free += held
    key = max(claims, key=lambda claim: claim.needed).key
    own = [claim for claim in claims if claim.key == key]
    rest = [claim for claim in claims if claim.key != key]
    first, *others = sorted(own, key=lambda claim: -claim.needed) + rest
    beside = f" ({total / 1e9:,.1f} GB with {_listed(others)})" if others else ""
    # A fifth is reserved for the networks and the rest of the run; two digits are enough.
    room = 0.8 * free - sum(claim.needed for claim in rest)
    fits = max(int(room / sum(claim.needed / claim.rows for claim in own)), 0)
    unit = 10 ** max(len(str(fits)) - 2, 0)
    instead = ", ".join(dict.fromkeys(claim.key for claim in rest))
    raise ConfigError(
        f"{key}: {first.what} of {first.rows:,} transitions would take "
        f"{first.needed / 1e9:,.1f} GB{beside}, but {free / 1e9:,.1f} GB are free on {device}; "
        + (f"{fits // unit * unit:,} would fit" if fits else f"lower it and {instead}")
    )


def require_data_memory(label: str, needed: int, device: torch.device | None = None) -> None:
    """Raise an error if the data of the source `label` do not fit in memory."""
    device = device or torch.device("cpu")
    free = available_memory(device)
    if free is not None and needed > free:
        raise DataError(
            f"{label}: the arrays would take {needed / 1e9:,.1f} GB, but {free / 1e9:,.1f} GB are "
            f"free on {device}; use fewer rows, or a machine with more memory"
        )


def _listed(claims: list[Claim]) -> str:
    return " and ".join(claim.what for claim in claims)


# --- sources of the limits -------------------------------------------------------------------


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d+", text.strip()) else None  # "max" is no limit


def _machine_leaves(proc: Path) -> int | None:
    found = re.search(r"^MemAvailable:\s*(\d+) kB", _text(proc / "meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _limit_leaves(proc: Path) -> int | None:
    """Bytes left by the soft limit on the address space (ulimit -v)."""
    limit = re.search(r"^Max address space\s+(\d+)", _text(proc / "self/limits"), re.MULTILINE)
    taken = re.search(r"^VmSize:\s*(\d+) kB", _text(proc / "self/status"), re.MULTILINE)
    return int(limit[1]) - int(taken[1]) * 1024 if limit and taken else None


def _groups_leave(proc: Path) -> Iterator[int | None]:
    """Bytes left by each control group of this process."""
    for folder in group_folders(proc, "memory"):
        for limits, usage, cached in _LIMIT_FILES:
            numbers = [_number(_text(folder / name)) for name in limits]
            limit = min((number for number in numbers if number is not None), default=None)
            used = _number(_text(folder / usage))
            if limit is None or used is None:
                continue
            given_back = re.search(
                rf"^{cached} (\d+)$", _text(folder / "memory.stat"), re.MULTILINE
            )
            yield limit - used + (int(given_back[1]) if given_back else 0)


def group_folders(proc: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control groups and their parents, whose limits also apply."""
    listed = [line.split(":", 2) for line in _text(proc / "self/cgroup").splitlines()]
    groups = {fields[1]: fields[2] for fields in listed if len(fields) == 3}
    for line in _text(proc / "self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        if kind[0] == "cgroup2":
            path = groups.get("")
        elif controller in kind[2].split(","):
            path = next((p for names, p in groups.items() if controller in names.split(",")), None)
        else:
            continue
        root, mount = PurePosixPath(_unescaped(fields[3])), Path(_unescaped(fields[4]))
        # A container may see its own group as the mount's root but name it by its outer path.
        own = PurePosixPath(path or "/")
        inside = own.relative_to(root) if own.is_relative_to(root) else PurePosixPath()
        if ".." in inside.parts:
            inside = PurePosixPath()
        yield from (mount / part for part in (inside, *inside.parents))


def _unescaped(path: str) -> str:
    """Decode a path of mountinfo, which writes spaces as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)
