"""Fitted Q evaluation, Le et al. 2019."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

import rl_training
from rl_training.algorithms import fqe_loss, fqe_target
from rl_training.experiment.errors import ConfigError
from rl_training.runtime.loops.offline import resampled_episodes

from .helpers import (
    BOX,
    DISCRETE,
    as_double,
    assert_loss_equals,
    assert_rejects,
    bounded_gaussian_sample,
    critics_of,
    f64,
    make_config,
    make_learner,
    mlp,
    mlp_forward,
    random_arrays,
    random_batch,
    squared_td_error,
)


def action_values(critics, obs):
    """(B, actions) by the first member's weights."""
    layers = zip(critics.net.weights, critics.net.biases, strict=True)
    return mlp_forward([(f64(weight)[0], f64(bias)[0, 0]) for weight, bias in layers], f64(obs))


def clip_bounds(rewards, gamma, steps):
    """What rewards of one size, paid at up to `steps` steps, can add up to."""
    worth = sum(gamma**k for k in range(steps))
    low, high = rewards
    return min(low, low * worth), max(high, high * worth)


def steps_left(steps, horizon):
    """(B, 2) share of the horizon, and of its logarithm within [-1, 1]."""
    share = np.log(1.0 + steps) / np.log(1.0 + horizon)
    return np.stack([steps / horizon, 2.0 * share - 1.0], -1)


def test_loss_and_target():
    for seed, size in enumerate((1, 2, 33)):
        inputs = random_arrays(seed, 3.0, q=(1, size), target=size)
        total, gradient = squared_td_error(inputs["q"], inputs["target"])
        metrics = {"critic_loss": total, "q_mean": inputs["q"].mean()}
        gradients = {"q": gradient, "target": -gradient[0]}
        assert_loss_equals(fqe_loss, inputs, total, metrics, gradients)
    target = fqe_target(
        *(torch.tensor(x) for x in ([1.0, 0.0, 5.0], [0.9, 0.0, 0.9], [2.0, 9.0, 9.0], 0.5, 6.0))
    )
    assert target.tolist() == pytest.approx([2.8, 0.5, 6.0])


def compare_update(spaces, stochastic, horizon, paid):
    """One update with an oracle, and with the mistakes that it has to catch."""
    knobs = {"gamma": 0.9, "stochastic": stochastic, "horizon": horizon}
    learner = make_learner("fqe", spaces, **knobs).double()
    learner.see_rewards(*paid)
    batch = random_batch(spaces, 64)
    draws = []
    learner.random = lambda rows, draws=draws: draws.append(rows(None, 1)[0]) or draws[-1]
    before = copy.deepcopy(learner)
    metrics = learner.step(as_double(batch))
    noise = None if spaces.is_discrete else draws[0]
    to_go = np.full(64, np.inf) if horizon is None else 1.0 + np.floor(f64(draws[-1]) * horizon)

    def targets(at, left, clip=True, policy=before.evaluated):
        obs = f64(at)
        seen = obs
        if horizon is not None:
            seen = np.concatenate([obs, steps_left(left - 1.0, horizon)], -1)
        if spaces.is_discrete:
            logits = mlp(policy.net, at)
            probs = np.exp(logits - logits.max(-1, keepdims=True))
            probs /= probs.sum(-1, keepdims=True)
            if not stochastic:
                probs = np.eye(spaces.action_dim)[logits.argmax(-1)]
            value = (probs * action_values(before.target_critics, seen)).sum(-1)
        else:
            drawn = noise if stochastic else torch.zeros_like(noise)
            action, _ = bounded_gaussian_sample(policy, at, drawn)
            value = critics_of(before.target_critics, torch.from_numpy(seen), action)[0]
        value = np.where(left > 1.0, value, 0.0)
        target = f64(batch.reward) + f64(batch.discount) * value
        if not clip:
            return target
        steps = [10_000] * 64 if horizon is None else left.astype(int)
        bounds = [clip_bounds(paid, 0.9, one) for one in steps]
        low, high = np.array(bounds).T
        return np.minimum(np.maximum(target, low), high)

    target = targets(batch.next_obs, to_go)
    seen = batch.obs
    if horizon is not None:
        seen = torch.cat([batch.obs, torch.from_numpy(steps_left(to_go, horizon)).float()], -1)
    if spaces.is_discrete:
        q = action_values(before.critics, seen)[np.arange(64), batch.action.numpy()]
    else:
        q = critics_of(before.critics, seen, batch.action)[0]
    expected = np.mean((q - target) ** 2)
    assert float(metrics["critic_loss"]) == pytest.approx(expected, rel=1e-5)
    raw = targets(batch.next_obs, to_go, clip=False)
    clipped = np.mean(np.abs(raw - target) > 1e-9)
    assert 0.0 < clipped < 1.0
    assert float(metrics["target_clipped"]) == pytest.approx(clipped)
    wrong = {
        "not clipped": raw,
        "values of this state": targets(batch.obs, to_go),
        "other policy": targets(
            batch.next_obs, to_go, policy=make_learner("fqe", spaces, seed=7, **knobs).evaluated
        ),
    }
    for name, mistake in wrong.items():
        assert abs(np.mean((q - mistake) ** 2) - expected) > 1e-5 * expected, name
    weights = [before.evaluated.state_dict(), learner.evaluated.state_dict()]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_update_against_an_oracle():
    """Both action kinds, likeliest and drawn actions, with and without a horizon."""
    for horizon, paid in ((None, (-0.03, 0.04)), (4, (-0.3, 0.4))):
        for spaces, stochastic in ((DISCRETE, False), (DISCRETE, True), (BOX, False), (BOX, True)):
            compare_update(spaces, stochastic, horizon, paid)


