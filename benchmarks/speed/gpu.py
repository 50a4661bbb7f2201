"""Speed of updates on one GPU: ways to execute them, several seeds at once, JAX beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import gates
from benchmarks.jobs import Job, Records
from benchmarks.markdown import NO_VALUE, number, table
from benchmarks.speed.ratios import only
from benchmarks.suites import Options, Section, Suite

NAME = "gpu_speed"
MODULE = "benchmarks.speed.gpu_job"
ALGORITHMS = ("bc", "awr", "marwil", "iql", "awac", "crr", "cql", "sac")
TIMES_EAGER = 10.0
SEEDS_AT_LEAST = {16: 30_000, 64: 50_000}
KINDS = [
    *((agents, tf32, False) for agents in (1, *SEEDS_AT_LEAST) for tf32 in (False, True)),
    *((max(SEEDS_AT_LEAST), tf32, True) for tf32 in (False, True)),
]
"""Seeds, TF32, and whether products are tiled, beside JAX."""
GATED = {(1, False, False), (16, False, False), (64, False, True), (64, True, True)}
"""Of them, those with a bound: updates per second, or for one seed and with TF32 JAX's."""
ROWS, TURN_SECONDS, ROUNDS = 100_000, 1.0, 3


def gpu_jobs(options: Options) -> list[Job]:
    """One job per algorithm, and IQL of one and several seeds beside a JAX scan."""
    pace = {"rows": 5_000 if options.quick else ROWS, "turn_seconds": TURN_SECONDS}
    jobs = [
        Job(NAME, algo, 0, MODULE, {"what": "modes", "algo": algo, **pace}, gpu=True, cost=25)
        for algo in ALGORITHMS
    ]
    for agents, tf32, tiled in KINDS:
        spec = {"what": "jax", "algo": "iql", "agents": agents, "tf32": tf32, "rounds": ROUNDS}
        if tiled:
            spec["products"] = "tiled"
        name = _jax_job(agents, tf32, tiled)
        jobs.append(Job(NAME, name, 0, MODULE, spec | pace, gpu=True, cost=60))
    return jobs


def _jax_job(agents: int, tf32: bool, tiled: bool) -> str:
    return f"iql-{agents}-{'tf32' if tf32 else 'float32'}{'-tiled' if tiled else ''}"


# --- report ----------------------------------------------------------------------------------


def gpu_report(records: Records, _: Path) -> Section:
    modes, beside = _modes(records), _beside_jax(records)
    text = (
        "Updates per second, sampling and target updates included: obs 17, act 6, hidden layers "
        f"256×2, batch 256, float32, {ROWS:,} rows on the card. Eager is PyTorch operation by "
        "operation, graph one CUDA graph (ten updates in one where as many are due), compiled "
        "graph the same of the compiled update, which `engine: auto` takes from 50,000 updates on. "
        "The gate is on the mode that a run of that length gets. Kernels and microseconds of the "
        "device per update are the compiled graph's."
    )
    limits = (
        "What limits them: after compiling, an update is some thirty to a hundred kernels of one "
        "to eight microseconds each. BC, AWR, MARWIL and IQL are bound by their number: the "
        "networks are stacked, so that products are few, and what is left are the copies of "
        "weights into the stack, reductions for biases and metrics, and Adam. The critics of "
        "AWAC, CRR and SAC wait for the policy's actions, so their products follow one another. "
        "CQL is bound by the products themselves: its critics see 31 actions per state. The sum "
        "over those 7,936 rows that gives the weights' gradient is cut into pieces, without which "
        "it was half of an update (1,042 instead of 1,844 updates/s)."
    )
    seeds = (
        "IQL of one or several seeds in one batched update, all of them counted, in turns with "
        "the same update as a JAX `scan` (`benchmarks/speed/jax_iql.py`; several seeds by `vmap`). "
        "Tiled is `products: tiled`, a kernel on the tensor cores with biases, ReLU and their "
        "gradients in the same pass, whose float32 is made of three TF32 products; the gates of 64 "
        "seeds are on it. With PyTorch's own products, the default, two thirds of the device's "
        "time in float32 are products at about 39 TFLOP/s, which JAX needs as well; the rest is "
        "bound by memory (Adam over 22 million parameters, biases, ReLU and their gradients)."
    )
    parts = (text, modes.markdown, limits, seeds, beside.markdown)
    return Section("\n\n".join(parts), (*modes.verdicts, *beside.verdicts))


def _modes(records: Records) -> Section:
    rows, verdicts = [], []
    for algo in ALGORITHMS:
        record = only(records, algo)
        r: dict[str, Any] = record.result if record else {}
        eager, graph, compiled = (r.get(m, {}) for m in ("eager", "graph", "compiled_graph"))
        ratios = [m["rate"] / eager["rate"] if r else None for m in (graph, compiled)]
        name = f"{algo} compiled graph times eager on a GPU"
        verdict = gates.at_least(name, [x for x in ratios[1:] if x is not None], TIMES_EAGER)
        verdicts.append(verdict)
        rows.append(
            [
                algo.upper(),
                *(number(m.get("rate")) for m in (eager, graph, compiled)),
                *(number(ratio, 1) for ratio in ratios),
                number(compiled.get("kernels")),
                number(compiled.get("device_us")),
                number(compiled.get("product_us")),
                number(compiled.get("first_seconds"), 1),
                verdict.text,
            ]
        )
    header = (
        "algorithm",
        "eager /s",
        "graph /s",
        "compiled graph /s",
        "graph / eager",
        "compiled / eager",
        "kernels",
        "device µs",
        "of it products",
        "s to begin",
        f"gate: {TIMES_EAGER:g} times",
    )
    return Section(table(header, rows), tuple(verdicts))


def _beside_jax(records: Records) -> Section:
    rows, verdicts = [], []
    for agents, tf32, tiled in KINDS:
        record = only(records, _jax_job(agents, tf32, tiled))
        r: dict[str, Any] = record.result if record else {}
        several = f"{agents} seed{'s' if agents > 1 else ''}"
        how = ("TF32" if tf32 else "float32") + (", tiled" if tiled else "")
        gate, text = NO_VALUE, NO_VALUE
        if (agents, tf32, tiled) in GATED:
            if agents == 1 or tf32:
                gate, values = "JAX", [r["ratio"]] if r else []
                name = f"IQL of {several} ({how}) times a JAX scan on a GPU"
                verdict = gates.at_least(name, values, 1.0)
            else:
                least = SEEDS_AT_LEAST[agents]
                gate, values = f"{least:,}", [r["rate"]] if r else []
                verdict = gates.at_least(f"IQL of {several} ({how}), updates/s", values, least)
            verdicts.append(verdict)
            text = verdict.text
        rows.append(
            [
                f"{agents}",
                how,
                number(r.get("rate")),
                number(r.get("jax")),
                number(r.get("ratio"), 2),
                number(r.get("kernels")),
                number(r.get("device_us")),
                number(r.get("gib"), 2),
                gate,
                text,
            ]
        )
    header = (
        "seeds",
        "products",
        "ours /s",
        "JAX /s",
        "ratio",
        "kernels",
        "device µs",
        "GiB",
        "gate: at least",
        "",
    )
    return Section(table(header, rows), tuple(verdicts))


SUITE = Suite(NAME, "Speed on one GPU", gpu_jobs, gpu_report, alone=True)
