"""The ensemble of the dynamics: its loss against NumPy, its fit, its elites, what it imagines."""

import copy
import math

import numpy as np
import pytest
import torch

from rl_training.algorithms import fitting
from rl_training.algorithms.dynamics import (
    ModelParams,
    dynamics_loss,
    ensemble_model,
    layer_decays,
    rollouts,
    termination_cut,
    termination_loss,
    trained_parameters,
)
from rl_training.algorithms.fitting import Snapshots, fit, holdout_error, termination_metrics
from rl_training.algorithms.mopo import learned_std
from rl_training.algorithms.optim import FusedAdam
from rl_training.envs.terminations import never
from rl_training.experiment.errors import ConfigError, TrainingDivergedError
from rl_training.models import dynamics as models
from rl_training.replay.batch import Batch
from tests.watching import watched

from ..each import each
from .helpers import assert_loss_equals, f64, random_arrays

MEMBERS, ROWS, WIDTH = 3, 7, 4
SMALL = {
    "num_members": 4,
    "num_elites": 2,
    "model_hidden_sizes": (32, 32),
    "model_batch_size": 64,
}


def made(params, obs_dim=2, action_dim=1, seed=0):
    torch.manual_seed(seed)
    model = ensemble_model(obs_dim, action_dim, params)
    parameters, decays = trained_parameters(model, params)
    return model, FusedAdam(parameters, params.model_lr, decays)


def linear_data(rows, seed=0, noise=(0.05, 0.5)):
    """Two state components that move linearly with noise of known deviation."""
    rng = np.random.default_rng(seed)
    obs = rng.uniform(-1, 1, (rows, 2))
    action = rng.uniform(-1, 1, (rows, 1))
    x = np.concatenate([obs, action], 1)
    change = x @ np.array([[0.5, -0.2], [0.1, 0.4], [-0.3, 0.6]])
    change += rng.standard_normal((rows, 2)) * noise
    reward = 30.0 * obs[:, 0] + 3.0 * rng.standard_normal(rows)
    arrays = (obs, action, reward, obs + change, np.full(rows, 0.99))
    return Batch(*(torch.tensor(x, dtype=torch.float32) for x in arrays))


# --- loss ------------------------------------------------------------------------------------


@each("beta", (0.0, 0.5, 1.0))
@each("seed", range(4))
def test_the_loss_is_the_likelihood_of_every_member_and_the_bounds(seed, beta):
    shape = (MEMBERS, ROWS, WIDTH)
    inputs = random_arrays(
        seed, mean=shape, log_var=shape, target=shape, max_log_var=WIDTH, min_log_var=WIDTH
    )
    x = {name: f64(array) for name, array in inputs.items()}
    terms, gradients = (
        np.zeros(MEMBERS),
        {name: np.zeros_like(x[name]) for name in ("mean", "log_var")},
    )
    for m in range(MEMBERS):
        for b in range(ROWS):
            for d in range(WIDTH):
                error = x["mean"][m, b, d] - x["target"][m, b, d]
                precision = math.exp(-x["log_var"][m, b, d])
                share = math.exp(beta * x["log_var"][m, b, d]) / (ROWS * WIDTH)  # a constant
                terms[m] += (error**2 * precision + x["log_var"][m, b, d]) * share
                gradients["mean"][m, b, d] = 2 * error * precision * share
                gradients["log_var"][m, b, d] = (1 - error**2 * precision) * share
    gradients["max_log_var"] = np.full(WIDTH, 0.01)
    gradients["min_log_var"] = np.full(WIDTH, -0.01)
    bounds = 0.01 * (x["max_log_var"].sum() - x["min_log_var"].sum())
    total = terms.sum() + bounds
    terms = {"member_losses": terms}
    assert_loss_equals(dynamics_loss, inputs, total, terms, gradients, free=("target",), beta=beta)


