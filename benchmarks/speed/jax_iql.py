"""IQL as a JAX script would have it: one update as a pure function, many of them in a scan.

The same update as `IQLAlgorithm`: the losses, Adam, orthogonal initialisation, sampling and
target update included. Needs JAX, which the package does not.
"""

from __future__ import annotations

import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LR, TAU, EXPECTILE, BETA, MAX_WEIGHT = 3e-4, 5e-3, 0.7, 3.0, 100.0
STEPS_PER_CALL = 1_000


def init_mlp(key: Any, sizes: list[int]) -> list[dict[str, Any]]:
    orthogonal = jax.nn.initializers.orthogonal(math.sqrt(2.0))
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"w": orthogonal(k, (fan_in, fan_out)), "b": jnp.zeros(fan_out)}
        for k, fan_in, fan_out in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def mlp(layers: list[dict[str, Any]], x: Any) -> Any:
    for layer in layers[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def init(key: Any, obs_dim: int, action_dim: int, hidden: list[int]) -> dict[str, Any]:
    keys = jax.random.split(key, 4)
    critics = [init_mlp(k, [obs_dim + action_dim, *hidden, 1]) for k in keys[:2]]
    params = {
        "critics": jax.tree.map(lambda *xs: jnp.stack(xs), *critics),
        "value": init_mlp(keys[2], [obs_dim, *hidden, 1]),
        "policy": init_mlp(keys[3], [obs_dim, *hidden, action_dim]),
        "log_std": jnp.zeros(action_dim),
    }
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {
        "params": params,
        "targets": params["critics"],
        "m": zeros,
        "v": zeros,
        "step": jnp.zeros((), jnp.int32),
        "key": keys[3],
    }


def log_prob(params: dict[str, Any], obs: Any, action: Any) -> Any:
    mean, log_std = mlp(params["policy"], obs), jnp.clip(params["log_std"], -5.0, 2.0)
    z = (jnp.arctanh(action) - mean) * jnp.exp(-log_std)
    gaussian = -0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)
    return (gaussian - jnp.log1p(-(action**2))).sum(-1)


def critic_values(critics: Any, obs: Any, action: Any) -> Any:
    x = jnp.concatenate([obs, action], -1)
    return jax.vmap(mlp, (0, None))(critics, x)[..., 0]


def losses(params: dict[str, Any], targets: Any, batch: tuple[Any, ...]) -> tuple[Any, Any]:
    obs, next_obs, action, reward, discount = batch
    stop = jax.lax.stop_gradient
    q_target = stop(critic_values(targets, obs, action).min(0))
    value = mlp(params["value"], obs)[:, 0]
    td_target = reward + discount * stop(mlp(params["value"], next_obs)[:, 0])
    error = q_target - value
    value_loss = (jnp.where(error < 0, 1 - EXPECTILE, EXPECTILE) * error**2).mean()
    weight = stop(jnp.minimum(jnp.exp(jnp.minimum(BETA * error, 80.0)), MAX_WEIGHT))
    policy_loss = -(weight * log_prob(params, obs, action)).mean()
    critic_loss = ((critic_values(params["critics"], obs, action) - td_target) ** 2).mean(-1).sum()
    metrics = {"value_loss": value_loss, "policy_loss": policy_loss, "critic_loss": critic_loss}
    return value_loss + policy_loss + critic_loss, metrics


def make_update(rows: Any, obs_dim: int, action_dim: int, batch_size: int) -> Any:
    ends = np.cumsum([obs_dim, obs_dim, action_dim, 1])

    def update(state: dict[str, Any], _: None) -> tuple[dict[str, Any], Any]:
        key, draw = jax.random.split(state["key"])
        index = jax.random.randint(draw, (batch_size,), 0, rows.shape[0])
        obs, next_obs, action, reward, discount = jnp.split(rows[index], ends, axis=1)
        batch = (obs, next_obs, action, reward[:, 0], discount[:, 0])
        gradient, metrics = jax.grad(losses, has_aux=True)(state["params"], state["targets"], batch)
        step = state["step"] + 1
        m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, state["m"], gradient)
        v = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g**2, state["v"], gradient)
        c1, c2 = 1 - 0.9**step, 1 - 0.999**step
        params = jax.tree.map(
            lambda p, a, b: p - LR * (a / c1) / (jnp.sqrt(b / c2) + 1e-8), state["params"], m, v
        )
        targets = jax.tree.map(lambda t, p: t + TAU * (p - t), state["targets"], params["critics"])
        new = {"params": params, "targets": targets, "m": m, "v": v, "step": step, "key": key}
        return new, metrics

    return update


class ScannedIQL:
    """`seeds` learners side by side (vmap), `STEPS_PER_CALL` updates per call (scan)."""

    def __init__(
        self, rows: Any, obs_dim: int, action_dim: int, *, seeds: int = 1, tf32: bool = False
    ) -> None:
        update = make_update(jnp.asarray(rows), obs_dim, action_dim, 256)
        keys = jax.random.split(jax.random.key(0), seeds)
        start = jax.vmap(lambda key: init(key, obs_dim, action_dim, [256, 256]))(keys)

        def many(state: Any) -> Any:
            return jax.lax.scan(update, state, None, length=STEPS_PER_CALL)

        precision = "tensorfloat32" if tf32 else "float32"
        with jax.default_matmul_precision(precision):
            if seeds == 1:
                start = jax.tree.map(lambda x: x[0], start)
                self._call = jax.jit(many, donate_argnums=0).lower(start).compile()
            else:
                self._call = jax.jit(jax.vmap(many), donate_argnums=0).lower(start).compile()
        self.state, self.seeds = start, seeds

    def updates_per_second(self, seconds: float) -> float:
        """Updates of all seeds together."""
        self.state, metrics = self._call(self.state)
        float(metrics["value_loss"].sum())  # waits
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            self.state, metrics = self._call(self.state)
            float(metrics["value_loss"].sum())  # waits
            done += STEPS_PER_CALL * self.seeds
        return done / (time.perf_counter() - began)
