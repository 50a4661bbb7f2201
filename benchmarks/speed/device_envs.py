"""Worlds on the GPU: steps per second, what minutes of training reach, and exact resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import gates
from benchmarks.gates import Verdict
from benchmarks.jobs import Job, Records
from benchmarks.learning.shared import EVAL_SEED, peer_inputs
from benchmarks.markdown import number, table
from benchmarks.peers.environment import BRAX, CONTRIB
from benchmarks.speed.ratios import only
from benchmarks.suites import Options, Section, Suite

NAME, MODULE = "device_envs", "benchmarks.speed.device_envs_job"
ROUNDING = "benchmarks.speed.rounding_job"
PEER, BRAX_PEER = "benchmarks.peers.sb3_minutes_job", "benchmarks.peers.brax_minutes_job"
EPISODES = 20


@dataclass(frozen=True)
class Rate:
    """A throughput: whole training included, and the least environment steps per second."""

    config: str
    least: float | None = None


RATES = {
    "ppo-hopper": Rate("ppo/hopper_warp", 300_000),
    "ppo-halfcheetah": Rate("ppo/halfcheetah_warp", 700_000),
    "ppo-ant": Rate("ppo/ant_warp"),
    "sac-halfcheetah": Rate("sac/halfcheetah_warp"),
    "ppo-cartpole": Rate("ppo/cartpole_torch"),
}
MEASURED_SECONDS, TURN_SECONDS = 15.0, 5.0


@dataclass(frozen=True)
class Goal:
    """A return in Gymnasium's CPU environment, and the minutes of training that it may take."""

    config: str
    least: float
    minutes: float


GOALS = {
    "ppo-halfcheetah": Goal("ppo/halfcheetah_warp", 5_000, 5),
    "ppo-ant": Goal("ppo/ant_warp", 4_000, 5),
    "sac-halfcheetah": Goal("sac/halfcheetah_warp", 9_000, 10),
}
TASKS = {"halfcheetah": "HalfCheetah-v5", "ant": "Ant-v5"}
BRAX_GOALS = ("ppo-halfcheetah", "ppo-ant")
"""Those with Brax's PPO beside them."""


@dataclass(frozen=True)
class Together:
    """Seeds of one config at once, and worlds of each."""

    config: str
    num_envs: int


SEEDS, MOST_TIMES = 16, 4.0
TOGETHER = {
    "ppo-cartpole": Together("ppo/cartpole_torch", 256),
    "ppo-halfcheetah": Together("ppo/halfcheetah_warp", 512),
}
RESUMED = ("ppo/hopper_warp", "ppo/ant_warp", "sac/halfcheetah_warp", "ppo/cartpole_torch")
MODELS = ("InvertedPendulum", "Hopper", "HalfCheetah", "Walker2d", "Ant", "Humanoid")
MOST_DIFFERENCE = 1e-4


def device_envs_jobs(options: Options) -> list[Job]:
    quick, jobs = options.quick, []
    for name, rate in RATES.items():
        spec = {"what": "rate", "config": rate.config, "seconds": MEASURED_SECONDS, "quick": quick}
        jobs.append(Job(NAME, f"rate-{name}", 0, MODULE, spec, cost=60, gpu=True))
    for name, together in TOGETHER.items():
        sizes = {"num_envs": together.num_envs, "seconds": TURN_SECONDS, "seeds": SEEDS}
        spec = {"what": "seeds", "config": together.config, "quick": quick, **sizes}
        jobs.append(Job(NAME, f"seeds-{name}", 0, MODULE, spec, cost=60, gpu=True))
    for name, goal in GOALS.items():
        for seed in options.seeds[:1]:
            spec = {
                "what": "goal",
                "config": goal.config,
                "minutes": 0.1 if quick else goal.minutes,
                "episodes": 2 if quick else EPISODES,
                "eval_seed": EVAL_SEED,
                "quick": quick,
            }
            cost = 60 * goal.minutes + 60
            jobs.append(Job(NAME, f"goal-{name}", seed, MODULE, spec, cost=cost, gpu=True))
            jobs.append(_peer_job(options, name, goal, seed))
            if name in BRAX_GOALS:
                jobs.append(_brax_job(options, name, goal, seed))
    for config in RESUMED:
        spec = {"what": "resume", "config": config, "quick": quick}
        name = config.replace("/", "-")
        jobs.append(Job(NAME, f"resume-{name}", 0, MODULE, spec, cost=60, gpu=True))
    spec = {"what": "models", "models": list(MODELS), "worlds": 16, "steps": 10}
    jobs.append(Job(NAME, "models", 0, MODULE, spec, cost=120, gpu=True))
    spec = {"models": list(MODELS), "worlds": 2 if quick else 48, "steps": 10}
    jobs.append(Job(NAME, "rounding", 0, ROUNDING, spec, cost=20))
    return jobs


