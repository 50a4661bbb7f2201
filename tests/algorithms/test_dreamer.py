"""Dreamer's update: every term where it belongs, and a model that learns a small world."""

from __future__ import annotations

from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rl_training import Dreamer
from rl_training.algorithms.dreamer import TERMS, DreamerAlgorithm, DreamerParams, Imagination
from rl_training.envs.make import make_env
from rl_training.envs.spaces import Spaces
from rl_training.envs.toys.catch import CatchEnv
from rl_training.experiment.errors import EnvironmentSetupError
from rl_training.models import dreamer as networks
from rl_training.models.dreamer import DreamerSize, LatentState
from rl_training.replay.sequences import (
    Context,
    SequenceBatch,
    SequenceReplay,
    StreamStep,
    latent_parts,
)

from ..contract.test_updates import HOST_SYNCS, OperationLog
from ..each import each

SMALL = DreamerSize(deter=32, hidden=8, classes=4, depth=2, units=8, latents=6, blocks=4)
CATCH = Spaces.of(CatchEnv())
BOX = Spaces.from_gymnasium(
    gym.spaces.Box(-np.inf, np.inf, (3,), np.float32), gym.spaces.Box(-2, 2, (2,), np.float32)
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(networks.SIZES, "tiny", SMALL)


Learner = TypeVar("Learner", bound=DreamerAlgorithm)


def learner(
    spaces: Spaces,
    kind: type[Learner] = DreamerAlgorithm,
    **knobs: Any,  # type: ignore[assignment]
) -> Learner:
    torch.manual_seed(0)
    given = {"size": "tiny", "rollout_length": 3, "lr": 1e-3, "lr_warmup": 1, **knobs}
    return kind(spaces, DreamerParams(**given))


def sequences(spaces: Spaces, rows: int = 3, steps: int = 6, seed: int = 0) -> SequenceBatch:
    torch.manual_seed(seed)
    leading = (rows, steps)
    if spaces.is_image:
        obs = torch.randint(0, 256, (*leading, *spaces.obs_shape), dtype=torch.uint8)
    else:
        obs = torch.randn(*leading, *spaces.obs_shape)
    first = torch.zeros(leading, dtype=torch.bool)
    first[:, 2] = True
    last = torch.zeros(leading, dtype=torch.bool)
    last[:, 1] = True
    terminal = last.clone()
    terminal[0, 1] = False
    action = torch.rand(*leading, spaces.action_dim) * (~first).unsqueeze(-1)
    context = Context(torch.randn(rows, SMALL.deter), torch.randint(4, (rows, SMALL.latents)))
    places = torch.arange(rows * steps).view(leading)
    return SequenceBatch(obs, action, torch.randn(leading), first, last, terminal, context, places)


@pytest.mark.parametrize("spaces", [CATCH, BOX], ids=["image-discrete", "vector-box"])
def test_every_term_has_one_weight_and_moves_the_weights(spaces: Spaces) -> None:
    algorithm = learner(spaces)
    assert set(algorithm.weights()) == set(TERMS) == set(algorithm.losses)
    assert algorithm.weights()["representation_loss"] == 0.1
    before = {name: p.clone() for name, p in algorithm.named_parameters()}
    for seed in range(3):
        metrics = algorithm.step(sequences(spaces, seed=seed))
    assert {name for name in metrics if name.endswith("_loss")} == set(TERMS)
    assert all(torch.isfinite(value) for value in metrics.values())
    still = [name for name, p in algorithm.named_parameters() if torch.equal(p, before[name])]
    assert not still
    assert algorithm.last_deter.shape == (3, 6, SMALL.deter)
    assert algorithm.last_stoch.shape == (3, 6, SMALL.latents)


class NotedTotal(DreamerAlgorithm):
    """Keeps what it minimises."""

    total: torch.Tensor

    def minimize(self, loss: Any, *names: str, **options: Any) -> Any:
        def kept() -> Any:
            found = loss()
            self.total = found.total.detach()
            return found

        return super().minimize(kept, *names, **options)


def test_a_weight_is_that_of_its_knob() -> None:
    """The total is the weighted sum of the terms, and nothing else."""
    scales = {"dynamics_scale": 0.7, "representation_scale": 0.2, "replay_value_scale": 0.4}
    algorithm = learner(BOX, NotedTotal, **scales)
    knobs = {"dynamics_loss": 0.7, "representation_loss": 0.2, "replay_value_loss": 0.4}
    metrics = algorithm.step(sequences(BOX))
    expected = sum(knobs.get(name, 1.0) * float(metrics[name]) for name in TERMS)
    assert float(algorithm.total) == pytest.approx(expected, rel=1e-5)


def test_what_is_expected_without_sight() -> None:
    """Shown everything it is the posterior, shown less only the actions change it."""
    algorithm, batch = learner(CATCH), sequences(CATCH)
    other = batch._replace(obs=255 - batch.obs)
    whole, blind = algorithm.open_loop(batch, 6), algorithm.open_loop(batch, 2)
    assert whole.obs.shape == (3, 6, 1, 16, 16)
    assert torch.equal(whole.obs[:, :2], blind.obs[:, :2])
    assert not torch.equal(whole.obs[:, 2:], algorithm.open_loop(other, 6).obs[:, 2:])
    late = batch._replace(obs=torch.cat([batch.obs[:, :2], other.obs[:, 2:]], 1))
    assert torch.equal(algorithm.open_loop(late, 2).obs, blind.obs)
    action = batch.action.clone()
    action[:, 4] = 1.0 - action[:, 4]
    moved = algorithm.open_loop(batch._replace(action=action), 2).obs
    assert torch.equal(moved[:, :4], blind.obs[:, :4])
    assert not torch.equal(moved[:, 4:], blind.obs[:, 4:])


def gradients(
    algorithm: DreamerAlgorithm, batch: SequenceBatch, term: str, depth: int = 1
) -> set[str]:
    """Parts of the algorithm that one term of the loss moves."""
    weights = dict.fromkeys(TERMS, 0.0) | {term: 1.0}
    algorithm.weights = lambda: weights  # type: ignore[method-assign]
    found: list[Any] = []
    optimizer = algorithm.optimizers["all"]
    optimizer.step = lambda own, due=None: found.extend(own)  # type: ignore[method-assign]
    names = [name for name, p in algorithm.named_parameters() if p.requires_grad]
    algorithm.step(batch)
    moved = {name for name, g in zip(names, found, strict=True) if bool(g.abs().sum() > 0)}
    return {".".join(name.split(".")[:depth]) for name in moved}


@each(
    ("term", "parts"),
    [
        ("reconstruction_loss", {"encoder", "rssm", "decoder"}),
        ("policy_loss", {"actor"}),
        ("value_loss", {"value"}),
        ("replay_value_loss", {"encoder", "rssm", "value"}),
    ],
)
def test_a_term_moves_what_it_is_for(term: str, parts: set[str]) -> None:
    algorithm, batch = learner(BOX, free_nats=0.0), sequences(BOX)
    for seed in range(4):  # heads that begin at zero pass no gradient on
        algorithm.step(sequences(BOX, seed=seed))
    assert gradients(algorithm, batch, term) == parts


def test_the_divergences_move_their_own_side() -> None:
    moved = {}
    for term in ("dynamics_loss", "representation_loss"):
        algorithm = learner(BOX, free_nats=0.0)
        moved[term] = gradients(algorithm, sequences(BOX), term, depth=2)
    assert "rssm.prior_head" in moved["dynamics_loss"]
    assert "rssm.prior_head" not in moved["representation_loss"]
    # without steps before it, a posterior has only itself to be moved by
    alone = sequences(BOX)
    alone = alone._replace(first=torch.ones_like(alone.first))
    assert "rssm.posterior_out" not in gradients(learner(BOX), alone, "dynamics_loss", depth=2)
    assert "rssm.posterior_out" in moved["representation_loss"]


@torch.enable_grad()
def familiar(
    spaces: Spaces,
    kind: type[Learner] = DreamerAlgorithm,  # type: ignore[assignment]
) -> Learner:
    """After some updates, so that no head is at zero and the slow critic lags behind."""
    algorithm = learner(spaces, kind, free_nats=0.2, horizon=10.0)
    for seed in range(4):
        algorithm.step(sequences(spaces, seed=seed))
    return algorithm


@pytest.mark.parametrize("spaces", [CATCH, BOX], ids=["image-discrete", "vector-box"])
def test_the_losses_of_the_model_by_hand(spaces: Spaces) -> None:
    algorithm, batch = familiar(spaces), sequences(spaces, seed=9)
    torch.manual_seed(5)
    noise = algorithm.uniform(3, 6, SMALL.latents, SMALL.classes)
    with torch.no_grad():
        states, posterior = algorithm.rssm.see_all(
            algorithm.latent(batch.context),
            batch.action,
            batch.first,
            algorithm.encoder(algorithm.seen(batch.obs)),
            noise,
        )
        features, prior = states.features, algorithm.rssm.prior(states.deter)
        divergence = (posterior * (posterior.log() - prior.log())).sum((-2, -1)).clamp(min=0.2)
        chance = torch.sigmoid(algorithm.continues(features).squeeze(-1))
        target = torch.where(batch.terminal, 0.0, 0.9)
        expected = {
            "reconstruction_loss": algorithm.decoder.loss(features, algorithm.seen(batch.obs)),
            "reward_loss": algorithm.reward.loss(algorithm.reward(features), batch.reward),
            "continue_loss": -(target * chance.log() + (1.0 - target) * (1.0 - chance).log()),
            "dynamics_loss": divergence,
            "representation_loss": divergence,
        }
    torch.manual_seed(5)
    metrics = algorithm.step(batch)
    for name, term in expected.items():
        torch.testing.assert_close(metrics[name], term.mean(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("spaces", [CATCH, BOX], ids=["image-discrete", "vector-box"])
@torch.no_grad()
def test_imagination_goes_on_from_every_state_with_its_own_actions(spaces: Spaces) -> None:
    algorithm = familiar(spaces)
    torch.manual_seed(3)
    classes = torch.randint(SMALL.classes, (2, 5, SMALL.latents))
    begin = LatentState(torch.randn(2, 5, SMALL.deter), F.one_hot(classes, SMALL.classes).float())
    dreamt = algorithm._imagine(begin)
    assert dreamt.features.shape[:2] == (4, 10)
    assert torch.equal(dreamt.features[0], begin.features.flatten(0, 1))
    deter, stoch = dreamt.features.split([SMALL.deter, SMALL.latents * SMALL.classes], -1)
    stoch = stoch.unflatten(-1, (SMALL.latents, SMALL.classes))
    assert torch.equal(stoch.sum(-1), torch.ones(4, 10, SMALL.latents))
    for t in range(3):
        acted = algorithm.rssm.read_action(dreamt.action[t])
        after = algorithm.rssm.recur(LatentState(deter[t], stoch[t]), acted)
        torch.testing.assert_close(deter[t + 1], after)
    heads = algorithm.reward, algorithm.value
    for head, found in zip(heads, (dreamt.reward, dreamt.value), strict=True):
        torch.testing.assert_close(found, head.mean(head(dreamt.features)))
    chance = torch.sigmoid(algorithm.continues(dreamt.features).squeeze(-1))
    torch.testing.assert_close(dreamt.continues, chance)


def value_error(algorithm: DreamerAlgorithm, features: torch.Tensor, target: float) -> float:
    """Of the critic in one state, to a return and to the slow critic."""
    log_probs = algorithm.value(features)
    slow = algorithm.slow_value.mean(algorithm.slow_value(features))
    to_return = algorithm.value.loss(log_probs, torch.tensor(target))
    return float(to_return + algorithm.value.loss(log_probs, slow))


@torch.no_grad()
def test_what_is_imagined_is_learned_from_by_hand() -> None:
    """Action, baseline and weight are those of the state that was acted in."""
    algorithm, steps, rows = familiar(CATCH), 4, 5
    torch.manual_seed(3)
    dreamt = Imagination(
        features=torch.randn(steps + 1, rows, algorithm.rssm.feature_dim),
        action=F.one_hot(torch.randint(3, (steps + 1, rows)), 3).float(),
        reward=3.0 * torch.randn(steps + 1, rows),
        continues=torch.rand(steps + 1, rows),
        value=torch.randn(steps + 1, rows),
    )
    algorithm.return_range.fill_(2.5)
    loss, returns = algorithm._inside(dreamt)
    expected = np.zeros((steps, rows))
    for t in reversed(range(steps)):
        value = dreamt.value[t + 1].numpy()
        later = value if t == steps - 1 else expected[t + 1]
        mixed = 0.05 * value + 0.95 * later
        expected[t] = dreamt.reward[t + 1].numpy() + dreamt.continues[t + 1].numpy() * mixed
    np.testing.assert_allclose(returns.numpy(), expected, rtol=1e-4)
    low, high = np.quantile(expected, [0.05, 0.95])
    scale = 2.5 + 0.01 * (high - low - 2.5)
    policy, critic = [], []
    for t in range(steps):
        for row in range(rows):
            features = dreamt.features[t, row]
            weight = float(dreamt.continues[: t + 1, row].prod())
            probs = 0.99 * torch.softmax(algorithm.actor.head(features), -1) + 0.01 / 3
            taken = float(probs[dreamt.action[t, row].argmax()].log())
            entropy = -float((probs * probs.log()).sum())
            advantage = (expected[t, row] - float(dreamt.value[t, row])) / scale
            policy.append(-weight * (taken * advantage + 3e-4 * entropy))
            critic.append(weight * value_error(algorithm, features, expected[t, row]))
    assert float(loss.metrics["policy_loss"]) == pytest.approx(np.mean(policy), rel=1e-3)
    assert float(loss.metrics["value_loss"]) == pytest.approx(np.mean(critic), rel=1e-4)
    assert float(loss.metrics["return_range"]) == pytest.approx(scale, rel=1e-5)


@torch.no_grad()
def test_the_value_on_real_sequences_by_hand() -> None:
    """An end stops the return: with nothing where it is one, with the value at a time limit."""
    algorithm, batch = familiar(BOX), sequences(BOX, seed=9)
    torch.manual_seed(3)
    features, imagined = torch.randn(3, 6, algorithm.rssm.feature_dim), torch.randn(3, 6)
    goes_on = torch.where(batch.terminal, 0.0, 0.9)
    found = algorithm._replay_value_loss(features, batch, goes_on, imagined)
    for row in range(3):
        target = float(imagined[row, 5])
        for t in reversed(range(5)):
            trust = 0.0 if batch.last[row, t + 1] else 0.95
            mixed = (1.0 - trust) * float(imagined[row, t + 1]) + trust * target
            target = float(batch.reward[row, t + 1]) + float(goes_on[row, t + 1]) * mixed
            error = 0.0 if batch.last[row, t] else value_error(algorithm, features[row, t], target)
            assert float(found[row, t]) == pytest.approx(error, rel=1e-4)


class NotedParts(DreamerAlgorithm):
    """Keeps what was learned inside, and the values that the replay's returns trust."""

    inside: Any
    trusted: torch.Tensor

    def _inside(self, dreamt: Imagination) -> Any:
        self.inside = super()._inside(dreamt)
        return self.inside

    def _replay_value_loss(self, *given: Any) -> Any:
        self.trusted = given[-1]
        return super()._replay_value_loss(*given)


def test_returns_set_their_scale_and_the_replay_s_value() -> None:
    algorithm = familiar(BOX, NotedParts)
    before = float(algorithm.return_range)
    algorithm.step(sequences(BOX, seed=9))
    loss, returns = algorithm.inside
    assert torch.equal(algorithm.return_range, loss.metrics["return_range"])
    assert float(algorithm.return_range) != before
    assert torch.equal(algorithm.trusted, returns[0].view(3, 6))


@pytest.mark.usefixtures("no_branches")
def test_an_update_asks_nothing() -> None:
    algorithm = learner(CATCH)
    logs = []
    algorithm.step(sequences(CATCH))
    for seed in (1, 2):
        with OperationLog() as log:
            algorithm.step(sequences(CATCH, seed=seed))
        logs.append(log.operations)
    # the first operations make the batch
    assert not [op for op, _ in logs[0] if op in HOST_SYNCS]
    assert logs[0] == logs[1]


def test_the_slow_critic_follows() -> None:
    algorithm = learner(BOX, tau=0.5)
    algorithm.step(sequences(BOX))
    slow = dict(algorithm.slow_value.named_parameters())
    before = {name: p.clone() for name, p in slow.items()}
    algorithm.step(sequences(BOX, seed=1))
    for name, parameter in algorithm.value.named_parameters():
        torch.testing.assert_close(slow[name], (before[name] + parameter) / 2)


def catch_streams(steps: int, seed: int = 0) -> SequenceReplay:
    """Random play."""
    replay = SequenceReplay(
        steps, 1, CATCH, torch.device("cpu"), latent_parts(SMALL.deter, SMALL.latents)
    )
    env, rng = CatchEnv(), np.random.default_rng(seed)
    obs, _ = env.reset(seed=seed)
    first, reward, ended, action = True, 0.0, False, 0
    for _ in range(steps):
        flags = (np.array([flag]) for flag in (first, ended, ended))
        step = StreamStep(obs[None], np.array([action]), np.array([reward]), *flags)
        replay.add(step, np.array([0]))
        if ended:
            obs, _ = env.reset()
            first, reward, ended, action = True, 0.0, False, 0
        else:
            action = int(rng.integers(3))
            obs, reward, ended, _, _ = env.step(action)
            first = False
    return replay


def test_it_learns_a_small_world() -> None:
    replay = catch_streams(400)
    algorithm = learner(CATCH, lr=3e-3)
    history = []
    for update in range(160):
        torch.manual_seed(update)
        batch = replay.sample(8, 9, torch.rand(2, 8), newest=1)
        metrics = algorithm.step(batch)
        replay.refresh(batch.places, Context(algorithm.last_deter, algorithm.last_stoch))
        history.append({name: float(value) for name, value in metrics.items()})
    for name in ("reconstruction_loss", "reward_loss", "continue_loss"):
        late = sum(metrics[name] for metrics in history[-10:]) / 10
        assert late < 0.5 * history[0][name], name


def test_stacked_colours_are_refused() -> None:
    pytest.importorskip("ale_py")
    stacked = {"game": "boxing", "screen_size": 64, "grayscale": False, "frame_stack": 3}
    with pytest.raises(
        EnvironmentSetupError, match=r"env_id: .*stacks 3 colour images.*frame_stack=1"
    ):
        Dreamer("rl_training/Atari-v0", env_kwargs=stacked, size="tiny", device="cpu")


@pytest.mark.parametrize("game", ["boxing", "breakout"])
def test_an_atari_config_fits_its_game(game: str) -> None:
    pytest.importorskip("ale_py")
    agent = Dreamer.from_config(f"dreamer/{game}_atari", size="tiny", device="cpu")
    assert agent.algorithm.spaces.image_shape == (64, 64, 3)
    env = make_env(agent.config.env_id, agent.config.env_kwargs)
    action, state = agent.predict(env.reset(seed=0)[0])
    assert env.action_space.contains(action)
    again, _ = agent.predict(env.step(action)[0], state)
    assert env.action_space.contains(again)
