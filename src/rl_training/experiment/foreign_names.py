"""Names of options of other libraries and their counterparts here.

Users come from Stable-Baselines3, d3rlpy and CleanRL. The closest name by spelling would mislead
them (`learning_rate` is not `learning_starts`), so this table lists their names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from rl_training.experiment.errors import listed


class Foreign(NamedTuple):
    """Names here, in groups of which the first that the algorithm has counts, or a sentence."""

    groups: tuple[tuple[str, ...], ...] = ()
    otherwise: str = ""


def _here(*names: str, otherwise: str = "") -> Foreign:
    """One name here, or the next one if the algorithm does not have it."""
    return Foreign(tuple((name,) for name in names), otherwise)


def _instead(sentence: str) -> Foreign:
    return Foreign(otherwise=sentence)


_RATES = ("policy_lr", "critic_lr", "value_lr", "temperature_lr")
_SIZES = _here("hidden_sizes", "size")
_FACTORY = _here("networks", "hidden_sizes")
_ACTIVATION = _here("activation", otherwise="the activation cannot be chosen here")
_CALLBACKS = _instead("pass objects of rl_training.Callback to learn(callbacks=[...])")
_PROGRESS = _instead("learn(progress=False) makes a run silent")
_BUDGETS = "budgets are total_timesteps online, total_updates or total_epochs offline"
_TWO_CRITICS = "the algorithm has two critics"
_DRAWS = "exploration comes from sampling the policy"

FOREIGN: dict[str, Foreign] = {
    # learning rates and optimisers
    "learning_rate": Foreign((("lr",), _RATES)),
    "actor_learning_rate": _here("policy_lr", "lr"),
    "actor_lr": _here("policy_lr", "lr"),
    "critic_learning_rate": _here("critic_lr", "lr"),
    "value_learning_rate": _here("value_lr", "lr"),
    "q_lr": _here("critic_lr", "lr"),
    "temp_learning_rate": _here("temperature_lr"),
    "alpha_learning_rate": _here("lagrange_lr", "temperature_lr"),
    "anneal_lr": _here("lr_schedule"),
    "max_grad_norm": _here("grad_clip"),
    "optimizer_class": _instead("the optimiser is Adam"),
    "optim_factory": _instead("the optimiser is Adam"),
    # networks
    "policy_kwargs": Foreign((("hidden_sizes", "activation", "networks"), ("size", "networks"))),
    "net_arch": _SIZES,
    "encoder_factory": _FACTORY,
    "actor_encoder_factory": _FACTORY,
    "critic_encoder_factory": _FACTORY,
    "value_encoder_factory": _FACTORY,
    "features_extractor_class": _FACTORY,
    "activation": _ACTIVATION,
    "activation_fn": _ACTIVATION,
    "policy": _instead("the networks follow from the spaces of the environment; leave it out"),
    "n_critics": _here("num_critics", otherwise=_TWO_CRITICS),
    "q_func_factory": _instead(
        "quantiles of the return make an algorithm of their own; see 'rl-training list'"
    ),
    # returns, targets and losses
    "gamma": _here("horizon", otherwise="this algorithm uses no returns"),
    "discount": _here("gamma", "horizon"),
    "discount_factor": _here("gamma", "horizon"),
    "polyak": _here("tau"),
    "target_update_interval": _here("tau"),
    "target_network_frequency": _here("target_update_interval", "tau"),
    "n_steps": _here("rollout_length", "n_step", otherwise=_BUDGETS),
    "num_steps": _here("rollout_length", otherwise=_BUDGETS),
    "n_epochs": _here("epochs", otherwise=_BUDGETS),
    "update_epochs": _here("epochs"),
    "clip_range": _here("clip"),
    "clip_coef": _here("clip"),
    "clip_range_vf": _here("value_clip"),
    "vf_coef": _here("value_coef"),
    "normalize_advantage": _here("normalize_advantages"),
    "norm_adv": _here("normalize_advantages"),
    "lam": _here("temperature", "gae_lambda"),
    "weight_temp": _here("inverse_temperature"),
    "beta": _here("temperature", "inverse_temperature"),
    "conservative_weight": _here("min_q_weight"),
    "cql_alpha": _here("min_q_weight"),
    "alpha_threshold": _instead(
        "lagrange_threshold is min_q_weight times the threshold of d3rlpy and CORL"
    ),
    "lagrange_gap": _instead("lagrange_threshold is min_q_weight times the older lagrange_gap"),
    "lagrange_thresh": _here("lagrange_threshold"),
    "soft_q_backup": _instead("backup_entropy=True puts the entropy bonus into the target"),
    # entropy and exploration
    "ent_coef": _here("entropy_coef", "fixed_temperature"),
    "alpha": _here("fixed_temperature", "min_q_weight"),
    "initial_temperature": _instead("a tuned temperature starts at 1"),
    "autotune": _instead("the temperature is tuned unless it is fixed"),
    "exploration_fraction": _here("epsilon_fraction"),
    "exploration_initial_eps": _here("epsilon_start"),
    "exploration_final_eps": _here("epsilon_end"),
    "start_e": _here("epsilon_start"),
    "end_e": _here("epsilon_end"),
    "action_noise": _instead(_DRAWS),
    "use_sde": _instead(_DRAWS),
    "sde_sample_freq": _instead(_DRAWS),
    # replay and the ratio of updates to steps
    "buffer_size": _here("buffer_capacity"),
    "replay_buffer_class": _here("prioritized", otherwise="the replay is uniform"),
    "train_freq": _here("train_frequency"),
    "gradient_steps": _here("gradient_updates_per_step"),
    "n_updates": _here("gradient_updates_per_step", otherwise=_BUDGETS),
    "optimize_memory_usage": _instead("images are stored once without it"),
    # data
    "observation_scaler": _instead("dataset.normalize_observations standardises observations"),
    "reward_scaler": _instead("dataset.rewards has scale, shift, clip and return_range"),
    "action_scaler": _instead("actions are scaled by the bounds of their space"),
    # the run
    "env": _here("env_id"),
    "n_envs": _here("num_envs"),
    "n_timesteps": _here("total_timesteps"),
    "timesteps": _here("total_timesteps"),
    "max_steps": _here("total_timesteps"),
    "n_steps_per_epoch": _here("eval_interval"),
    "eval_freq": _here("eval_interval"),
    "evaluators": _here("eval_interval"),
    "n_eval_episodes": _here("eval_episodes"),
    "save_freq": _here("checkpoint_interval"),
    "save_interval": _here("checkpoint_interval"),
    "tensorboard_log": _here("output_dir"),
    "experiment_name": _here("output_dir"),
    "use_gpu": _here("device"),
    "cuda": _here("device"),
    "callback": _CALLBACKS,
    "callbacks": _CALLBACKS,
    "verbose": _PROGRESS,
    "progress_bar": _PROGRESS,
    "reset_num_timesteps": _instead("a larger total_timesteps continues the run"),
}


def name_here(word: str, known: Collection[str], prefixes: Mapping[str, str]) -> str:
    """Return the name here of an option of another library as the end of a sentence, or "".

    `known` are the existing options; `prefixes` are written before some of them.
    """
    foreign = FOREIGN.get(word, Foreign())
    for group in foreign.groups:
        names = [f"'{prefixes.get(name, '')}{name}'" for name in group if name in known]
        if names:
            called = "its name here is" if len(names) == 1 else "its names here are"
            return f"; {called} {listed(names)}"
    return f"; {foreign.otherwise}" if foreign.otherwise else ""