def _peer_job(options: Options, name: str, goal: Goal, seed: int) -> Job:
    """Stable-Baselines3 on the CPU for the same time, which needs no GPU."""
    algo, _, task = name.partition("-")
    minutes = 0.1 if options.quick else goal.minutes
    spec = {"algo": algo, "env_id": TASKS[task], "minutes": minutes, "eval_seed": EVAL_SEED}
    cost = 60 * goal.minutes + 60
    inputs = _starts(options)
    return Job(NAME, f"peer-{name}", seed, PEER, spec, inputs=inputs, peer=CONTRIB, cost=cost)


def _brax_job(options: Options, name: str, goal: Goal, seed: int) -> Job:
    """Brax's PPO in worlds of MJX on the GPU for the same time."""
    from rl_training.envs.device.locomotion import ITERATIONS, LINE_SEARCHES

    spec = {
        "env_id": TASKS[name.partition("-")[2]],
        "minutes": 0.1 if options.quick else goal.minutes,
        "iterations": ITERATIONS,
        "line_searches": LINE_SEARCHES,
        "eval_seed": EVAL_SEED,
        "quick": options.quick,
    }
    cost = 60 * goal.minutes + 240
    inputs = _starts(options)
    return Job(
        NAME, f"brax-{name}", seed, BRAX_PEER, spec, inputs=inputs, peer=BRAX, cost=cost, gpu=True
    )


def _starts(options: Options) -> dict[str, list[int]]:
    starts = peer_inputs(options, 5)
    return {**starts, "reset_seeds": starts["reset_seeds"][:EPISODES]}


