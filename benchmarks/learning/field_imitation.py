"""GAIL on Hopper and Walker2d from ten episodes of an expert, beside the `imitation` package."""

from __future__ import annotations

from typing import Any

from benchmarks.learning.field import Beside, Field, Run
from benchmarks.learning.field_mujoco import prior
from benchmarks.peers.environment import IMITATION_HERE, IMITATION_VERSION

STEPS = {"Hopper": 500_000, "Walker2d": 1_000_000}
"""With PPO."""
SHARE, FEW_STEPS, SAC_STEPS = 0.8, 50_000, 500_000
EPISODES, WALKS = 10, 4_000.0
CONFIGS = {"Hopper": "gail/hopper", "Walker2d": "gail/walker2d"}
OFF_POLICY_CONFIG = "gail/hopper_sac"
JOB = "benchmarks.peers.imitation_field_job"
TUNED: dict[str, dict[str, Any]] = {
    "Hopper": {
        "generator": "ppo",
        "envs": 8,
        "round": 4_096,
        "updates": 8,
        "batch": 128,
        "replay": 4_096,
        "knobs": {
            "batch_size": 512,
            "clip_range": 0.1,
            "ent_coef": 0.001255299425412744,
            "gae_lambda": 0.98,
            "gamma": 0.995,
            "learning_rate": 4.3984856156897565e-5,
            "max_grad_norm": 0.9,
            "n_epochs": 20,
            "vf_coef": 0.20315938606555833,
        },
    },
    "Walker2d": {
        "generator": "ppo",
        "envs": 8,
        "round": 16_384,
        "updates": 16,
        "batch": 512,
        "replay": 16_384,
        "knobs": {
            "batch_size": 128,
            "clip_range": 0.4,
            "ent_coef": 0.0007566389899529574,
            "gae_lambda": 0.92,
            "gamma": 0.98,
            "learning_rate": 1.943992487657563e-5,
            "max_grad_norm": 0.6,
            "n_epochs": 20,
            "vf_coef": 0.6167177795726859,
        },
    },
}
"""The package's own, `gail_seals_*_best_hp_eval.json`: for ten million steps of a fixed horizon."""
USUAL: dict[str, Any] = {"envs": 8, "round": 2_048, "updates": 8, "batch": 128, "replay": 4_096}
OFF_POLICY: dict[str, Any] = {
    "generator": "sac",
    "envs": 1,
    "round": 256,
    "updates": 256,
    "batch": 256,
    "replay": FEW_STEPS,
    "knobs": {"buffer_size": FEW_STEPS},
}
"""One discriminator step per environment step, as ours; the package has no settings for SAC."""


def _demonstrations(task: str) -> dict[str, Any]:
    env_id = f"{task}-v5"
    if task == "Hopper":
        return {"zoo": "hopper-mixed-zoo.npz", "source": 3, "episodes": EPISODES, "env_id": env_id}
    shown = prior(env_id, WALKS, 0)
    del shown["steps"]
    return {**shown, "episodes": EPISODES}


def _curve(steps: int) -> dict[str, Any]:
    return {"total_timesteps": steps, "eval_interval": steps // 20}


def _runs() -> list[Run]:
    runs = []
    for task, config in CONFIGS.items():
        changes = {"env_id": f"{task}-v5", "eval_episodes": 10}
        steps, shown = STEPS[task], _demonstrations(task)
        for job, title, knobs, share in (
            (f"gail-{task}", "GAIL", {}, SHARE),
            (f"gail-{task}-free", "GAIL without gradient penalty", {"gradient_penalty": 0.0}, None),
        ):
            own = {**changes, **_curve(steps), "device": "cpu"}
            runs.append(Run(job, title, task, config, own, knobs, prior=shown, share=share))
        # an update per step, as with one environment; choosing actions takes less time
        own = {**changes, **_curve(SAC_STEPS), "num_envs": 8}
        title = "GAIL with SAC"
        runs.append(Run(f"gail-{task}-sac", title, task, OFF_POLICY_CONFIG, own, prior=shown))
    return runs


def _besides() -> list[Beside]:
    """Two settings of PPO and one of SAC per task, each beside ours with the same."""
    found = []
    few = {"round": 64, "batch": 32, "updates": 1}
    for task, tuned in TUNED.items():
        usual = {"generator": "ppo", **USUAL, "knobs": {}}
        for name, run, kind, rest, settings, steps in (
            ("tuned", f"gail-{task}", "PPO", ", its tuned settings", tuned, None),
            ("usual", f"gail-{task}", "PPO", ", Stable-Baselines3's defaults", usual, None),
            ("sac", f"gail-{task}-sac", "SAC", "", OFF_POLICY, FEW_STEPS),
        ):
            found.append(
                Beside(
                    job=f"imitation-{name}-{task}",
                    run=run,
                    kind=f"imitation's with {kind}",
                    title=f"imitation's GAIL with {kind}{rest}",
                    module=JOB,
                    peer=IMITATION_HERE,
                    settings={**settings, "imitation": IMITATION_VERSION},
                    quick=few,
                    steps=steps,
                )
            )
    return found


TEXT = (
    f"{STEPS['Hopper']:,} steps on Hopper and {STEPS['Walker2d']:,} on Walker2d from ten "
    "demonstrations, with PPO as the generator, on one core (`gail/hopper`, `gail/walker2d`). Mean "
    "return of the last policy over 50 start states; the gate asks for 80 % of the demonstrations' "
    "mean return. Standing still until the limit returns about 1,000, so staying alive, which the "
    "reward favours as such, does not pass it. Beside it, from the same demonstrations and start "
    f"states, GAIL of the package `imitation` {IMITATION_VERSION} for as many steps; ours has to "
    "be as good as the better of its two settings."
)
NOTES = (
    "Eight environments at once; learning rates fall to 0.",
    "Hopper's demonstrations are episodes of the best policy in the data of `zoo` (three of the "
    f"ten end in a fall), Walker2d's of a SAC that was stopped at a return of {WALKS:,.0f} and "
    "samples its actions.",
    "The two settings of `imitation` are its own for these tasks (made for ten million steps and a "
    "fixed horizon) and Stable-Baselines3's defaults.",
    "On Hopper policies of both swing, and seed 0 of ours ends low (3,583 after 450,000 steps, "
    "then 1,896, 3,063), which decides the gate.",
    f"GAIL with SAC, `{OFF_POLICY_CONFIG}`, takes {SAC_STEPS:,} steps on a GPU. It has no gate of "
    "its own, and its last policies are worse: seed 0 hops for 3,499 after 375,000 steps and falls "
    "more and more often until the end. Beside it is imitation's GAIL with Stable-Baselines3's SAC "
    f"for {FEW_STEPS:,} steps, since 500,000 take hours; at equal steps ours has to be as good.",
)
SUITE = Field(
    "field_imitation",
    "Imitation of walking experts",
    TEXT,
    _runs(),
    seeds=3,
    episodes=50,
    besides=_besides(),
    headline="Returns of GAIL from ten demonstrations, and in brackets theirs",
    notes=NOTES,
).suite()