# --- a chain whose values are exact -------------------------------------------------------------


def chain(episodes, seed):
    """Three states in a row; action 1 goes on and pays 1 at the end, action 0 stays and pays 0."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(episodes):
        state = 0
        for step in range(12):
            action = int(rng.random() < 0.6)
            following, ended = state + action, state + action == 3
            rows.append((state, action, float(ended), min(following, 2), ended, step == 11))
            state = following
            if ended:
                break
    state, action, reward, following, ended, cut = (np.array(x) for x in zip(*rows, strict=True))
    eye = np.eye(3, dtype=np.float32)
    return {
        "observations": eye[state],
        "actions": action,
        "rewards": reward,
        "next_observations": eye[following],
        "terminations": ended,
        "truncations": cut & ~ended,
    }


def exact(goes_on, gamma, steps):
    """Value of the first state under a policy that takes action 1 with probability `goes_on`."""
    value = np.zeros(3)
    for _ in range(steps):
        ahead = gamma * np.append(value[1:], 0.0) + np.array([0.0, 0.0, 1.0])
        value = goes_on * ahead + (1.0 - goes_on) * gamma * value
    return value[0]


def policy_with(goes_on: float, folder: Path) -> str:
    agent = rl_training.BC(dataset=chain(20, 0), hidden_sizes=[8], device="cpu")
    with torch.no_grad():
        for parameter in agent.algorithm.parameters():
            parameter.zero_()
        last = agent.algorithm.policy.net.layers[-1].bias
        last.copy_(torch.log(torch.tensor([1.0 - goes_on, goes_on])))
    return str(agent.save(folder / "policy"))


def test_exact_values_replicates_and_what_a_run_stores(tmp_path):
    start = policy_with(0.8, tmp_path)
    common = {"device": "cpu", "init_from": start, "output_dir": str(tmp_path / "runs")}
    knobs = {"hidden_sizes": [32], "critic_lr": 3e-3, "tau": 0.05, "batch_size": 64}
    first = np.eye(3, dtype=np.float32)[:1]
    for own, stochastic, steps in (
        ({"gamma": 0.9}, True, 400),
        ({"gamma": 1.0, "horizon": 6}, False, 6),
    ):
        agent = rl_training.FQE(
            dataset=chain(400, 1), **knobs, **own, stochastic=stochastic, **common
        )
        result = agent.learn(1_000, progress=False)
        found = float(agent.algorithm.state_values(torch.from_numpy(first))[0])
        goes_on = 0.8 if stochastic else 1.0
        assert found == pytest.approx(exact(goes_on, own["gamma"], steps), abs=0.06), own
    again = rl_training.load(result.run_dir)  # the policy is in it, wherever the other run went
    assert np.array_equal(again.predict(first)[0], agent.predict(first)[0])
    described = again.config.params.policy
    assert described.algo == "bc"
    assert len(described.fingerprint) == 16

    config = agent.config.replace(algo_kwargs={**knobs, "bootstrap": True, "gamma": 0.9})
    stack = rl_training.learn_seeds(
        config, 3, dataset=chain(30, 2), total_updates=60, progress=False
    )
    values = [
        float(rl_training.load(one.run_dir).algorithm.state_values(torch.from_numpy(first))[0])
        for one in stack.results.values()
    ]
    assert len(set(values)) == 3


def test_resamples_are_those_of_the_seed(tmp_path):
    alone = np.arange(50)
    counts = resampled_episodes(alone, 3)
    assert counts.sum() == 50
    assert counts.max() > 1
    assert np.array_equal(counts, resampled_episodes(alone, 3))
    assert not np.array_equal(counts, resampled_episodes(alone, 4))
    together = resampled_episodes(alone // 5, 3).reshape(10, 5)
    assert (together == together[:, :1]).all(), "a group is drawn as a whole"
    assert together.max() > 1
    data = chain(50, 5)
    agent = rl_training.FQE(
        dataset=data, init_from=policy_with(0.5, tmp_path), bootstrap=True, device="cpu", seed=3,
        output_dir=str(tmp_path),
    )  # fmt: skip
    agent.learn(2, progress=False)
    learner = agent.algorithm
    rows = learner.own_rows[: int(learner.own_row_count)].numpy()
    ends = np.flatnonzero(data["terminations"] | data["truncations"])
    starts = np.append(0, ends[:-1] + 1)
    often = np.bincount(rows, minlength=len(data["rewards"]))
    for start, end, count in zip(starts, ends, counts, strict=True):
        assert (often[start : end + 1] == count).all()


def test_refusals(tmp_path):
    assert_rejects("fqe", "horizon", 0)
    assert_rejects("fqe", "value_range", [1.0, 0.0])
    with pytest.raises(
        ConfigError, match=r"^algo_kwargs\.gamma: with 1 returns may grow forever; set horizon"
    ):
        make_config("fqe", gamma=1.0)
    agent = rl_training.FQE(dataset=chain(5, 0), device="cpu", output_dir=str(tmp_path))
    with pytest.raises(ConfigError, match=r"^init_from: FQE says what the policy of another run"):
        agent.learn(1, progress=False)
    assert not list(tmp_path.iterdir())
    start = policy_with(0.5, tmp_path)
    made = rl_training.FQE(dataset=chain(5, 0), init_from=start, device="cpu")
    knobs = made.config.to_dict()["algo_kwargs"]
    knobs["policy"]["fingerprint"] = "0" * 16
    with pytest.raises(ConfigError, match=r"^init_from: .* holds another policy"):
        rl_training.FQE(made.config.replace(algo_kwargs=knobs), dataset=chain(5, 0))
