"""The policy card: what a person has to know before using a policy, filled from manifests alone."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from rl_training.experiment.checkpoint import CheckpointInfo
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.registry import algorithm_class
from rl_training.experiment.tracking import METRICS_FILE, RESULT_FILE
from rl_training.export.compared import Baseline, estimates_of, is_cloning, json_of, scored
from rl_training.export.evidence import Evidence
from rl_training.export.parity import Predict


@dataclass(frozen=True)
class CardText:
    """What only the user can say."""

    intended_use: str = ""
    limits: str = ""


def refuse_gaps(text: CardText) -> None:
    """Refuse a card whose text is left to others."""
    if not text.intended_use.strip():
        raise ConfigError(
            "--strict: the card needs its intended use; give it with --intended-use TEXT"
        )


@dataclass(frozen=True)
class Origin:
    """Where a policy comes from, as far as files say so."""

    config: TrainConfig
    checkpoint: CheckpointInfo | None = None
    run_dir: Path | None = None
    data_fingerprint: str | None = None
    returns: tuple[float, ...] = ()
    """Of evaluation episodes that were made for the card."""
    baselines: Sequence[Baseline] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    support: Mapping[str, Any] | None = None
    by_group: Sequence[Mapping[str, Any]] | None = None
    held_out: Mapping[str, Any] | None = None
    """Measures on episodes that no update learned from."""

    def with_evidence(self, evidence: Evidence, predict: Predict) -> Origin:
        """The same with what the run's data say."""
        behaviour = Baseline("behaviour in the data", returns=evidence.behaviour_returns())
        return replace(
            self,
            data=evidence.described(),
            baselines=[*([behaviour] if behaviour.returns else []), *self.baselines],
            support=evidence.support_section(predict),
            by_group=evidence.by_group(predict),
            held_out=evidence.held_out_section(),
        )

    def identity(self) -> dict[str, Any]:
        """What tells this policy from any other."""
        manifest = {} if self.checkpoint is None else self.checkpoint.manifest
        return {
            "run": None if self.run_dir is None else self.run_dir.name,
            "checkpoint": None if self.checkpoint is None else self.checkpoint.tick,
            "score": None if self.checkpoint is None else self.checkpoint.score,
            "checkpoint_created": manifest.get("created"),
            "config_hash": self.config.hash(),
            "seed": self.config.seed,
            "data_fingerprint": self.data_fingerprint,
            "trained_with": manifest.get("versions"),
        }


def card_of(origin: Origin, contract: Mapping[str, Any], text: CardText) -> dict[str, Any]:
    """All sections; what is not known is null and named in `missing`."""
    result = json_of(origin.run_dir, RESULT_FILE)
    card: dict[str, Any] = {
        "intended_use": text.intended_use.strip() or None,
        "limits_of_use": text.limits.strip() or None,
        "task": contract["task"],
        "data": _data(origin, result),
        "algorithm": _algorithm(origin.config),
        "selection": _selection(origin, result),
        "performance": _performance(origin, result),
        "comparison": [one.scored() for one in origin.baselines] or None,
        "by_group": None if origin.by_group is None else list(origin.by_group),
        "support": origin.support,
        "known_limits": _known_limits(origin, contract, result),
        "parity": contract["parity"],
        "origin": contract["origin"],
        "versions": contract["versions"],
        "reproduce": _reproduce(origin),
    }
    card["missing"] = [name for name, value in card.items() if value is None]
    return card


def _data(origin: Origin, result: Mapping[str, Any]) -> dict[str, Any] | None:
    section = origin.config.dataset
    if section is None:
        return None if origin.config.total_timesteps is None else {"source": "its own experience"}
    described = _given(section.model_dump(mode="json"))
    for part in (described, *(described.get("mix") or ())):
        if part.get("path"):
            part["path"] = Path(part["path"]).name  # where it lay is of no use to a reader
    return {
        "source": described,
        "fingerprint": origin.data_fingerprint,
        "notes": list(result.get("data_notes") or ()),
        **origin.data,
    }


