"""mbrl-lib's side of a speed comparison: one `train` of its MBPO, taken on step by step.

Run by the peers' Python. Sizes and rates are those of our configuration; what has no knob there is
as the library's examples have it: bounds of the log-variance that are not learned, one weight decay
for all layers, statistics in 64 bits, a minibatch that is real as a whole or imagined as a whole.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import mbrl.algorithms.mbpo as mbpo
import numpy as np
import omegaconf
import torch
from mbrl.env import termination_fns

from benchmarks.process import serve, versions

DEVICE = "cpu"


class Pausing(gym.Wrapper):
    """Stops before a step, all updates of the one before done, until it is let go on."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.steps = self.until = 0
        self.go, self.waiting = threading.Semaphore(0), threading.Semaphore(0)

    def step(self, action: Any) -> Any:
        if self.steps >= self.until:
            self.waiting.release()
            self.go.acquire()
        self.steps += 1
        return self.env.step(action)


def settings(env: Any, config: Mapping[str, Any], knobs: Mapping[str, Any]) -> Any:
    """The library's configuration, from the resolved one of ours; equal bounds of all actions."""
    sizes, widths = set(knobs["model_hidden_sizes"]), set(knobs["hidden_sizes"])
    if len(sizes) > 1 or len(widths) > 1 or len(knobs["hidden_sizes"]) != 2:
        raise ValueError("no counterpart for layers of several widths, or other than two of them")
    rates = {knobs[rate] for rate in ("policy_lr", "critic_lr", "temperature_lr")}
    if len(rates) > 1 or knobs["fixed_temperature"] or knobs["target_entropy"]:
        raise ValueError("no counterpart for rates of their own or another target entropy")
    per_step, rest = divmod(knobs["rollout_batch_size"], knobs["model_interval"])
    if rest or knobs["rollout_batch_size"] % knobs["num_elites"]:
        raise ValueError("rollouts must divide among the steps between fits, and among the elites")
    length = knobs["rollout_length"]
    model = {
        "_target_": "mbrl.models.GaussianMLP",
        "_recursive_": False,  # it makes its activations itself
        "device": DEVICE,
        "num_layers": len(knobs["model_hidden_sizes"]),
        "ensemble_size": knobs["num_members"],
        "hid_size": sizes.pop(),
        "deterministic": False,
        "propagation_method": "random_model",
        "learn_logvar_bounds": False,
        "activation_fn_cfg": {"_target_": "torch.nn.SiLU"},
    }
    agent = {
        "_target_": "mbrl.third_party.pytorch_sac_pranz24.sac.SAC",
        "num_inputs": env.observation_space.shape[0],
        "action_space": {
            "_target_": "gymnasium.spaces.Box",
            "low": float(env.action_space.low[0]),
            "high": float(env.action_space.high[0]),
            "shape": list(env.action_space.shape),
        },
        "args": {
            "gamma": knobs["gamma"],
            "tau": knobs["tau"],
            "alpha": 0.2,
            "policy": "Gaussian",
            "target_update_interval": 1,
            "automatic_entropy_tuning": True,
            "target_entropy": -1,
            "hidden_size": widths.pop(),
            "device": DEVICE,
            "lr": rates.pop(),
        },
    }
    return omegaconf.OmegaConf.create(
        {
            "seed": 0,
            "device": DEVICE,
            "log_frequency_agent": 10**9,
            "dynamics_model": model,
            "algorithm": {
                "name": "mbpo",
                "normalize": True,
                "normalize_double_precision": True,
                "target_is_delta": True,
                "learned_rewards": True,
                "freq_train_model": knobs["model_interval"],
                "real_data_ratio": knobs["real_ratio"],
                "sac_samples_action": True,
                "initial_exploration_steps": knobs["learning_starts"],
                "random_initial_explore": True,
                "num_eval_episodes": 1,
                "agent": agent,
            },
            "overrides": {
                "env": config["env_id"],
                "num_steps": config["total_timesteps"],
                "epoch_length": knobs["epoch_length"],
                "num_elites": knobs["num_elites"],
                "patience": knobs["model_patience"] + 1,  # theirs stops at it, ours beyond it
                "model_lr": knobs["model_lr"],
                "model_wd": 1e-5,
                "model_batch_size": knobs["model_batch_size"],
                "validation_ratio": knobs["holdout_ratio"],
                "freq_train_model": knobs["model_interval"],
                "effective_model_rollouts_per_step": per_step,
                "rollout_schedule": [1, 15, length, length],
                "num_sac_updates_per_step": int(knobs["gradient_updates_per_step"]),
                "sac_updates_every_steps": 1,
                "num_epochs_to_retain_sac_buffer": knobs["retain_epochs"],
                "sac_batch_size": knobs["batch_size"],
            },
        }
    )


class Worker:
    """Answers `build` and `run`."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.env: Any = None
        self.ended = False

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "build":
            return self._build(request)
        before = self.env.steps
        self.env.until = before + request["ticks"]
        began = time.perf_counter(), time.process_time()
        self.env.go.release()
        self._wait()
        seconds = time.perf_counter() - began[0], time.process_time() - began[1]
        ticks = self.env.steps - before
        return {"ticks": ticks, "seconds": seconds[0], "cpu_seconds": seconds[1]}

    def _wait(self) -> None:
        self.env.waiting.acquire()
        if self.ended:
            raise RuntimeError("`train` has ended, by an error or with its budget spent")

    def _build(self, request: dict[str, Any]) -> dict[str, Any]:
        config = request["config"]
        if config["env_id"] != "Pendulum-v1":
            raise ValueError("only for Pendulum-v1, which never terminates")
        self.env = Pausing(gym.make(config["env_id"]))
        arguments = (settings(self.env, config, request["knobs"]), gym.make(config["env_id"]))
        threading.Thread(target=self._train, args=arguments, daemon=True).start()
        self._wait()
        return {"versions": versions(("mbrl", "hydra-core", "torch", "numpy", "gymnasium"))}

    def _train(self, chosen: Any, other: Any) -> None:
        mbpo.evaluate = lambda *_: np.float32(0.0)  # ours is not evaluated either
        never = termination_fns.no_termination
        try:
            with tempfile.TemporaryDirectory() as folder:
                mbpo.train(self.env, other, never, chosen, silent=True, work_dir=folder)
        finally:
            self.ended = True
            self.env.waiting.release()


if __name__ == "__main__":
    serve(Worker().handle)
