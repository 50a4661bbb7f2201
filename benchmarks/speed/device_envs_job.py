"""One measurement of worlds on the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.process import Request, answer_job
from rl_training import Callback, ManagedAlgorithm, TrainConfig
from rl_training.envs.device.compared import differences
from rl_training.envs.device.worlds import Worlds
from rl_training.experiment.config import load_config
from rl_training.runtime.build import (
    build_algorithm,
    build_clock,
    build_loop,
    run_scope,
    task_spaces,
)
from rl_training.runtime.callbacks import StepEvent

QUICK = {"num_envs": 64, "engine": "eager"}
"""On any device: does it run?"""
BUDGET, CHUNK = 10**10, 20
"""Environment steps that no measurement reaches, and steps of each world between two looks at the
clock."""


def config_of(request: Request, **changes: Any) -> TrainConfig:
    config = load_config(request.spec["config"])
    knobs: dict[str, Any] = {}
    values: dict[str, Any] = {"seed": request.seed, "output_dir": str(request.scratch)}
    values |= {"tensorboard": False, "keep_best": False, "eval_interval": 0, **changes}
    if request.spec["quick"]:
        values |= {**QUICK, "device": "cpu"}
        knobs = {"batch_size": 64, "hidden_sizes": [8]}
        if config.algo == "sac":
            knobs |= {"learning_starts": 128, "buffer_capacity": 10_000}
    return config.replace(**values, algo_kwargs={**config.algo_kwargs, **knobs})


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measured(clock: Any, loop: Any, worlds: int, seconds: float) -> tuple[int, float]:
    """Environment steps of `loop`, of so many worlds, in about so many seconds that `clock` moves,
    and the seconds, after it has captured and compiled."""
    while loop.progress.updates == 0:
        clock.advance(1)
    _moved(clock, loop, worlds, seconds / 10)
    return _moved(clock, loop, worlds, seconds)


def _moved(clock: Any, loop: Any, worlds: int, seconds: float) -> tuple[int, float]:
    wait()
    began, before = time.monotonic(), loop.progress.env_steps
    while time.monotonic() - began < seconds:
        clock.advance(CHUNK * worlds)
        wait()
    return loop.progress.env_steps - before, time.monotonic() - began


def rate(request: Request) -> dict[str, Any]:
    """Environment steps per second, of training and of the simulation alone."""
    seconds = 0.5 if request.spec["quick"] else request.spec["seconds"]
    config = config_of(request, total_timesteps=BUDGET)
    spaces = task_spaces(config)
    algorithm = build_algorithm(config, spaces)
    with run_scope(config, spaces):
        loop: Any = build_loop(config, algorithm)
        taken, seconds = measured(loop, loop, config.num_envs, seconds)
        alone = simulation_rate(loop.experience.collector)
        notes = list(loop.link.notes)
        loop.close()
    print(f"{taken / seconds:,.0f} env steps/s, simulation alone {alone:,.0f}")
    return {
        "num_envs": config.num_envs,
        "env_steps_per_second": taken / seconds,
        "simulation_per_second": alone,
        "engine": loop.engine.mode,
        "collecting": loop.experience.engine.mode,
        "notes": notes,
    }


def seeds(request: Request) -> dict[str, Any]:
    """Seconds per step of one seed and of several at once."""
    spec, quick = request.spec, request.spec["quick"]
    count, turn = (3, 0.5) if quick else (spec["seeds"], spec["seconds"])
    config = config_of(request, total_timesteps=BUDGET)
    config = config.replace(num_envs=16 if quick else spec["num_envs"])
    spaces, together = task_spaces(config), config.replace(seeds=list(range(count)))
    with run_scope(config, spaces):
        loop: Any = build_loop(config, build_algorithm(config, spaces))
        each = [config.replace(seed=seed) for seed in range(count)]
        clock: Any = build_clock(together, [build_algorithm(one, spaces) for one in each])
        first = clock.loops[0]
        best = [float("inf")] * 2
        for _ in range(1 if quick else 3):  # by turns, because others may use the card
            for i, (moved, counted) in enumerate(((loop, loop), (clock, first))):
                taken, spent = measured(moved, counted, config.num_envs, turn)
                best[i] = min(best[i], spent / taken)
        loop.close()
        first.close()
    seconds = dict(zip(("one", "many"), best, strict=True))
    ratio = seconds["many"] / seconds["one"]
    print(f"{count} seeds take {ratio:.2f} times as long as one")
    return {"seeds": count, "num_envs": config.num_envs, "ratio": ratio, "seconds": seconds}


def simulation_rate(worlds: Worlds, steps: int = 100) -> float:
    """World steps per second with random actions, launched one by one."""
    shape = (worlds.num_envs, *worlds.spaces.inner_action_shape)
    if worlds.spaces.is_box:
        actions = torch.rand(shape, device=worlds.device) * 2.0 - 1.0
    else:
        actions = torch.randint(worlds.spaces.action_dim, shape, device=worlds.device)
    worlds.step(actions)
    wait()
    began = time.monotonic()
    for _ in range(steps):
        worlds.step(actions)
    wait()
    return steps * worlds.num_envs / (time.monotonic() - began)


class Until(Callback):
    """Ends a run after some minutes; compilation before the first step does not count."""

    def __init__(self, minutes: float) -> None:
        self.minutes, self.began = minutes, 0.0

    def on_step(self, event: StepEvent) -> None:
        self.began = self.began or time.monotonic()
        if time.monotonic() - self.began > 60 * self.minutes:
            event.request_stop(f"{self.minutes:g} minutes of training")


def goal(request: Request) -> dict[str, Any]:
    """The return after some minutes, in Gymnasium's environment on the CPU."""
    spec = request.spec
    agent = ManagedAlgorithm(config_of(request, final_eval=False))
    trained = agent.learn(progress=False, callbacks=Until(spec["minutes"]))
    final = agent.evaluate(spec["episodes"], seed=spec["eval_seed"])
    print(f"return {final.return_mean:,.0f} after {trained.env_steps:,} steps")
    return {
        "return_mean": final.return_mean,
        "return_std": final.return_std,
        "env_steps": trained.env_steps,
        "updates": trained.updates,
        "train_seconds": trained.wall_seconds,
    }


