"""Runs attempts in worker processes and judges what commands left behind."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from tests.conftest import Outcome
from tests.processes import processes

STOP_AFTER_S = 10.0
"""An honest long run gets SIGINT then..."""
HANG_S = 120.0
"""... and is a hang after this."""
INTERRUPTED = (130, -signal.SIGINT)


@dataclass(frozen=True)
class Verdict:
    """What one attempt showed."""

    what: str
    """What was done, in words that lead to the place."""
    outcome: str
    """A short word to count by: refused, ran, stopped, ..."""
    problem: str | None = None


def warned(outcome: Outcome) -> bool:
    return "warning: " in outcome.err


def command(*arguments: object) -> Outcome:
    """The command line, in this process, with everything that it writes."""
    from rl_training.cli import main

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        kept = os.dup(1), os.dup(2)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        before = sys.argv
        sys.argv = ["rl-training", *map(str, arguments)]
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        except KeyboardInterrupt:
            code = 130
        except BaseException:  # noqa: BLE001  (what Python would have printed)
            traceback.print_exc()
            code = 1
        finally:
            sys.argv = before
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
            for descriptor in kept:
                os.close(descriptor)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return Outcome(code if isinstance(code, int) else 0 if code is None else 1, *texts)


def bad_ending(outcome: Outcome, folder: Path | None = None) -> str | None:
    """What is wrong with how a command ended, whatever it was asked; nothing may be left of a
    refused run in `folder`."""
    if "Traceback" in outcome.err or "Traceback" in outcome.out:
        return f"traceback: {outcome.err[-1500:]}"
    if outcome.code == 2:
        lines = outcome.err.strip().splitlines()
        sentences = [line for line in lines if line.startswith("error: ")]
        others = [line for line in lines if not line.startswith(("error: ", "warning: "))]
        if not sentences or others:
            return f"a refusal that is not of sentences: {outcome.err[-600:]!r}"
        left = sorted(folder.iterdir()) if folder is not None and folder.exists() else []
        if [run for run in left if not _failed_later(run)]:
            return f"refused, but left {[path.name for path in left]}"
        return None
    if outcome.code not in (0, *INTERRUPTED):
        return f"exit code {outcome.code}: {outcome.err[-600:]!r}"
    return None


def _failed_later(run: Path) -> bool:
    """Whether a run had begun and says what ended it, as when it diverged."""
    result = run / "result.json"
    return result.is_file() and json.loads(result.read_text())["status"] == "failed"


# --- workers ----------------------------------------------------------------------------------


def _prepare(module: str, folder: str) -> None:
    import torch

    torch.set_num_threads(1)
    importlib.import_module(module).prepare(Path(folder))


def _work(module: str, seed: int, numbers: list[int], base: str, connection: Connection) -> None:
    """Make the attempts of some numbers, one after the other, and send each verdict."""
    import torch

    os.setsid()
    torch.set_num_threads(1)
    kind = importlib.import_module(module)
    cases = getattr(kind, "CASES", None)
    prepared, home = Path(base, "prepared"), Path(base)
    for number in numbers:
        folder = Path(tempfile.mkdtemp(prefix=f"attempt-{number}-", dir=home))
        os.chdir(folder)
        connection.send(("begin", number, None))
        verdict: Verdict
        try:
            drawn = random.Random(f"{seed} {number}") if cases is None else cases[number]
            verdict = kind.attempt(drawn, prepared, folder)
        except KeyboardInterrupt:  # sent for a command that had just ended
            verdict = Verdict(f"attempt {number}", "stopped")
        except Exception:  # noqa: BLE001  (an attempt that fails is a finding, or a mistake of ours)
            text = io.StringIO()
            traceback.print_exc(file=text)
            verdict = Verdict(f"attempt {number}", "failed", text.getvalue()[-2000:])
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # one that comes too late
        os.chdir(home)
        shutil.rmtree(folder, ignore_errors=True)
        connection.send(("end", number, verdict))


@dataclass
class Report:
    """All verdicts of one kind of attempt."""

    kind: str
    verdicts: dict[int, Verdict] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        return [
            f"{self.kind} {number}: {verdict.what}: {verdict.problem}"
            for number, verdict in sorted(self.verdicts.items())
            if verdict.problem
        ]

    def __str__(self) -> str:
        counts = Counter(verdict.outcome for verdict in self.verdicts.values())
        parts = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
        return f"{self.kind}: {len(self.verdicts)} attempts, {parts}; {len(self.problems)} problems"


def fuzz(kind: str, numbers: list[int], seed: int, minutes: float = 1e9) -> Report:
    """Make the attempts `numbers` of one kind."""
    module, report = f"tests.fuzz.{kind}", Report(kind)
    deadline = time.monotonic() + minutes * 60
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{kind}-") as name:
        base = Path(name)
        (base / "prepared").mkdir()
        maker = processes.Process(target=_prepare, args=(module, str(base / "prepared")))
        maker.start()
        maker.join()
        if maker.exitcode != 0:
            raise RuntimeError(f"what {kind} needs could not be made: exit code {maker.exitcode}")
        left = list(numbers)
        while left and time.monotonic() < deadline:
            _watch_worker(module, seed, left, base, report, deadline)
            left = [number for number in left if number not in report.verdicts]
        return report


def _watch_worker(
    module: str, seed: int, numbers: list[int], base: Path, report: Report, deadline: float
) -> None:
    """One worker until it is through, hangs or dies; its verdicts go into the report."""
    ours, theirs = processes.Pipe(duplex=False)
    worker = processes.Process(target=_work, args=(module, seed, numbers, str(base), theirs))
    worker.start()
    theirs.close()
    assert worker.pid is not None
    current: int | None = None
    began, told = time.monotonic(), False
    try:
        while time.monotonic() < deadline:
            if ours.poll(0.2):
                try:
                    event, number, verdict = ours.recv()
                except EOFError:
                    break
                if event == "begin":
                    current, began, told = number, time.monotonic(), False
                else:
                    report.verdicts[number], current = verdict, None
                continue
            if current is None:
                continue
            waited = time.monotonic() - began
            if waited > STOP_AFTER_S and not told:
                told = True
                os.kill(worker.pid, signal.SIGINT)
            if waited > HANG_S:
                what = f"attempt {current} of seed {seed}"
                report.verdicts[current] = Verdict(what, "hung", f"longer than {HANG_S:.0f} s")
                return
        if current is not None and time.monotonic() < deadline:
            worker.join(5)
            what = f"attempt {current} of seed {seed}"
            end = f"the process ended with {worker.exitcode}"
            report.verdicts[current] = Verdict(what, "died", end)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.join()
        ours.close()
