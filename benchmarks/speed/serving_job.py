"""One decision of an exported policy: by the runner, over HTTP, over WebSocket, and under load."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.process import Request, answer_job

WARM_UP = 200


def exported(request: Request) -> Path:
    """An exported policy of the size that the spec says; how well it acts does not matter."""
    from benchmarks.speed.our_agent import make_agent

    agent = make_agent("sac", request.spec["shape"], request.spec["knobs"])
    agent.algorithm.update_count += 1
    return agent.export(request.scratch / "policy", episodes=0).folder


def observation(spec: dict[str, Any]) -> np.ndarray[Any, Any]:
    size = int(spec["shape"]["obs_dim"])
    return np.random.default_rng(0).standard_normal(size).astype(np.float32)


def percentiles(nanoseconds: list[int]) -> dict[str, float]:
    """In microseconds."""
    values = np.percentile(np.asarray(nanoseconds) / 1e3, [50, 99])
    return {"p50": float(values[0]), "p99": float(values[1])}


def timed(call: Callable[[], Any], calls: int) -> dict[str, float]:
    """Of calls one after the other."""
    clock, measured = time.perf_counter_ns, []
    for i in range(calls + WARM_UP):
        began = clock()
        call()
        if i >= WARM_UP:
            measured.append(clock() - began)
    return percentiles(measured)


def runner(request: Request) -> dict[str, Any]:
    """`Policy` of the export, called with one observation."""
    from rl_training.export.exported import load_policy

    policy, obs = load_policy(exported(request)), observation(request.spec)
    feeds, names = {"observation": obs[None]}, ["action"]
    bare = timed(lambda: policy.session.run(names, feeds), request.spec["calls"])
    whole = timed(lambda: policy(obs), request.spec["calls"])
    print(f"{bare['p50']:.1f} µs by ONNX Runtime, {whole['p50']:.1f} µs by the runner")
    return {"onnxruntime": bare, "runner": whole, "p50": bare["p50"]}


@contextmanager
def server(folder: Path) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """`rl-training serve` in a process of its own; its port."""
    command = [sys.executable, "-m", "rl_training", "serve", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r":(\d+) \(", process.stdout.readline())
        assert found is not None
        yield int(found[1]), process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def http_request(spec: dict[str, Any], port: int) -> bytes:
    body = json.dumps({"observation": observation(spec).tolist()}).encode()
    head = f"POST /act HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def http(request: Request) -> dict[str, Any]:
    """One request after the other on one connection."""
    with server(exported(request)) as (port, _):
        asked = http_request(request.spec, port)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(10)
            result = timed(lambda: _ask(connection, asked), request.spec["calls"])
    print(f"{result['p50'] / 1e3:.2f} ms, 99 % within {result['p99'] / 1e3:.2f} ms")
    return result


def _ask(connection: socket.socket, asked: bytes) -> bytes:
    connection.sendall(asked)
    answer = b""
    while not answer.endswith(b"}"):
        part = connection.recv(65536)
        assert part, "the server closed the connection"
        answer += part
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
    return answer


def websocket(request: Request) -> dict[str, Any]:
    """One binary frame after the other."""
    from websockets.sync.client import connect

    with server(exported(request)) as (port, _):
        raw = observation(request.spec).astype("<f4").tobytes()
        with connect(f"ws://127.0.0.1:{port}/act", compression=None) as connection:

            def ask() -> None:
                connection.send(raw)
                connection.recv()

            result = timed(ask, request.spec["calls"])
    print(f"{result['p50'] / 1e3:.3f} ms, 99 % within {result['p99'] / 1e3:.3f} ms")
    return result


def memory(process: subprocess.Popen[str]) -> float:
    """Resident megabytes."""
    text = Path(f"/proc/{process.pid}/statm").read_text(encoding="ascii")
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def processor_seconds(process: subprocess.Popen[str]) -> float:
    """That a process has used."""
    text = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii")
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def load(request: Request) -> dict[str, Any]:
    """A steady rate over several connections; then the server is killed and started again."""
    import uvloop  # as the server does; the client shares its cores

    spec = request.spec
    folder = exported(request)
    with server(folder) as (port, process):
        asked = http_request(spec, port)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            first = _ask(connection, asked).rpartition(b"\r\n")[2]
        uvloop.run(_steady(port, asked, {**spec, "seconds": min(5.0, spec["seconds"])}))
        before, used = memory(process), processor_seconds(process)
        result = uvloop.run(_steady(port, asked, spec))
        used = processor_seconds(process) - used
        result["server_us"] = 1e6 * used / (result["rate"] * spec["seconds"])
        result["memory_mb"], result["memory_growth_mb"] = before, memory(process) - before
        process.send_signal(signal.SIGKILL)
    with (
        server(folder) as (port, _),
        socket.create_connection(("127.0.0.1", port)) as connection,
    ):
        again = _ask(connection, http_request(spec, port)).rpartition(b"\r\n")[2]
    result["same_after_restart"] = float(first == again)
    print(f"{result['rate']:,.0f} requests/s, {result['errors']:.0f} errors")
    return result


async def _steady(port: int, asked: bytes, spec: dict[str, Any]) -> dict[str, Any]:
    """Every connection asks at its own times, and late ones at once."""
    connections, period = spec["connections"], spec["connections"] / spec["rate"]
    waits: list[int] = []
    errors, began = 0, time.perf_counter()

    async def client(offset: float) -> None:
        nonlocal errors
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        due = began + offset
        while due < began + spec["seconds"]:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            asked_at = time.perf_counter_ns()
            writer.write(asked)
            head = await reader.readuntil(b"\r\n\r\n")
            at = head.index(b"content-length: ") + 16
            await reader.readexactly(int(head[at : head.index(b"\r", at)]))
            waits.append(time.perf_counter_ns() - asked_at)
            errors += not head.startswith(b"HTTP/1.1 200")
            due += period
        writer.close()

    offsets = (i * period / connections for i in range(connections))
    failures = await asyncio.gather(*map(client, offsets), return_exceptions=True)
    errors += sum(isinstance(failure, BaseException) for failure in failures)
    seconds = time.perf_counter() - began
    return {"rate": len(waits) / seconds, "errors": float(errors), **percentiles(waits)}


def robot(request: Request) -> dict[str, Any]:
    """A control loop over WebSocket: an answer that comes after its period is a missed deadline."""
    from websockets.sync.client import connect

    spec = request.spec
    period = round(1e9 / spec["hertz"])
    missed, waits = 0, []
    with server(exported(request)) as (port, _):
        raw = observation(spec).astype("<f4").tobytes()
        with connect(f"ws://127.0.0.1:{port}/act", compression=None) as connection:
            for _ in range(WARM_UP):
                connection.send(raw)
                connection.recv()
            due = time.perf_counter_ns()
            for _ in range(int(spec["hertz"] * spec["seconds"])):
                due += period
                while (left := due - time.perf_counter_ns()) > 0:
                    if left > 300_000:
                        time.sleep((left - 200_000) / 1e9)
                began = time.perf_counter_ns()
                connection.send(raw)
                connection.recv()
                ended = time.perf_counter_ns()
                waits.append(ended - began)
                if ended > due + period:
                    missed += 1
                    due = ended  # the next step begins now
    share = missed / len(waits)
    print(f"{share:.2%} of {len(waits):,} deadlines missed")
    return {"missed_share": share, "steps": len(waits), **percentiles(waits)}


WORK = {"runner": runner, "http": http, "websocket": websocket, "load": load, "robot": robot}


def work(request: Request) -> dict[str, Any]:
    before = os.getloadavg()[0]
    result: dict[str, Any] = WORK[request.spec["what"]](request)
    return {**result, "load_before": before, "cores": len(os.sched_getaffinity(0))}


if __name__ == "__main__":
    answer_job(work, ("rl-training", "onnxruntime", "uvicorn", "websockets", "torch", "numpy"))
