"""Data larger than memory: packing, the three homes of the table, memory and updates per second."""

from __future__ import annotations

import importlib
import re
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.process import Request, answer_job
from rl_training import ManagedAlgorithm, TrainConfig, TransitionDataset, load_transition_dataset
from rl_training.data.convert import save_dataset
from rl_training.data.pack_writer import PackWriter, new_folder
from rl_training.data.sources import pack_source
from rl_training.experiment.registry import algorithm_class
from rl_training.runtime.agents import SingleLearner
from rl_training.runtime.build import run_scope
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops.offline import OfflineData

OBS, ACT, EPISODE = 17, 6, 1_000
BLOCK = 100_000
"""Rows that are drawn once; every block of a large set is these, rolled and scaled."""
HOMES = ("device", "host", "disk")


class Memory:
    """Resident memory of this process, watched by a thread: anonymous and mapped pages apart."""

    def __init__(self) -> None:
        self.peak = {"anon": 0, "file": 0, "total": 0}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self.before = self.now()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @staticmethod
    def now() -> dict[str, int]:
        text = Path("/proc/self/status").read_text(encoding="utf-8")
        kib = {key: int(re.findall(rf"^{key}:\s+(\d+)", text, re.M)[0]) for key in
               ("RssAnon", "RssFile", "VmRSS")}  # fmt: skip
        names = {"anon": "RssAnon", "file": "RssFile", "total": "VmRSS"}
        return {name: kib[key] * 1024 for name, key in names.items()}

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            for name, value in self.now().items():
                self.peak[name] = max(self.peak[name], value)

    def grown(self, name: str) -> int:
        return self.peak[name] - self.before[name]


