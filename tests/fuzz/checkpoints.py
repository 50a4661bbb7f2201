"""Damaged checkpoints: refused, or the same actions and the same end as without the damage.

Damage of one bit, one cut, one missing or exchanged file must show in the checksums. One field that
was changed with its checksums repaired is a stranger's work: it is refused or harmless.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import yaml

from rl_training import TrainConfig, learn_seeds
from rl_training.api.managed import ManagedAlgorithm
from rl_training.experiment.checkpoint import manifest_checksum
from rl_training.experiment.checkpoint_store import CheckpointStore
from tests.contract.small_runs import small_config
from tests.contract.test_updates import assert_same_state
from tests.fuzz.configs import ODD_VALUES, places
from tests.fuzz.runner import INTERRUPTED, Verdict, bad_ending, command, warned
from tests.runtime.test_resume import final_state

LONG, SHORT = 500, 12
HALF, WHOLE = 30, 45
"""Ticks of the runs to be damaged, and to which they are resumed."""
CHANGED_FREELY = ("metrics.jsonl", "result.json")
"""Files that a resume rewrites or continues and never reads for the training."""
KINDS: dict[str, dict[str, Any]] = {
    "bc": {},
    "awr": {"seeds": [3, 8]},
    "sac": {"num_envs": 2},
    "dqn": {"algo_kwargs": {"prioritized": True, "n_step": 2}},
    "ppo": {
        "num_envs": 2,
        "algo_kwargs": {"rollout_length": 5, "batch_size": 5, "normalize_rewards": True},
    },
}


def _train(name: str, folder: Path) -> None:
    """The run `name-whole`, and as `name` how its folder was after HALF of its ticks."""
    budget = "total_updates" if name in ("bc", "awr") else "total_timesteps"
    changes = {
        budget: WHOLE,
        "seed": 3,
        "checkpoint_interval": 10,
        "eval_interval": 20,
        "log_interval": 10,
        "keep_last": 3,
        "output_dir": str(folder / "training"),
        **KINDS[name],
    }
    config: TrainConfig = small_config(name, **changes)
    original = CheckpointStore.save

    def save(store: CheckpointStore, tick: int, *rest: Any) -> Any:
        info = original(store, tick, *rest)
        if tick == HALF:
            (run_dir,) = (folder / "training").iterdir()
            shutil.copytree(run_dir, folder / name, dirs_exist_ok=True)
        return info

    with mock.patch.object(CheckpointStore, "save", save):
        if config.seeds:
            learn_seeds(config, config.seeds, progress=False)
        else:
            ManagedAlgorithm(config).learn(progress=False)
    (run_dir,) = (folder / "training").iterdir()
    shutil.move(run_dir, folder / f"{name}-whole")


def prepare(folder: Path) -> None:
    """Run folders of half a budget, and what becomes of them undamaged."""
    for name in KINDS:
        _train(name, folder)
        answers = [_action(folder / name / part) for part in _parts(folder / name)]
        (folder / f"{name}.json").write_text(json.dumps(answers), encoding="utf-8")


def _parts(run_dir: Path) -> list[str]:
    return sorted(path.name for path in run_dir.glob("seed-*")) or ["."]


def _action(part: Path) -> Any:
    size = 4 if "CartPole" in (part / "config.yaml").read_text(encoding="utf-8") else 3
    outcome = command("predict", part, str([0.1, 0.2, 0.3, 0.4][:size]))
    assert outcome.code == 0, outcome
    return json.loads(outcome.out)


# --- damage -----------------------------------------------------------------------------------


def _damage_bytes(run_dir: Path, random: random.Random) -> tuple[str, bool]:
    """One bit, a cut, zeros, or a file away or exchanged; whether training reads that file."""
    files = sorted(path for path in run_dir.rglob("*") if path.is_file() and path.stat().st_size)
    file = random.choice(files)
    data = bytearray(file.read_bytes())
    way = random.choice(("bit", "bit", "bit", "cut", "zeros", "remove", "exchange"))
    at = random.randrange(len(data))
    if way == "bit":
        data[at] ^= 1 << random.randrange(8)
    elif way == "cut":
        data = data[:at]
    elif way == "zeros":
        data[at : at + 16] = bytes(len(data[at : at + 16]))
    elif way == "exchange":
        data = bytearray(random.choice([f for f in files if f.suffix == file.suffix]).read_bytes())
    file.write_bytes(data)
    if way == "remove":
        file.unlink()
    return f"{file.relative_to(run_dir)}: {way} at {at}", file.name not in CHANGED_FREELY


def _checkpoints(run_dir: Path) -> list[Path]:
    return sorted(run_dir.rglob("checkpoints/[0-9]*"))


def _sign(checkpoint: Path, manifest: dict[str, Any]) -> None:
    """Make the checksums right again."""
    for name in (
        list(manifest.get("files") or {}) if isinstance(manifest.get("files"), dict) else []
    ):
        if isinstance(name, str) and (checkpoint / name).is_file():
            manifest["files"][name] = hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
    manifest["checksum"] = manifest_checksum(manifest)
    (checkpoint / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _forge(run_dir: Path, random: random.Random) -> tuple[str, bool]:
    """One field of a manifest or a component, with repaired checksums; whether its kind changed."""
    checkpoint = max(_checkpoints(run_dir))
    manifest = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))
    if random.random() < 0.4:
        container, key = random.choice(list(places(manifest)))
        value = random.choice([v for v in ODD_VALUES if not _has_odd_keys(v)])
        what = f"manifest {key!r} ({container[key]!r:.60}) = {value!r:.60}"
        container[key] = value
        _sign(checkpoint, manifest)
        return what, False
    file = random.choice(sorted(checkpoint.glob("*.pt")))
    state = torch.load(file, weights_only=True)
    found = list(places(state)) if isinstance(state, (dict, list)) else []
    if not found:
        state, what, retyped = random.choice(ODD_VALUES), f"{file.name} replaced", False
    else:
        container, key = random.choice(found)
        if isinstance(container, tuple):
            container = {0: None}
            key = 0
        before = container[key]
        value, retyped = _other_value(before, random)
        shown = f"{tuple(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else value
        what = f"{file.name} {key!r} ({type(before).__name__}) = {shown!r:.60}"
        container[key] = value
    torch.save(state, file)
    _sign(checkpoint, manifest)
    return what, retyped


def _has_odd_keys(value: Any) -> bool:
    return isinstance(value, dict) and not all(isinstance(key, str) for key in value)


def _other_value(before: Any, random: random.Random) -> tuple[Any, bool]:
    if not isinstance(before, torch.Tensor):
        return random.choice(ODD_VALUES), False
    ways = ("nan", "inf", "huge", "dtype", "shape", "empty", "plain", "integer")
    way = random.choice(ways)
    if way == "dtype":
        other = random.choice([torch.int8, torch.bool, torch.float64, torch.complex64, torch.int64])
        return before.to(other), other != before.dtype
    if way == "shape":
        return before.reshape(-1).repeat(2), True
    if way == "empty":
        return before.new_zeros(0), before.numel() > 0
    if way == "plain":
        return random.choice(ODD_VALUES), True
    if before.is_floating_point():
        fill = {"nan": math.nan, "inf": math.inf, "huge": 3e38, "integer": 1.0}[way]
        return torch.full_like(before, fill), False
    limits = torch.iinfo(before.dtype) if before.dtype != torch.bool else None
    return torch.full_like(before, limits.max if limits else True), False


# --- judging ----------------------------------------------------------------------------------


def attempt(random: random.Random, prepared: Path, folder: Path) -> Verdict:
    name = random.choice(list(KINDS))
    run_dir = Path(shutil.copytree(prepared / name, folder / "run"))
    forged = random.random() < 0.5
    what, matters = (_forge if forged else _damage_bytes)(run_dir, random)
    what = f"{name}: {what}"
    expected = json.loads((prepared / f"{name}.json").read_text(encoding="utf-8"))
    problem = None
    for part, action in zip(_parts(prepared / name), expected, strict=True):
        problem = problem or _judge_prediction(run_dir / part, action, forged)
    outcome = command("resume", run_dir, "-q")
    problem = problem or bad_ending(outcome)
    word = {0: "resumed", 2: "refused"}.get(outcome.code, "other")
    if outcome.code in INTERRUPTED:
        word = "stopped"
    drafts = [path.name for path in run_dir.rglob(".*draft*")]
    if problem is None and drafts:
        problem = f"left {drafts}"
    if problem is None and outcome.code == 0:
        if forged and not warned(outcome):
            problem = _judge_forged(run_dir, matters)
        elif not forged and matters:
            problem = _judge_resumed(prepared, name, run_dir)
    return Verdict(what, word, problem)


def _judge_prediction(part: Path, expected: Any, forged: bool) -> str | None:
    if not part.is_dir():
        return None
    size = 4 if np.ndim(expected) == 0 else 3
    outcome = command("predict", part, str([0.1, 0.2, 0.3, 0.4][:size]))
    problem = bad_ending(outcome)
    if problem or outcome.code != 0:
        return problem and f"predict: {problem}"
    action = json.loads(outcome.out)
    if not np.isfinite(np.asarray(action, float)).all():
        return f"predict answers {action}"
    if not forged and action != expected and not warned(outcome):
        return f"predict answers {action} instead of {expected} without a word"
    return None


def _judge_resumed(prepared: Path, name: str, run_dir: Path) -> str | None:
    """A resume from an older checkpoint, or from the start, ends like the undamaged run."""
    whole = prepared / f"{name}-whole"
    used = yaml.safe_load((run_dir / "config.yaml").read_text(encoding="utf-8"))
    meant = yaml.safe_load((whole / "config.yaml").read_text(encoding="utf-8"))
    if {key for key in meant if used.get(key) != meant[key]}:
        return None  # another config, of keys that may be changed; the others are refused
    for part in _parts(whole):
        try:
            assert_same_state(final_state(whole / part), final_state(run_dir / part), part)
        except AssertionError as error:
            return f"the resumed run ended differently: {str(error).splitlines()[0]}"
    return None


def _judge_forged(run_dir: Path, retyped: bool) -> str | None:
    """Not trained on with values of another kind, nor into weights that are no numbers."""
    if retyped:
        return "a tensor of another kind was taken"
    for checkpoint in _checkpoints(run_dir)[-1:]:
        state = torch.load(checkpoint / "algorithm.pt", weights_only=True)
        for container, key in places(state["modules"]):
            value = container[key]
            if isinstance(value, torch.Tensor) and not torch.isfinite(value.float()).all():
                return f"weights that are no numbers were saved: {key}"
    return None
