"""Random numbers of worlds, computed from seeds.

A number depends on its seed and its place alone, not on a generator's state: worlds that are reset
together or apart draw the same numbers, on every device, and there is no state to save.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_STEP = 0x9E3779B97F4A7C15 - 2**64  # as a signed number, like the factors below
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def mixed(x: Tensor) -> Tensor:
    """A hash of int64 numbers; the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shifted to the right with zeros, where `>>` repeats the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def world_keys(seed: int, worlds: int, device: torch.device) -> Tensor:
    """(N,) keys of the worlds of a run."""
    index = torch.arange(1, worlds + 1, device=device)
    return mixed(mixed(index * _STEP) + seed)


def episode_seeds(keys: Tensor, episodes: Tensor) -> Tensor:
    """(N,) seeds, not negative, of the worlds' episodes of those (N,) numbers."""
    return mixed(keys + (episodes + 1) * _STEP) & (2**63 - 1)


def uniforms(seeds: Tensor, count: int) -> Tensor:
    """(N, count) float32 numbers in [0, 1)."""
    place = torch.arange(1, count + 1, device=seeds.device) * _STEP
    bits = _shifted(mixed(seeds.unsqueeze(1) + place), 40)
    return bits.to(torch.float32) * 2.0**-24


def normals(seeds: Tensor, count: int) -> Tensor:
    """(N, count) standard normal float32 numbers (Box and Muller 1958)."""
    u = uniforms(seeds, 2 * count)
    radius = (-2.0 * torch.log1p(-u[:, :count])).sqrt()
    return radius * torch.cos(2.0 * math.pi * u[:, count:])
