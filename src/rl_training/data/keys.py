"""Which array of a source is which: names, their aliases, and flags under one name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.dataset import ARRAY_NAMES, GROUPS
from rl_training.experiment.errors import DataError, did_you_mean

ALIASES: dict[str, tuple[str, ...]] = {
    "observations": ("obs", "states"),
    "actions": ("action", "acts"),
    "rewards": ("reward",),
    "next_observations": ("next_obs", "next_states"),
    "terminations": ("terminals", "terminated"),
    "truncations": ("timeouts", "truncated"),
}
"""Other names under which a source may hold an array; `dones` is not among them, because
it does not say whether the episode terminated or was cut."""

MASK, NEXT_MASK = "action_mask", "next_action_mask"
"""Arrays, (rows, actions), of what was allowed where a row begins and where it ends."""

DONES = ("dones", "done")
"""Names of an array that marks ends without saying which."""

NEEDED = {
    "observations": "observations",
    "actions": "actions",
    "rewards": "rewards",
    "terminations": "terminations (or terminals)",
    "truncations": "truncations (or timeouts)",
}
"""Arrays that no source can do without, as a refusal names them."""


def named_apart(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays of observations that are mappings themselves, under names with dots."""
    found: dict[str, Any] = {}
    for key, value in arrays.items():
        if isinstance(value, Mapping):
            inner = named_apart(value)
            found |= {f"{key}.{name}": array for name, array in inner.items()}
        else:
            found[key] = value
    return found


def select_keys(
    present: Sequence[str],
    label: str,
    needs_rewards: bool = True,
    group: str | None = None,
    dones: str | None = None,
) -> dict[str, str]:
    """The package's array names mapped to the keys that a source has for them.

    `group` is the key of the groups, which are otherwise optional and called so. Where `dones`
    says what they mean, they stand for both kinds of ends.
    """
    needed = [name for name in NEEDED if needs_rewards or name != "rewards"]
    both = next((key for key in DONES if key in present), None) if dones else None
    if both is not None:
        needed = [name for name in needed if name not in ("terminations", "truncations")]
    parts = [key for key in present if key.startswith(("observations.", "next_observations."))]
    chosen: dict[str, str] = {key: key for key in parts}
    missing: list[str] = []
    for name in ARRAY_NAMES:
        in_parts = [key for key in parts if key.startswith(f"{name}.")]
        found = [key for key in (name, *ALIASES[name]) if key in present]
        if len(found) > 1:
            raise DataError(
                f"{label}: keys '{found[0]}' and '{found[1]}' mean the same array; keep one of them"
            )
        if found and in_parts:
            raise DataError(
                f"{label}: keys '{found[0]}' and '{in_parts[0]}' mean the same array; keep one of "
                "them"
            )
        if found:
            chosen[name] = found[0]
        elif in_parts:
            continue
        elif name in needed:
            missing.append(name)
    if missing:
        others = [key for key in present if key not in chosen.values()]
        words = ", ".join(f"'{name}'{did_you_mean(name, others)}" for name in missing)
        plural = "keys" if len(missing) > 1 else "key"
        raise DataError(
            f"{label}: missing {plural} {words}; present are "
            f"{', '.join(map(repr, present)) or 'none'}, needed are "
            f"{', '.join(NEEDED[name] for name in needed[:-1])} and {NEEDED[needed[-1]]}"
            f"{_advice(missing, present)}"
        )
    chosen |= {name: name for name in (MASK, NEXT_MASK) if name in present}
    _refuse_near_misses(chosen, present, label)
    if group is not None and group not in present:
        raise DataError(
            f"{label}: missing key '{group}'{did_you_mean(group, present)}, which dataset.group "
            "names; correct it, or remove dataset.group"
        )
    if group is not None or GROUPS in present:
        chosen[GROUPS] = group or GROUPS
    if both is not None and not {"terminations", "truncations"} & set(chosen):
        chosen["dones"] = both
    return chosen


def with_both_flags(
    arrays: dict[str, NDArray[Any]], keys: dict[str, str], dones: str | None
) -> None:
    """Write `dones`, and a flag that a source lacks beside the other, as the two flags."""
    done = arrays.pop("dones", None)
    for name, meaning in (("terminations", "terminated"), ("truncations", "truncated")):
        if done is not None and meaning == dones:
            arrays[name], keys[name] = done, keys["dones"]
        elif name not in arrays:
            arrays[name] = np.zeros(len(arrays["actions"]), np.bool_)


def _refuse_near_misses(chosen: Mapping[str, str], present: Sequence[str], label: str) -> None:
    """Refuse a key that is nearly that of an array which may be missing: it would go unread."""
    others = [key for key in present if key not in chosen.values()]
    for name in (*ARRAY_NAMES, MASK, NEXT_MASK):
        close = difflib.get_close_matches(name, others, n=1, cutoff=0.85)
        if name not in chosen and close:
            raise DataError(
                f"{label}: key '{close[0]}' is not known; rename it to '{name}', or remove it"
            )


def _advice(missing: Sequence[str], present: Sequence[str]) -> str:
    """Advice for data without flags."""
    both = next((key for key in DONES if key in present), None)
    if both and {"terminations", "truncations"} & set(missing):
        return (
            f"; '{both}' does not say whether the task ended or the episode was cut: set "
            "dataset.dones to terminated or truncated where it is always the same, or store "
            f"truncations = {both} & (step == time limit), which are zeros if nothing was cut, and "
            f"terminations = {both} & ~truncations"
        )
    if "truncations" in missing and "terminations" not in missing:
        return "; add zeros as truncations if no episode was cut"
    if "terminations" in missing and "truncations" not in missing:
        return "; add zeros as terminations if the task never ends by itself"
    return ""
