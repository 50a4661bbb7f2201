"""Updates per second on one GPU: modes of the engine, several seeds, and a JAX scan beside them."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from functools import cache
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # both share the card

import torch

from benchmarks.process import Request, answer_job
from benchmarks.speed.our_agent import make_agent, make_dataset
from rl_training.execution import tiling
from rl_training.runtime.agents import Learner, SingleLearner, VmapLearner
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops.offline import OfflineData

DEVICE = torch.device("cuda")
PROFILED_UPDATES = 20
PRODUCTS = ("gemm", "gemv", "cutlass", "tiled_product")
"""Parts of the names of kernels that compute products."""


@cache
def dataset_for(algo: str, rows: int) -> tuple[Any, Any]:
    shape = {"rows": rows, "episode": 1_000, "obs_dim": 17, "action_dim": 6}
    agent = make_agent(algo, shape, {}, device="cuda")
    return agent, make_dataset(agent, shape)


def make_engine(spec: dict[str, Any], mode: str, agents: int = 1) -> Engine:
    """The engine around new agents of one algorithm."""
    from rl_training.runtime.build import build_algorithm

    first, data = dataset_for(spec["algo"], spec["rows"])
    config, spaces = first.config, first.algorithm.spaces
    built = [build_algorithm(config.replace(seed=seed), spaces) for seed in range(agents)]
    of_all = config if agents == 1 else config.replace(seeds=tuple(range(agents)))
    source = OfflineData(of_all, built, data)
    learner: Learner = (
        SingleLearner(built[0], source.draw, seed=0)
        if agents == 1
        else VmapLearner(built, source.draw, range(agents))
    )
    return Engine(learner, mode, 10**9)


class Runner:
    """Measures one engine in turns."""

    def __init__(self, engine: Engine, agents: int = 1) -> None:
        self.engine, self.agents = engine, agents
        began = time.perf_counter()
        self._run(200)
        self.first_seconds = time.perf_counter() - began
        began = time.perf_counter()
        self._run(200)
        self.rates: list[float] = []
        self.chunk = max(50, round(0.25 * 200 / (time.perf_counter() - began)))

    def _run(self, updates: int) -> None:
        self.engine.run(updates)
        torch.cuda.synchronize()

    def turn(self, seconds: float) -> float:
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            self._run(self.chunk)
            done += self.chunk * self.agents
        self.rates.append(done / (time.perf_counter() - began))
        return self.rates[-1]

    def kernels(self) -> dict[str, float]:
        """Kernels and microseconds of the device per update."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            self._run(PROFILED_UPDATES)
        events = [e for e in profile.key_averages() if e.device_time_total > 0]
        products = [e for e in events if any(word in e.key.lower() for word in PRODUCTS)]
        return {
            "kernels": round(sum(e.count for e in events) / PROFILED_UPDATES, 1),
            "device_us": round(sum(e.device_time_total for e in events) / PROFILED_UPDATES, 1),
            "product_us": round(sum(e.device_time_total for e in products) / PROFILED_UPDATES, 1),
        }


def modes(spec: dict[str, Any]) -> dict[str, Any]:
    """One algorithm in every mode."""
    result: dict[str, Any] = {}
    for mode in ("eager", "graph", "compiled_graph"):
        runner = Runner(make_engine(spec, mode))
        if runner.engine.mode != mode:
            raise RuntimeError(f"{spec['algo']}: {runner.engine.notes}")
        result[mode] = {
            "rate": runner.turn(spec["turn_seconds"]),
            "first_seconds": round(runner.first_seconds, 2),
        }
        if mode != "eager":
            result[mode] |= runner.kernels()
    eager = result["eager"]["rate"]
    graph, compiled = result["graph"]["rate"], result["compiled_graph"]["rate"]
    print(f"{eager:,.0f} eager, {graph:,.0f} graph, {compiled:,.0f} compiled graph")
    return result


def beside_jax(spec: dict[str, Any]) -> dict[str, Any]:
    """IQL of one or several seeds, in turns with a JAX scan of the same update."""
    import jax

    from benchmarks.speed.jax_iql import ScannedIQL

    torch.backends.cuda.matmul.allow_tf32 = spec["tf32"]
    agents = spec["agents"]
    with tiling(spec.get("products") == "tiled"):
        runner = Runner(make_engine(spec, "compiled_graph", agents), agents)
    first, data = dataset_for(spec["algo"], spec["rows"])
    table = OfflineData(first.config, [first.algorithm], data).table
    assert table.rows is not None  # in memory, because that is where a scan needs them
    rows = table.rows.cpu().numpy()
    scan = ScannedIQL(rows, 17, 6, seeds=agents, tf32=spec["tf32"])
    theirs = [
        (runner.turn(spec["turn_seconds"]), scan.updates_per_second(spec["turn_seconds"]))[1]
        for _ in range(spec["rounds"])
    ]
    ratios = sorted(a / b for a, b in zip(runner.rates, theirs, strict=True))
    result = {
        "rate": sorted(runner.rates)[len(theirs) // 2],
        "jax": sorted(theirs)[len(theirs) // 2],
        "ratio": ratios[len(ratios) // 2],
        "first_seconds": round(runner.first_seconds, 2),
        "gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "peer_versions": {"jax": jax.__version__},
        **runner.kernels(),
    }
    print(f"{result['rate']:,.0f} updates/s, {result['ratio']:.2f} times JAX")
    return result


WORK: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"modes": modes, "jax": beside_jax}


def work(request: Request) -> dict[str, Any]:
    result = WORK[request.spec["what"]](request.spec)
    gc.collect()
    return result


if __name__ == "__main__":
    answer_job(work, ("rl-training", "torch", "numpy", "gymnasium"))
