"""What was run, on what, and how to run it again, as parts of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.experiment.tracking import CONFIG_FILE
from rl_training.experiment.trust import needs_trust
from rl_training.reports.charts import short
from rl_training.reports.page import Markup, columns, command, paragraph, table
from rl_training.reports.runs import Run, mapping_in
from rl_training.reports.settings import differences, known_config, overrides


def origin_parts(run: Run, data: Mapping[str, Any]) -> list[Markup]:
    """Algorithm, settings, data, machine and versions."""
    config = run.config
    seeds = ", ".join(str(seed.seed) for seed in run.seeds)
    about = [
        ("algorithm", config.get("algo", "unknown")),
        ("task", run.task),
        ("seeds", seeds),
        ("device", config.get("device", "unknown")),
        ("engine", config.get("engine", "unknown")),
    ]
    facts = [table("The run", (), about)]
    parts = []
    found = differences(config)
    if found:
        rows = [(one.key, one.value, "–" if one.default is None else one.default) for one in found]
        caption = "Settings that differ from the defaults"
        if all(one.default is None for one in found):
            caption = "All settings; their defaults are not known to this installation"
        parts.append(table(caption, ("key", "value", "default"), rows))
    else:
        parts.append(paragraph("All settings have their defaults."))
    if data:
        rows_of_data = [
            (key, short(value) if isinstance(value, float) else value)
            for key, value in data.items()
        ]
        facts.append(table("The data", (), rows_of_data))
    machine = [
        (key.replace("_", " "), value)
        for name in ("hardware", "versions")
        for key, value in _stored(run, name).items()
    ]
    if machine:
        facts.append(table("Machine and versions", (), machine))
    return [columns(facts), *parts]


def _stored(run: Run, name: str) -> dict[str, Any]:
    """A part of the result of the run, or of one of its seeds."""
    found = [mapping_in(one, name) for one in (run.result, *(seed.result for seed in run.seeds))]
    return next((one for one in found if one), {})


def reproduction_parts(run: Run) -> list[Markup]:
    """Commands that make the same run again."""
    named = ["run_name=null"] if run.config.get("run_name") else []
    file = str(run.folder / CONFIG_FILE)
    parts = [
        paragraph("From the run folder, whose config alone rebuilds the run:"),
        command("rl-training", "train", file, *named),
    ]
    config = known_config(run.config)
    texts = None if config is None else overrides(config)
    if texts is not None and config is not None:
        parts.append(paragraph("The same without any file of the run:"))
        parts.append(command("rl-training", "train", config.algo, *texts))
    trust = ["--trust"] if needs_trust(run.config) else []
    if run.status in ("interrupted", "failed", "dead"):
        parts.append(paragraph("Go on with the run:"))
        parts.append(command("rl-training", "resume", str(run.folder), *trust))
    elif run.status == "finished" and run.config.get("env_id"):
        parts.append(paragraph("Evaluate its policy:"))
        parts.append(command("rl-training", "eval", str(run.folder), *trust))
    versions = _stored(run, "versions")
    packages = [
        f"{name}=={str(v).partition('+')[0]}"  # builds such as +cpu are on no package index
        for name, v in versions.items()
        if name in ("torch", "numpy", "gymnasium")
    ]
    if packages:
        parts.append(paragraph("With the versions that it had:"))
        parts.append(command("pip", "install", *packages))
    return parts