def device_envs_report(records: Records, _: Path) -> Section:
    verdicts: list[Verdict] = []

    def found(name: str) -> dict[str, Any]:
        record = only(records, name)
        return record.result if record else {}

    rates = []
    for name, rate in RATES.items():
        result = found(f"rate-{name}")
        text = ""
        if rate.least is not None:
            values = [result["env_steps_per_second"]] if result else []
            verdict = gates.at_least(f"{rate.config}, env steps/s", values, rate.least)
            verdicts.append(verdict)
            text = verdict.text
        shown = [number(result.get(key)) for key in ("num_envs", "env_steps_per_second")]
        alone = number(result.get("simulation_per_second"))
        rates.append([rate.config, *shown, alone, number(rate.least), text])
    together = []
    for name, case in TOGETHER.items():
        result = found(f"seeds-{name}")
        title = f"{case.config}, {case.num_envs} worlds of each of {SEEDS} seeds"
        values = [result["ratio"]] if result else []
        verdict = gates.at_most(f"{title}: times one seed", values, MOST_TIMES)
        verdicts.append(verdict)
        together.append([title, number(result.get("ratio")), number(MOST_TIMES), verdict.text])
    goals = []
    for name, goal in GOALS.items():
        result = found(f"goal-{name}")
        title = f"{goal.config} after {goal.minutes:g} minutes"
        values = [result["return_mean"]] if result else []
        verdict = gates.at_least(title, values, goal.least)
        verdicts.append(verdict)
        peer = found(f"peer-{name}")
        both = (result, peer)
        cells = [number(r.get(key)) for r in both for key in ("return_mean", "env_steps")]
        goals.append([title, *cells, number(goal.least), verdict.text])
    beside = []
    for name in BRAX_GOALS:
        goal = GOALS[name]
        ours, brax = found(f"goal-{name}"), found(f"brax-{name}")
        beside.append([f"{goal.config} after {goal.minutes:g} minutes", *_side(ours)])
        title = f"Brax's PPO on {TASKS[name.partition('-')[2]]} in MJX"
        beside.append([title, *(_side(brax) if brax else ["not run"] * 3)])
    resumed = []
    for config in RESUMED:
        result = found(f"resume-{config.replace('/', '-')}")
        equal = [float(result["equal"])] if result else []
        verdict = gates.at_least(f"{config}: equal parameters after a resume", equal, 1.0)
        verdicts.append(verdict)
        resumed.append([config, "yes" if equal == [1.0] else "", verdict.text])
    models = []
    differences, rounding = found("models"), found("rounding")
    turned = ("Ant", "Humanoid")
    held = [f"{x}, elliptic cones" if x in turned else x for x in MODELS]
    for model in (*held, *turned):
        own = differences.get(model)
        sizes = [f"{own[key]:.1e}" if own else "" for key in ("obs", "reward")]
        sizes.append(f"{rounding[model]:.1e}" if model in rounding else "")
        text = ""
        if model in held:
            values = [own["obs"]] if own else []
            name = f"{model}: difference from CPU MuJoCo"
            verdicts.append(gates.at_most(name, values, MOST_DIFFERENCE))
            text = verdicts[-1].text
        models.append([model, *sizes, text])
    text = "\n\n".join(
        (
            "Worlds of MuJoCo Warp and of torch on one GPU; all of training is included in the "
            "rates, compilation and evaluation are not. *Simulation alone* steps the worlds with "
            "random actions.",
            table(("config", "worlds", "env steps/s", "simulation alone", "gate", ""), rates),
            "Seeds that are trained at once, beside one of them in a run of its own:",
            table(("run", "times the time of one", "gate", ""), together),
            f"Mean return of the last policy over {EPISODES} episodes in Gymnasium's CPU "
            "environment. Beside it Stable-Baselines3 with its defaults on the CPU of the same "
            "machine for the same time, PPO with eight environments in processes and so "
            "with rollouts of 8 × 2,048 steps. Runs of 2026-11-17 shared the card and the cores "
            "with others:",
            table(("run", "return", "env steps", "its return", "its steps", "gate", ""), goals),
            "Brax's PPO on such a card for the same time after compilation, with the settings of "
            "Brax's training notebook for its own tasks of these names, as public copies have "
            "them. It is trained in Gymnasium's models and with the rewards of version 5, "
            "simulated by MJX with the solver's limits of our worlds, and evaluated as ours is. "
            "The runs were made at different times, and others shared the card with each. Steps "
            "per second are of all training; steps in the calls that compile are not in Brax's. "
            "No gate:",
            table(("run", "return", "env steps", "env steps/s"), beside),
            "A run that is killed half-way and resumed beside one that is not:",
            table(("config", "equal parameters", ""), resumed),
            "Largest difference from CPU MuJoCo, relative where numbers are above 1, over 10 steps "
            "from the same states with the same random actions, in 16 worlds. Ant and Humanoid are "
            "held to it with elliptic friction cones: with pyramidal ones friction depends on the "
            "tangent axes of a contact, which MuJoCo Warp 4.0 turns otherwise where a capsule "
            "stands steeper than 60 degrees. *Rounded* is CPU MuJoCo beside itself, in 48 worlds, "
            "with positions and velocities rounded to float32 after every environment step: where "
            "that is near the bound, as on HalfCheetah, whose contacts amplify rounding, a "
            "simulation in float32, which rounds every operation, is not expected to keep to it.",
            table(("model", "observations", "rewards", "rounded, observations", ""), models),
        )
    )
    return Section(text, tuple(verdicts), _short(found))


def _side(result: Mapping[str, Any]) -> list[str]:
    """Return, steps and steps per second of a run of some minutes."""
    steps, seconds = result.get("env_steps"), result.get("train_seconds")
    rate = result.get("env_steps_per_second", steps / seconds if steps and seconds else None)
    return [number(result.get("return_mean")), number(steps), number(rate)]


def _short(found: Callable[[str], dict[str, Any]]) -> str:
    """Goals that were measured beside the peer's."""
    parts = []
    for name, goal in GOALS.items():
        ours, peer = (found(f"{kind}-{name}").get("return_mean") for kind in ("goal", "peer"))
        if ours is not None and peer is not None:
            parts.append(
                f"`{goal.config}` {number(ours)} after {goal.minutes:g} minutes ({number(peer)})"
            )
    if not parts:
        return ""
    return (
        "Returns of training in thousands of worlds on one GPU, and in brackets of "
        f"Stable-Baselines3 on the CPU for the same time: {', '.join(parts)}."
    )


SUITE = Suite(NAME, "Worlds on the GPU", device_envs_jobs, device_envs_report, alone=True)