@each("seed", range(4))
def test_the_loss_of_ends_is_their_likelihood(seed):
    inputs = random_arrays(seed, logits=(MEMBERS, ROWS), ended=(MEMBERS, ROWS))
    inputs["ended"] = (f64(inputs["ended"]) > 0.0).astype(np.float64)
    x = {name: f64(array) for name, array in inputs.items()}
    total, gradient = 0.0, np.zeros((MEMBERS, ROWS))
    for m in range(MEMBERS):
        for b in range(ROWS):
            chance = 1.0 / (1.0 + math.exp(-x["logits"][m, b]))
            right = chance if x["ended"][m, b] else 1.0 - chance
            total -= math.log(right) / ROWS
            gradient[m, b] = (chance - x["ended"][m, b]) / ROWS
    assert_loss_equals(termination_loss, inputs, total, {}, {"logits": gradient}, free=("ended",))


def test_the_log_variance_is_held_softly_between_its_bounds():
    model, _ = made(ModelParams(**SMALL))
    x = torch.randn(9, 3)
    for shift in (-100.0, 0.0, 100.0):
        raw = model.net(x).detach()
        model.net.biases[-1].data[..., 3:] += shift
        found = f64(model(x).log_var)
        low, high = f64(model.min_log_var), f64(model.max_log_var)
        given = f64(raw[..., 3:]) + shift
        first = high - np.logaddexp(0.0, high - given)
        np.testing.assert_allclose(found, low + np.logaddexp(0.0, first - low), rtol=1e-5)
        assert (found > -10.0 - 1e-4).all()
        assert (found < 0.5 + 1e-4).all()
        model.net.biases[-1].data[..., 3:] -= shift


def test_weights_start_truncated_and_biases_at_nothing():
    model, _ = made(ModelParams(model_hidden_sizes=(300, 300)), 5, 3)
    for weight, bias in zip(model.net.weights, model.net.biases, strict=True):
        std = 0.5 / math.sqrt(weight.shape[1])
        assert float(weight.detach().abs().max()) <= 2 * std
        assert float(weight.detach().std()) == pytest.approx(0.88 * std, rel=0.05)  # cut off at two
        assert not bias.any()


# --- weight decay ----------------------------------------------------------------------------


def test_decay_by_layer_is_that_of_the_paper_and_spreads_over_other_depths():
    given = ModelParams().model_weight_decay
    assert layer_decays(given, 5) == [2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4]
    assert layer_decays(given, 3) == [2.5e-5, 7.5e-5, 1e-4]
    assert layer_decays((1e-3,), 4) == [1e-3] * 4


def test_decay_reaches_weights_layer_by_layer_and_nothing_else():
    params = ModelParams(**SMALL, termination="learned", model_weight_decay=(0.1, 0.2, 0.3))
    model, _ = made(params)
    _, decays = trained_parameters(model, params)
    names = [name for name, _ in model.named_parameters()]
    found = {name: decay for name, decay in zip(names, decays, strict=True) if decay}
    expected = {
        f"{net}.weights.{i}": (0.1, 0.2, 0.3)[i] for net in ("net", "termination") for i in range(3)
    }
    assert found == expected


def test_adam_with_decays_takes_the_gradient_of_half_the_squares():
    """Against Adam on a loss with the L2 terms written out."""
    torch.manual_seed(0)
    start = [torch.randn(4, 3), torch.randn(3), torch.randn(3, 2)]
    decays = [0.5, 0.0, 0.1]
    ours = [torch.nn.Parameter(x.clone()) for x in start]
    theirs = [torch.nn.Parameter(x.clone()) for x in start]
    mine = FusedAdam(ours, 0.05, decays)
    other = torch.optim.Adam(theirs, 0.05)
    for _ in range(20):
        mine.step(torch.autograd.grad(sum(p.sin().sum() for p in ours), ours))
        other.zero_grad()
        squares = sum(0.5 * d * p.square().sum() for d, p in zip(decays, theirs, strict=True))
        (sum(p.sin().sum() for p in theirs) + squares).backward()
        other.step()
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


# --- fit -------------------------------------------------------------------------------------


