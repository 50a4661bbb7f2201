"""Counts and times of a server, as Prometheus reads them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter

LATENCIES = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Histogram:
    """Counts up to each bound, their sum and their number."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts = bounds, [0] * (len(bounds) + 1)
        self.total, self.number = 0.0, 0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
        self.number += 1

    def lines(self, name: str, text: str) -> list[str]:
        lines, below = [f"# HELP {name} {text}", f"# TYPE {name} histogram"], 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            below += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {below}')
        return [*lines, f"{name}_sum {self.total:.9g}", f"{name}_count {self.number}"]


class Metrics:
    """What has happened since the server began."""

    def __init__(self) -> None:
        self.began = time.time()
        self.requests: Counter[tuple[str, str]] = Counter()
        self.latency, self.batch_rows = Histogram(LATENCIES), Histogram(ROWS)
        self.joined = 0

    def answered(self, route: str, status: str, seconds: float) -> None:
        self.requests[route, status] += 1
        if route in ("http", "websocket"):
            self.latency.add(seconds)

    def batched(self, questions: int, rows: int) -> None:
        self.batch_rows.add(rows)
        self.joined += questions - 1

    def text(self, sessions: int, sockets: int) -> str:
        """In Prometheus' text format."""
        lines = ["# HELP policy_requests_total Requests by route and status."]
        lines.append("# TYPE policy_requests_total counter")
        for (route, status), count in sorted(self.requests.items()):
            lines.append(f'policy_requests_total{{route="{route}",status="{status}"}} {count}')
        lines += self.latency.lines("policy_answer_seconds", "Time from request to answer.")
        lines += self.batch_rows.lines("policy_batch_rows", "Observations per call of the model.")
        gauges = (
            (
                "policy_joined_requests_total",
                "counter",
                "Requests that shared a call.",
                self.joined,
            ),
            ("policy_sessions", "gauge", "Episodes whose state is kept.", sessions),
            ("policy_websockets", "gauge", "Open WebSockets.", sockets),
            ("policy_start_time_seconds", "gauge", "When the server began.", self.began),
        )
        for name, kind, text, value in gauges:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value:.17g}"]
        return "\n".join(lines) + "\n"
