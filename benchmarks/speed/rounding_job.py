"""How far CPU MuJoCo is from itself when its state is rounded to float32 after every step: no
simulation in float32 can be expected to come nearer."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from benchmarks.process import Request, answer_job

CONES = {"": 0, ", elliptic cones": 1}


def work(request: Request) -> dict[str, Any]:
    spec, found = request.spec, {}
    for model in spec["models"]:
        for words, cone in CONES.items():
            found[model + words] = apart(f"{model}-v5", cone, spec["worlds"], spec["steps"])
            print(f"{model}{words}: {found[model + words]:.1e}")
    return found


def apart(env_id: str, cone: int, worlds: int, steps: int) -> float:
    """The largest difference of observations, relative where they are above 1."""
    exact, rounded = envs = [gym.make(env_id).unwrapped for _ in range(2)]
    generator, worst = np.random.default_rng(0), 0.0
    space: Any = exact.action_space
    for env in envs:
        _model(env).opt.cone = cone
    for world in range(worlds):
        for env in envs:
            env.reset(seed=world)
            _round(env)
        for _ in range(steps):
            action = generator.uniform(space.low, space.high)
            seen, expected = (np.asarray(env.step(action)[0]) for env in (rounded, exact))
            worst = max(worst, float(_relative(seen, expected).max()))
            _round(rounded)
    for env in envs:
        env.close()
    return worst


def _relative(seen: NDArray[Any], expected: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.abs(seen - expected) / np.maximum(np.abs(expected), 1.0))


def _round(env: Any) -> None:
    """Positions and velocities; what the solver starts from is kept."""
    begins = env.data.qacc_warmstart.copy()
    env.set_state(*(x.astype(np.float32).astype(float) for x in (env.data.qpos, env.data.qvel)))
    env.data.qacc_warmstart[:] = begins


def _model(env: Any) -> Any:
    return env.model


if __name__ == "__main__":
    answer_job(work, ("numpy", "gymnasium", "mujoco"))
