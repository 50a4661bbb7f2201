"""Locomotion at a million steps: SAC and PPO; RLPD and MBPO beside SAC at equal steps."""

from __future__ import annotations

from typing import Any

from benchmarks.learning.field import Field, Published, Rival, Run

STEPS, WITHIN = 1_000_000, 0.9
SAC = {"HalfCheetah": 11_321, "Hopper": 2_787, "Walker2d": 4_536, "Ant": 5_734}
"""v4, ten seeds: the baselines that SimbaV2's authors publish."""
PPO = {"HalfCheetah": 5_819, "Hopper": 2_410, "Walker2d": 3_479, "Ant": 1_327}
"""v3, one run: Stable-Baselines3's zoo, tuned."""
PPO_CONFIG = {"HalfCheetah": "ppo/halfcheetah", "Ant": "ppo/ant"}
"""Packaged ones, which have tanh; Hopper and Walker2d have the default, ReLU."""
PRIOR_STEPS, MODEL_STEPS = 100_000, 100_000
"""MBPO's paper takes 300,000 steps, with twenty updates for each more than an hour of a GPU."""
MBPO_KNOBS: dict[str, dict[str, Any]] = {
    "Walker2d": {"target_entropy": -3.0, "final_rollout_length": 1},
    "Ant": {"target_entropy": -4.0, "final_rollout_length": 25},
}
CURVE = {"eval_interval": 50_000, "eval_episodes": 10}
SEVERAL: dict[str, Any] = {"num_envs": 8, "env_workers": 1, "overlap_updates": True}
"""Of SAC: an update per step as with one environment, but actions for eight are chosen at once, and
the updates are made beside their steps. One at a time takes four times as long on a GPU."""
PPO_CHANGES: dict[str, Any] = {"num_envs": 8, "device": "cpu", "lr_schedule": {"kind": "linear"}}
"""Small networks are as fast on a core; a rollout has 2,048 steps as with one environment."""
PPO_KNOBS: dict[str, Any] = {
    "rollout_length": 2_048 // PPO_CHANGES["num_envs"],
    "normalize_observations": True,
    "normalize_rewards": True,
}


def prior(env_id: str, target: float, steps: int) -> dict[str, Any]:
    """Steps of a SAC that is stopped at a return."""
    return {
        "config": {
            "algo": "sac",
            "env_id": env_id,
            "device": "cuda",
            "total_timesteps": STEPS,
            "eval_interval": 10_000,
            "early_stopping": {"target": target},
            "final_eval": False,
            "tensorboard": False,
            "algo_kwargs": {"learning_starts": 10_000},
            **SEVERAL,
        },
        "env_id": env_id,
        "steps": steps,
    }


def _runs() -> list[Run]:
    runs = []
    for task, score in SAC.items():
        changes = {"env_id": f"{task}-v5", "total_timesteps": STEPS, **CURVE}
        known = Published(score, "v4, ten seeds")
        least = WITHIN * score
        own = {**changes, **SEVERAL}
        runs.append(
            Run(f"sac-{task}", "SAC", task, "sac/halfcheetah", own, {}, least, published=known)
        )
        known = Published(PPO[task], "v3, one run")
        config = PPO_CONFIG.get(task, "ppo/default")
        own, knobs = {**changes, **PPO_CHANGES}, dict(PPO_KNOBS)
        runs.append(Run(f"ppo-{task}", "PPO", task, config, own, knobs, published=known))
    older = {"env_id": "Ant-v4", "total_timesteps": STEPS, **CURVE, **SEVERAL, "device": "cpu"}
    known = Published(SAC["Ant"], "v4, ten seeds")
    runs.append(Run("sac-Ant-v4", "SAC, v4", "Ant", "sac/halfcheetah", older, published=known))
    for task, knobs in MBPO_KNOBS.items():
        own = {"env_id": f"{task}-v5", "eval_interval": 10_000, "eval_episodes": 10}
        few = {**own, "total_timesteps": PRIOR_STEPS}
        data = prior(f"{task}-v5", 1_500.0, 100_000)
        runs.append(Run(f"rlpd-{task}", "RLPD", task, "rlpd/hopper", few, {}, prior=data))
        many = {**own, "total_timesteps": MODEL_STEPS}
        capacity = {"buffer_capacity": MODEL_STEPS}
        runs.append(Run(f"mbpo-{task}", "MBPO", task, "mbpo/hopper", many, {**capacity, **knobs}))
    return runs


TEXT = (
    f"{STEPS:,} steps of Gymnasium's v5 tasks; mean return of the last policy over 50 start "
    "states. SAC has to come within 10 % of published means, which are of v4. PPO has to be at "
    "least as good as Stable-Baselines3's with its defaults and normalisation. "
    f"RLPD has {PRIOR_STEPS:,} steps of a half-trained SAC and takes {PRIOR_STEPS:,} more, MBPO "
    f"takes {MODEL_STEPS:,}; both have to reach twice what SAC's curve shows at equal steps."
)
NOTES = (
    "SAC and PPO act in eight environments at once, PPO on one core; the peer's PPO has one "
    "environment. MBPO's budget is a third of its paper's.",
    "Ant is another task in v4: 27 numbers are observed in place of 105, as contact forces are "
    "left out, and they cost nothing. SAC is run in v4, too, on a core, without a gate.",
    "PPO on HalfCheetah has tanh in place of ReLU, by trials with the seeds 10 to 12; with ReLU "
    "the seeds 0 to 2 came to 2,974, 4,171 and 1,563. Trials with tanh on Hopper came to 963, "
    "3,409 and 2,176, on Walker2d to 4,316, 4,148 and 5,064 (seeds 0 to 2): not better on both, so "
    "these keep ReLU.",
    "PPO on Ant has tanh and smaller first actions (`ppo/ant`), found in a trial with seed 0; "
    "without them it came to 306, 149 and 140.",
    "On Hopper PPO's policies swing by a thousand from one evaluation to the next in both "
    "libraries, and all three of the peer's ended high; over the last quarter ours are ahead. With "
    "the peer's own settings (tanh, a learning rate that does not fall, Adam's epsilon, one "
    "environment) a trial of ours came to 2,324, 3,585 and 2,554 there, with evaluations up to "
    "3,630, 3,585 and 3,670.",
)
SUITE = Field(
    "field_mujoco",
    "Locomotion at a million steps",
    TEXT,
    _runs(),
    seeds=3,
    episodes=50,
    headline="Returns after a million steps of MuJoCo, and in brackets those that others publish "
    "for earlier versions of the tasks",
    notes=NOTES,
    peers=[f"ppo-{task}" for task in PPO],
    rivals=[
        Rival(f"{algo}-{task}", f"sac-{task}", steps, 2.0)
        for algo, steps in (("rlpd", PRIOR_STEPS), ("mbpo", MODEL_STEPS))
        for task in MBPO_KNOBS
    ],
).suite()
