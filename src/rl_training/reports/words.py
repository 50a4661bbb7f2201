"""Names of metrics in words, for titles, axes and legends."""

from __future__ import annotations

WORDS = {
    "eval/return_mean": "mean return",
    "eval/return_std": "standard deviation of returns",
    "eval/return_min": "lowest return",
    "eval/return_max": "highest return",
    "eval/length_mean": "mean episode length",
    "eval/success_rate": "success rate",
    "eval/normalized_mean": "normalised mean return (%)",
    "offline/td_error": "TD error on held-out data",
    "offline/value_start": "value in first states",
    "offline/log_likelihood": "log-likelihood of logged actions",
    "offline/action_agreement": "agreement with logged actions",
    "offline/action_gap": "advantage over logged actions",
    "offline/data_distance": "distance from the data",
    "offline/fitted_value": "fitted value on held-out data",
    "rollout/return_mean": "mean return in training",
    "rollout/length_mean": "mean episode length in training",
    "rollout/episodes": "training episodes since the last row",
    "rollout/success_rate": "success rate in training",
    "imagined/reward_mean": "imagined reward per step",
    "imagined/penalty_mean": "penalty for uncertainty per step",
    "imagined/length": "length of imagined rollouts",
    "imagined/rows": "imagined transitions",
    "imagined/ended": "share of imagined steps that end an episode",
    "train/imagined_reward": "imagined reward per step",
    "train/imagined_continue": "imagined probability to go on",
    "model/epochs": "epochs of the newest fit",
    "model/rows": "transitions of the newest fit",
    "model/mse": "squared error of the model",
    "model/mse_reward": "squared error of predicted rewards",
    "model/mse_state": "squared error of predicted states",
    "model/nll": "negative log-likelihood of the model",
    "model/calibration": "calibration of the model",
    "model/disagreement": "disagreement of the models",
    "model/open_loop_error": "squared error of open-loop predictions",
    "time/env_steps_per_second": "environment steps per second",
    "time/updates_per_second": "updates per second",
}


def in_words(metric: str) -> str:
    """A metric in words; its key where there are none."""
    return WORDS.get(metric, metric)


def sentence(text: str) -> str:
    """A text that begins with a capital, unless its first word has one inside or is a key."""
    first = text.split(" ", 1)[0]
    return text if "/" in first or "=" in first else text[:1].upper() + text[1:]