def _algorithm(config: TrainConfig) -> dict[str, Any]:
    cls = algorithm_class(config.algo)
    text = inspect.getdoc(importlib.import_module(cls.__module__)) or ""
    return {
        "name": config.algo,
        "summary": cls.summary,
        "paper": cls.paper,
        "reading_of_the_paper": " ".join(text.split()) or None,
        "knobs": {
            key: "none" if value is None else value
            for key, value in config.to_dict()["algo_kwargs"].items()
        },
    }


def _selection(origin: Origin, result: Mapping[str, Any]) -> dict[str, Any]:
    """How many candidates there were, and what chose among them."""
    config, chosen = origin.config, origin.checkpoint
    best = result.get("best")
    is_best = chosen is not None and isinstance(best, Mapping) and best.get("tick") == chosen.tick
    metric = best.get("metric") if isinstance(best, Mapping) else None
    return {
        "seed": config.seed,
        "checkpoint": None if chosen is None else chosen.tick,
        "is_best_checkpoint": is_best,
        "chosen_by": (metric or "eval/return_mean") if is_best else None,
        "evaluations": _evaluations(origin.run_dir),
        "episodes_per_evaluation": config.eval_episodes,
        "other_seeds_of_the_run": _siblings(origin.run_dir),
    }


def _evaluations(run_dir: Path | None) -> int | None:
    """Evaluations that the run's log holds: each was a chance to be chosen."""
    try:
        text = (run_dir / METRICS_FILE).read_text(encoding="utf-8") if run_dir else ""
    except OSError:
        return None
    evaluated = ('"eval/' in line or '"offline/' in line for line in text.splitlines())
    return sum(evaluated) if text else None


def _siblings(run_dir: Path | None) -> list[str]:
    if run_dir is None or not run_dir.name.startswith("seed-"):
        return []
    return sorted(
        p.name for p in run_dir.absolute().parent.glob("seed-*") if p.name != run_dir.name
    )


def _performance(origin: Origin, result: Mapping[str, Any]) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    if origin.returns:
        found["simulator"] = scored("exported policy, held-out start states", origin.returns)
    chosen = origin.checkpoint
    estimates = [] if chosen is None else estimates_of(origin.run_dir, chosen.path.name)
    if estimates:
        found["off_policy"] = estimates
    if origin.held_out is not None:
        found["held_out_data"] = dict(origin.held_out)
    for name, key in (("held_out", "held_out"), ("last_evaluation", "last_eval")):
        if result.get(key):
            found[name] = result[key]
    return found or None


def _known_limits(
    origin: Origin, contract: Mapping[str, Any], result: Mapping[str, Any]
) -> list[str]:
    """What follows from the files."""
    limits = [
        "The policy was made for observations and actions of this task alone; other shapes are "
        "refused, other meanings of the same numbers cannot be.",
        f"It is one seed ({origin.config.seed}) of its algorithm; other seeds may do worse.",
    ]
    if not origin.returns:
        limits.append("No episode of the task was run for this card.")
    elif len(origin.returns) < 20:
        limits.append(f"Its performance rests on {len(origin.returns)} episodes.")
    if not origin.baselines:
        limits.append("It was compared with no other policy.")
    offline = origin.config.dataset is not None
    cloned = is_cloning(origin.config.algo) or any(one.clones for one in origin.baselines)
    if offline and not cloned:
        limits.append("It was not compared with a clone of its data (--compare RUN).")
    performance = _performance(origin, result) or {}
    if offline and "off_policy" not in performance:
        limits.append("No log says what it is worth without a simulator (rl-training ope).")
    for estimate in performance.get("off_policy", ()):
        if estimate["supported"] is False:
            limits.append(f"A log does not support it: {estimate['verdict']}.")
        if estimate["times_looked_at"] > 1:
            limits.append(
                f"The log of an estimate was looked at {estimate['times_looked_at']} times for "
                "this run, so the estimate may be too good."
            )
    if result and result.get("status") not in (None, "finished"):
        limits.append(f"Its run ended as '{result['status']}'.")
    if contract["model"]["weights"] == "float16":
        limits.append("Its weights are rounded to float16.")
    if contract["parity"]["ties"]:
        limits.append(
            f"In {contract['parity']['ties']} of the compared rows two actions were equally good "
            "to rounding, and the export takes the other one."
        )
    return limits


