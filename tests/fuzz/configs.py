"""Mutated configs: each is refused in sentences, or trains with exactly the values it says."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import Outcome
from tests.contract.small_runs import cases, small_config
from tests.fuzz.runner import INTERRUPTED, Verdict, bad_ending, command

LONG, SHORT = 2000, 20
FILLED_IN = ("spaces", "fingerprint")
"""Left out by a user: a run stores the spaces of its data and what identifies its policy."""
TINY = 1e-300
"""Training takes smaller numbers as zero (`torch.set_flush_denormal`)."""

ODD_VALUES: tuple[Any, ...] = (
    None, "", " ", "nan", "auto", "1e3", "20", "0x10", "pendulum-mixed", "Pendulum-v1", "../..",
    "cuda:99", "\x00", "\u202e", "ß" * 300, True, False, 0, 1, 2, -1, 3, 17, 2**31, 2**63, 10**30,
    0.0, -0.0, 0.5, 1.0, 1.5, -1.5, 1e-320, 1e-9, 1e9, 1e308, math.inf, -math.inf, math.nan,
    [], [0], [1, 2], [-1], [[8]], ["a"], [None], list(range(2000)), {}, {"a": 1},
    {"kind": "linear"}, {1: 2}, {"": {}}, {None: None},
)  # fmt: skip
ODD_KEYS = (
    "",
    "sed",
    "total_updats",
    "algo",
    "env_id",
    "dataset",
    "__class__",
    "kind",
    "name",
    "Δ",
)
Place = tuple[dict[Any, Any] | list[Any], Any]


def prepare(folder: Path) -> None:
    """Nothing is needed."""


def places(value: Any) -> Iterator[Place]:
    """Every (container, key) in a config, at any depth."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


def mutate(values: dict[str, Any], random: random.Random) -> str:
    """Change one thing; what it was, in words."""
    container, key = random.choice(list(places(values)))
    before = container[key]
    where = f"{key!r} ({before!r})"
    ways = ("value", "value", "number", "number", "flip", "rename", "remove", "add", "swap")
    way = random.choice(ways)
    if way in ("number", "flip"):  # of the places that have one, so that many runs are accepted
        fitting = bool if way == "flip" else (int, float)
        found = [(c, k) for c, k in places(values) if isinstance(c[k], fitting)]
        container, key = random.choice(found)
        before = container[key]
        where = f"{key!r} ({before!r})"
    if way == "flip":
        container[key] = not before
        return f"{where} turned"
    if way == "rename" and isinstance(container, dict):
        new = random.choice((*ODD_KEYS, f"{key}s", str(key)[1:], str(key).upper()))
        container[new] = container.pop(key)
        return f"{where} renamed to {new!r}"
    if way == "remove":
        del container[key]
        return f"{where} removed"
    if way == "add" and isinstance(container, dict):
        new, value = random.choice(ODD_KEYS), random.choice(ODD_VALUES)
        container[new] = value
        return f"{new!r} = {value!r:.60} added beside {where}"
    if way == "swap":
        other, its_key = random.choice(list(places(values)))
        container[key] = copy.deepcopy(other[its_key])  # it may hold the container itself
        return f"{where} takes the value of {its_key!r}"
    if way == "number" and isinstance(before, (int, float)) and not isinstance(before, bool):
        factor = random.choice((-1, 0, 0.5, 0.5, 2, 2, 3, 10, 1e3, 1e6, 1e12))
        container[key] = type(before)(before * factor) if math.isfinite(before) else factor
        return f"{where} times {factor:g}"
    container[key] = random.choice(ODD_VALUES)
    return f"{where} = {container[key]!r:.60}"


