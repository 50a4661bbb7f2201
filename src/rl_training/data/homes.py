"""Where the table of transitions lives: on the training device, in host memory or on disk."""

from __future__ import annotations

from typing import Literal, NamedTuple

from rl_training.experiment.errors import ConfigError, DataError

Home = Literal["auto", "device", "host", "disk"]

DEVICE_SHARE, HOST_SHARE = 0.8, 0.6
"""Shares of the free memory that a table may take: networks, activations and, on the host, the
pages of other processes need the rest."""
PACK_FROM_BYTES = 1_000_000_000
PACK_FROM_SHARE = 0.2
"""From this size, or this share of the free host memory, data are packed on disk first: reading
them into memory would take two to three times their size."""


class MemoryHome(NamedTuple):
    """Memory that a table could live in."""

    free: int | None  # bytes; None if unknown
    kind: str  # cpu or cuda

    def holds(self, needed: int, share: float) -> bool:
        return self.free is None or needed <= share * self.free

    def __str__(self) -> str:
        return "an unknown amount" if self.free is None else f"{self.free / 1e9:,.1f} GB"


def chosen_home(
    wanted: Home, name: str, needed: int, device: MemoryHome, host: MemoryHome, on_disk: bool
) -> tuple[Home, str]:
    """The home of a table of `needed` bytes and the reason, from sizes alone.

    `on_disk` says whether the data are packed, so that they can stay where they are.
    """
    size = f"{needed / 1e9:,.1f} GB"
    place = "memory" if device.kind == "cpu" else "device memory"
    if wanted == "disk" and not on_disk:
        raise ConfigError(
            f"dataset.home: data set '{name}' is not packed, so that it cannot stay on disk; pack "
            "it with 'rl-training data pack', or remove this key"
        )
    if wanted != "auto":
        room = {"device": device, "host": host}.get(wanted)
        if room is not None and not room.holds(needed, 1.0):
            raise DataError(
                f"data set '{name}': the table would take {size}, but {room} are free; pack it "
                "with 'rl-training data pack' and set dataset.home to disk"
            )
        return wanted, "asked for"
    if device.holds(needed, DEVICE_SHARE):
        return "device", f"{size} of {device} free {place}"
    if device.kind != "cpu" and host.holds(needed, HOST_SHARE):
        return "host", f"{size} do not fit into {device} free {place}, {host} are free on the host"
    if on_disk:
        return "disk", f"{size} do not fit into {device} free {place}"
    raise DataError(
        f"data set '{name}': the table would take {size}, but {device} are free; pack it with "
        "'rl-training data pack', or use fewer rows"
    )


def to_be_packed(wanted: Home, size: int, host: MemoryHome) -> bool:
    """Whether a source whose arrays take `size` bytes is packed before it is used."""
    if wanted == "disk":
        return True
    return size >= PACK_FROM_BYTES or not host.holds(size, PACK_FROM_SHARE)
