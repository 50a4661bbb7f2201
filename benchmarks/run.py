"""Every benchmark behind RESULTS.md, with one command from the project's root.

    python -m benchmarks.run                      all suites
    python -m benchmarks.run offline --seeds 0    one suite, one seed
    python -m benchmarks.run --only 'offline/crr*'
    python -m benchmarks.run --quick              does everything run? writes no results
    python -m benchmarks.run field_atari --minutes 9   the next piece of every long run
    python -m benchmarks.run field_atari --workers 6 --in-turn   many at once, the first soonest
    python -m benchmarks.run zoo --results there  on another machine, into a folder of its own
    python -m benchmarks.run --merge there        take its results over, here

Finished jobs are skipped, so an interrupted run goes on where it stopped. The exit code is 1
when a job fails or a gate of the chosen suites is missed.
"""

from __future__ import annotations

import argparse
import fnmatch
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.board import Board
from benchmarks.gates import Verdict
from benchmarks.jobs import Job, JobRunner, Outcome, ResultStore
from benchmarks.machine import has_gpu
from benchmarks.peers.environment import PeerEnvironmentError
from benchmarks.process import ROOT
from benchmarks.results_md import render
from benchmarks.suites import SUITES, Options, Suite, load_suite

RESULTS, REPORT = ROOT / "benchmarks" / "results", ROOT / "benchmarks" / "RESULTS.md"


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = f"{', '.join(SUITES)}; all but the long ones (field_*)"
    parser.add_argument("suites", nargs="*", metavar="suite", help=names)
    parser.add_argument("--seeds", type=int, nargs="+", help="0 1 2; with --quick 0")
    parser.add_argument("--workers", type=int, default=2, help="jobs side by side (%(default)s)")
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        action="append",
        help="jobs whose suite/name-sSEED matches; may be given several times, in the order wanted",
    )
    parser.add_argument(
        "--in-turn",
        action="store_true",
        help="jobs that start later get less of the processors, so that the first finish first",
    )
    parser.add_argument(
        "--minutes", type=float, help="of each long job (field_*), which goes on the next time"
    )
    parser.add_argument("--fresh", action="store_true", help="run finished jobs anew")
    parser.add_argument(
        "--quick", action="store_true", help="tiny budgets, into a temporary folder"
    )
    parser.add_argument("--render", action="store_true", help="run nothing, only write RESULTS.md")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="FOLDER", help="for results and RESULTS.md"
    )
    parser.add_argument(
        "--merge", type=Path, metavar="FOLDER", help="take over newer results, run nothing"
    )
    chosen = parser.parse_args(arguments)
    if chosen.merge is not None and not chosen.merge.is_dir():
        parser.error(f"--merge: there is no folder '{chosen.merge}'")
    chosen.results = chosen.results.resolve()  # jobs run in the project's root
    unknown = [name for name in chosen.suites if name not in SUITES]
    if unknown:
        parser.error(f"unknown suite '{unknown[0]}'; known are {', '.join(SUITES)}")
    if chosen.minutes is not None and not chosen.minutes > 0:
        parser.error("--minutes: more than 0")
    if chosen.workers < 1:
        parser.error("--workers: at least 1")
    named = chosen.suites or [name for name in SUITES if not load_suite(name).long]
    chosen.suites = [name for name in SUITES if name in named]
    chosen.seeds = tuple(chosen.seeds or ((0,) if chosen.quick else (0, 1, 2)))
    return chosen


def chosen_jobs(jobs: Sequence[Job], patterns: Sequence[str] | None) -> list[Job]:
    """Those that match a pattern, in the order of the patterns; all without any.

    A pattern without wildcards matches anywhere in `suite/name-sSEED`.
    """
    if patterns is None:
        return list(jobs)
    found: dict[str, Job] = {}
    for pattern in patterns:
        whole = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
        for job in jobs:
            name = f"{job.suite}/{job.key}"
            if fnmatch.fnmatchcase(name, whole):
                found.setdefault(name, job)
    return list(found.values())


def idle_patterns(chosen: argparse.Namespace, scratch: Path) -> list[str]:
    """Those of `--only` that choose no job of the suites."""
    if chosen.only is None:
        return []
    options = Options(chosen.seeds, chosen.quick, scratch, chosen.minutes)
    jobs = [job for name in chosen.suites for job in load_suite(name).jobs(options)]
    return [pattern for pattern in chosen.only if not chosen_jobs(jobs, [pattern])]


