"""Train Brax's PPO in worlds of MJX for some minutes, and evaluate it in Gymnasium.

The worlds are not Brax's own tasks, whose models, rewards and observations are others, but
Gymnasium's models with the rewards, ends, observations and first states of version 5, so returns
can be compared. MJX simulates them in float32, with the solver's iterations as in our worlds.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

# MJX's documentation recommends it for NVIDIA's cards; read when JAX makes its first array.
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_triton_gemm_any=true")

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from brax import envs
from brax.training.agents.ppo import train as ppo
from mujoco import mjx

from benchmarks.peers.episodes import Array, Evaluations
from benchmarks.process import Request, answer_job

# From the notebook "Training in Brax", as public copies of it have them, for its own tasks of the
# same names; all else are the defaults of Brax's PPO.
COMMON = {
    "episode_length": 1000,
    "normalize_observations": True,
    "action_repeat": 1,
    "num_minibatches": 32,
    "learning_rate": 3e-4,
}
PUBLISHED = {
    "HalfCheetah-v5": {
        "reward_scaling": 1,
        "unroll_length": 20,
        "num_updates_per_batch": 8,
        "discounting": 0.95,
        "entropy_cost": 1e-3,
        "num_envs": 2048,
        "batch_size": 512,
    },
    "Ant-v5": {
        "reward_scaling": 10,
        "unroll_length": 5,
        "num_updates_per_batch": 4,
        "discounting": 0.97,
        "entropy_cost": 1e-2,
        "num_envs": 4096,
        "batch_size": 2048,
    },
}
QUICK = {"num_envs": 16, "batch_size": 16, "num_minibatches": 2, "num_updates_per_batch": 1}
EPOCHS, STEPS_PER_EPOCH = 10**6, 4
"""More calls of the compiled function than any run makes, and rollouts in each of them."""
COMPILING = 2
"""First calls in which the function is compiled: JAX 0.11 does it again for the arrays that the
first one returned."""


def _replicated(tree: Any, devices: Any) -> Any:
    """What `jax.device_put_replicated` did, which Brax 0.14.2 calls and JAX 0.11 has no more."""
    copy = jax.pmap(lambda _, x: x, in_axes=(0, None), devices=devices)
    return copy(jnp.zeros(len(devices)), tree)


_jax: Any = jax
if not hasattr(jax, "device_put_replicated"):
    _jax.device_put_replicated = _replicated


class Worlds(envs.Env):  # type: ignore[misc]
    """Gymnasium's HalfCheetah-v5 or Ant-v5 in MJX, with its default arguments."""

    def __init__(self, env_id: str, iterations: int, line_searches: int) -> None:
        env: Any = gym.make(env_id).unwrapped
        model = env.model
        model.opt.iterations = min(int(model.opt.iterations), iterations)
        model.opt.ls_iterations = min(int(model.opt.ls_iterations), line_searches)
        self.model = mjx.put_model(model, impl="jax")
        self._skip, self._dt, self._noise = env.frame_skip, env.dt, env._reset_noise_scale
        self._first = (jnp.array(env.init_qpos), jnp.array(env.init_qvel))
        self._ctrl_cost = env._ctrl_cost_weight
        self._ant = env_id.startswith("Ant")
        if self._ant:
            self._body, self._alive = env._main_body, env._healthy_reward
            self._contact_cost = env._contact_cost_weight
            self._heights, self._forces = env._healthy_z_range, env._contact_force_range
        self._actions = int(model.nu)
        self._seen = int(env.observation_space.shape[0])
        env.close()

    def reset(self, rng: Any) -> Any:
        keys, (qpos, qvel) = jax.random.split(rng), self._first
        qpos = qpos + jax.random.uniform(keys[0], qpos.shape, minval=-1, maxval=1) * self._noise
        qvel = qvel + jax.random.normal(keys[1], qvel.shape) * self._noise
        with jax.default_matmul_precision("highest"):
            data = mjx.make_data(self.model, impl="jax").replace(qpos=qpos, qvel=qvel)
            data = mjx.forward(self.model, data)
        zero = jnp.zeros(())
        return envs.State(data, self._observe(data, begun=True), zero, zero)

    def step(self, state: Any, action: Any) -> Any:
        before = state.pipeline_state
        # TF32, JAX's default on a GPU, is for networks; it would be another simulation.
        with jax.default_matmul_precision("highest"):
            data, _ = jax.lax.scan(
                lambda x, _: (mjx.step(self.model, x), None),
                before.replace(ctrl=action),
                None,
                self._skip,
            )
            if self._ant:
                data = mjx.rne_postconstraint(self.model, data)
        speed = (self._place(data) - self._place(before)) / self._dt
        reward = speed - self._ctrl_cost * jnp.square(action).sum()
        healthy = jnp.isfinite(data.qpos).all() & jnp.isfinite(data.qvel).all()
        if self._ant:
            low, high = self._heights
            healthy &= (data.qpos[2] >= low) & (data.qpos[2] <= high)
            cost = self._contact_cost * jnp.square(self._contact_forces(data)).sum()
            reward += self._alive * healthy - cost
        reward = jnp.nan_to_num(reward, posinf=0.0, neginf=0.0)  # a simulation that diverged
        done = 1.0 - healthy.astype(reward.dtype)
        return state.replace(pipeline_state=data, obs=self._observe(data), reward=reward, done=done)

    def _place(self, data: Any) -> Any:
        return data.xpos[self._body, 0] if self._ant else data.qpos[0]

    def _contact_forces(self, data: Any) -> Any:
        return jnp.clip(data._impl.cfrc_ext, *self._forces)

    def _observe(self, data: Any, begun: bool = False) -> Any:
        if not self._ant:
            return jnp.concatenate([data.qpos[1:], data.qvel])
        forces = self._contact_forces(data)[1:].ravel()
        forces = jnp.zeros_like(forces) if begun else forces
        return jnp.concatenate([data.qpos[2:], data.qvel, forces])

    @property
    def observation_size(self) -> int:
        return self._seen

    @property
    def action_size(self) -> int:
        return self._actions

    @property
    def backend(self) -> str:
        return "mjx"


