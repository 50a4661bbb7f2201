"""Masks of Discrete actions, from the environment or the data to acting, targets and losses."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rl_training import DQN, IQL, PPO, SAC, load, load_transition_dataset
from rl_training.algorithms.warm_start import start_from
from rl_training.data.convert import save_dataset
from rl_training.envs.make import env_spaces
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import DataError, EnvironmentFailure, EnvironmentSetupError
from rl_training.experiment.registry import algorithm_class, algorithm_names
from rl_training.replay.batch import Batch
from rl_training.replay.table import TransitionTable
from rl_training.runtime.build import build_algorithm

from ..each import each
from ..envs.masked import ACTIONS, register_masked
from .helpers import f64, logsumexp, make_config, make_learner, mlp, random_batch

MASKED = Spaces(3 + ACTIONS, "discrete", ACTIONS, has_mask=True)
PLAIN = Spaces(3 + ACTIONS, "discrete", ACTIONS)
TAKERS = [
    name
    for name in algorithm_names()
    if "discrete" in algorithm_class(name).action_kinds and algorithm_class(name).takes_masks
]
CRITICS = ("dqn", "c51", "qr_dqn", "iqn", "fqf", "awac", "crr", "cql", "sac", "rlpd")


@pytest.fixture(scope="module", autouse=True)
def masked_task() -> None:
    register_masked()


def masks(rows: int, seed: int, forbidden: int | None = None) -> NDArray[np.float32]:
    """At least one of the actions is allowed in every row, and never `forbidden`."""
    rng = np.random.default_rng(seed)
    flags = rng.random((rows, ACTIONS)) < 0.4
    if forbidden is not None:
        flags[:, forbidden] = False
    free = [i for i in range(ACTIONS) if i != forbidden]
    flags[np.arange(rows), rng.choice(free, rows)] = True
    return flags.astype(np.float32)


def masked_batch(size: int = 64, seed: int = 0, forbidden: int | None = None) -> Batch:
    batch = random_batch(MASKED, size, seed)
    now, then = masks(size, seed, forbidden), masks(size, seed + 1, forbidden)
    obs, following = batch.obs.clone(), batch.next_obs.clone()
    obs[:, 3:], following[:, 3:] = torch.from_numpy(now), torch.from_numpy(then)
    return batch._replace(obs=obs, next_obs=following, action=torch.from_numpy(now.argmax(1)))


def learner_of(algo: str, spaces: Spaces, **knobs: Any) -> Any:
    small = {} if algo == "gail" else {"hidden_sizes": (8,), "batch_size": 64}
    return make_learner(algo, spaces, **{**small, **knobs})


def test_no_forbidden_action_is_drawn() -> None:
    assert len(TAKERS) >= 14
    rows = 10_000
    obs = torch.cat([torch.randn(rows, 3), torch.from_numpy(masks(rows, 0))], 1)
    for algo in TAKERS:
        few = {"num_action_quantiles": 4} if algo == "iqn" else {}
        learner = learner_of(algo, MASKED, **few)
        drawn = [learner.act(obs, explore=i > 0).action for i in range(4)]
        for action in drawn:
            chosen = obs[:, 3:].gather(1, action[:, None])
            assert bool((chosen == 1.0).all()), algo


def test_exploration_is_uniform_over_what_is_allowed() -> None:
    learner = learner_of("dqn", MASKED, epsilon_start=1.0, epsilon_end=1.0)
    obs = torch.tensor([[0.0, 0.0, 0.0, 1, 0, 1, 0, 1]]).repeat(30_000, 1)
    counts = torch.bincount(learner.act(obs, explore=True).action, minlength=ACTIONS)
    assert counts[[1, 3]].sum() == 0
    assert (counts[[0, 2, 4]] - 10_000).abs().max() < 500


def raised(learner: Any, action: int, by: float) -> Any:
    """A copy whose networks of action values rate one action higher."""
    changed = copy.deepcopy(learner)
    for name, parameter in changed.named_parameters():
        if ".head.actions." in name and name.endswith("bias"):  # (outputs, actions)
            per_action = parameter.data.view(-1, ACTIONS)
            # equal logits of all returns would change no probability: the highest gain most
            per_action[:, action] += by * torch.linspace(1.0, 2.0, len(per_action))
        last = name.split(".")[-1] == "bias" or ".biases." in name
        if last and parameter.shape[-1] == ACTIONS and not ("policy" in name or ".head." in name):
            parameter.data[..., action] += by
    return changed


def test_what_is_forbidden_reaches_no_target_and_no_loss() -> None:
    """An action that no mask of the batch allows may be worth anything."""
    batch = masked_batch(forbidden=4)
    for algo in CRITICS:
        knobs = {"num_critics": 2} if algo == "rlpd" else {}
        for spaces, same in ((MASKED, True), (PLAIN, False)):
            learner = learner_of(algo, spaces, **knobs)
            losses = []
            for one in (learner, raised(learner, 4, 100.0)):
                torch.manual_seed(0)
                losses.append({k: float(v) for k, v in one.step(batch).items()})
            equal = all(losses[1][k] == pytest.approx(v, rel=1e-4) for k, v in losses[0].items())
            assert equal == same, (algo, same, losses)


def test_values_from_data_are_those_of_allowed_actions() -> None:
    """The target of fitted Q evaluation, also of policies that have no probabilities."""
    batch = masked_batch(seed=5)
    for algo in TAKERS:
        if algo in ("fqe", "gail"):
            continue
        source = learner_of(algo, MASKED)
        knobs = {"hidden_sizes": (8,), "batch_size": 64}
        learner = learner_of("fqe", MASKED, policy={"algo": algo, "algo_kwargs": knobs})
        start_from(learner, source, "run", same_rewards=True)
        learner.see_rewards(-100.0, 100.0)
        chosen = source.policy.mode(batch.next_obs)
        assert bool((batch.next_obs[:, 3:].gather(1, chosen[:, None]) == 1.0).all()), algo
        rows = np.arange(64)
        with torch.no_grad():
            q = f64(learner.critics.of_all(batch.obs))[0][rows, batch.action.numpy()]
            following = f64(learner.target_critics.of_all(batch.next_obs))[0][rows, chosen.numpy()]
        target = f64(batch.reward) + f64(batch.discount) * following
        loss = float(learner.step(batch)["critic_loss"])
        assert loss == pytest.approx(((q - target) ** 2).mean(), rel=1e-5), algo


def test_the_target_of_dqn_is_the_best_that_is_allowed() -> None:
    batch = masked_batch(seed=3)
    learner = learner_of("dqn", MASKED).double()
    batch = Batch(*(x.double() if x is not None and x.is_floating_point() else x for x in batch))

    def values(obs: torch.Tensor) -> NDArray[np.float64]:
        features = np.maximum(mlp(learner.network.features.net, obs), 0.0)
        return mlp(learner.network.head.actions, features)

    following = np.where(f64(batch.next_obs)[:, 3:] > 0.5, values(batch.next_obs), -np.inf).max(1)
    target = f64(batch.reward) + f64(batch.discount) * following
    q = values(batch.obs)[np.arange(64), batch.action.numpy()]
    error = np.abs(target - q)
    huber = np.where(error < 1.0, 0.5 * error**2, error - 0.5).mean()
    assert float(learner.step(batch)["td_loss"]) == pytest.approx(huber, rel=1e-6)


def test_probabilities_are_those_of_the_allowed_actions() -> None:
    batch = masked_batch()
    for algo in ("bc", "awr", "marwil", "iql", "awac", "crr", "cql", "sac", "rlpd", "ppo"):
        policy = learner_of(algo, MASKED).policy
        logits = np.where(batch.obs[:, 3:] > 0.5, mlp(policy.net, batch.obs), -np.inf)
        expected = logits - logsumexp(logits, -1)[:, None]
        chosen = expected[np.arange(64), batch.action.numpy()]
        np.testing.assert_allclose(
            f64(policy.log_prob(batch.obs, batch.action)), chosen, 1e-4, 1e-5, err_msg=algo
        )
        with np.errstate(invalid="ignore"):
            entropy = -np.nansum(np.exp(expected) * expected, -1)
        found = policy.log_prob_and_entropy(batch.obs, batch.action)[1]
        np.testing.assert_allclose(f64(found), entropy, 1e-4, 1e-5, err_msg=algo)


def test_the_temperature_aims_at_a_share_of_what_is_allowed() -> None:
    """An even policy is above a target of half of uniform, although two of five actions, all that
    are allowed, have less entropy than half of what five have: the temperature falls."""
    batch = masked_batch()
    obs = batch.obs.clone()
    obs[:, 3:] = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0])
    batch = batch._replace(obs=obs, action=torch.zeros_like(batch.action))
    for algo in ("sac", "rlpd", "cql"):
        learner = learner_of(algo, MASKED, target_entropy=0.5 * float(np.log(ACTIONS)))
        for parameter in learner.policy.parameters():
            parameter.data.zero_()
        before = float(learner.log_temperature.detach())
        metrics = learner.step(batch)
        assert np.log(2) < learner.target_entropy
        assert float(metrics["entropy"]) == pytest.approx(np.log(ACTIONS), rel=1e-5), algo
        assert float(learner.log_temperature.detach()) < before, algo


# --- environments ----------------------------------------------------------------------------


@each("where", ["info", "observation"])
def test_runs_in_the_environment(where: str, tmp_path: Any) -> None:
    """The task raises where an action is taken that it forbids."""
    task: dict[str, Any] = {"env_kwargs": {"where": where}, "tensorboard": False}
    task |= {"output_dir": str(tmp_path), "eval_episodes": 2, "device": "cpu"}
    assert env_spaces("masked/Task-v0", {"where": where}) == MASKED
    small: dict[str, Any] = {"hidden_sizes": (8,), "learning_starts": 20, "batch_size": 8}
    for made in (DQN, SAC):
        agent = made("masked/Task-v0", **task, **small)
        agent.learn(total_timesteps=60, progress=False)
    agent = PPO("masked/Task-v0", **task, hidden_sizes=(8,), rollout_length=16, batch_size=8)
    agent.learn(total_timesteps=48, progress=False)
    collected = agent.collect(episodes=3)
    assert collected.spaces == MASKED
    back = load(agent.save(tmp_path / "policy"))
    seen, allowed = np.zeros((7, 3), np.float32), masks(7, 5)
    actions, _ = back.predict(seen, action_mask=allowed)
    assert (allowed[np.arange(7), actions] == 1.0).all()
    joined, _ = back.predict(np.concatenate([seen, allowed], 1))
    assert (joined == actions).all()
    for wrong in (allowed[:, :4], np.zeros((7, ACTIONS)), allowed[0]):
        with pytest.raises(DataError, match=r"^predict: action_mask must have the shape \(7, 5\)"):
            back.predict(seen, action_mask=wrong)


def test_masks_among_the_parts_of_an_observation(tmp_path: Any) -> None:
    task: dict[str, Any] = {"env_kwargs": {"where": "among parts"}, "tensorboard": False}
    task |= {"output_dir": str(tmp_path), "eval_episodes": 2, "device": "cpu"}
    spaces = env_spaces("masked/Task-v0", {"where": "among parts"})
    assert spaces.has_mask
    assert spaces.obs_dim == MASKED.obs_dim
    agent = DQN("masked/Task-v0", **task, hidden_sizes=(8,), learning_starts=20, batch_size=8)
    agent.learn(total_timesteps=60, progress=False)
    for allowed in masks(20, 7):
        seen = {"first": np.zeros(1, np.float32), "rest": np.zeros(2, np.float32)}
        action, _ = agent.predict({**seen, "action_mask": allowed})
        assert allowed[action] == 1.0
        assert action == agent.predict(seen, action_mask=allowed)[0]


@each("wrong", [{"where": "beside an image"}, {"broken": "not at first"}])
def test_masks_that_would_be_ignored_are_refused(wrong: dict[str, str], tmp_path: Any) -> None:
    task: dict[str, Any] = {"env_kwargs": wrong, "tensorboard": False, "device": "cpu"}
    agent = PPO("masked/Task-v0", **task, output_dir=str(tmp_path), rollout_length=8, batch_size=8)
    with pytest.raises(EnvironmentFailure, match=r"gave info\['action_mask'\] from (reset|step), "):
        agent.learn(total_timesteps=16, progress=False)


def test_masks_of_environments_that_are_refused(tmp_path: Any) -> None:
    """In one sentence, which names no class of ours."""
    task: dict[str, Any] = {"tensorboard": False, "output_dir": str(tmp_path), "device": "cpu"}
    for broken, said in {
        "nothing allowed": "an action_mask that allows no action, expected at least one",
        "wrong width": r"an action_mask of shape \(6,\), expected \(5,\), one entry per action",
        "only at first": r"info\['action_mask'\] at a reset but not at every step",
    }.items():
        agent = DQN("masked/Task-v0", env_kwargs={"broken": broken}, learning_starts=4, **task)
        found = rf"^env_id: environment 0 of 'masked/Task-v0' \([^)]*\) gave {said}[^.]*; correct"
        with pytest.raises(EnvironmentFailure, match=found):
            agent.learn(total_timesteps=40, progress=False)
    with pytest.raises(EnvironmentSetupError, match=r"^algo: Dreamer does not support"):
        build_algorithm(make_config("dreamer", "CartPole-v1"), MASKED)


# --- data ------------------------------------------------------------------------------------


def arrays(rows: int = 40) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    mask = masks(rows, 1) > 0.5
    ends = np.arange(rows) % 10 == 9
    return {
        "observations": rng.normal(size=(rows, 3)).astype(np.float32),
        "next_observations": rng.normal(size=(rows, 3)).astype(np.float32),
        "actions": mask.argmax(1),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminations": ends & (np.arange(rows) % 20 == 9),
        "truncations": ends & (np.arange(rows) % 20 == 19),
        "action_mask": mask,
        "next_action_mask": masks(rows, 2) > 0.5,
    }


def test_masks_of_data(tmp_path: Any) -> None:
    given = arrays()
    dataset = load_transition_dataset(given)
    assert dataset.spaces == MASKED  # as many actions as the mask is wide, whatever was taken
    np.testing.assert_array_equal(dataset.observations[:, 3:], given["action_mask"])
    going_on = ~given["terminations"]
    np.testing.assert_array_equal(
        dataset.next_observations[going_on, 3:], given["next_action_mask"][going_on]
    )
    assert (dataset.next_observations[~going_on, 3:] == 1.0).all()

    path = tmp_path / "log.npz"
    save_dataset(dataset, path)
    again = load_transition_dataset(path)
    assert again.spaces == MASKED
    assert again.fingerprint() == dataset.fingerprint()

    table = TransitionTable(
        dataset, torch.device("cpu"), gamma=0.9, with_returns=False, normalize_observations=True
    )
    drawn = table.everything()
    np.testing.assert_array_equal(f64(drawn.obs)[:, 3:], given["action_mask"])
    assert abs(float(drawn.obs[:, :3].mean())) < 1e-4

    quiet: dict[str, Any] = {"tensorboard": False, "output_dir": str(tmp_path)}
    agent = IQL(dataset=str(path), hidden_sizes=(8,), batch_size=8, **quiet)
    agent.learn(total_updates=5, progress=False)
    chosen, _ = agent.predict(np.zeros((40, 3), np.float32), action_mask=given["action_mask"])
    assert given["action_mask"][np.arange(40), chosen].all()


def test_the_next_row_says_what_is_allowed_next() -> None:
    given = arrays()
    del given["next_action_mask"]
    with pytest.raises(DataError, match=r"row 19 ends an episode .* 'next_action_mask'"):
        load_transition_dataset(given)
    given["terminations"] |= given["truncations"]
    given["truncations"][:] = False
    dataset = load_transition_dataset(given)
    going_on = ~given["terminations"]
    following = np.roll(given["action_mask"], -1, 0)
    np.testing.assert_array_equal(dataset.next_observations[going_on, 3:], following[going_on])


def test_masks_of_data_that_are_refused() -> None:
    def refused(said: str, **changes: Any) -> None:
        values = {key: value for key, value in {**arrays(), **changes}.items() if value is not None}
        with pytest.raises(DataError, match=said):
            load_transition_dataset(values, spaces=changes.get("spaces"))

    nothing = arrays()["action_mask"].copy()
    nothing[7] = False
    forbidden = arrays()["action_mask"].copy()
    forbidden[9] = [False, False, False, False, True]
    taken = arrays()["actions"].copy()
    taken[9] = 0
    refused("'action_mask' allows no action at row 7", action_mask=nothing)
    refused("action 0 at row 9 .* forbids", action_mask=forbidden, actions=taken)
    refused("only 0 and 1", action_mask=arrays()["action_mask"] * 2)
    refused(r"has shape \(40,\)", action_mask=np.ones(40))
    refused("unlike that of 'action_mask'", next_action_mask=np.ones((40, 6)))
    refused("has no array 'action_mask' beside it", action_mask=None)
    refused("unequal numbers of rows", action_mask=arrays()["action_mask"][:30])
    refused("key 'action_masks' is not known", action_masks=nothing, action_mask=None)
    for spaces, said in (
        (Spaces(8, "discrete", ACTIONS), "the task gives no masks; remove it"),
        (Spaces(9, "discrete", 6, has_mask=True), "5 wide, but the task has 6 actions"),
    ):
        with pytest.raises(DataError, match=said):
            load_transition_dataset(arrays(), spaces=spaces)
    plain = {key: value for key, value in arrays().items() if "mask" not in key}
    with pytest.raises(DataError, match="the task has action masks, but there is no array"):
        load_transition_dataset(plain, spaces=MASKED)
