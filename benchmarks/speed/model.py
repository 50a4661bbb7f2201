"""Speed of the model of MBPO on one CPU core: its ensemble beside one member and beside a list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import gates
from benchmarks.jobs import Job, Records
from benchmarks.markdown import number, table
from benchmarks.peers.environment import MBRL, MBRL_VERSION
from benchmarks.speed.ratios import load_note, only
from benchmarks.suites import Options, Section, Suite

NAME = "model_speed"
JOB = "benchmarks.speed.model_job"
SIZES: dict[str, dict[str, Any]] = {
    "paper": {"model_hidden_sizes": [200, 200, 200, 200], "model_batch_size": 256},
    "packaged": {"model_hidden_sizes": [128, 128, 128], "model_batch_size": 256},
    "small": {"model_hidden_sizes": [64, 64], "model_batch_size": 256},
}
MEMBERS, MOST_TIMES_ONE = 7, 2.5
ROUNDS, TURN_SECONDS = 9, 1.0
SHAPE = {"obs_dim": 11, "action_dim": 3}
"""Of Hopper."""
ENV_STEPS = 600
COMPARE = "benchmarks.speed.compare_job"
PEER_ROUNDS = 5
PEER_ROLLOUTS = 50_250
"""Which mbrl-lib can divide among its elites; the packaged configuration has 50,000."""


def model_jobs(options: Options) -> list[Job]:
    """One job per size, and one of whole runs; seeds play no part."""
    pace = {"rounds": ROUNDS, "turn_seconds": TURN_SECONDS}
    if options.quick:
        pace = {"rounds": 2, "turn_seconds": 0.1}
    jobs = []
    for size, knobs in SIZES.items():
        spec = {"kind": "fit", "knobs": knobs, "members": MEMBERS, **SHAPE, **pace}
        jobs.append(Job(NAME, f"fit-{size}", 0, JOB, spec, cost=40.0))
    steps = 150 if options.quick else ENV_STEPS
    spec = {"kind": "run", "config": "mbpo/pendulum", "env_steps": steps}
    spec["rounds"] = 1 if options.quick else 3
    jobs.append(Job(NAME, "run", 0, JOB, spec, cost=120.0))
    jobs.append(_peer_job(options))
    return jobs


def _peer_job(options: Options) -> Job:
    """Whole runs beside mbrl-lib, from the random steps on; each turn has one fit."""
    from rl_training.experiment.config import load_config

    rollouts = f"algo_kwargs.rollout_batch_size={PEER_ROLLOUTS}"
    config = load_config("mbpo/pendulum", [rollouts])
    config = config.replace(device="cpu", threads=1, engine="eager", seed=0)
    interval, start = config.params.model_interval, config.params.learning_starts
    spec: dict[str, Any] = {"config": config.to_dict(), "turn_ticks": interval}
    # theirs fits a model for the first time after as many steps as lie between two fits
    spec |= {"skip_ticks": start + interval - 1, "rounds": 1 if options.quick else PEER_ROUNDS}
    spec |= {"peer": True, "mbrl": MBRL_VERSION}
    return Job(NAME, "mbrl", 0, COMPARE, spec, peer=MBRL, cost=200.0)


def model_report(records: Records, _: Path) -> Section:
    rows, verdicts = [], []
    for size, knobs in SIZES.items():
        record = only(records, f"fit-{size}")
        result = record.result if record else {}
        width = "×".join(map(str, knobs["model_hidden_sizes"]))
        values = [result["times_one"]] if record else []
        name = f"{MEMBERS} members of {width} over one"
        verdicts.append(gates.at_most(name, values, MOST_TIMES_ONE))
        cells = [number(result.get(key), 0) for key in ("ensemble", "one", "list")]
        keys = ("times_one", "products_over_one", "times_list")
        ratios = [number(result.get(key), 2) for key in keys]
        label = f"layers {width}, batch {knobs['model_batch_size']}"
        rows.append([label, *cells, *ratios, f"at most {MOST_TIMES_ONE:g}: {verdicts[-1].text}"])
    rates = ("ensemble /s", "one member /s", "list /s")
    ratios = ["time over one member", "its products alone over one member", "times the list"]
    whole, beside = only(records, "run"), only(records, "mbrl")
    text = (
        f"Steps of a fit per second on one thread, on observations and actions of Hopper's size: "
        f"{MEMBERS} members as one module, one member alone in the same code, and as many members "
        "in a Python list of `nn.Sequential` with `torch.optim.Adam`, as one would write it first."
    )
    limits = (
        "The first row are the default sizes, the second those of the packaged configurations for "
        "a CPU. With the default ones the gate cannot be reached on one thread: the products of "
        "the step, without activations, loss and Adam, already take longer than it allows (the "
        f"column *its products alone over one member*), because {MEMBERS} members have {MEMBERS} "
        "times as many of them. The rest is mostly SiLU and its gradient, which grow with the "
        "members as well, and `torch.compile` of forward and backward takes but a few per cent off "
        "either side. A GPU has room for all members at once."
    )
    run = ""
    if whole is not None:
        run = (
            "Whole runs of `mbpo/pendulum`, environment steps per second after the random ones, "
            f"fits, rollouts and updates included: {whole.result['ours']:.1f}, and "
            f"{whole.result['theirs']:.1f} with models that are asked one after the other; "
            f"{whole.result['ratio']:.2f} times."
        )
    if beside is not None:
        found = beside.result
        run += (
            f" Beside mbrl-lib {MBRL_VERSION}, the same sizes, rates, rounds of updates and "
            f"rollouts ({PEER_ROLLOUTS:,} of one step, which it can divide among its elites), in "
            f"{PEER_ROUNDS} turns of one fit, one round of rollouts and all updates of "
            f"{beside.spec['turn_ticks']} steps each: {found['ours']:.1f} against "
            f"{found['theirs']:.1f} environment steps per second, {found['ratio']:.2f} times "
            f"({found['ratio_min']:.2f} to {found['ratio_max']:.2f}; {found['cpu_ratio']:.2f} by "
            "CPU time). How many epochs a fit takes is decided by each library's own holdout."
        )
    header = ("networks", *rates, *ratios, "gate")
    parts = (text, table(header, rows), limits, run, load_note(records))
    return Section("\n\n".join(part for part in parts if part), tuple(verdicts))


SUITE = Suite(NAME, "Speed of a learned model", model_jobs, model_report, alone=True)
