"""Jobs: what is run, where its result is kept, and running many of them side by side.

A job is a module run in a process of its own. Its result is one small JSON file under
`benchmarks/results/<suite>/`, and a job whose file holds the same config hash is finished:
an interrupted benchmark goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import hardware
from benchmarks.peers.environment import PeerEnvironment
from benchmarks.process import PAUSED, ROOT, job_environment
from benchmarks.sources import SourceBook

LATER = (0, 5, 10, 15)
"""How nice jobs are that start later, three by three."""
LAST_LINES = 15
"""Lines of a failed job's output that are shown."""


def digest(values: Any) -> str:
    """16 hex digits of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Job:
    """One process: `python -m module request.json answer.json` (see `process.answer_job`)."""

    suite: str
    name: str
    seed: int
    module: str
    spec: Mapping[str, Any]
    """Plain values that decide the result together with the seed; they are its identity."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Plain values that follow from the spec, such as paths of prepared files."""
    peer: PeerEnvironment | None = None
    """The peers' environment that is needed, be it only by a part of the job."""
    python: Path = Path(sys.executable)
    cost: float = 30.0
    """Seconds it takes, roughly: the longest start first, and the time left is guessed from it."""
    timeout: float = 3600.0
    gpu: bool = False
    """Whether it runs on a CUDA device; where there is none, it is left out."""

    @property
    def key(self) -> str:
        return f"{self.name}-s{self.seed}"

    @property
    def spec_hash(self) -> str:
        """Equal for all seeds of one job."""
        return digest([self.module, dict(self.spec)])

    @property
    def config_hash(self) -> str:
        return digest([self.spec_hash, self.seed])


@dataclass(frozen=True)
class Record:
    """The stored result of one job."""

    job: str
    seed: int
    config_hash: str
    spec_hash: str
    spec: dict[str, Any]
    result: dict[str, Any]
    versions: dict[str, str]
    hardware: dict[str, Any]
    code: str
    """The state of the modules that the job had imported, by its name in `sources.json`."""
    wall_seconds: float
    finished: str


