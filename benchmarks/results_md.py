"""Writes `benchmarks/RESULTS.md`, and a page per area beside it, from the stored results.

Each section is made anew from whatever results exist; one without any says which command
makes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.areas import anchor_of, write_areas
from benchmarks.gates import Verdict
from benchmarks.jobs import Records, ResultStore
from benchmarks.markdown import INTERVAL, table
from benchmarks.sources import Sources
from benchmarks.suites import SUITES, Section, Suite, load_suite

HEAD = """# Results

How fast this package is and how well its algorithms learn. Other libraries are measured beside it,
on the same machine and data. In short:"""

FOOT = """A gate is a bound that results should reach. It holds for the mean over seeds; seeds
that lie outside on their own are counted beside it. Each section ends with its command, machines,
versions and commits. This page is written by `python -m benchmarks.run` from the files under
`benchmarks/results/`; do not edit it."""


def render(store: ResultStore, path: Path) -> dict[str, tuple[Verdict, ...]]:
    """Write the file; the gates of every suite by its name."""
    suites = [load_suite(name) for name in SUITES]
    stored = {suite.name: store.load(suite.name) for suite in suites}
    sections = {
        suite.name: suite.report(stored[suite.name], store.root)
        for suite in suites
        if stored[suite.name]
    }
    states = store.sources.read()
    changes = {code: _changes(states.get(code)) for code in _codes(stored.values())}
    parts = [HEAD, _summary(suites, sections, stored, changes)]
    for suite in suites:
        parts.append(f"## {suite.title}")
        if suite.name in sections:
            records = stored[suite.name]
            parts += [sections[suite.name].markdown, _provenance(suite, records, states, changes)]
        else:
            parts.append(f"No results yet: `{_command(suite)}` makes them.")
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    write_areas(
        path.parent,
        {suite.name: suite for suite in suites},
        sections,
        lambda suite: _provenance(suite, stored[suite.name], states, changes),
        lambda suite: _empty(suite, store.root),
    )
    return {name: section.verdicts for name, section in sections.items()}


def _empty(suite: Suite, figures: Path) -> Section:
    """The section of a suite without results: what it asks, where its report can say that."""
    if suite.long:
        return suite.report(Records([]), figures)
    return Section("No results yet.", ())


Changes = Mapping[str, list[str] | None]
"""Modules that have changed since a state, by its name; None where the state is not known."""


def _codes(stored: Iterable[Records]) -> set[str]:
    return {record.code for records in stored for record in records.all}


def _changes(state: Sources | None) -> list[str] | None:
    return None if state is None else state.changed()


def _gpu(hardware: Mapping[str, object]) -> str:
    return f"{hardware['gpu']}; " if hardware.get("gpu") else ""


def _command(suite: Suite) -> str:
    return f"python -m benchmarks.run {suite.name}"


def _summary(
    suites: Iterable[Suite],
    sections: Mapping[str, Section],
    stored: Mapping[str, Records],
    changes: Changes,
) -> str:
    """One screen: what users want to know, how much was asked, how much holds, of which code."""
    short = [
        f"- {section.short} ({_link(suite)})"
        for suite in suites
        if (section := sections.get(suite.name)) is not None and section.short
    ]
    rows, total, current = [], Counter[bool | None](), Counter[bool]()
    for suite in suites:
        verdicts = sections[suite.name].verdicts if suite.name in sections else ()
        counts = Counter(verdict.passed for verdict in verdicts)
        fresh = Counter(changes[record.code] == [] for record in stored[suite.name].all)
        total, current = total + counts, current + fresh
        missed = "; ".join(verdict.gate for verdict in verdicts if verdict.passed is False)
        gates = f"{counts[True]} of {len(verdicts)}" if verdicts else "–"
        rows.append([_link(suite), gates, f"{fresh[True]} of {fresh.total()}", missed or "–"])
    return "\n\n".join(
        (
            "\n".join(short),
            f"**{total[True]} of {total.total()} gates hold**, {total[False]} are missed and "
            f"{total[None]} were not run. {current[True]} of {current.total()} jobs ran with the "
            "code as it is now: no module that they imported has changed since, apart from "
            "comments. The others show what an earlier commit did.",
            f"{INTERVAL} {FOOT}",
            table(("suite", "gates that hold", "jobs of this code", "missed"), rows),
        )
    )


def _link(suite: Suite) -> str:
    return f"[{suite.title}](#{anchor_of(suite.title)})"


def _provenance(
    suite: Suite, records: Records, states: Mapping[str, Sources], changes: Changes
) -> str:
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
    lines = [
        f"Command: `{_command(suite)}`",
        f"Date: {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else ""),
        f"Jobs: {len(records.all)}, {hours * 60:.0f} minutes of one core in all",
        *(f"Machine: {machine}" for machine in machines),
        *(f"Versions: {versions}" for versions in software),
        *_code_lines(records, states, changes),
    ]
    return "\n".join(f"- {line}" for line in lines)


SHOWN_MODULES = 4


def _code_lines(records: Records, states: Mapping[str, Sources], changes: Changes) -> Iterable[str]:
    """One line per commit and answer: jobs of a commit may have imported different modules."""
    counts: Counter[tuple[str, bool]] = Counter()
    changed: dict[str, set[str]] = {}
    for record in records.all:
        found = changes[record.code]
        commit = states[record.code].commit if found is not None else None
        state = "a state that is in no commit" if commit is None else f"commit {commit}"
        if found == [] and not states[record.code].modules:
            state = "another library's alone"
        counts[state, found == []] += 1
        changed.setdefault(state, set()).update(found or ())
    for (state, is_current), count in counts.most_common():
        jobs = f"Code of {count} job{'s' if count > 1 else ''}: {state}"
        if is_current:
            yield f"{jobs}, unchanged since"
            continue
        names = sorted(changed[state])
        shown = [f"`{name.removeprefix('rl_training.')}`" for name in names[:SHOWN_MODULES]]
        more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
        what = f"; changed since: {', '.join(shown)}{more}" if shown else ""
        yield f"{jobs}{what}; `--fresh` runs them anew"


def _distinct(texts: Iterable[str]) -> list[str]:
    return [text for text, _ in Counter(texts).most_common()]


def _software(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
