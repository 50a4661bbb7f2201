"""A world model alone: learned from random play, then judged on episodes it has never seen."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.learning.sabotage import sabotaged
from benchmarks.process import Request, answer_job
from rl_training.algorithms.dreamer import DreamerAlgorithm, DreamerParams
from rl_training.envs.make import make_env
from rl_training.envs.spaces import Spaces
from rl_training.envs.toys.catch import CATCH_ID
from rl_training.replay.sequences import (
    Context,
    SequenceBatch,
    SequenceReplay,
    StreamStep,
    latent_parts,
)
from rl_training.runtime.build import keep_freed_memory

Episodes = dict[str, NDArray[Any]]
"""(episodes, moments, ...) obs, action, reward, first, last."""


def random_episodes(env_kwargs: dict[str, Any], count: int, seed: int) -> Episodes:
    """Whole episodes of random play, which in Catch all have the same length."""
    env, rng = make_env(CATCH_ID, env_kwargs), np.random.default_rng(seed)
    kept: dict[str, list[list[Any]]] = {name: [] for name in ("obs", "action", "reward", "last")}
    for episode in range(count):
        obs, _ = env.reset(seed=seed * 100_000 + episode)
        action, reward, ended = 0, 0.0, False
        moments: list[tuple[Any, int, float, bool]] = [(obs, action, reward, ended)]
        while not ended:
            action = int(rng.integers(3))
            obs, value, ended, _, _ = env.step(action)
            moments.append((obs, action, float(value), ended))
        for name, values in zip(kept, zip(*moments, strict=True), strict=True):
            kept[name].append(list(values))
    env.close()
    episodes = {name: np.array(values) for name, values in kept.items()}
    first = np.zeros(episodes["last"].shape, np.bool_)
    first[:, 0] = True
    return {**episodes, "first": first}


def as_replay(episodes: Episodes, algorithm: DreamerAlgorithm) -> SequenceReplay:
    """One stream of all episodes."""
    count, moments = episodes["last"].shape
    size = algorithm.rssm.size
    replay = SequenceReplay(
        count * moments,
        1,
        algorithm.spaces,
        algorithm.update_count.device,
        latent_parts(size.deter, size.latents),
    )
    flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in episodes.items()}
    for i in range(count * moments):
        one = {name: values[i : i + 1] for name, values in flat.items()}
        replay.add(StreamStep(**one, terminal=one["last"]), np.array([0]))
    return replay


def as_batch(episodes: Episodes, algorithm: DreamerAlgorithm) -> SequenceBatch:
    """Every episode from its beginning."""
    count, moments = episodes["last"].shape
    start = algorithm.initial_carry(count)
    action = torch.from_numpy(episodes["action"])
    one_hot = torch.nn.functional.one_hot(action, algorithm.spaces.action_dim).float()
    first, last = (torch.from_numpy(episodes[name]) for name in ("first", "last"))
    return SequenceBatch(
        torch.from_numpy(episodes["obs"]),
        one_hot * (~first).unsqueeze(-1),
        torch.from_numpy(episodes["reward"]).float(),
        first,
        last,
        last,
        algorithm.context(start),
        torch.zeros(count, moments, dtype=torch.int64),
    )


def area_under_curve(scores: NDArray[Any], positive: NDArray[Any]) -> float:
    """Probability that a positive case has the larger score, ties counted half."""
    above = scores[positive][:, None] - scores[~positive][None]
    return float((above > 0).mean() + 0.5 * (above == 0).mean())


def judge(algorithm: DreamerAlgorithm, held_out: Episodes, train: Episodes, spec: Any) -> Any:
    """Errors of ten steps without sight beside simple guesses, and what is made of rewards."""
    batch, shown, ahead = as_batch(held_out, algorithm), spec["shown"], spec["ahead"]
    truth = algorithm.seen(batch.obs)
    blind = slice(shown, shown + ahead)

    def error(guess: Tensor, row: slice) -> float:
        return float((guess - truth[:, blind])[..., row, :].square().mean())

    dreamt = algorithm.open_loop(batch, shown)
    mean_image = algorithm.seen(torch.from_numpy(train["obs"])).mean((0, 1))
    shape = -1, ahead, -1, -1, -1
    guesses = {
        "model": dreamt.obs[:, blind],
        "copy": truth[:, shown - 1 : shown].expand(shape),
        "mean_image": mean_image.expand(len(truth), *shape[1:]),
    }
    # the ball falls whatever is done; only the paddle, on the last row, obeys
    rows = {"error": slice(None), "paddle_error": slice(-1, None)}
    errors = {
        f"{who}_{what}": error(g, r) for who, g in guesses.items() for what, r in rows.items()
    }
    seen = algorithm.open_loop(batch, truth.shape[1])
    caught = held_out["reward"][:, -1] > 0
    ends = held_out["last"].ravel()
    goes_on = seen.continues.numpy().ravel() > 0.5
    return {
        **errors,
        "reward_auc": area_under_curve(seen.reward[:, -1].numpy(), caught),
        "dreamt_reward_auc": area_under_curve(dreamt.reward[:, -1].numpy(), caught),
        "continue_accuracy": float((goes_on == ~ends).mean()),
        "caught_share": float(caught.mean()),
    }


def work(request: Request) -> dict[str, Any]:
    spec, seed = request.spec, request.seed
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    train = random_episodes(spec["env_kwargs"], spec["episodes"], 2 * seed + 1)
    held_out = random_episodes(spec["env_kwargs"], spec["held_out"], 2 * seed + 2)
    torch.manual_seed(seed)
    env = make_env(CATCH_ID, spec["env_kwargs"])
    algorithm = DreamerAlgorithm(Spaces.of(env), DreamerParams(**spec["knobs"]))
    env.close()
    replay, p = as_replay(train, algorithm), algorithm.params
    began = time.monotonic()
    with sabotaged(spec.get("sabotage")):
        for _ in range(spec["updates"]):
            chance = algorithm.uniform(2, p.batch_size)
            batch: Any = replay.sample(p.batch_size, p.batch_length, chance)
            algorithm.step(batch)
            replay.refresh(batch.places, Context(algorithm.last_deter, algorithm.last_stoch))
    result = judge(algorithm, held_out, train, spec)
    seconds = time.monotonic() - began
    print(
        f"error {result['model_error']:.5f}, copy {result['copy_error']:.5f}, mean image "
        f"{result['mean_image_error']:.5f}, AUC {result['reward_auc']:.3f}, {seconds:.0f} s"
    )
    return {**result, "train_seconds": round(seconds, 1), "updates": spec["updates"]}


if __name__ == "__main__":
    answer_job(work, ("rl-training", "torch", "numpy", "gymnasium"))
