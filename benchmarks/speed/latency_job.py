"""Two waits of a user, `predict` and `import rl_training`, and what an update is made of."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from benchmarks.process import Request, answer_job

CALLS_PER_TURN = 50
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")


def predict_latency(spec: dict[str, Any]) -> dict[str, Any]:
    """Median microseconds of `predict` and of the bare network, called in turns.

    The bare forward is timed with its observation as a vector and as a batch of one, and
    the faster of the two is what `predict` is held against.
    """
    import torch

    from benchmarks.speed.our_agent import make_agent

    torch.set_num_threads(1)
    agent = make_agent(spec["algo"], spec["shape"], spec["knobs"])
    network = agent.algorithm.policy.net
    assert isinstance(network, torch.nn.Module)
    observation = np.random.default_rng(0).standard_normal(spec["shape"]["obs_dim"])
    observation = observation.astype(np.float32)
    vector = torch.from_numpy(observation)
    batch = vector.unsqueeze(0)
    calls: dict[str, Callable[[], Any]] = {
        "predict": lambda: agent.predict(observation),
        "bare_vector": lambda: network(vector),
        "bare_batch": lambda: network(batch),
    }
    times: dict[str, list[int]] = {name: [] for name in calls}
    for turn in range(spec["calls"] // CALLS_PER_TURN + 1):
        for name, call in calls.items():
            # the mode is entered once for the bare network, and by `predict` itself each time
            with torch.inference_mode(mode=name != "predict"):
                measured = _time_calls(call)
            if turn:  # the first turn warms up
                times[name] += measured
    result = {name: median(values) / 1e3 for name, values in times.items()}
    result["ratio"] = result["predict"] / min(result["bare_vector"], result["bare_batch"])
    print(f"{result['predict']:.1f} µs, {result['ratio']:.2f} times the bare network")
    return result


def _time_calls(call: Callable[[], Any]) -> list[int]:
    clock, measured = time.perf_counter_ns, []
    for _ in range(CALLS_PER_TURN):
        began = clock()
        call()
        measured.append(clock() - began)
    return measured


def import_time(spec: dict[str, Any]) -> dict[str, Any]:
    """Median seconds of a process that imports the package, less those of an empty one."""
    programs = {"bare": "pass", "importing": "import rl_training"}
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for repeat in range(spec["repeats"] + 1):
        for name, program in programs.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", program], check=True)
            if repeat:  # the first one fills the file cache
                seconds[name].append(time.perf_counter() - began)
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, rl_training; print('torch' in sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    result: dict[str, Any] = {name: median(values) for name, values in seconds.items()}
    result["seconds"] = max(0.0, result["importing"] - result["bare"])
    result["loads_torch"] = loaded.stdout.strip() == "True"
    print(f"{result['seconds'] * 1e3:.0f} ms")
    return result


def share_of_products(spec: dict[str, Any]) -> dict[str, Any]:
    """How much of an eager update is spent in matrix products, by PyTorch's own profiler."""
    import torch

    from benchmarks.speed.our_agent import make_agent, make_dataset
    from rl_training.runtime.build import build_loop, run_scope

    agent = make_agent(spec["algo"], spec["shape"], spec["knobs"])
    config = agent.config.replace(engine="eager")
    with run_scope(config, agent.algorithm.spaces):
        loop = build_loop(config, agent.algorithm, make_dataset(agent, spec["shape"]))
        loop.advance(spec["updates"])
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities) as profile:
            loop.advance(spec["updates"])
    events = profile.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    products = sum(event.self_cpu_time_total for event in events if event.key in PRODUCTS)
    result = {"share": products / total, "ms_per_update": total / spec["updates"] / 1e3}
    print(f"{result['share']:.0%} of the time in matrix products")
    return result


WORK = {"predict": predict_latency, "import": import_time, "products": share_of_products}


def work(request: Request) -> dict[str, Any]:
    return WORK[request.spec["what"]](request.spec)


if __name__ == "__main__":
    answer_job(work, ("rl-training", "torch", "numpy", "gymnasium"))
