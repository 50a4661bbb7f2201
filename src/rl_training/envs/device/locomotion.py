"""Gymnasium's MuJoCo tasks, version 5, in worlds of MuJoCo Warp.

Models, rewards, terminations, time limits, observations and the distribution of first states are
Gymnasium's; physics is in float32. Three things differ. Humanoid's model asks for the PGS solver,
which Warp lacks: it is simulated with Newton's. The solver ends after `ITERATIONS` instead of 100,
because all worlds wait for the last one. And where a capsule stands on the floor by more
than 60 degrees, MuJoCo Warp 4.0 turns the contact's tangent axes otherwise than MuJoCo, on which
friction in pyramidal cones depends: steps of Ant and Humanoid differ there. With
`elliptic_cones`, on which the axes have no influence, they agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from rl_training.envs.device.protocol import StepTensors
from rl_training.envs.device.streams import mixed, normals, uniforms
from rl_training.envs.device.warp import WarpWorlds
from rl_training.envs.make import make_env


class WarpTask:
    """A task whose state is positions and velocities of a model.

    `env_kwargs` are those of Gymnasium's environment, with the same defaults.
    """

    gymnasium_id: ClassVar[str]
    defaults: ClassVar[dict[str, Any]]
    """Arguments of Gymnasium's environment that the task reads."""
    contacts: ClassVar[int]
    """The most contacts of a world; of Humanoid, where 190 are possible, the most on average."""
    after_steps: ClassVar[tuple[str, ...]] = ()
    """Functions of MuJoCo Warp whose results are read after a step."""
    at_reset: ClassVar[tuple[str, ...]] = ()
    """Functions of MuJoCo Warp whose results are read after a reset."""
    hidden: ClassVar[int] = 1
    """First positions that observations leave out."""
    normal_velocities: ClassVar[bool] = False
    """Whether first velocities are normal instead of uniform."""

    def __init__(
        self,
        num_worlds: int,
        device: torch.device,
        max_episode_steps: int | None = None,
        deterministic: bool = False,
        elliptic_cones: bool = False,
        contacts: int | None = None,
        **env_kwargs: Any,
    ) -> None:
        """`deterministic` turns on MuJoCo Warp's options for it, `elliptic_cones` replace the
        model's friction cones, and there is room for `contacts` per world; these are for
        train_env_kwargs, because Gymnasium does not take them."""
        env_id = f"warp/{self.gymnasium_id}"
        env: Any = make_env(self.gymnasium_id, env_kwargs)
        self.observation_space, self.action_space = env.observation_space, env.action_space
        limit = env.spec.max_episode_steps
        self.time_limit: int | None = max_episode_steps or limit
        plain = env.unwrapped
        model, self._skip, self._dt = plain.model, int(plain.frame_skip), float(plain.dt)
        self.num_worlds, self.device = num_worlds, device
        # On a GPU a step of MuJoCo Warp 4.0 that is repeated from the same state of all arrays
        # differs in some worlds, also with all of its options for determinism.
        self.deterministic = device.type == "cpu"
        self.knobs = {name: env_kwargs.get(name, value) for name, value in self.defaults.items()}
        self._prepare(model)
        model.opt.iterations = min(int(model.opt.iterations), ITERATIONS)
        model.opt.ls_iterations = min(int(model.opt.ls_iterations), LINE_SEARCHES)
        if elliptic_cones:
            model.opt.cone = ELLIPTIC
        self.options = {name: int(getattr(model.opt, name)) for name in ("solver", "cone")}
        """What the model is simulated with."""
        self._init = [
            torch.tensor(x, dtype=torch.float32, device=device)
            for x in (plain.init_qpos, plain.init_qvel)
        ]
        env.close()
        self.worlds = WarpWorlds(
            env_id,
            model,
            num_worlds,
            device,
            contacts=contacts or self.contacts,
            deterministic=deterministic,
            after_steps=self.after_steps,
        )
        self.qpos, self.qvel = self.worlds.tensor("qpos"), self.worlds.tensor("qvel")
        self._ctrl, self._warm = (self.worlds.tensor(x) for x in ("ctrl", "qacc_warmstart"))
        self._last = torch.zeros(num_worlds, device=device)

    def _prepare(self, model: Any) -> None:
        """Change the model before it is put on the device."""

    def reset(self, mask: Tensor, seeds: Tensor) -> Tensor:
        (qpos, qvel), scale = self._init, float(self.knobs["reset_noise_scale"])
        uniform = scale * (2.0 * uniforms(seeds, len(qpos) + len(qvel)) - 1.0)
        moving = uniform[:, len(qpos) :]
        if self.normal_velocities:
            moving = scale * normals(mixed(seeds), len(qvel))
        due = mask.unsqueeze(1)
        self.qpos.copy_(torch.where(due, qpos + uniform[:, : len(qpos)], self.qpos))
        self.qvel.copy_(torch.where(due, qvel + moving, self.qvel))
        self._warm.masked_fill_(due, 0.0)
        self.worlds.call(*self.at_reset)
        self._last.copy_(torch.where(mask, self._place(), self._last))
        return self._observe(begun=True)

    def step(self, actions: Tensor) -> StepTensors:
        self._ctrl.copy_(actions)
        self.worlds.step(self._skip)
        place = self._place()
        speed = (place - self._last) / self._dt
        self._last.copy_(place)
        healthy = self._healthy()
        reward = self._reward(speed, healthy, actions)
        ends = bool(self.knobs.get("terminate_when_unhealthy", True))
        terminated = ~healthy if ends else torch.zeros_like(healthy)
        return StepTensors(self._observe(), reward, terminated)

    def _place(self) -> Tensor:
        """(N,) position whose change is rewarded."""
        return self.qpos[:, 0]

    def _healthy(self) -> Tensor:
        """(N,), whether the episode goes on."""
        return torch.ones(self.num_worlds, dtype=torch.bool, device=self.device)

    def _reward(self, speed: Tensor, healthy: Tensor, actions: Tensor) -> Tensor:
        forward = float(self.knobs["forward_reward_weight"]) * speed
        cost = float(self.knobs["ctrl_cost_weight"]) * actions.square().sum(1)
        alive = float(self.knobs.get("healthy_reward", 0.0))
        return forward + alive * healthy - cost

    def _observe(self, begun: bool = False) -> Tensor:
        """Observations after a step, or of first states, in which no force has acted."""
        return torch.cat([self._shown(), self.qvel], 1)

    def _shown(self) -> Tensor:
        leaves_out = bool(self.knobs.get("exclude_current_positions_from_observation", True))
        return self.qpos[:, self.hidden if leaves_out else 0 :]

    def _within(self, values: Tensor, knob: str) -> Tensor:
        low, high = self.knobs[knob]
        return (values > float(low)) & (values < float(high))

    def new_notes(self) -> list[str]:
        return self.worlds.new_notes()

    def state(self) -> Mapping[str, Tensor]:
        own = {"qpos": self.qpos, "qvel": self.qvel, "qacc_warmstart": self._warm}
        return {**own, "place": self._last}

    def close(self) -> None:
        """Memory is freed with the object."""


