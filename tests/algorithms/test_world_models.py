"""Closed forms of the world model's parts (Hafner et al. 2023)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rl_training.algorithms.world_models import (
    imagination_weights,
    imagined_policy_loss,
    kl_balance,
    lambda_return,
    return_scale,
)
from rl_training.experiment.errors import EnvironmentSetupError
from rl_training.models.dreamer import (
    RSSM,
    Dense,
    DreamerSize,
    ImaginedPolicy,
    LatentState,
    PixelDecoder,
    PixelEncoder,
    TwoHotHead,
    VectorDecoder,
    VectorEncoder,
    exponential_noise,
    image_stages,
    sample_one_hot,
    symexp,
    symlog,
    two_hot,
    two_hot_bins,
)
from rl_training.models.dreamer.coders import enlarging, halving
from rl_training.models.dreamer.layers import trunc_normal_

from ..each import each

SMALL = DreamerSize(deter=32, hidden=8, classes=4, depth=2, units=8, latents=6, blocks=4)


# --- numbers as distributions ----------------------------------------------------------------


def test_symlog_and_back() -> None:
    x = torch.tensor([-1e4, -1.0, -0.1, 0.0, 0.3, 5.0, 2e5], dtype=torch.float64)
    torch.testing.assert_close(symexp(symlog(x)), x)
    assert symlog(torch.tensor(math.e - 1.0)) == pytest.approx(1.0)


def test_bins_are_symmetric_about_zero() -> None:
    bins = two_hot_bins()
    assert bins.shape == (255,)
    assert bins[127] == 0.0
    assert torch.equal(bins, -bins.flip(0))
    assert float(bins[-1]) == pytest.approx(math.exp(20.0) - 1.0, rel=1e-6)
    with pytest.raises(ValueError, match="must be odd"):
        two_hot_bins(10)


def test_two_hot_round_trip() -> None:
    """Exact in bins and between them; outside they become the outermost."""
    bins = two_hot_bins(21, 3.0)
    between = (bins[1:] + 2.0 * bins[:-1]) / 3.0
    x = torch.cat([bins, between, torch.tensor([1e6, -1e6])])
    weights = two_hot(x, bins)
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(x)))
    assert ((weights > 0).sum(-1) <= 2).all()
    expected = x.clamp(bins[0], bins[-1])
    torch.testing.assert_close((weights * bins).sum(-1), expected)
    inside = two_hot(between, bins)
    for row, low in zip(inside, range(20), strict=True):
        assert row.nonzero().flatten().tolist() == [low, low + 1]


def test_a_head_begins_at_exactly_zero_and_learns_a_number() -> None:
    torch.manual_seed(0)
    head = TwoHotHead(5, 16, 1)
    features = torch.randn(9, 5)
    assert torch.equal(head.mean(head(features)), torch.zeros(9))
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
    target = torch.full((9,), 37.5)
    for _ in range(300):
        loss = head.loss(head(features), target).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(head.mean(head(features)), target, rtol=0.02, atol=0.0)


# --- returns ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
def test_lambda_return_equals_a_recursion(lam: float) -> None:
    """With a terminal state in the middle, after which nothing counts."""
    rng = np.random.default_rng(0)
    steps = 7
    reward, value = rng.normal(size=(2, steps + 1, 3))
    continues = np.full((steps + 1, 3), 0.9)
    continues[4, 1] = 0.0
    expected = np.zeros((steps, 3))
    for column in range(3):
        for t in reversed(range(steps)):
            later = value[steps, column] if t == steps - 1 else expected[t + 1, column]
            mixed = (1 - lam) * value[t + 1, column] + lam * later
            expected[t, column] = reward[t + 1, column] + continues[t + 1, column] * mixed
    found = lambda_return(*(torch.from_numpy(x) for x in (reward, value, continues)), lam)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    assert expected[3, 1] == reward[4, 1]
    changed = value.copy()
    changed[5:, 1] += 100.0
    again = lambda_return(*(torch.from_numpy(x) for x in (reward, changed, continues)), lam)
    np.testing.assert_array_equal(again[:4, 1], found[:4, 1])


def test_weights_include_the_root() -> None:
    continues = torch.tensor([[0.0, 0.5], [0.9, 0.9], [0.8, 0.8]])
    weights = imagination_weights(continues)
    torch.testing.assert_close(weights, torch.tensor([[0.0, 0.5], [0.0, 0.45], [0.0, 0.36]]))


def test_the_return_scale_is_never_below_one() -> None:
    before = torch.tensor(0.0)
    narrow = return_scale(torch.rand(4, 50), before, rate=1.0)
    assert narrow.scale == 1.0
    values = torch.arange(101.0)
    wide = return_scale(values, before, rate=1.0)
    assert float(wide.scale) == pytest.approx(90.0)
    slow = return_scale(values, torch.tensor(20.0), rate=0.01)
    assert float(slow.range) == pytest.approx(20.0 + 0.01 * 70.0)


def test_the_policy_climbs_the_advantage_by_hand() -> None:
    torch.manual_seed(1)
    log_prob = torch.randn(3, 4, requires_grad=True)
    entropy = torch.randn(3, 4, requires_grad=True)
    returns, value = torch.randn(2, 3, 4).unbind()
    value = value.clone().requires_grad_()
    weight, scale = torch.rand(3, 4), torch.tensor(2.5)
    loss = imagined_policy_loss(
        log_prob, entropy, returns, value, weight, scale=scale, entropy_scale=3e-4
    ).total
    advantage = (returns - value.detach()) / 2.5
    expected = -(weight * (log_prob * advantage + 3e-4 * entropy)).mean()
    torch.testing.assert_close(loss, expected)
    loss.backward()
    torch.testing.assert_close(log_prob.grad, -weight * advantage / 12)
    assert value.grad is None


# --- latent states ---------------------------------------------------------------------------


def log_probs(seed: int, spread: float = 1.0) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.log_softmax(spread * torch.randn(2, 5, 6, 4, dtype=torch.float64), -1)


def test_kl_by_hand_and_its_gradients() -> None:
    """One moves the prior alone, the other the posterior alone."""
    posterior, prior = log_probs(0).requires_grad_(), log_probs(1).requires_grad_()
    dynamics, representation = kl_balance(posterior, prior, free_nats=0.0)
    p, q = posterior.detach().numpy(), prior.detach().numpy()
    expected = (np.exp(p) * (p - q)).sum((-2, -1))
    np.testing.assert_allclose(dynamics.detach().numpy(), expected)
    np.testing.assert_allclose(representation.detach().numpy(), expected)
    grads = torch.autograd.grad(dynamics.sum(), [posterior, prior], allow_unused=True)
    assert grads[0] is None
    assert grads[1] is not None
    grads = torch.autograd.grad(representation.sum(), [posterior, prior], allow_unused=True)
    assert grads[0] is not None
    assert grads[1] is None


def test_free_nats_are_per_step_and_stop_the_gradient() -> None:
    posterior, prior = log_probs(0, 0.05).requires_grad_(), log_probs(1, 0.05).requires_grad_()
    small = kl_balance(posterior, prior, free_nats=0.0)[0]
    assert float(small.detach().max()) < 1.0
    for kl in kl_balance(posterior, prior, free_nats=1.0):
        assert torch.equal(kl, torch.ones_like(kl))
        for grad in torch.autograd.grad(kl.sum(), [posterior, prior], allow_unused=True):
            assert grad is None or not grad.any()
    mixed = torch.where(torch.tensor([True, False])[:, None, None, None], log_probs(2, 3.0), prior)
    kl = kl_balance(posterior, mixed, free_nats=1.0)[0]
    assert (kl[0] > 1.0).all()  # the sum over latents counts, not each of them
    assert torch.equal(kl[1], torch.ones(5, dtype=torch.float64))


def test_draws_follow_their_probabilities_and_carry_their_gradient() -> None:
    torch.manual_seed(0)
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
    given = probs.expand(20_000, 4).clone().requires_grad_()
    sample = sample_one_hot(given, exponential_noise(torch.rand(20_000, 4)))
    assert set(sample.detach().round(decimals=5).unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(sample.detach().mean(0), probs, atol=0.015, rtol=0.0)
    weights = torch.randn(4)
    (sample * weights).sum().backward()
    torch.testing.assert_close(given.grad[0], weights)
    worst = sample_one_hot(given.detach(), exponential_noise(torch.zeros(20_000, 4)))
    assert torch.isfinite(worst).all()


def test_a_reset_forgets_everything() -> None:
    """Two episodes in one sequence are the second one alone, from where it begins."""
    torch.manual_seed(0)
    model = RSSM(SMALL, action_dim=3, embed_dim=5)
    steps, begin = 7, 4
    embed, action = torch.randn(2, steps, 5), torch.randn(2, steps, 3)
    noise = torch.rand(2, steps, SMALL.latents, SMALL.classes)
    first = torch.zeros(2, steps, dtype=torch.bool)
    first[:, begin] = True
    states, posterior = model.see_all(model.initial(2), action, first, embed, noise)
    rest = slice(begin, None)
    alone = model.see_all(
        model.initial(2),
        torch.cat([torch.zeros(2, 1, 3), action[:, begin + 1 :]], 1),
        first[:, rest],
        embed[:, rest],
        noise[:, rest],
    )
    torch.testing.assert_close(states.deter[:, rest], alone[0].deter)
    torch.testing.assert_close(states.stoch[:, rest], alone[0].stoch)
    torch.testing.assert_close(posterior[:, rest], alone[1])
    other = action.clone()
    other[:, begin] += 1.0  # the action before a reset
    again = model.see_all(model.initial(2), other, first, embed, noise)[0]
    assert torch.equal(again.deter, states.deter)
    other[:, begin - 1] += 1.0
    moved = model.see_all(model.initial(2), other, first, embed, noise)[0]
    assert not torch.equal(moved.deter[:, begin - 1], states.deter[:, begin - 1])
    assert torch.equal(moved.deter[:, rest], states.deter[:, rest])


def test_the_recurrence_by_hand() -> None:
    """The gates of one block, in NumPy."""
    torch.manual_seed(3)
    model = RSSM(SMALL, action_dim=2, embed_dim=3).double()
    state = LatentState(torch.randn(1, 32).double(), torch.randn(1, 6, 4).double())
    action = torch.tensor([[3.0, -0.5]], dtype=torch.float64)  # beyond 1 it is cut to 1
    found = model.recur(state, model.read_action(action))[0].detach().numpy()

    def rms(x: np.ndarray, scale: torch.Tensor) -> np.ndarray:
        return x / np.sqrt((x**2).mean() + 1e-4) * scale.detach().numpy()

    def silu(x: np.ndarray) -> np.ndarray:
        return x / (1 + np.exp(-x))

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    def dense(layer: Dense, x: np.ndarray) -> np.ndarray:
        weight, bias = (p.detach().numpy() for p in (layer.linear.weight, layer.linear.bias))
        return silu(rms(weight @ x + bias, layer.norm.scale))

    h, z = state.deter[0].numpy(), state.stoch[0].flatten().numpy()
    a = np.array([1.0, -0.5])
    inputs = np.concatenate(
        [dense(model.from_deter, h), dense(model.from_stoch, z), dense(model.from_action, a)]
    )
    mixing, gates = (
        [p.detach().numpy() for p in (layer.weight, layer.bias)]
        for layer in (model.mixing, model.gates)
    )
    of_inputs = model.mixing_inputs.weight.detach().numpy()
    blocks = [h[8 * g : 8 * g + 8] @ mixing[0][g] + mixing[1][g, 0] for g in range(4)]
    mixed = np.concatenate(blocks) + of_inputs @ inputs
    mixed = silu(rms(mixed, model.mixing_norm.scale))
    expected = []
    for g in range(4):
        block = mixed[8 * g : 8 * g + 8] @ gates[0][g] + gates[1][g, 0]
        reset, candidate, update = np.split(block, 3)
        update = sigmoid(update - 1)
        old = h[8 * g : 8 * g + 8]
        expected.append(update * np.tanh(sigmoid(reset) * candidate) + (1 - update) * old)
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-6)


def test_no_class_is_impossible() -> None:
    model = RSSM(SMALL, action_dim=2, embed_dim=3)
    with torch.no_grad():
        model.prior_head.out.bias[0] = 1e3
    lowest = model.prior(torch.randn(4, 32)).min().detach()
    assert float(lowest) == pytest.approx(0.01 / 4, rel=1e-3)


# --- actions ---------------------------------------------------------------------------------


def test_the_policys_gaussian_by_hand() -> None:
    """As it is before the environment clips it."""
    torch.manual_seed(0)
    policy = ImaginedPolicy(5, 8, action_dim=2, discrete=False)
    torch.nn.init.normal_(policy.head.out.weight)
    features, action = torch.randn(7, 5), 2.0 * torch.randn(7, 2)
    mean, raw = policy.head(features).chunk(2, -1)
    std = 0.9 / (1.0 + torch.exp(-(raw + 2.0))) + 0.1
    normal = torch.distributions.Normal(torch.tanh(mean), std)
    log_prob, entropy = policy.log_prob_and_entropy(features, action)
    torch.testing.assert_close(log_prob, normal.log_prob(action).sum(-1))
    torch.testing.assert_close(entropy, normal.entropy().sum(-1))
    assert torch.equal(policy.mode(features), normal.mean)
    noise = torch.randn(7, 2)
    torch.testing.assert_close(policy.draw(features, noise), normal.mean + std * noise)


def test_the_policys_categorical_by_hand() -> None:
    torch.manual_seed(0)
    policy = ImaginedPolicy(5, 8, action_dim=3, discrete=True)
    torch.nn.init.normal_(policy.head.out.weight)
    features = torch.randn(7, 5)
    probs = 0.99 * torch.softmax(policy.head(features), -1) + 0.01 / 3
    categorical = torch.distributions.Categorical(probs)
    action = torch.randint(3, (7,))
    one_hot = torch.nn.functional.one_hot(action, 3).float()
    log_prob, entropy = policy.log_prob_and_entropy(features, one_hot)
    torch.testing.assert_close(log_prob, categorical.log_prob(action))
    torch.testing.assert_close(entropy, categorical.entropy())
    assert torch.equal(policy.mode(features).argmax(-1), probs.argmax(-1))


# --- observations ----------------------------------------------------------------------------


@pytest.mark.parametrize(("height", "width", "stages"), [(64, 64, 4), (16, 16, 2), (96, 96, 4)])
def test_images_there_and_back(height: int, width: int, stages: int) -> None:
    assert image_stages(height, width) == stages
    encoder = PixelEncoder(3, height, width, SMALL)
    decoder = PixelDecoder(20, 3, height, width, SMALL)
    pictures = torch.rand(2, 5, 3, height, width)
    assert encoder(pictures).shape == (2, 5, encoder.out_dim)
    features = torch.randn(2, 5, 20)
    made = decoder(features)
    assert made.shape == pictures.shape
    assert 0.0 <= float(made.min()) <= float(made.max()) <= 1.0
    expected = ((made - pictures) ** 2).flatten(2).sum(-1)
    torch.testing.assert_close(decoder.loss(features, pictures), expected)


@each(("height", "width"), [(84, 84), (128, 128), (7, 7), (64, 63)])
def test_other_images_are_refused(height: int, width: int) -> None:
    with pytest.raises(EnvironmentSetupError, match=f"images of {height}x{width} pixels.*64x64"):
        image_stages(height, width)


def test_a_convolution_of_doubled_images_needs_no_doubled_images() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(3, 4, 5, padding=2).double()
    x = torch.randn(2, 3, 5, 6, dtype=torch.float64, requires_grad=True)
    doubled = torch.nn.functional.interpolate(x, scale_factor=2, mode="nearest")
    outputs = layer(doubled), enlarging(layer, x)
    torch.testing.assert_close(*outputs)
    weights = torch.randn_like(outputs[0])
    wanted, found = (
        torch.autograd.grad((y * weights).sum(), [x, *layer.parameters()]) for y in outputs
    )
    torch.testing.assert_close(wanted, found)


def test_a_convolution_before_pooling_by_blocks_of_pixels() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(3, 4, 5, padding=2).double()
    x = torch.randn(2, 3, 6, 10, dtype=torch.float64, requires_grad=True)
    outputs = torch.nn.functional.max_pool2d(layer(x), 2), halving(layer, x)
    torch.testing.assert_close(*outputs)
    weights = torch.randn_like(outputs[0])
    wanted, found = (
        torch.autograd.grad((y * weights).sum(), [x, *layer.parameters()]) for y in outputs
    )
    torch.testing.assert_close(wanted, found)


def test_grey_is_nothing_to_an_encoder() -> None:
    encoder = PixelEncoder(3, 16, 16, SMALL)  # biases begin at zero
    assert not encoder(torch.full((2, 3, 16, 16), 0.5)).any()
    assert encoder(torch.zeros(2, 3, 16, 16)).any()


def test_vectors_there_and_back() -> None:
    encoder, decoder = VectorEncoder(4, SMALL), VectorDecoder(9, 4, SMALL)
    obs = 100.0 * torch.randn(3, 4)
    assert encoder(obs).shape == (3, encoder.out_dim)
    torch.testing.assert_close(encoder(obs), encoder.layers(symlog(obs)))
    features = torch.randn(3, 9)
    expected = (decoder(features) - symlog(obs)).square().sum(-1)
    torch.testing.assert_close(decoder.loss(features, obs), expected)


def test_weights_are_cut_at_two_standard_deviations() -> None:
    torch.manual_seed(0)
    weight = torch.empty(400, 300)
    trunc_normal_(weight, 300)
    assert float(weight.std()) == pytest.approx(1.0 / math.sqrt(300), rel=0.02)
    assert float(weight.abs().max()) <= 2.0 * 1.1368 / math.sqrt(300) + 1e-6