def test_sigma_is_recovered_and_is_large_in_unseen_states():
    """Noise of 0.05 and 0.5 beside a reward thirty times larger."""
    params = ModelParams(num_members=5, num_elites=5, model_hidden_sizes=(64, 64))
    params = params.model_copy(update={"model_batch_size": 64})
    model, optimizer = made(params)
    report = fit(model, optimizer, linear_data(8000), params)
    fresh = linear_data(2000, seed=1)
    with torch.no_grad():
        mean, std = model.predict(fresh.obs, fresh.action)
    truth = torch.tensor([3.0, 0.05, 0.5])
    found = std.mean((0, 1))
    assert ((found - truth).abs() / truth).max() < 0.15, found
    target = torch.cat([fresh.reward[:, None], fresh.next_obs - fresh.obs], -1)
    floor = (mean - target).square().mean((0, 1)) / truth.square()
    assert floor.max() < 1.10, floor
    assert report.metrics["calibration"] == pytest.approx(0.683, abs=0.05)
    far = torch.randn(500, 2)
    far = 5.0 * far / far.norm(dim=1, keepdim=True)
    with torch.no_grad():
        inside = model.predict(fresh.obs[:500], fresh.action[:500])[0].std(0).mean(0)
        outside = model.predict(far, fresh.action[:500])[0].std(0).mean(0)
    assert (outside > 3.0 * inside).all(), (inside, outside)