NEWTON, ELLIPTIC = 2, 1
"""mujoco.mjtSolver.mjSOL_NEWTON and mujoco.mjtCone.mjCONE_ELLIPTIC"""

ITERATIONS, LINE_SEARCHES = 15, 16
"""Of the solver, and of each of its searches along a line: twice what MuJoCo needs on these tasks,
7 and 8. The solver's loop ends with the slowest world, and a search is unrolled by the compiler."""

_FORWARD = {"forward_reward_weight": 1.0, "exclude_current_positions_from_observation": True}
_ALIVE = {"healthy_reward": 1.0, "terminate_when_unhealthy": True}


class HalfCheetah(WarpTask):
    gymnasium_id = "HalfCheetah-v5"
    defaults = {**_FORWARD, "ctrl_cost_weight": 0.1, "reset_noise_scale": 0.1}
    contacts, normal_velocities = 16, True


class Walker2d(WarpTask):
    gymnasium_id = "Walker2d-v5"
    defaults = {
        **_FORWARD,
        **_ALIVE,
        "ctrl_cost_weight": 1e-3,
        "healthy_z_range": (0.8, 2.0),
        "healthy_angle_range": (-1.0, 1.0),
        "reset_noise_scale": 5e-3,
    }
    contacts = 14

    def _healthy(self) -> Tensor:
        upright = self._within(self.qpos[:, 2], "healthy_angle_range")
        return self._within(self.qpos[:, 1], "healthy_z_range") & upright

    def _observe(self, begun: bool = False) -> Tensor:
        return torch.cat([self._shown(), self.qvel.clamp(-10.0, 10.0)], 1)


class Hopper(Walker2d):
    gymnasium_id = "Hopper-v5"
    defaults = {
        **Walker2d.defaults,
        "healthy_state_range": (-100.0, 100.0),
        "healthy_z_range": (0.7, float("inf")),
        "healthy_angle_range": (-0.2, 0.2),
    }

    def _healthy(self) -> Tensor:
        state = torch.cat([self.qpos[:, 2:], self.qvel], 1)
        return super()._healthy() & self._within(state, "healthy_state_range").all(1)


