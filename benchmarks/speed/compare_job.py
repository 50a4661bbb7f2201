"""Updates or environment steps per second of ours and of a peer, in turns on the same core."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import ExitStack
from statistics import median
from typing import Any

from benchmarks.peers.environment import CONTRIB, IMITATION, MBRL, SHARED, PeerEnvironment
from benchmarks.process import Companion, Request, answer_job

OURS = "benchmarks.speed.our_worker"
PEERS: dict[str, tuple[PeerEnvironment, str]] = {
    "d3rlpy": (SHARED, "benchmarks.peers.d3rlpy_worker"),
    "sb3-contrib": (CONTRIB, "benchmarks.peers.sb3_worker"),
    "stable-baselines3": (SHARED, "benchmarks.peers.sb3_worker"),
    "imitation": (IMITATION, "benchmarks.peers.imitation_worker"),
    "mbrl": (MBRL, "benchmarks.peers.mbrl_worker"),
}
"""Environments and workers by the key under which a spec names the peer's version."""
WARM_UP_TICKS = 30


class Side:
    """One of the two: a process, and how many ticks fill a turn."""

    def __init__(self, companion: Companion, spec: dict[str, Any]) -> None:
        self._companion = companion
        if "turn_ticks" in spec:  # turns are parts of one whole run
            self.ticks = int(spec["turn_ticks"])
            if "skip_ticks" in spec:
                self._run(spec["skip_ticks"])
        else:
            self._run(WARM_UP_TICKS)
            # measured a second time, because the first ones allocate, compile and fill caches
            rate, _ = self._run(WARM_UP_TICKS)
            self.ticks = max(1, round(rate * spec["turn_seconds"]))
        self.rates: list[float] = []
        self.cpu_rates: list[float] = []

    def _run(self, ticks: int) -> tuple[float, float]:
        """Ticks per second and per second of CPU time."""
        reply = self._companion.ask(do="run", ticks=ticks)
        done = float(reply["ticks"])
        return done / float(reply["seconds"]), done / float(reply["cpu_seconds"])

    def turn(self) -> None:
        """Run one turn while the other side waits."""
        rate, cpu_rate = self._run(self.ticks)
        self.rates.append(rate)
        self.cpu_rates.append(cpu_rate)


def work(request: Request) -> dict[str, Any]:
    spec = request.spec
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        gpu = "device" in spec
        ours = stack.enter_context(Companion(sys.executable, OURS, gpu=gpu))
        task = ("config", "algo", "shape", "knobs")
        build: dict[str, Any] = {"do": "build", **{key: spec[key] for key in task if key in spec}}
        built = ours.ask(**build, changes={"device": "cuda"} if gpu else {})
        result: dict[str, Any] = {"engine": built["engine"], "knobs": built["knobs"]}
        sides = [Side(ours, spec)]
        if spec["peer"]:
            peer, worker = next(found for name, found in PEERS.items() if name in spec)
            theirs = stack.enter_context(Companion(peer.python, worker, gpu=gpu))
            build |= {"knobs": built["knobs"], "inputs": request.inputs}
            build |= {"device": spec["device"]} if gpu else {}
            result["peer_versions"] = theirs.ask(**build)["versions"]
            sides.append(Side(theirs, spec))
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
    beside = f", {result['ratio']:.2f} times the peer" if spec["peer"] else ""
    print(f"{result['ours']:,.0f} per second{beside}")
    return result


if __name__ == "__main__":
    importlib.import_module(OURS)  # the code that is measured, so that its changes are noticed
    answer_job(work, ("rl-training", "torch", "numpy", "gymnasium"))