def mangle(text: str, random: random.Random) -> tuple[str, str]:
    """Damage to the text of a file."""
    at = random.randrange(len(text))
    way = random.choice(("cut", "flip", "insert", "twice", "line"))
    if way == "cut":
        return text[:at], f"cut at {at}"
    if way == "flip":
        new = chr((ord(text[at]) ^ (1 << random.randrange(7))) or 1)
        return text[:at] + new + text[at + 1 :], f"character {at} is {new!r}"
    if way == "insert":
        new = random.choice(
            ("\t", "{", "[", ":", "- ", "&a ", "*a", "!!python/none ", "#", "%", "\x07")
        )
        return text[:at] + new + text[at:], f"{new!r} inserted at {at}"
    lines = text.splitlines(keepends=True)
    line = random.randrange(len(lines))
    lines.insert(random.randrange(len(lines) + 1), lines[line] if way == "twice" else "  x: 1\n")
    return "".join(lines), f"line {line} {way}"


def attempt(random: random.Random, prepared: Path, folder: Path) -> Verdict:
    algo, kind = random.choice(cases())
    values = small_config(algo, kind).to_dict()
    values["total_updates" if values.get("total_updates") else "total_timesteps"] = 40
    values |= {"eval_interval": 30, "checkpoint_interval": 15, "log_interval": 10}
    del values["output_dir"]
    what = [f"{algo} {kind}"]
    what += [mutate(values, random) for _ in range(random.choice((1, 1, 1, 2)))]
    text = yaml.safe_dump(values, allow_unicode=True, sort_keys=False)
    if random.random() < 0.2:
        text, how = mangle(text, random)
        what.append(how)
    (folder / "config.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
    outcome = command("train", "config.yaml", "-q", "--output-dir", folder / "runs")
    problem = bad_ending(outcome, folder / "runs")
    words = {0: "ran", 2: "refused"}.get(outcome.code, "other")
    if outcome.code in INTERRUPTED:
        words = "stopped"
    if problem is None and outcome.code in (0, *INTERRUPTED):
        problem = unsaid_change(text, folder, outcome)
    return Verdict(", ".join(what), words, problem)


def unsaid_change(text: str, folder: Path, outcome: Outcome) -> str | None:
    """Where a run that was accepted does something else than its file says."""
    runs = list((folder / "runs").glob("*"))
    if len(runs) != 1:
        return None if outcome.code != 0 else f"{len(runs)} run folders"
    given = yaml.safe_load(text)
    used = yaml.safe_load((runs[0] / "config.yaml").read_text(encoding="utf-8"))
    for key, value in given.items():
        if key == "engine" or (key == "dataset" and isinstance(value, str)):
            continue  # said by name, kept in full
        if key not in used:
            return f"{key} was dropped"
        if not same(value, used[key]):
            return f"{key}: {value!r:.200} was taken as {used[key]!r:.200}"
    results = list(runs[0].glob("result.json"))
    if outcome.code == 0 and not results:
        return "no result was written"
    for file in results:
        result = json.loads(file.read_text(encoding="utf-8"))
        scores = (result.get("last_eval") or {}).values()
        if not all(math.isfinite(x) for x in scores if isinstance(x, (int, float))):
            return f"the evaluation holds {result['last_eval']}"
    return None


def same(given: Any, used: Any) -> bool:
    """Whether a value was kept; what a section leaves out has defaults, and 2 is 2.0."""
    if isinstance(given, dict):
        return isinstance(used, dict) and all(
            (key in FILLED_IN and value is None) or (key in used and same(value, used[key]))
            for key, value in given.items()
        )
    if isinstance(given, (list, tuple)):
        return (
            isinstance(used, list)
            and len(given) == len(used)
            and all(same(a, b) for a, b in zip(given, used, strict=True))
        )
    if isinstance(given, bool) or isinstance(used, bool):
        return given is used
    if isinstance(given, (int, float)) and isinstance(used, (int, float)):
        return given == used or abs(given - used) < TINY
    if isinstance(given, str) and isinstance(used, (int, float)):  # YAML reads 1e3 as text
        return used == float(given)
    return type(given) is type(used) and given == used
