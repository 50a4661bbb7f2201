"""GAIL on Hopper and Walker2d from ten episodes of an expert, beside the `imitation` package."""

from __future__ import annotations

from typing import Any

from benchmarks.learning.field import Beside, Field, Run
from benchmarks.learning.field_mujoco import SEVERAL, prior
from benchmarks.peers.environment import IMITATION_HERE, IMITATION_VERSION

STEPS, SHARE, FEW_STEPS = 500_000, 0.8, 50_000
EPISODES, WALKS = 10, 4_000.0
CONFIG = "gail/hopper"
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
    return {**shown, "config": {**shown["config"], **SEVERAL}, "episodes": EPISODES}


def _runs() -> list[Run]:
    runs = []
    for task in TUNED:
        changes = {
            "env_id": f"{task}-v5",
            "total_timesteps": STEPS,
            "num_envs": 8,  # an update per step, as with one; choosing actions takes less time
            "eval_interval": 25_000,
            "eval_episodes": 10,
        }
        for job, title, knobs, share in (
            (f"gail-{task}", "GAIL", {}, SHARE),
            (f"gail-{task}-free", "GAIL without gradient penalty", {"gradient_penalty": 0.0}, None),
        ):
            shown = _demonstrations(task)
            runs.append(Run(job, title, task, CONFIG, changes, knobs, prior=shown, share=share))
    return runs


def _besides() -> list[Beside]:
    """Two settings of PPO and one of SAC per task."""
    found = []
    few = {"round": 64, "batch": 32, "updates": 1}
    for task, tuned in TUNED.items():
        usual = {"generator": "ppo", **USUAL, "knobs": {}}
        for name, kind, rest, settings, steps in (
            ("tuned", "PPO", ", its tuned settings", tuned, None),
            ("usual", "PPO", ", Stable-Baselines3's defaults", usual, None),
            ("sac", "SAC", "", OFF_POLICY, FEW_STEPS),
        ):
            found.append(
                Beside(
                    job=f"imitation-{name}-{task}",
                    run=f"gail-{task}",
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
    f"{STEPS:,} steps of eight environments with SAC as the generator and learning rates that fall "
    f"to 0, `{CONFIG}`, from ten demonstrations. Hopper's are "
    "episodes of the best policy in the data of `zoo` (three of the ten end in a fall), Walker2d's "
    f"of a SAC that was stopped at a return of {WALKS:,.0f} and samples its actions. Mean return "
    "of the last policy over 50 start states; the gate asks for 80 % of the demonstrations' mean "
    "return. Standing still until the limit returns about 1,000, so staying alive, which the "
    "reward favours as such, does not pass it. Beside it, from the same demonstrations and start "
    f"states, GAIL of the package `imitation` {IMITATION_VERSION}: with PPO, which its own "
    "settings for these tasks use, for as many steps, once with those settings (made for ten "
    "million steps and a fixed horizon) and once with Stable-Baselines3's defaults; and with "
    f"Stable-Baselines3's SAC for {FEW_STEPS:,} steps, since as many as ours take hours. Ours has "
    "to be as good as the better of the two PPOs, and at equal steps as SAC."
)
SUITE = Field(
    "field_imitation",
    "Imitation of walking experts",
    TEXT,
    _runs(),
    seeds=3,
    episodes=50,
    besides=_besides(),
).suite()