def make_packed(folder: Path, rows: int) -> Path:
    """A packed set of locomotion's sizes, written block by block."""
    rng = np.random.default_rng(0)
    states = rng.standard_normal((BLOCK + 1, OBS), dtype=np.float32)
    ends = np.arange(1, BLOCK + 1) % EPISODE == 0
    first = load_transition_dataset(
        {
            "observations": states[:-1],
            "next_observations": states[1:],
            "actions": rng.uniform(-1.0, 1.0, (BLOCK, ACT)).astype(np.float32),
            "rewards": rng.standard_normal(BLOCK, dtype=np.float32),
            "terminations": np.zeros(BLOCK, bool),
            "truncations": ends,
        }
    )
    target = folder / "packed"
    with new_folder(target, overwrite=False) as draft, closing(PackWriter(draft)) as writer:
        for number in range(rows // BLOCK):
            rewards = np.roll(first.rewards, number) + np.float32(number % 97)
            writer.append(replace(first, rewards=rewards, notes=()))
        writer.finish("large", first.spaces, (), ())
    return target


def config_for(
    algo: str, path: Path, home: str, device: str = "cpu", **changes: Any
) -> TrainConfig:
    return TrainConfig(
        algo=algo,
        dataset={"kind": "packed", "path": str(path), "home": home},
        total_updates=10**9,
        device=device,
        threads=1,
        **changes,
    )


def engine_for(config: TrainConfig, mode: str) -> tuple[Engine, ManagedAlgorithm]:
    agent = ManagedAlgorithm(config)
    dataset: TransitionDataset = load_transition_dataset(config.dataset)
    data = OfflineData(config, [agent.algorithm], dataset)
    learner = SingleLearner(agent.algorithm, data.draw, seed=0)
    return Engine(learner, mode, 10**9), agent


def parameters(agent: ManagedAlgorithm) -> torch.Tensor:
    return torch.cat([t.detach().double().flatten() for t in agent.algorithm.state_tensors()])


def rates(engine: Engine, seconds: float, least: int) -> tuple[float, float]:
    """Updates per second and per second of the CPU, after a warm-up that fills the first block."""

    def run(updates: int) -> None:
        engine.run(updates)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    run(least)
    done, began, used = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        run(least)
        done += least
    return done / (time.perf_counter() - began), done / (time.process_time() - used)


# --- what is measured ------------------------------------------------------------------------


def equal_homes(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Whether an algorithm that learns from data alone gets equal parameters in all homes."""
    algo = spec["algo"]
    kinds = algorithm_class(algo).action_kinds
    name = "pendulum-mixed" if "box" in kinds else "cartpole-mixed"
    dataset = load_transition_dataset({"kind": "scripted", "name": name, "max_episodes": 20})
    file = save_dataset(dataset, folder / f"{name}.npz")
    packed = pack_source(file, folder / name, env_id=dataset.env_id).folder
    knobs = {"hidden_sizes": [16, 16], "batch_size": 64}
    ends = []
    for home in HOMES:
        config = config_for(algo, packed, home, algo_kwargs=knobs)
        engine, agent = engine_for(config, "eager")
        with run_scope(config, agent.algorithm.spaces):
            engine.run(spec["updates"])
        ends.append(parameters(agent))
    return {"equal": bool(all(torch.equal(ends[0], end) for end in ends[1:]))}


def parquet(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A Parquet log of 20 columns: packed in one pass, then read into memory."""
    pa: Any = importlib.import_module("pyarrow")
    pq: Any = importlib.import_module("pyarrow.parquet")
    rows, columns = spec["rows"], [f"o{n}" for n in range(14)]
    rng = np.random.default_rng(0)
    file = folder / "log.parquet"
    writer = None
    for start in range(0, rows, 1_000_000):
        count = min(1_000_000, rows - start)
        step = np.arange(start, start + count)
        table: dict[str, Any] = {"episode": step // 500, "step": step % 500}
        for name in (*columns, "a0", "a1", "reward"):
            table[name] = rng.standard_normal(count, dtype=np.float32)
        table["done"] = step % 500 == 499
        made = pa.table(table)
        writer = writer or pq.ParquetWriter(file, made.schema)
        writer.write_table(made)
    assert writer is not None
    writer.close()
    source = {
        "kind": "parquet",
        "path": str(file),
        "episode": "episode",
        "order": "step",
        "dones": "terminated",
        "columns": {
            "observations": columns,
            "actions": ["a0", "a1"],
            "rewards": "reward",
            "terminations": "done",
        },
    }
    with Memory() as memory:
        began, used = time.perf_counter(), time.process_time()
        packed = pack_source(source, folder / "packed")
        seconds, cpu = time.perf_counter() - began, time.process_time() - used
    size = sum(packed.manifest.files().values())
    pack = {"seconds": seconds, "cpu_seconds": cpu, "rows_per_cpu_second": rows / cpu,
            "bytes": size, "peak_anon": memory.grown("anon")}  # fmt: skip
    config = config_for("iql", packed.folder, "device")
    agent = ManagedAlgorithm(config)
    with Memory() as memory:
        dataset = load_transition_dataset(config.dataset)
        data = OfflineData(config, [agent.algorithm], dataset)
    assert data.table.rows is not None
    held = data.table.rows.nbytes
    return {"pack": pack, "table_bytes": held, "peak_anon": memory.grown("anon"),
            "ratio": memory.grown("anon") / size}  # fmt: skip


def disk(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """IQL from disk, with data larger than memory, beside a table in memory."""
    began = time.perf_counter()
    path = make_packed(folder, spec["rows"])
    made = time.perf_counter() - began
    (folder / "part").mkdir()
    small = make_packed(folder / "part", spec["rows_in_memory"])
    result: dict[str, Any] = {"seconds_to_make": made}
    result["bytes"] = sum(file.stat().st_size for file in path.iterdir())
    engines = {}
    for name, place, home in (("memory", small, "device"), ("disk", path, "disk")):
        began = time.perf_counter()
        config = config_for("iql", place, home)
        with Memory() as memory:
            engines[name], agent = engine_for(config, "eager")
            with run_scope(config, agent.algorithm.spaces):
                # pages that are read once are cached: the same rows again are what is timed
                found = [rates(engines[name], spec["seconds"], 200) for _ in range(2)]
        grown = {key: memory.peak[key] for key in memory.peak}
        result[name] = {"rates": found, "peak": grown, "to_begin": time.perf_counter() - began}
    best = {name: max(per for per, _ in result[name]["rates"]) for name in ("disk", "memory")}
    cpu = {name: max(per for _, per in result[name]["rates"]) for name in ("disk", "memory")}
    result |= {"ratio": best["disk"] / best["memory"], "cpu_ratio": cpu["disk"] / cpu["memory"]}
    return result


def cuda(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """IQL on a GPU with the table in each home; and whether all learn the same."""
    path = make_packed(folder, spec["rows"])
    result: dict[str, Any] = {}
    ends = []
    for home in HOMES:
        config = config_for("iql", path, home, device="cuda")
        by_mode = {}
        for mode in ("graph", "compiled_graph"):
            engine, agent = engine_for(config, mode)
            with run_scope(config, agent.algorithm.spaces):
                engine.run(1_000)
                torch.cuda.synchronize()
                if mode == "graph":
                    ends.append(parameters(agent))
                by_mode[mode] = rates(engine, spec["seconds"], 1_000)[0]
        result[home] = by_mode
    result["equal"] = bool(all(torch.equal(ends[0], end) for end in ends[1:]))
    return result


def measure(request: Request) -> dict[str, Any]:
    spec = dict(request.spec)
    kinds = {"homes": equal_homes, "parquet": parquet, "disk": disk, "cuda": cuda}
    result = kinds[spec["what"]](spec, request.scratch)
    print(result)
    return result


if __name__ == "__main__":
    answer_job(measure, ("rl-training", "torch", "numpy", "pyarrow"))
