"""Writes `benchmarks/RESULTS.md` from the stored results.

Each section is made anew from whatever results exist; one without any says which command
makes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.gates import Verdict
from benchmarks.jobs import Records, ResultStore
from benchmarks.machine import source_digest
from benchmarks.markdown import table
from benchmarks.suites import SUITES, Section, Suite, load_suite

HEAD = """# Results

Made by `python -m benchmarks.run` from the JSON files under `benchmarks/results/`; do not edit.
A gate holds for the mean over seeds; seeds that lie outside on their own are counted beside it."""


def render(store: ResultStore, path: Path) -> dict[str, tuple[Verdict, ...]]:
    """Write the file; the gates of every suite by its name."""
    suites = [load_suite(name) for name in SUITES]
    stored = {suite.name: store.load(suite.name) for suite in suites}
    sections = {
        suite.name: suite.report(stored[suite.name], store.root)
        for suite in suites
        if stored[suite.name]
    }
    parts = [HEAD, _summary(suites, sections)]
    for suite in suites:
        parts.append(f"## {suite.title}")
        if suite.name in sections:
            parts += [sections[suite.name].markdown, _provenance(suite, stored[suite.name])]
        else:
            parts.append(f"No results yet: `{_command(suite)}` makes them.")
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return {name: section.verdicts for name, section in sections.items()}


def _gpu(hardware: Mapping[str, object]) -> str:
    return f"{hardware['gpu']}; " if hardware.get("gpu") else ""


def _command(suite: Suite) -> str:
    return f"python -m benchmarks.run {suite.name}"


def _summary(suites: Iterable[Suite], sections: Mapping[str, Section]) -> str:
    rows = []
    for suite in suites:
        verdicts = sections[suite.name].verdicts if suite.name in sections else ()
        counts = Counter(verdict.passed for verdict in verdicts)
        missed = ", ".join(verdict.gate for verdict in verdicts if verdict.passed is False)
        state = [str(counts[True]), str(counts[False]), str(counts[None]), missed or "–"]
        rows.append([suite.title, f"`{_command(suite)}`", *state])
    return table(("suite", "command", "gates passed", "missed", "not run", "which"), rows)


def _provenance(suite: Suite, records: Records) -> str:
    """Where the numbers of a section come from."""
    machines = _distinct(
        f"{_gpu(r.hardware)}{r.hardware['cpu']}, {r.hardware['cores']} cores, "
        f"{r.hardware['memory_gib']} GiB, {r.hardware['system']}"
        for r in records.all
    )
    own = [record.versions for record in records.all]
    peers = [r.result["peer_versions"] for r in records.all if "peer_versions" in r.result]
    software = _distinct(_software(versions) for versions in (*own, *peers))
    days = sorted({record.finished[:10] for record in records.all})
    hours = sum(record.wall_seconds for record in records.all) / 3600
    states = Counter(record.code for record in records.all)
    lines = [
        f"Command: `{_command(suite)}`",
        f"Date: {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else ""),
        f"Jobs: {len(records.all)}, {hours * 60:.0f} minutes of one core in all",
        *(f"Machine: {machine}" for machine in machines),
        *(f"Versions: {versions}" for versions in software),
        "State of the package's source: "
        + ", ".join(f"{code} ({count} jobs)" for code, count in states.most_common()),
    ]
    if states.keys() - {source_digest()}:
        lines.append(
            "The source has changed since some of these jobs ran; `--fresh` runs them anew"
        )
    return "\n".join(f"- {line}" for line in lines)


def _distinct(texts: Iterable[str]) -> list[str]:
    return [text for text, _ in Counter(texts).most_common()]


def _software(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
