"""From the body of a request to rows for the model, and from its outputs to an answer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.export.run_policy import LARGEST, Array, Part, Policy, State
from rl_training.serve.refusals import Refused

KEYS = {
    *("observation", "observations", "action_mask", "episode_start"),
    *("session", "step", "state", "return_state"),
}
SLACK = 1e-3
"""Share of a bound's range by which an observation may be beyond it: simulators round, too."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that has been checked."""

    feeds: State
    rows: int
    alone: bool
    values: Mapping[str, Any]


class Reader:
    """Reads requests for one policy."""

    def __init__(self, policy: Policy, most_rows: int, bounds: bool) -> None:
        self.policy, self.most_rows = policy, most_rows
        self.limits = {
            part.name: _limits(entry, bounds)
            for part, entry in zip(policy.seen, _entries(policy), strict=True)
            if part.dtype == np.float32
        }
        first = policy.seen[0]
        plain = len(policy.seen) == 1 and not first.chosen and not first.path
        self.plain = first if plain else None
        # JSON writes a number with up to 26 characters; parts have names, categories are text
        texts = [len(json.dumps(label)) for part in policy.seen for label in part.codes]
        row = sum(math.prod(p.shape) * max([26, *texts]) + 8 * len(p.name) for p in policy.seen)
        self.most_bytes = min(64 << 20, 65_536 + most_rows * row)
        self.packed = np.dtype(
            [(part.name, part.dtype.newbyteorder("<"), part.shape) for part in policy.seen]
        )

    def asked(self, body: bytes | str) -> Asked:
        """A request in JSON."""
        try:
            values = _decode(body if isinstance(body, str) else body.decode())
        except (ValueError, RecursionError):
            raise Refused(400, 'the request is not JSON; expected {"observation": [...]}') from None
        if not isinstance(values, dict):
            raise Refused(400, 'the request must be an object such as {"observation": [...]}')
        if not values.keys() <= KEYS:
            unknown = next(key for key in values if key not in KEYS)
            raise Refused(
                400, f"'{unknown[:40]}' is not known; expected some of {', '.join(sorted(KEYS))}"
            )
        alone = "observation" in values
        if alone == ("observations" in values):
            raise Refused(400, "give 'observation' for one, or 'observations' for many")
        given = values["observation" if alone else "observations"]
        if values.get("action_mask") is not None and not self.policy.masked:
            raise Refused(400, "this policy takes no mask; leave out 'action_mask'")
        if self.plain is not None:
            rows = self._plain_rows(given, alone, self.plain)
            feeds = {self.plain.name: rows}
        else:
            feeds = self._parts(given, alone, values.get("action_mask"))
            rows = next(iter(feeds.values()))
        return Asked(self._within(feeds, len(rows)), len(rows), alone, values)

    def from_bytes(self, body: bytes) -> Asked:
        """Rows as they lie in memory, one after the other: each the parts of the contract in
        their order, little-endian and of the contract's types."""
        size = self.packed.itemsize
        if not body or len(body) % size:
            raise Refused(
                400, f"a binary request holds observations of {size} bytes each, got {len(body)}"
            )
        rows = np.frombuffer(body, self.packed)
        feeds = {}
        try:
            for part in self.policy.seen:
                if part.dtype == np.bool_ and (rows[part.name].view(np.uint8) > 1).any():
                    raise ValueError(f"'{part.name}' must hold the bytes 0 and 1")
                values = np.ascontiguousarray(rows[part.name], part.dtype)
                known = part.dtype == np.uint8 or (part.dtype == np.float32 and not part.chosen)
                feeds[part.name] = values if known else part.checked(values)
        except ValueError as error:
            raise Refused(400, str(error)) from None
        return Asked(self._within(feeds, len(rows)), len(rows), len(rows) == 1, {})

    def _plain_rows(self, given: Any, alone: bool, part: Part) -> Array:
        """An observation of one part, which is most of what is asked."""
        key = "observation" if alone else "observations"
        try:
            rows = np.asarray(given)
            if rows.dtype.kind not in ("iu" if part.dtype == np.uint8 else "fiu"):
                raise ValueError
            if part.dtype == np.uint8 and rows.size and not 0 <= rows.min() <= rows.max() <= 255:
                raise ValueError
        except (ValueError, TypeError, OverflowError):
            wanted = "whole numbers from 0 to 255" if part.dtype == np.uint8 else "numbers"
            raise Refused(
                400, f"'{key}' must hold {wanted} in the shape {_shape(part, alone)}"
            ) from None
        if (rows.shape if alone else rows.shape[1:]) != part.shape or not rows.size:
            raise Refused(
                400, f"'{key}' must have the shape {_shape(part, alone)}, got {list(rows.shape)}"
            )
        return rows[None] if alone else rows

    def _parts(self, given: Any, alone: bool, mask: Any) -> State:
        """Parts by name; many are a list of observations, or lists of values by name."""
        try:
            if not alone and isinstance(given, list):
                if not given:
                    raise ValueError("'observations' must hold at least one observation")
                return self.policy.joined(given, mask)
            feeds, one = self.policy.feeds(given, mask)
            if one != alone:
                raise ValueError("give 'observation' for one, or 'observations' for many")
        except ValueError as error:
            raise Refused(400, str(error)) from None
        return feeds

    def _within(self, feeds: State, rows: int) -> State:
        """The inputs, when all of them are finite and inside their bounds."""
        if rows > self.most_rows:
            raise Refused(413, f"{rows:,} rows were given; one request may have {self.most_rows:,}")
        for name, (low, high) in self.limits.items():
            values = feeds[name]
            if not ((values >= low) & (values <= high)).all():
                flat = values.reshape(rows, -1)
                _refuse_number(name, flat, np.ravel(low), np.ravel(high))
            feeds[name] = np.ascontiguousarray(values, np.float32)
        if self.plain is not None and self.plain.dtype != np.float32:
            feeds[self.plain.name] = np.ascontiguousarray(feeds[self.plain.name], self.plain.dtype)
        return feeds

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
    labels = policy.label(action)
    if labels is not None:
        said["label" if alone else "labels"] = (labels[0] if alone else labels).tolist()
    if further:
        said["outputs"] = further
    return said


