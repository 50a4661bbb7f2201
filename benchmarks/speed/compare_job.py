"""Updates per second of ours and of a peer, in turns on the same core."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from statistics import median
from typing import Any

from benchmarks.peers.environment import peer_python
from benchmarks.process import Companion, Request, answer_job

OURS, PEER = "benchmarks.speed.our_worker", "benchmarks.peers.d3rlpy_worker"
WARM_UP_UPDATES = 30


class Side:
    """One of the two: a process, and how many updates fill a turn."""

    def __init__(self, companion: Companion, seconds_per_turn: float) -> None:
        self._companion = companion
        self._run(WARM_UP_UPDATES)
        # measured a second time, because the first updates allocate, compile and fill caches
        rate, _ = self._run(WARM_UP_UPDATES)
        self.updates = max(1, round(rate * seconds_per_turn))
        self.rates: list[float] = []
        self.cpu_rates: list[float] = []

    def _run(self, updates: int) -> tuple[float, float]:
        """Updates per second and per second of CPU time."""
        reply = self._companion.ask(do="run", updates=updates)
        return updates / float(reply["seconds"]), updates / float(reply["cpu_seconds"])

    def turn(self) -> None:
        """Run one turn while the other side waits."""
        rate, cpu_rate = self._run(self.updates)
        self.rates.append(rate)
        self.cpu_rates.append(cpu_rate)


def work(request: Request) -> dict[str, Any]:
    spec = request.spec
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        ours = stack.enter_context(Companion(sys.executable, OURS))
        build = {"do": "build", "algo": spec["algo"], "shape": spec["shape"]}
        built = ours.ask(**build, knobs=spec["knobs"])
        result: dict[str, Any] = {"engine": built["engine"], "knobs": built["knobs"]}
        sides = [Side(ours, spec["turn_seconds"])]
        if spec["peer"]:
            theirs = stack.enter_context(Companion(peer_python(), PEER))
            result["peer_versions"] = theirs.ask(**build, knobs=built["knobs"])["versions"]
            sides.append(Side(theirs, spec["turn_seconds"]))
        for turn in range(spec["rounds"]):
            # who goes first changes, so that a drifting clock favours nobody
            for side in sides if turn % 2 == 0 else reversed(sides):
                side.turn()
    rates, cpu_rates = [side.rates for side in sides], [side.cpu_rates for side in sides]
    result |= {"ours": median(rates[0]), "ours_rounds": [round(rate, 1) for rate in rates[0]]}
    if spec["peer"]:
        ratios = [mine / other for mine, other in zip(*rates, strict=True)]
        result |= {
            "theirs": median(rates[1]),
            "theirs_rounds": [round(rate, 1) for rate in rates[1]],
            "ratio": median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
            # what the ratio would be if nobody else used the machine
            "cpu_ratio": median(mine / other for mine, other in zip(*cpu_rates, strict=True)),
        }
    result["load_before"] = round(load, 2)
    beside = f", {result['ratio']:.2f} times d3rlpy" if spec["peer"] else ""
    print(f"{result['ours']:,.0f} updates/s{beside}")
    return result


if __name__ == "__main__":
    answer_job(work, ("rl-training", "torch", "numpy", "gymnasium"))