class InvertedPendulum(WarpTask):
    gymnasium_id = "InvertedPendulum-v5"
    defaults = {"reset_noise_scale": 0.01}
    contacts, hidden = 4, 0

    def _healthy(self) -> Tensor:
        return torch.isfinite(self._observe()).all(1) & (self.qpos[:, 1].abs() <= 0.2)

    def _reward(self, speed: Tensor, healthy: Tensor, actions: Tensor) -> Tensor:
        return healthy.to(speed.dtype)


class Contacting(WarpTask):
    """A body in space, whose contact forces cost something and are seen."""

    contacts, hidden = 25, 2
    after_steps = ("rne_postconstraint",)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._forces = self.worlds.tensor("cfrc_ext")

    def _reward(self, speed: Tensor, healthy: Tensor, actions: Tensor) -> Tensor:
        return super()._reward(speed, healthy, actions) - self._contact_cost()

    def _contact_cost(self) -> Tensor:
        cost = float(self.knobs["contact_cost_weight"])
        return cost * self._contact_forces().square().flatten(1).sum(1)

    def _contact_forces(self) -> Tensor:
        return self._forces

    def _forces_seen(self, begun: bool) -> Tensor:
        forces = self._contact_forces()[:, 1:].flatten(1)
        return torch.zeros_like(forces) if begun else forces


class Ant(Contacting):
    gymnasium_id = "Ant-v5"
    defaults = {
        **_FORWARD,
        **_ALIVE,
        "ctrl_cost_weight": 0.5,
        "contact_cost_weight": 5e-4,
        "main_body": 1,
        "healthy_z_range": (0.2, 1.0),
        "contact_force_range": (-1.0, 1.0),
        "reset_noise_scale": 0.1,
        "include_cfrc_ext_in_observation": True,
    }
    normal_velocities = True
    at_reset = ("kinematics",)

    def _prepare(self, model: Any) -> None:
        self._body = int(model.body(self.knobs["main_body"]).id)

    def _place(self) -> Tensor:
        """Where the body was when the model was last evaluated, as Gymnasium reads it."""
        return self.worlds.tensor("xpos")[:, self._body, 0]

    def _healthy(self) -> Tensor:
        low, high = self.knobs["healthy_z_range"]
        z = self.qpos[:, 2]
        finite = torch.isfinite(torch.cat([self.qpos, self.qvel], 1)).all(1)
        return finite & (z >= float(low)) & (z <= float(high))

    def _contact_forces(self) -> Tensor:
        return self._forces.clamp(*(float(x) for x in self.knobs["contact_force_range"]))

    def _observe(self, begun: bool = False) -> Tensor:
        parts = [self._shown(), self.qvel]
        if self.knobs["include_cfrc_ext_in_observation"]:
            parts.append(self._forces_seen(begun))
        return torch.cat(parts, 1)


class Humanoid(Contacting):
    gymnasium_id = "Humanoid-v5"
    defaults = {
        **_FORWARD,
        "forward_reward_weight": 1.25,
        "ctrl_cost_weight": 0.1,
        "contact_cost_weight": 5e-7,
        "contact_cost_range": (float("-inf"), 10.0),
        "healthy_reward": 5.0,
        "terminate_when_unhealthy": True,
        "healthy_z_range": (1.0, 2.0),
        "reset_noise_scale": 1e-2,
        "include_cinert_in_observation": True,
        "include_cvel_in_observation": True,
        "include_qfrc_actuator_in_observation": True,
        "include_cfrc_ext_in_observation": True,
    }
    contacts = 64
    at_reset = ("kinematics", "com_pos", "com_vel")

    def _prepare(self, model: Any) -> None:
        model.opt.solver = NEWTON  # Warp has no PGS
        mass = torch.tensor(model.body_mass, dtype=torch.float32, device=self.device)
        self._share = mass / mass.sum()

    def _place(self) -> Tensor:
        """The centre of mass when the model was last evaluated, as Gymnasium reads it."""
        return (self.worlds.tensor("xipos")[:, :, 0] * self._share).sum(1)

    def _healthy(self) -> Tensor:
        return self._within(self.qpos[:, 2], "healthy_z_range")

    def _contact_cost(self) -> Tensor:
        return super()._contact_cost().clamp(*(float(x) for x in self.knobs["contact_cost_range"]))

    def _observe(self, begun: bool = False) -> Tensor:
        tensor, knobs = self.worlds.tensor, self.knobs
        parts = [self._shown(), self.qvel]
        seen = [x for x in ("cinert", "cvel") if knobs[f"include_{x}_in_observation"]]
        parts += [tensor(name)[:, 1:].flatten(1) for name in seen]
        if knobs["include_qfrc_actuator_in_observation"]:
            forces = tensor("qfrc_actuator")[:, 6:]
            parts.append(torch.zeros_like(forces) if begun else forces)
        if knobs["include_cfrc_ext_in_observation"]:
            parts.append(self._forces_seen(begun))
        return torch.cat(parts, 1)
