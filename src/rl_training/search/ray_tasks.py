"""Runs jobs as tasks of a Ray cluster."""

from __future__ import annotations

import logging
import os
import socket
import time
from contextlib import suppress
from typing import Any

from rl_training.experiment.errors import (
    ConfigError,
    MissingExtraError,
    RLTrainingError,
    describe_exception,
)
from rl_training.search.launch import PAUSED, Job, Launcher
from rl_training.search.nodes import NodeCommand

LOST = -9
"""Exit code of a job whose node, or whose process there, is gone."""
CONNECT_SECONDS = 5.0
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS_FRAME = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""Of HTTP/2 (RFC 9113): three bytes of length, the type 4, flags and stream."""
OWN_CLUSTER = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # by default 15, as if training could wait
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # its later default
}
"""Settings of a cluster that is started here."""
COUNT_SECONDS = 5.0
"""Between two looks at what the cluster has, to which nodes may be added."""


class RayTasks(Launcher[Any]):
    """Runs each job as a task with its CPUs and GPUs, on any node of a Ray cluster.

    Without an address it uses the cluster of this machine, or starts one here.
    """

    def __init__(
        self,
        address: str | None = None,
        workers: int | None = None,
        threads: int = 1,
        gpus_per_run: float = 0.0,
    ) -> None:
        super().__init__()
        self._ray = _connected(address)
        self._asked, self.threads, self.gpus_per_run = workers, threads, gpus_per_run
        self._counted, self._counted_at = 0, -COUNT_SECONDS
        self._refuse_what_no_node_has()
        # a lost task is started again by the study, which sees what it has saved
        self._task = self._ray.remote(max_retries=0, num_cpus=threads, num_gpus=gpus_per_run)(_run)

    @property
    def workers(self) -> int:
        if self._asked is not None:
            return self._asked
        if time.monotonic() - self._counted_at > COUNT_SECONDS:
            self._counted, self._counted_at = (
                sum(map(self._fitting, self._nodes())),
                time.monotonic(),
            )
        return max(1, self._counted)

    @property
    def words(self) -> str:
        nodes = self._nodes()
        has = [f"{sum(node.get('CPU', 0) for node in nodes):g} CPUs"]
        if gpus := sum(node.get("GPU", 0) for node in nodes):
            has.append(f"{gpus:g} GPUs")
        each = [f"{self.threads} CPU{'s' if self.threads > 1 else ''}"]
        if self.gpus_per_run:
            each.append(f"{self.gpus_per_run:g} GPU{'s' if self.gpus_per_run > 1 else ''}")
        return (
            f"{self.workers} at a time with {' and '.join(each)} each, on a Ray cluster of "
            f"{len(nodes)} node{'s' if len(nodes) > 1 else ''} with {' and '.join(has)}"
        )

    def _nodes(self) -> list[dict[str, float]]:
        """The resources of every node that is alive."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _fitting(self, node: dict[str, float]) -> int:
        """Jobs that fit on an empty node."""
        jobs = int(node.get("CPU", 0) / self.threads)
        if self.gpus_per_run:
            jobs = min(jobs, int(node.get("GPU", 0) / self.gpus_per_run))
        return jobs

    def _refuse_what_no_node_has(self) -> None:
        nodes = self._nodes()
        for key, wanted, name in (
            ("CPU", self.threads, "--threads"),
            ("GPU", self.gpus_per_run, "--gpus-per-run"),
        ):
            most = max((node.get(key, 0.0) for node in nodes), default=0.0)
            if wanted > most:
                raise ConfigError(
                    f"{name}: no node of the Ray cluster has {wanted:g} {key}s, the largest has "
                    f"{most:g}; ask for fewer, or add a node"
                )

    def _begin(self, job: Job) -> Any:
        return self._task.options(name=job.name).remote(NodeCommand.of(job, self.threads))

    def _outcome(self, handle: Any) -> tuple[int, str] | None:
        exceptions = self._ray.exceptions
        try:
            done, _ = self._ray.wait([handle], timeout=0)
            return (self._ray.get(handle), "") if done else None
        except exceptions.TaskCancelledError:
            return PAUSED, ""  # before it had begun
        except exceptions.RayTaskError as error:
            cause = error.cause
            known = isinstance(cause, RLTrainingError)
            return 1, str(cause) if known else describe_exception(cause)
        except exceptions.RayError as error:
            return LOST, f"lost by the Ray cluster: {type(error).__name__}"
        except ConnectionError:
            raise _gone() from None

    def _interrupt(self, handle: Any) -> None:
        with suppress(self._ray.exceptions.RayError, ConnectionError):
            self._ray.cancel(handle, recursive=False)

    def _kill(self, handle: Any) -> None:
        with suppress(self._ray.exceptions.RayError, ConnectionError):
            self._ray.cancel(handle, force=True)


def _run(command: NodeCommand) -> int:
    return command()


def _connected(address: str | None) -> Any:
    """The package of Ray, connected to a cluster."""
    for name, value in OWN_CLUSTER.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise MissingExtraError("ray", "ray", "--launcher ray") from None
    if ray.is_initialized():
        return ray
    _refuse_unreachable(address or os.environ.get("RAY_ADDRESS"))
    try:
        ray.init(
            address=address,
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        where = f"the Ray cluster at '{address}'" if address else "a Ray cluster on this machine"
        raise ConfigError(
            f"--address: {where} cannot be used ({describe_exception(error)}); check that "
            "'ray status' works with it, and that its Ray and Python are those of this machine"
        ) from None
    return ray


def _refuse_unreachable(address: str | None) -> None:
    """Refuse what does not answer, for which Ray would wait a long time."""
    if address in (None, "auto", "local"):
        return
    host, _, port = str(address).rpartition(":")
    if "://" in str(address) or not host or not port.isdecimal():
        raise ConfigError(
            f"--address: '{address}' is not the address of a Ray cluster; give auto, or "
            "HOST:PORT as 'ray start --head' prints it, on a machine of the cluster"
        )
    try:
        with socket.create_connection((host, int(port)), CONNECT_SECONDS) as connection:
            why = "" if _speaks_grpc(connection) else "what listens there is no Ray cluster"
    except (OSError, OverflowError) as error:
        why = describe_exception(error)
    if why:
        raise ConfigError(
            f"--address: no Ray cluster answers at '{address}' ({why}); start one with 'ray start "
            "--head', or correct the address"
        )


def _speaks_grpc(connection: socket.socket) -> bool:
    """Whether the other side answers the first bytes of HTTP/2 with its settings, as Ray does."""
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return True  # it answers the first bytes of TLS alone
    connection.sendall(HTTP2_PREFACE + SETTINGS_FRAME)
    answer = b""
    while len(answer) < len(SETTINGS_FRAME):
        more = connection.recv(len(SETTINGS_FRAME) - len(answer))
        if not more:
            return False
        answer += more
    return answer[3] == SETTINGS_FRAME[3]


def _gone() -> RLTrainingError:
    return RLTrainingError(
        "the Ray cluster does not answer any more; what the runs have saved is kept, and the same "
        "command goes on with them"
    )
