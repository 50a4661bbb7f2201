"""From the body of a request to rows for the model, and from its outputs to an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.export.run_policy import Array, Policy, State
from rl_training.serve.refusals import Refused

KEYS = ("observation", "observations", "episode_start", "session", "step", "state", "return_state")
SLACK = 1e-3
"""Share of a bound's range by which an observation may be beyond it: simulators round, too."""


@dataclass(frozen=True)
class Asked:
    """A request after a look at all of it."""

    rows: Array
    alone: bool
    values: Mapping[str, Any]


class Reader:
    """Reads requests for one policy."""

    def __init__(self, policy: Policy, most_rows: int, bounds: bool) -> None:
        self.policy, self.most_rows = policy, most_rows
        numbers = int(np.prod(policy.shape))
        low, high = (self._bound(policy.seen.get(key), numbers) for key in ("low", "high"))
        slack = SLACK * np.where(np.isfinite(high - low), high - low, 1.0)
        self.low, self.high = low - slack, high + slack
        checked = bool(np.isfinite(self.low).any() or np.isfinite(self.high).any())
        self.bounds = bounds and checked and policy.dtype != np.uint8

    @staticmethod
    def _bound(given: Any, numbers: int) -> Array:
        """One number per component; NaN where there is none."""
        entries = given if isinstance(given, list) else [given] * numbers
        return np.array([np.nan if entry is None else entry for entry in entries], np.float64)

    @property
    def most_bytes(self) -> int:
        """Of a body: JSON writes a number with up to 26 characters."""
        return min(64 << 20, 65_536 + 26 * self.most_rows * int(np.prod(self.policy.shape)))

    def asked(self, body: bytes | str) -> Asked:
        """A request in JSON."""
        try:
            values = json.loads(body)
        except (ValueError, RecursionError):
            raise Refused(400, 'the request is no JSON; expected {"observation": [...]}') from None
        if not isinstance(values, dict):
            raise Refused(400, 'the request must be an object such as {"observation": [...]}')
        unknown = [key for key in values if key not in KEYS]
        if unknown:
            raise Refused(
                400, f"'{str(unknown[0])[:40]}' is not known; expected some of {', '.join(KEYS)}"
            )
        if ("observation" in values) == ("observations" in values):
            raise Refused(400, "give 'observation' for one, or 'observations' for many")
        alone = "observation" in values
        key = "observation" if alone else "observations"
        return Asked(self._rows(values[key], alone, key), alone, values)

    def from_bytes(self, body: bytes) -> Asked:
        """Rows as they lie in memory, little-endian and of the contract's type."""
        size = int(np.prod(self.policy.shape)) * self.policy.dtype.itemsize
        if not body or len(body) % size:
            raise Refused(
                400, f"a binary request holds observations of {size} bytes each, got {len(body)}"
            )
        flat = np.frombuffer(body, self.policy.dtype.newbyteorder("<"))
        rows = flat.reshape(-1, *self.policy.shape)
        return Asked(self._checked(rows, "observation"), len(rows) == 1, {})

    def _rows(self, given: Any, alone: bool, key: str) -> Array:
        policy = self.policy
        try:
            if policy.dtype == np.uint8:
                wide = np.asarray(given)
                if wide.dtype.kind not in "iu" or (wide.size and not wide.min() >= 0):
                    raise ValueError
                if wide.size and wide.max() > 255:
                    raise ValueError
                rows = wide.astype(np.uint8)
            else:
                rows = np.asarray(given)
                if rows.dtype.kind not in "fiu":
                    raise ValueError
        except (ValueError, TypeError, OverflowError):
            wanted = "whole numbers from 0 to 255" if policy.dtype == np.uint8 else "numbers"
            raise Refused(
                400, f"'{key}' must hold {wanted} in the shape {self._shape(alone)}"
            ) from None
        if (rows.shape if alone else rows.shape[1:]) != policy.shape or not rows.size:
            raise Refused(
                400, f"'{key}' must have the shape {self._shape(alone)}, got {list(rows.shape)}"
            )
        return self._checked(rows[None] if alone else rows, key)

    def _shape(self, alone: bool) -> str:
        inner = ", ".join(map(str, self.policy.shape))
        return f"[{inner}]" if alone else f"[n, {inner}]"

    def _checked(self, rows: Array, key: str) -> Array:
        if len(rows) > self.most_rows:
            raise Refused(
                413, f"'{key}' has {len(rows):,} rows; one request may have {self.most_rows:,}"
            )
        try:
            batch = self.policy.batch(rows)
        except ValueError as error:
            raise Refused(400, f"'{key}': {error}") from None
        if self.bounds:
            flat = batch.reshape(len(batch), -1)
            outside = (flat < self.low) | (flat > self.high)
            if outside.any():
                row, at = np.argwhere(outside)[0]
                raise Refused(
                    400,
                    f"'{key}': component {at} of row {row} is {flat[row, at]:g}, outside "
                    f"[{self.low[at]:g}, {self.high[at]:g}]",
                )
        return batch

    def state(self, given: Any, rows: int) -> State:
        """The state that a client keeps itself."""
        if given is None:
            return self.policy.initial_state(rows)
        wanted = {entry["name"]: entry for entry in self.policy.states}
        if not isinstance(given, Mapping) or set(given) != set(wanted):
            raise Refused(400, f"'state' must hold {', '.join(wanted) or 'nothing'}")
        found: State = {}
        for name, entry in wanted.items():
            shape = (rows, *entry["shape"][1:])
            try:
                values = np.asarray(given[name], entry["dtype"])
            except (ValueError, TypeError, OverflowError):
                raise Refused(400, f"'state.{name}' must hold numbers") from None
            if values.shape != shape or not np.isfinite(values).all():
                raise Refused(400, f"'state.{name}' must hold finite numbers in {list(shape)}")
            found[name] = values
        return found


def answer(policy: Policy, asked: Asked, outputs: Mapping[str, Array]) -> dict[str, Any]:
    """What a client gets: the action or actions, and further outputs by name."""
    alone, kept = asked.alone, {entry["next"] for entry in policy.states}
    further = {
        name: (values[0] if alone else values).tolist()
        for name, values in outputs.items()
        if name != "action" and name not in kept
    }
    action = outputs["action"]
    said: dict[str, Any] = {"action": action[0].tolist()} if alone else {"actions": action.tolist()}
    if further:
        said["outputs"] = further
    return said
