"""The two ends of a benchmark process: one job and its answer, or a dialogue of requests.

Standard library only: the Python of another library's environment imports this too.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
"""The project's root, in which every benchmark process runs."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
ON_CPU = {"CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True)
class Request:
    """What a job's process is asked to do."""

    spec: dict[str, Any]
    """Everything that decides the result, apart from the seed."""
    seed: int
    inputs: dict[str, Any]
    """Files and other things that follow from the spec."""
    scratch: Path
    """An empty folder of its own."""


PAUSED = 75
"""Exit code of a job that has saved its state, to go on when it is started again."""


class PausedError(Exception):
    """A job's time is over before its work is; the message says how far it has come."""


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of Python and of installed packages."""
    return {"python": platform.python_version(), **{name: _version(name) for name in packages}}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from its source
        return "not installed"


def answer_job(work: Callable[[Request], dict[str, Any]], packages: Sequence[str]) -> None:
    """The main function of a job: `python -m module request.json answer.json`.

    What `work` prints last is the job's headline on the progress board.
    """
    request_path, answer_path = (Path(argument) for argument in sys.argv[1:])
    values = json.loads(request_path.read_text(encoding="utf-8"))
    request = Request(values["spec"], values["seed"], values["inputs"], Path(values["scratch"]))
    try:
        result = work(request)
    except PausedError as how_far:
        print(how_far)
        sys.exit(PAUSED)
    imported = sorted(name for name in sys.modules if name.partition(".")[0] == "rl_training")
    answer = {"versions": versions(packages), "result": result, "modules": imported}
    answer_path.write_text(json.dumps(answer), encoding="utf-8")


# --- dialogues -------------------------------------------------------------------------------

Handler = Callable[[dict[str, Any]], dict[str, Any]]


def serve(handler: Handler) -> None:
    """Answer one JSON line with another until the input ends.

    Whatever else is printed goes to stderr, so that it cannot disturb the dialogue.
    """
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        replies.write(json.dumps(handler(json.loads(line))) + "\n")
        replies.flush()


class Companion:
    """A process that answers requests; a context manager, at whose end it is gone."""

    def __init__(
        self, python: str | Path, module: str, package: Path | None = None, *, gpu: bool = False
    ) -> None:
        """`package` is the project whose `rl_training` is imported, if it is not this one."""
        self.module = module
        paths = {}
        if package is not None:  # before what is on the path already
            first = (str(package / "src"), os.environ.get("PYTHONPATH", ""))
            paths = {"PYTHONPATH": os.pathsep.join(x for x in first if x)}
        self._process: subprocess.Popen[str] = subprocess.Popen(
            [str(python), "-m", module],
            cwd=ROOT,
            env=job_environment(paths, gpu=gpu),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and wait for the reply."""
        self._stream(self._process.stdin).write(json.dumps(request) + "\n")
        self._stream(self._process.stdin).flush()
        line = self._stream(self._process.stdout).readline()
        if not line:
            raise RuntimeError(f"{self.module} ended with exit code {self._process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    @staticmethod
    def _stream(stream: IO[str] | None) -> IO[str]:
        assert stream is not None
        return stream

    def __enter__(self) -> Companion:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream(self._process.stdin).close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stream(self._process.stdout).close()


def job_environment(extra: Mapping[str, str] | None = None, *, gpu: bool = False) -> dict[str, str]:
    """Environment variables of every benchmark process: one thread, no GPU unless asked."""
    return {**os.environ, **ONE_THREAD, **({} if gpu else ON_CPU), **(extra or {})}