class Records:
    """The stored results of a suite, by job and seed."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.all = sorted(records, key=lambda record: (record.job, record.seed))

    def __bool__(self) -> bool:
        return bool(self.all)

    def of(self, job: str) -> list[Record]:
        """Results of one job in the order of their seeds.

        Seeds that ran with different specs say nothing together: only those that ran with
        the newest one count.
        """
        found = [record for record in self.all if record.job == job]
        newest = max(found, key=lambda record: record.finished, default=None)
        return [r for r in found if newest is not None and r.spec_hash == newest.spec_hash]

    def values(self, job: str, key: str) -> list[float]:
        """One number of the result per seed."""
        return [float(record.result[key]) for record in self.of(job)]


class ResultStore:
    """JSON files under a root folder, one folder per suite."""

    def __init__(self, root: Path) -> None:
        self.root, self.sources = root, SourceBook(root)

    def folder(self, suite: str) -> Path:
        return self.root / suite

    def is_finished(self, job: Job) -> bool:
        record = self._read(self._path(job))
        return record is not None and record.config_hash == job.config_hash

    def load(self, suite: str) -> Records:
        read = (self._read(path) for path in self.folder(suite).glob("*.json"))
        return Records([record for record in read if record is not None])

    def write(self, job: Job, answer: Mapping[str, Any], wall_seconds: float) -> None:
        record = {
            "job": job.name,
            "seed": job.seed,
            "config_hash": job.config_hash,
            "spec_hash": job.spec_hash,
            "spec": job.spec,
            "result": answer["result"],
            "versions": answer["versions"],
            "hardware": hardware(),
            "code": self.sources.note(answer["modules"]),
            "wall_seconds": round(wall_seconds, 1),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        # one line per key: small to read and to diff
        lines = ",\n".join(f' "{key}": {json.dumps(value)}' for key, value in record.items())
        path = self._path(job)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.draft")
        draft.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
        draft.replace(path)

    def merge(self, other: ResultStore) -> int:
        """Take over results that are newer than those here, with the states of their code; how
        many there were."""
        taken = 0
        for path in sorted(other.root.glob("*/*.json")):
            found, own = other._read(path), self.root / path.parent.name / path.name
            here = self._read(own)
            if found is not None and (here is None or here.finished < found.finished):
                own.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, own)
                taken += 1
        self.sources.take_over(other.sources)
        return taken

    def _path(self, job: Job) -> Path:
        return self.folder(job.suite) / f"{job.key}.json"

    @staticmethod
    def _read(path: Path) -> Record | None:
        """None where there is no file, or one that another version of this code wrote."""
        try:
            return Record(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


# --- running ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """How one job ended."""

    job: Job
    seconds: float
    headline: str
    failure: str | None = None
    """The last lines of its output where it failed."""
    paused: bool = False
    """Whether it is not finished and goes on when it is started again."""


class JobRunner:
    """Runs jobs in processes, `workers` at a time.

    With `in_turn` each three jobs that start get less of the processors than those before them.
    The machine is as busy as without it, and when its time is over, some jobs are finished
    instead of none.
    """

    def __init__(
        self, store: ResultStore, scratch: Path, workers: int, in_turn: bool = False
    ) -> None:
        self.store, self.scratch, self.workers = store, scratch, workers
        later = (LATER[min(i // 3, len(LATER) - 1)] for i in itertools.count())
        self._niceness: Iterator[int] = later if in_turn else itertools.repeat(0)
        self._starting = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, jobs: Sequence[Job], started: Callable[[Job], None]) -> Iterator[Outcome | None]:
        """Outcomes as they come, and None now and then while nothing happens.

        An interruption ends the running processes.
        """
        queue = sorted(jobs, key=lambda job: -job.cost)
        with ThreadPoolExecutor(self.workers) as pool:
            try:
                waiting: set[Future[Outcome]] = {
                    pool.submit(self._run, job, started) for job in queue
                }
                while waiting:
                    done, waiting = wait(waiting, timeout=1.0, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield future.result()
                    if not done:
                        yield None
            finally:
                self._stopped = True
                pool.shutdown(wait=False, cancel_futures=True)
                for process in list(self._processes):
                    process.terminate()

    def _run(self, job: Job, started: Callable[[Job], None]) -> Outcome:
        if self._stopped:
            return Outcome(job, 0.0, "", "not started")
        with self._starting:
            niceness = next(self._niceness)
        started(job)
        folder = self.scratch / job.suite / job.key
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "work").mkdir(parents=True)
        request, answer, log = (folder / n for n in ("request.json", "answer.json", "log.txt"))
        values = {"spec": job.spec, "seed": job.seed, "inputs": job.inputs}
        request.write_text(json.dumps({**values, "scratch": str(folder / "work")}))
        began = time.monotonic()
        command = [str(job.python), "-m", job.module, str(request), str(answer)]
        code = self._call(command, job, log, niceness)
        seconds = time.monotonic() - began
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if code == PAUSED:
            return Outcome(job, seconds, lines[-1] if lines else "", paused=True)
        if code != 0 or self._stopped or not answer.is_file():
            reason = f"exit code {code} after {seconds:.0f} s"
            return Outcome(job, seconds, reason, "\n".join(lines[-LAST_LINES:]) or reason)
        self.store.write(job, json.loads(answer.read_text(encoding="utf-8")), seconds)
        shutil.rmtree(folder, ignore_errors=True)
        return Outcome(job, seconds, lines[-1] if lines else "")

    def _call(self, command: list[str], job: Job, log: Path, niceness: int) -> int:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=job_environment(gpu=job.gpu),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C reaches the benchmark, which then ends its processes in order
                start_new_session=True,
            )
            self._processes.add(process)
            if niceness:
                give_way(process.pid, niceness)
            try:
                return process.wait(timeout=job.timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                output.write(f"\nended at its limit of {job.timeout:.0f} s\n".encode())
                return process.wait()
            finally:
                self._processes.discard(process)


def give_way(leader: int, niceness: int) -> None:
    """Let a process that leads a session, and what it starts, yield to others.

    Linux may share the processors among sessions first; then each has a niceness of its own.
    """
    with suppress(OSError):  # it has ended
        own = os.getpriority(os.PRIO_PROCESS, leader)
        os.setpriority(os.PRIO_PROCESS, leader, min(own + niceness, 19))
    with suppress(OSError):  # there is none, on this system or in this container
        Path(f"/proc/{leader}/autogroup").write_text(str(niceness), encoding="ascii")