class KilledError(Exception):
    """Ends a run without saving."""


class Kill(Callback):
    def __init__(self, tick: int) -> None:
        self.tick = tick

    def on_step(self, event: StepEvent) -> None:
        if event.tick >= self.tick:
            raise KilledError


def resume(request: Request) -> dict[str, Any]:
    """Whether a killed and resumed run ends with the parameters of one that was not killed."""
    config = config_of(request, final_eval=False)
    unit = config.num_envs * int(config.algo_kwargs.get("rollout_length", 64))
    budget: dict[str, Any] = {"total_timesteps": 8 * unit, "checkpoint_interval": 3 * unit}
    if config.algo == "sac":
        budget["algo_kwargs"] = {**config.algo_kwargs, "learning_starts": 4 * config.num_envs}
    config = config.replace(**budget)
    whole = ManagedAlgorithm(config.replace(run_name="whole"))
    whole.learn(progress=False)
    try:
        ManagedAlgorithm(config.replace(run_name="killed")).learn(
            progress=False, callbacks=Kill(5 * unit)
        )
    except KilledError:
        torch.manual_seed(12345)
    resumed = ManagedAlgorithm.resume(Path(request.scratch) / "killed", progress=False)
    own, other = (agent.algorithm.state_dict() for agent in (whole, resumed))
    unequal = [name for name, value in own.items() if not torch.equal(value, other[name])]
    print("equal" if not unequal else f"{len(unequal)} of {len(own)} tensors differ")
    return {"equal": not unequal, "unequal": unequal[:5]}


def models(request: Request) -> dict[str, Any]:
    """Differences from CPU MuJoCo of every model."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    spec, found = request.spec, {}
    for model in spec["models"]:
        for cones in (False, True):
            size = (spec["worlds"], spec["steps"])
            steps = differences(f"warp/{model}-v5", *size, device, elliptic_cones=cones)
            worst = np.max(np.asarray(steps), axis=0)
            name = f"{model}, elliptic cones" if cones else model
            found[name] = {"obs": float(worst[0]), "reward": float(worst[1])}
            print(f"{name}: observations {worst[0]:.1e}, rewards {worst[1]:.1e}")
    return found


WORK: dict[str, Callable[[Request], dict[str, Any]]] = {
    "rate": rate,
    "seeds": seeds,
    "goal": goal,
    "resume": resume,
    "models": models,
}

if __name__ == "__main__":
    answer_job(
        lambda request: WORK[request.spec["what"]](request),
        ("rl-training", "torch", "numpy", "gymnasium", "mujoco", "mujoco-warp", "warp-lang"),
    )