def run_suite(
    suite: Suite, chosen: argparse.Namespace, store: ResultStore, scratch: Path, console: Console
) -> list[Outcome]:
    """Run what is not finished yet; the jobs that failed."""
    options = Options(chosen.seeds, chosen.quick, scratch, chosen.minutes)
    wanted = chosen_jobs(suite.jobs(options), chosen.only)
    jobs = [job for job in wanted if chosen.fresh or not store.is_finished(job)]
    console.print(f"{suite.name}: {len(jobs)} jobs, {len(wanted) - len(jobs)} already finished")
    if any(job.gpu for job in jobs) and not has_gpu():
        console.print(f"{suite.name}: left out, it needs a CUDA device and none was found")
        jobs = [job for job in jobs if not job.gpu]
    failed: list[Outcome] = []
    for peer in {job.peer for job in jobs if job.peer is not None}:
        try:
            peer.ensure(lambda text: console.print(text, highlight=False))
        except PeerEnvironmentError as error:
            console.print(str(error), markup=False, highlight=False)
            without = [job for job in jobs if job.peer == peer]
            if not peer.optional:
                failed += [Outcome(job, 0.0, "", "no peers' environment") for job in without]
            jobs = [job for job in jobs if job.peer != peer]
    if not jobs:
        return failed
    workers = 1 if suite.alone else chosen.workers
    with Board(console, suite.name, jobs, workers) as board:
        for outcome in JobRunner(store, scratch, workers, chosen.in_turn).run(jobs, board.started):
            if outcome is None:
                board.refresh()
                continue
            board.finished(outcome)
            if outcome.paused:
                how_far = f"{outcome.job.suite}/{outcome.job.key}: {outcome.headline}"
                console.print(f"not finished: {how_far}", highlight=False)
            if outcome.failure:
                failed.append(outcome)
    return failed


def verdict_of(
    console: Console, verdicts: Sequence[Verdict], failed: Sequence[Outcome], partial: bool
) -> int:
    """Say what went wrong; the exit code. Gates that were not run count unless `partial`."""
    bad = [v for v in verdicts if v.passed is False or (v.passed is None and not partial)]
    for outcome in failed:
        console.print(f"failed: {outcome.job.suite}/{outcome.job.key}", highlight=False)
    for verdict in bad:
        console.print(f"gate {verdict.full_text.replace('*', '')}: {verdict.gate}", highlight=False)
    passed = sum(verdict.passed is True for verdict in verdicts)
    console.print(f"{passed} of {len(verdicts)} gates passed, {len(failed)} jobs failed")
    return 1 if bad or failed else 0


def main(arguments: Sequence[str]) -> int:
    chosen = parse_arguments(arguments)
    console = Console(stderr=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends jobs and cleans up as Ctrl-C
    with tempfile.TemporaryDirectory(prefix="rl-training-benchmarks-") as temporary:
        scratch = Path(temporary)
        for pattern in idle_patterns(chosen, scratch):
            suites = ", ".join(chosen.suites)
            console.print(f"--only: no job of {suites} matches '{pattern}'", highlight=False)
            return 2
        store = ResultStore(chosen.results)
        report = REPORT if chosen.results == RESULTS else chosen.results / REPORT.name
        if chosen.quick:
            quick = Path(tempfile.mkdtemp(prefix="rl-training-quick-"))
            store, report = ResultStore(quick / "results"), quick / "RESULTS.md"
        failed: list[Outcome] = []
        if chosen.merge is not None:
            console.print(f"{store.merge(ResultStore(chosen.merge))} results taken over")
        try:
            for name in [] if chosen.render or chosen.merge else chosen.suites:
                failed += run_suite(load_suite(name), chosen, store, scratch, console)
        except KeyboardInterrupt:
            console.print("interrupted; the same command goes on from here")
            return 130
        gates = render(store, report)
    console.print(f"report: {report}", highlight=False, soft_wrap=True)
    if chosen.quick:
        console.print("quick: the numbers mean nothing and no gate is held against them")
        return verdict_of(console, (), failed, partial=True)
    verdicts = [verdict for name in chosen.suites for verdict in gates.get(name, ())]
    return verdict_of(console, verdicts, failed, partial=chosen.only is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