def _reproduce(origin: Origin) -> dict[str, Any]:
    which = "latest" if origin.checkpoint is None else str(origin.checkpoint.tick)
    return {
        "commands": [
            "rl-training train config.yaml",
            f"rl-training export RUN --checkpoint {which} --out FOLDER",
        ],
        "config.yaml": {
            key: value
            for key, value in origin.config.to_dict().items()
            if key not in ("output_dir", "device")
        },
    }


def _given(settings: Any) -> Any:
    """Settings without those that are left open, and without sections of nothing else."""
    if not isinstance(settings, Mapping):
        return settings
    inner = {key: _given(value) for key, value in settings.items()}
    return {key: value for key, value in inner.items() if value is not None and value != {}}


TITLES = {
    "intended_use": "Intended use",
    "limits_of_use": "Limits of use",
    "task": "Task",
    "data": "Data",
    "algorithm": "Algorithm",
    "selection": "Seeds and selection",
    "performance": "Performance",
    "comparison": "Comparison",
    "by_group": "By group",
    "support": "Support",
    "known_limits": "Known limits",
    "parity": "Parity with the trained agent",
    "origin": "Origin",
    "versions": "Versions",
    "reproduce": "How to reproduce it",
}


def rendered(card: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    task = card["task"]["env_id"] or "a task without a simulator"
    lines = [f"# Policy card: {card['algorithm']['name']} on {task}", ""]
    lines.append("Written by rl-training from the files of the run. `card.json` holds the same.")
    for key, title in TITLES.items():
        lines += ["", f"## {title}", ""]
        lines += [*_markdown(card[key])] if card[key] is not None else ["Not known."]
    if card["missing"]:
        missing = ", ".join(TITLES[key].lower() for key in card["missing"])
        lines += ["", "## Missing", "", f"Not known: {missing}."]
    return "\n".join(lines) + "\n"


def _markdown(value: Any, depth: int = 0) -> list[str]:
    indent = "  " * depth
    if isinstance(value, Mapping):
        lines = []
        for key, inner in value.items():
            label = _label(key)
            if key == "config.yaml":
                text = yaml.safe_dump(inner, sort_keys=False, allow_unicode=True)
                lines += [f"{indent}- {label}:", "", "```yaml", *text.splitlines(), "```"]
            elif (isinstance(inner, Mapping) and inner) or _is_table(inner):
                lines += [f"{indent}- {label}:", *_markdown(inner, depth + 1)]
            else:
                lines.append(f"{indent}- {label}: {_entry(key, inner)}")
        return lines
    if _is_table(value):
        return [line for entry in value for line in (f"{indent}- {_sentence(entry)}",)]
    return [f"{indent}{_text(value)}"]


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], (Mapping, str))


def _sentence(entry: Any) -> str:
    if isinstance(entry, Mapping):
        return ", ".join(f"{_label(key)} {_entry(key, v)}" for key, v in entry.items())
    return _text(entry)


OF_95 = "_95"
"""End of the names of 95 % intervals."""


def _label(key: str) -> str:
    if key.endswith(OF_95):
        return f"{_label(key.removesuffix(OF_95))} (95 % interval)"
    return "interquartile mean" if key == "iqm" else key.replace("_", " ")


def _entry(key: str, value: Any) -> str:
    interval = isinstance(value, (list, tuple)) and (key.endswith(OF_95) or key == "interval")
    return " to ".join(_text(bound) for bound in value) if interval else _text(value)


def _text(value: Any) -> str:
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, Mapping):
        return _sentence(value) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(entry) for entry in value) or "none"
    return " ".join(str(value).split())