def test_targets_of_any_scale_are_learned_alike():
    """Rewards a thousand times larger change nothing but the reward's unit."""
    params = ModelParams(**SMALL, model_max_epochs=3)
    predictions = []
    for factor in (1.0, 1000.0):
        data = linear_data(400)
        model, optimizer = made(params)
        torch.manual_seed(1)
        fit(model, optimizer, data._replace(reward=factor * data.reward), params)
        with torch.no_grad():
            predictions.append(model.predict(data.obs, data.action))
    for small, large in zip(*predictions, strict=True):
        torch.testing.assert_close(small[..., 1:], large[..., 1:], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(1000 * small[..., 0], large[..., 0], rtol=1e-3, atol=1.0)


def test_statistics_are_those_of_what_is_learned_from():
    params = ModelParams(**SMALL, model_max_epochs=1)
    data = linear_data(100)
    data = data._replace(action=torch.full_like(data.action, 0.5))
    model, optimizer = made(params)
    torch.manual_seed(3)
    fit(model, optimizer, data, params)
    torch.manual_seed(3)
    learned = torch.randperm(100)[20:].numpy()
    x = f64(torch.cat([data.obs, data.action], 1))[learned]
    np.testing.assert_allclose(f64(model.inputs.mean), x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(f64(model.inputs.std), [*x.std(0)[:2], 1.0], rtol=1e-5)
    y = np.concatenate([f64(data.reward)[:, None], f64(data.next_obs - data.obs)], 1)[learned]
    np.testing.assert_allclose(f64(model.targets.mean), y.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(f64(model.targets.std), y.std(0), rtol=1e-5)


def test_every_member_has_rows_of_its_own_and_none_of_the_holdout():
    params = ModelParams(**{**SMALL, "model_batch_size": 1000}, model_max_epochs=2)
    model, optimizer = made(params)
    seen = []

    def noting(_, given):
        if torch.is_grad_enabled():  # rows by their first input, which names them
            raw = model.inputs.inverse(given[0])[..., 0]
            seen.append((raw[..., None] - data.obs[:, 0]).abs().argmin(-1))

    model.register_forward_pre_hook(noting)
    data = linear_data(500)
    data.obs[:, 0] = torch.linspace(-1.0, 1.0, 500)
    torch.manual_seed(3)
    fit(model, optimizer, data, params)
    torch.manual_seed(3)
    held = set(torch.randperm(500)[:100].tolist())
    first, second = seen
    assert first.shape == (4, 400)
    drawn = [sorted(row) for row in first.tolist()]
    assert all(not held & set(row) for row in drawn)
    assert all(200 < len(set(row)) < 300 for row in drawn)  # 1 - 1/e of 400 is 253
    assert len({tuple(row) for row in drawn}) == 4
    assert drawn == [sorted(row) for row in second.tolist()]
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("rows", "held"), [(5, 1), (100, 20), (40_000, 5_000)])
def test_the_holdout_is_a_fifth_and_not_more_than_its_cap(rows, held):
    assert ModelParams().holdout_rows(rows) == held


def scripted_errors(monkeypatch, model, errors):
    """Let the members' holdout errors be those of a script, epoch after epoch."""
    rest = iter(errors)

    def next_errors(*_):
        for weight in model.net.weights:  # so that snapshots can be told apart
            weight.data += 1.0
        return torch.tensor(next(rest))

    monkeypatch.setattr(fitting, "holdout_error", next_errors)
    monkeypatch.setattr(fitting, "fit_step", lambda *_: torch.zeros(4))


def test_snapshots_per_member_patience_and_elites(monkeypatch):
    """Member 0 is best in epoch 1, member 1 in epoch 3, member 2 in epoch 2, member 3 never
    by one per cent after epoch 1; six epochs without a better member end the fit."""
    model, optimizer = made(ModelParams(**SMALL))
    start = [w.detach().clone() for w in model.net.weights]
    flat = [9.0, 9.0, 9.0, 0.995]
    errors = [[1.0, 5.0, 3.0, 1.0], [2.0, 4.0, 2.0, 0.999], [2.0, 0.5, 2.5, 0.995], *[flat] * 9]
    scripted_errors(monkeypatch, model, errors)
    epochs = []
    report = fit(model, optimizer, linear_data(100), ModelParams(**SMALL), epochs.append)
    assert report.epochs == 3 + 6
    assert [e.improved for e in epochs[:4]] == [
        (True, True, True, True),
        (False, True, True, False),
        (False, True, False, False),
        (False, False, False, False),
    ]
    for before, weight in zip(start, model.net.weights, strict=True):
        for member, epoch in enumerate([1, 3, 2, 1]):
            torch.testing.assert_close(weight[member], before[member] + epoch)
    assert f64(model.holdout_error) == pytest.approx([1.0, 0.5, 2.0, 1.0])
    assert model.elites.tolist() == [1, 0]


def test_a_fit_restores_what_it_measured():
    params = ModelParams(**SMALL, model_lr=0.02)
    model, optimizer = made(params)
    data, best = linear_data(300), []
    torch.manual_seed(5)
    fit(model, optimizer, data, params, lambda e: best.append(e.holdout_error))
    torch.manual_seed(5)
    held = torch.randperm(300)[:60]
    inputs = model.inputs(torch.cat([data.obs, data.action], 1)[held])
    targets = torch.cat([data.reward[:, None], data.next_obs - data.obs], 1)[held]
    found = holdout_error(model, inputs, model.targets(targets))
    torch.testing.assert_close(found, model.holdout_error)
    assert (found <= 1.011 * torch.tensor(best).amin(0)).all()
    assert set(model.elites.tolist()) == set(found.argsort()[:2].tolist())


def test_a_second_fit_goes_on_from_the_first():
    params = ModelParams(**SMALL, model_max_epochs=30)
    model, optimizer = made(params)
    errors = []
    for _ in range(2):
        first = []
        fit(model, optimizer, linear_data(500), params, lambda e, f=first: f.append(e))
        errors.append(np.mean(first[0].holdout_error))
    assert errors[1] < 0.5 * errors[0]


def test_adam_starts_over_at_every_fit():
    """Averages of tiny gradients would let the first steps on other data be several times the
    learning rate; the first step of a fit is at most one."""
    params = ModelParams(**{**SMALL, "model_batch_size": 1000}, model_max_epochs=1)
    params = params.model_copy(update={"model_weight_decay": (0.0,)})
    model, optimizer = made(params)
    for average in optimizer.exp_avg_sq:
        average.fill_(1e-20)
    optimizer.steps.fill_(10_000)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    fit(model, optimizer, linear_data(400), params)
    moved = [
        float((new.detach() - old).abs().max())
        for new, old in zip(model.parameters(), before, strict=True)
    ]
    assert max(moved) == pytest.approx(params.model_lr, rel=0.01)
    assert int(optimizer.steps) == 1


def test_divergence_names_the_member():
    params = ModelParams(**SMALL)
    model, optimizer = made(params)
    model.net.weights[0].data[2] = math.nan
    with pytest.raises(
        TrainingDivergedError, match=r"^member 2 of the dynamics model has diverged"
    ):
        fit(model, optimizer, linear_data(100), params)


def test_a_member_that_ends_far_worse_than_the_mean_has_diverged(monkeypatch):
    """Without NaN or infinity: what it imagines would be no better for being finite."""
    params = ModelParams(**SMALL)
    model, optimizer = made(params)
    scripted_errors(monkeypatch, model, [[1.0, 1e4, 1.0, 1.0], *[[1.0, 2e3, 1.0, 1.0]] * 9])
    with pytest.raises(TrainingDivergedError, match=r"^member 1 .* 100 times that of predicting"):
        fit(model, optimizer, linear_data(100), params)


def test_steps_that_are_far_too_large_are_a_divergence():
    fast = ModelParams(**SMALL, model_lr=3.0)
    with pytest.raises(TrainingDivergedError, match=r"^member \d .* 100 times that of predicting"):
        fit(*made(fast), linear_data(300), fast)


def test_too_few_rows_for_the_holdout():
    params = ModelParams(**SMALL)
    with pytest.raises(ConfigError, match=r"^dataset: 4 transitions are too few to hold out .* 5"):
        fit(*made(params), linear_data(4), params)
    fit(*made(params), linear_data(5), params)


def test_the_termination_head_learns_where_episodes_end():
    params = ModelParams(**SMALL, termination="learned", model_max_epochs=60)
    model, optimizer = made(params)
    data = linear_data(3000)
    ended = data.next_obs[:, 0] > 0.8
    data = data._replace(discount=torch.where(ended, 0.0, 0.99))
    report = fit(model, optimizer, data, params)
    assert report.metrics["termination_recall"] > 0.9
    assert report.metrics["termination_precision"] > 0.8
    fresh = linear_data(1000, seed=4).next_obs
    truth = fresh[:, 0] > 0.8
    assert truth.float().mean() > 0.1
    assert (model.ends(fresh) == truth).float().mean() > 0.94


def test_rare_ends_are_found():
    """One row in two hundred is an end; of those not seen nearly all are found."""
    params = ModelParams(**SMALL, termination="learned", model_max_epochs=15)
    model, optimizer = made(params)
    data, fresh = linear_data(5000), linear_data(20_000, seed=4).next_obs
    bound = float(data.next_obs[:, 0].quantile(0.995))
    data = data._replace(discount=torch.where(data.next_obs[:, 0] > bound, 0.0, 0.99))
    fit(model, optimizer, data, params)
    found = termination_metrics(model.ends(fresh), fresh[:, 0] > bound)
    assert found["termination_recall"] > 0.9
    assert found["termination_precision"] > 0.2


def test_half_of_what_a_termination_head_sees_are_ends():
    """Of any minibatch, the smaller last one included; without ends it sees the others."""
    params = ModelParams(**SMALL, termination="learned", model_max_epochs=2)
    data = linear_data(180)
    for ended in (torch.arange(180) % 30 == 0, torch.zeros(180, dtype=torch.bool)):
        torch.manual_seed(3)
        with watched(fitting.fit_step) as calls:
            fit(*made(params), data._replace(discount=torch.where(ended, 0.0, 0.99)), params)
        seen = [call.arguments["ends"] for call in calls]
        torch.manual_seed(3)
        made(params)
        held = set(torch.randperm(180)[:36].tolist())
        assert [found.shape for _, found in seen] == [(4, 64), (4, 64), (4, 16)] * 2
        for next_obs, found in seen:
            assert (found.mean(1) == (0.5 if ended.any() else 0.0)).all()
            names = (next_obs[..., None, :] - data.next_obs).abs().sum(-1).argmin(-1)
            assert torch.equal(found == 1.0, ended[names])
            assert not held & set(names.flatten().tolist())
        assert len({tuple(next_obs[:, 0, 0].tolist()) for next_obs, _ in seen}) == 6


def test_the_cut_keeps_the_known_ends_and_makes_up_no_more_than_it_must():
    rng = np.random.default_rng(0)
    logits = rng.normal([[-3.0], [2.0], [9.0]], 0.5, (3, 101))
    found = f64(termination_cut(torch.tensor(logits), 101 * 50))
    by_hand = np.sort(logits)[:, 2]  # of 101 values the share 0.02 lies below the third
    assert found == pytest.approx([0.0, by_hand[1], 0.5 * math.log(50.0)])
    assert not termination_cut(torch.tensor(logits), 101).any()
    assert termination_cut(torch.zeros(3, 0), 10).tolist() == [0.0] * 3


def test_states_of_before_there_were_cuts_load_with_none():
    params = ModelParams(**SMALL, termination="learned")
    model, _ = made(params)
    state = model.state_dict()
    model.termination_cut.fill_(3.0)
    del state["termination_cut"]
    model.load_state_dict(state)
    assert not model.termination_cut.any()


def test_precision_and_recall_by_hand():
    found = torch.tensor([True, True, True, False, False])
    ended = torch.tensor([True, False, False, True, False])
    no = torch.zeros(5, dtype=torch.bool)
    metrics = {"termination_recall": 1 / 2, "termination_precision": 1 / 3}
    assert termination_metrics(found, ended) == pytest.approx(metrics)
    assert termination_metrics(no, ended) == {"termination_recall": 0.0}
    assert termination_metrics(found, no) == {"termination_precision": 0.0}
    assert termination_metrics(no, no) == {}


# --- imagining -------------------------------------------------------------------------------


def certain(obs_dim=2, members=4, elites=2):
    """A model whose members predict their own number, without noise."""
    params = ModelParams(num_members=members, num_elites=elites, model_hidden_sizes=(4,))
    model, _ = made(params, obs_dim, 1)
    for parameter in model.net.parameters():
        parameter.data.zero_()
    width = 1 + obs_dim
    model.net.biases[-1].data[..., :width] = torch.arange(members).float()[:, None, None]
    model.net.biases[-1].data[..., width:] = -1e3
    model.min_log_var.data.fill_(-60.0)
    model.elites.copy_(torch.tensor([3, 1]))
    return model


@pytest.mark.parametrize("uncertainty", [None, learned_std])
def test_each_row_and_step_asks_a_random_elite(uncertainty):
    model = certain()
    obs, action = torch.zeros(20_000, 2), torch.zeros(20_000, 1)
    draws = [model.imagine(obs, action, uncertainty) for _ in range(2)]
    for reward, next_obs, uncertain in draws:
        asked = reward.round()
        torch.testing.assert_close(reward, asked, atol=1e-4, rtol=0)
        torch.testing.assert_close(next_obs, asked[:, None].expand(-1, 2), atol=1e-4, rtol=0)
        assert set(asked.tolist()) == {1.0, 3.0}
        assert float((asked == 3.0).float().mean()) == pytest.approx(0.5, abs=0.02)
        assert (uncertain is not None) == (uncertainty is not None)
    same = (draws[0].reward.round() == draws[1].reward.round()).float().mean()
    assert float(same) == pytest.approx(0.5, abs=0.02)


def test_asking_only_the_chosen_elite_is_asking_it_about_its_row(monkeypatch):
    """Row by row, beside a plain pass of every member; also over the cut into parts."""
    monkeypatch.setitem(models.ROWS_AT_ONCE, "cpu", 50)
    params = ModelParams(**{**SMALL, "num_members": 5, "num_elites": 3})
    model, optimizer = made(params)
    fit(model, optimizer, linear_data(200), ModelParams(**SMALL, model_max_epochs=2))
    x = model.inputs(torch.randn(120, 3))
    chosen = torch.randint(3, (120,))
    with torch.no_grad():
        found, every = model.of_chosen(x, chosen), model(x)
    for row in range(120):
        member = int(model.elites[chosen[row]])
        for one, all_members in zip(found, every, strict=True):
            torch.testing.assert_close(one[row], all_members[member, row])
    assert model.imagine(torch.randn(120, 2), torch.randn(120, 1)).next_obs.shape == (120, 2)


def test_imagined_steps_have_the_predicted_mean_and_standard_deviation():
    params = ModelParams(**{**SMALL, "num_members": 1, "num_elites": 1})
    model, optimizer = made(params)
    fit(model, optimizer, linear_data(500), params)
    obs, action = torch.full((40_000, 2), 0.3), torch.full((40_000, 1), -0.2)
    with torch.no_grad():
        mean, std = (x[0, 0] for x in model.predict(obs[:1], action[:1]))
    reward, next_obs, _ = model.imagine(obs, action)
    drawn = torch.cat([reward[:, None], next_obs - obs], 1)
    torch.testing.assert_close(drawn.mean(0), mean, atol=0.03 * float(std.max()), rtol=0.02)
    torch.testing.assert_close(drawn.std(0), std, rtol=0.02, atol=0)


def test_an_uncertainty_sees_all_members_in_the_tasks_units(monkeypatch):
    """Also over the cut into parts."""
    monkeypatch.setitem(models.ROWS_AT_ONCE, "cpu", 2)
    model = certain()
    model.min_log_var.data.fill_(-1e3)
    stds = np.random.default_rng(0).uniform(0.1, 0.9, (4, 3))
    scale, offset = np.array([4.0, 0.5, 2.0]), np.array([1.0, -2.0, 3.0])
    model.max_log_var.data.fill_(50.0)
    model.net.biases[-1].data[:, 0, 3:] = torch.tensor(2.0 * np.log(stds))
    model.targets.std.copy_(torch.tensor(scale))
    model.targets.mean.copy_(torch.tensor(offset))
    seen = []

    def noting(means, deviations):
        seen.append((f64(means), f64(deviations)))
        return deviations[0, :, 0]

    uncertain = model.imagine(torch.zeros(5, 2), torch.zeros(5, 1), noting).uncertainty
    assert f64(uncertain) == pytest.approx([4.0 * stds[0, 0]] * 5, rel=1e-4)
    assert [means.shape for means, _ in seen] == [(4, 2, 3), (4, 2, 3), (4, 1, 3)]
    for means, deviations in seen:
        by_hand = np.arange(4)[:, None, None] * scale + offset
        np.testing.assert_allclose(means, np.broadcast_to(by_hand, means.shape), rtol=1e-4)
        by_hand = (stds * scale)[:, None]
        np.testing.assert_allclose(deviations, np.broadcast_to(by_hand, means.shape), rtol=1e-4)


# --- rollouts --------------------------------------------------------------------------------


def drift(step=1.0):
    """A model that adds `step` to every component and pays its first one."""
    model = certain(members=2, elites=2)
    model.elites.copy_(torch.tensor([0, 1]))
    model.net.biases[-1].data[..., :3] = step
    return model


def zero(obs):
    return torch.zeros(len(obs), 1)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_rollouts_have_their_length(length):
    steps = list(rollouts(drift(), zero, never, torch.zeros(6, 2), length, 0.9))
    assert len(steps) == length
    for number, (batch, uncertain) in enumerate(steps):
        assert uncertain is None
        torch.testing.assert_close(batch.obs, torch.full((6, 2), float(number)), atol=1e-3, rtol=0)
        torch.testing.assert_close(batch.next_obs, batch.obs + 1.0, atol=1e-3, rtol=0)
        assert torch.equal(batch.discount, torch.full((6,), 0.9))


def test_termination_looks_at_the_next_state_and_ends_the_rollout():
    """Above 2.5 is terminal: a row at 2 ends with this step, one at 0 with its third."""

    def ends(next_obs):
        return next_obs[:, 0] > 2.5

    start = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
    steps = [batch for batch, _ in rollouts(drift(), zero, ends, start, 5, 0.9)]
    assert [len(batch.reward) for batch in steps] == [3, 2, 1]
    assert [batch.discount.tolist() for batch in steps] == [
        pytest.approx([0.9, 0.0, 0.9]),
        pytest.approx([0.9, 0.0]),
        [0.0],
    ]
    assert steps[0].obs[:, 0].tolist() == [0.0, 2.0, 1.0]  # 2 itself was no end


def test_actions_are_asked_for_at_every_step():
    asked = []

    def act(obs):
        asked.append(obs.clone())
        return torch.rand(len(obs), 1)

    steps = [batch for batch, _ in rollouts(drift(), act, never, torch.zeros(4, 2), 3, 0.9)]
    assert [float(x[0, 0]) for x in asked] == pytest.approx([0.0, 1.0, 2.0], abs=1e-3)
    assert len({float(batch.action[0]) for batch in steps}) == 3


def test_imagined_nonsense_is_not_stored():
    model = drift()
    model.net.biases[-1].data[..., 1] = math.inf
    with pytest.raises(TrainingDivergedError, match="at step 1 of a rollout; lower algo_kwargs"):
        list(rollouts(model, zero, never, torch.zeros(4, 2), 3, 0.9))


def test_a_hundred_thousand_rollouts_in_one_call():
    params = ModelParams(**SMALL)
    model, _ = made(params)
    (batch, _), *_ = rollouts(model, zero, never, torch.zeros(100_000, 2), 1, 0.9)
    assert batch.next_obs.shape == (100_000, 2)


# --- lengths and knobs -----------------------------------------------------------------------


@each(
    ("epoch", "length"),
    [(0, 1), (20, 1), (29, 1), (30, 2), (85, 8), (149, 14), (150, 15), (999, 15)],
)
def test_the_length_grows_as_in_the_paper(epoch, length):
    """Hopper's schedule: from 1 to 15 between epochs 20 and 150."""
    assert ModelParams(final_rollout_length=15).length_at(epoch) == length


def test_the_length_stays_without_an_end():
    assert {ModelParams(rollout_length=3).length_at(epoch) for epoch in range(300)} == {3}


@each(
    ("knobs", "message"),
    [
        ({"num_members": 3, "num_elites": 4}, "4 elites cannot be chosen from the 3"),
        ({"rollout_growth": [5, 5]}, "must come before the last"),
        ({"holdout_ratio": 0.0}, "holdout_ratio"),
        ({"holdout_ratio": 1.0}, "holdout_ratio"),
        ({"batch_size": 8, "real_ratio": 0.05}, "cannot hold both parts at the ratio 0.05"),
        ({"model_weight_decay": []}, "model_weight_decay"),
        ({"model_weight_decay": [-1.0]}, "model_weight_decay"),
    ],
)
def test_bad_knobs(knobs, message):
    with pytest.raises(ConfigError, match=message):
        ModelParams.parse(knobs)


def test_a_copy_of_the_state_imagines_the_same():
    params = ModelParams(**SMALL, termination="learned")
    model, optimizer = made(params)
    fit(model, optimizer, linear_data(200), params)
    other, _ = made(params, seed=9)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    found = []
    for one in (model, other):
        torch.manual_seed(2)
        found.append(one.imagine(torch.ones(50, 2), torch.ones(50, 1)))
    assert torch.equal(found[0].next_obs, found[1].next_obs)
    assert torch.equal(found[0].reward, found[1].reward)


def test_snapshots_hold_members_with_their_heads_and_share_no_memory_with_the_model():
    model, _ = made(ModelParams(**SMALL, termination="learned"))
    snapshots = Snapshots(model)
    parameters = [*model.net.parameters(), *model.termination.parameters()]
    first = [parameter.detach().clone() for parameter in parameters]
    assert snapshots.take(torch.ones(4)).all()
    for parameter in parameters:
        parameter.data += 1.0
    assert snapshots.take(torch.tensor([2.0, 0.5, 2.0, 2.0])).tolist() == [
        False,
        True,
        False,
        False,
    ]
    for parameter in parameters:
        parameter.data.zero_()
    snapshots.restore()
    for parameter, before in zip(parameters, first, strict=True):
        after = before.clone()
        after[1] += 1.0
        assert torch.equal(parameter, after)