_decode = json.JSONDecoder().decode


def _entries(policy: Policy) -> list[Mapping[str, Any]]:
    """What the contract says of the parts of an observation."""
    named = {entry["name"]: entry for entry in policy.contract["inputs"]}
    return [named[part.name] for part in policy.seen]


def _limits(entry: Mapping[str, Any], bounds: bool) -> tuple[Array, Array]:
    """What numbers have to be between: the bounds and a little, or all that float32 holds."""
    shape = tuple(entry["shape"][1:])
    low, high = (
        np.reshape(
            np.array([end if one is None else one for one in _each(entry.get(key), shape)]), shape
        )
        for key, end in (("low", -LARGEST), ("high", LARGEST))
    )
    if not bounds:
        return np.full(shape, -LARGEST), np.full(shape, LARGEST)
    with np.errstate(over="ignore"):
        span = high - low
    slack = SLACK * np.where(span < LARGEST, span, 1.0)
    return np.maximum(low - slack, -LARGEST), np.minimum(high + slack, LARGEST)


def _each(bound: Any, shape: tuple[int, ...]) -> list[Any]:
    return bound if isinstance(bound, list) else [bound] * math.prod(shape)


def _refuse_number(name: str, flat: Array, low: Array, high: Array) -> None:
    """Say which of the numbers is wrong, and why."""
    row, at = np.argwhere(~((flat >= low) & (flat <= high)))[0]
    value = flat[row, at]
    if not abs(value) <= LARGEST:
        raise Refused(400, f"'{name}' holds NaN, infinity or a number beyond float32")
    raise Refused(
        400,
        f"'{name}': component {at} of row {row} is {value:g}, outside [{low[at]:g}, {high[at]:g}]",
    )


def _shape(part: Part, alone: bool) -> str:
    inner = ", ".join(map(str, part.shape))
    return f"[{inner}]" if alone else f"[n, {inner}]"