class TimeIsUpError(Exception):
    """Ends training, which Brax ends by steps alone."""


class Until:
    """Keeps the last policy, and ends training some minutes after compilation."""

    def __init__(self, minutes: float) -> None:
        self.minutes, self.calls = minutes, 0
        self.policy: Any = None
        self.steps = self.steps_before = 0
        self.seconds = self.compile_seconds = 0.0
        self.began = time.monotonic()

    def __call__(self, steps: int, make_policy: Any, params: Any) -> None:
        """Called by Brax before the first epoch and after every one, when it is computed."""
        now = time.monotonic()
        self.policy, self.steps = make_policy(params, deterministic=True), steps
        if self.calls == COMPILING:
            self.steps_before, self.compile_seconds = steps, now - self.began
            self.began = now
        if self.calls > COMPILING:
            self.seconds = now - self.began
            if self.seconds > 60 * self.minutes:
                raise TimeIsUpError
        self.calls += 1


def work(request: Request) -> dict[str, Any]:
    spec, inputs = request.spec, request.inputs
    worlds = Worlds(spec["env_id"], spec["iterations"], spec["line_searches"])
    knobs: dict[str, Any] = {**COMMON, **PUBLISHED[spec["env_id"]]}
    per_epoch = STEPS_PER_EPOCH
    if spec["quick"]:
        knobs, per_epoch = {**knobs, **QUICK}, 1
    rollout = knobs["batch_size"] * knobs["num_minibatches"] * knobs["unroll_length"]
    until = Until(spec["minutes"])
    with contextlib.suppress(TimeIsUpError):
        ppo.train(
            environment=worlds,
            num_timesteps=EPOCHS * per_epoch * rollout,
            num_evals=EPOCHS + 1,
            run_evals=False,
            num_eval_envs=1,
            max_devices_per_host=1,
            policy_params_fn=until,
            seed=request.seed,
            **knobs,
        )
    decide = jax.jit(lambda seen: until.policy(seen, jax.random.PRNGKey(0))[0])
    most = max(len(inputs["reset_seeds"]), len(inputs["curve_seeds"]))

    def act(observations: Any) -> Array:
        padded = np.zeros((most, worlds.observation_size), np.float32)  # compiled once
        padded[: len(observations)] = observations
        return np.asarray(decide(padded))[: len(observations)]

    evaluations = Evaluations(act, spec["env_id"], inputs["curve_seeds"], "env_steps")
    evaluations.note(until.steps)
    result = evaluations.result(inputs["reset_seeds"], until.steps, until.seconds)
    rate = (until.steps - until.steps_before) / until.seconds
    print(f"return {result['return_mean']:,.0f}, {rate:,.0f} env steps/s")
    return {
        **result,
        "num_envs": knobs["num_envs"],
        "env_steps_per_second": rate,
        "compile_seconds": round(until.compile_seconds, 1),
        "device": jax.devices()[0].device_kind,
    }


if __name__ == "__main__":
    answer_job(
        work,
        ("brax", "mujoco-mjx", "mujoco", "jax", "flax", "optax", "numpy", "gymnasium"),
    )
