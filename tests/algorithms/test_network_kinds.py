"""CrossQ, SimBa and SimbaV2 as networks of SAC, RLPD, TD3 and MBPO.

Networks and losses are computed again in NumPy from the papers' equations, member by member.
"""

from __future__ import annotations

import copy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rl_training import SAC, ManagedAlgorithm, load
from rl_training.algorithms.critic_steps import (
    categorical_target,
    categorical_td_loss,
    crossed_td_loss,
)
from rl_training.algorithms.optim import FusedAdam
from rl_training.experiment.errors import ConfigError
from rl_training.models import Architecture, Encoder, EnsembleCritic, ReturnScale, batch_statistics
from rl_training.models.crossq import BatchRenorm, absorb_statistics
from rl_training.replay.batch import Batch
from rl_training.runtime.agents import SingleLearner, VmapLearner
from rl_training.runtime.engine import Engine

from ..contract.small_runs import small_config, small_learner
from ..contract.test_updates import HOST_SYNCS, OperationLog, assert_same_state
from ..each import each
from ..export.exporting import export, quick_exporter
from .helpers import BOX, f64, make_learner, random_batch

KINDS = ("crossq", "simba", "simbav2")


def disturbed(net: Any) -> Any:
    """Away from zeros and ones, where wrong formulas agree with right ones."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, x in (*net.named_parameters(), *net.named_buffers()):
            if x.is_floating_point() and "atoms" not in name:
                x += 0.3 * torch.rand(x.shape, generator=generator, dtype=x.dtype)
    return net


# --- the networks in NumPy, one member at a time ------------------------------------------------


def unit(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return x / np.sqrt((x**2).sum(axis, keepdims=True))


def layer_norm(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def renormed(w: dict[str, np.ndarray], x: np.ndarray, by_batch: bool, warm: bool) -> np.ndarray:
    running, spread = w["mean"], np.sqrt(w["variance"] + 1e-3)
    if not by_batch:
        y = (x - running) / spread
    else:
        mean, std = x.mean(0), np.sqrt(x.var(0) + 1e-3)
        r = np.clip(std / spread, 1.0 / 3.0, 3.0) if warm else 1.0
        d = np.clip((mean - running) / spread, -5.0, 5.0) if warm else 0.0
        y = (x - mean) / std * r + d
    return y * w["scale"] + w["shift"]


def weights(net: Any, member: int) -> dict[str, Any]:
    """State of one member by name, nested by its dots."""
    found: dict[str, Any] = {}
    for name, value in net.state_dict().items():
        *path, last = name.split(".")
        place = found
        for part in path:
            place = place.setdefault(part, {})
        array = f64(value).copy()
        place[last] = array[member].squeeze(0) if array.ndim == 3 and last != "weight" else array
        if last == "weight":
            place[last] = array[member]
    return found


def numpy_net(
    kind: str, net: Any, member: int, x: np.ndarray, by_batch: bool = False, warm: bool = False
) -> np.ndarray:
    w = weights(net, member)

    def relu(x: np.ndarray) -> np.ndarray:
        return np.maximum(x, 0.0)

    if kind == "crossq":
        for i in range(len(w["layers"])):
            x = relu(x) if i else x
            x = renormed(w["norms"][str(i)], x, by_batch, warm)
            x = x @ w["layers"][str(i)]["weight"] + w["layers"][str(i)]["bias"]
        return x
    if kind == "simba":
        x = x @ w["embedding"]["weight"] + w["embedding"]["bias"]
        for block in w["blocks"].values():
            inner = layer_norm(x) * block["norm"]["scale"] + block["norm"]["shift"]
            inner = relu(inner @ block["up"]["weight"] + block["up"]["bias"])
            x = x + inner @ block["down"]["weight"] + block["down"]["bias"]
        x = layer_norm(x) * w["norm"]["scale"] + w["norm"]["shift"]
        return x @ w["output"]["weight"] + w["output"]["bias"]
    x = unit(np.concatenate([x, np.full((len(x), 1), 3.0)], 1))
    x = unit(x @ w["embedding"]["weight"] * w["embedding_scaler"]["scale"])
    width, depth = x.shape[1], len(w["blocks"])
    for block in w["blocks"].values():
        inner = relu(x @ block["up"]["weight"] * block["scaler"]["scale"])
        towards = unit(inner @ block["down"]["weight"])
        share = block["share"]["scale"] * np.sqrt(width) / (depth + 1)
        x = unit((1.0 - share) * x + share * towards)
    x = x @ w["hidden"]["weight"] * w["hidden_scaler"]["scale"]
    return x @ w["output"]["weight"] + w["bias"]


class Doubled(Encoder):
    """An encoder whose features are three numbers, doubled."""

    out_dim = 3

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return 2.0 * obs


def test_networks_are_those_of_the_papers() -> None:
    x = np.random.default_rng(0).standard_normal((7, 3))
    for kind, depth in product(KINDS, (1, 2)):
        layers = Architecture((6,) * depth, kind=kind)  # type: ignore[arg-type]
        net: Any = disturbed(layers.ensemble(3, 3, 2).double())
        found = net(torch.from_numpy(x))
        chosen = net(torch.from_numpy(x), torch.tensor([2, 0]))
        assert torch.equal(chosen, found[[2, 0]]) or torch.allclose(chosen, found[[2, 0]])
        for member in range(3):
            expected = numpy_net(kind, net, member, x)
            np.testing.assert_allclose(f64(found[member]), expected, rtol=1e-9, atol=1e-12)
        lone: Any = disturbed(layers.net(3, 2).double())
        expected = numpy_net(kind, lone.net, 0, x)
        np.testing.assert_allclose(f64(lone(torch.from_numpy(x))), expected, rtol=1e-9, atol=1e-12)
        encoded: Any = layers.net(Doubled(), 2).double()
        encoded.head.load_state_dict(lone.state_dict())
        doubled = encoded(torch.from_numpy(x) / 2.0)
        np.testing.assert_allclose(f64(doubled), expected, rtol=1e-9, atol=1e-12)
        stacked = lone(torch.from_numpy(x).expand(2, 7, 3))
        np.testing.assert_allclose(f64(stacked[1]), expected, rtol=1e-9, atol=1e-12)


def test_statistics_of_batches_are_used_recorded_and_absorbed_where_due() -> None:
    x = 3.0 + 2.0 * torch.randn(2, 50, 4, dtype=torch.float64)
    for warm in (False, True):
        layer = disturbed(BatchRenorm(2, 4, warm_up=3).double())
        layer.batches.fill_(3 if warm else 2)
        before = weights(layer, 0)
        with batch_statistics(layer) as found:
            out = layer(x)
        for member in range(2):
            expected = renormed(weights(layer, member), f64(x[member]), True, warm)
            np.testing.assert_allclose(f64(out[member]), expected, rtol=1e-9)
        other = renormed(weights(layer, 0), f64(x[0]), True, not warm)
        assert np.abs(f64(out[0]) - other).max() > 0.1
        for due, share in ((torch.tensor(False), 0.0), (torch.tensor(True), 0.01)):
            absorb_statistics(layer, dict(found), due)
            mean = before["mean"] + share * (f64(x[0]).mean(0) - before["mean"])
            variance = before["variance"] + share * (f64(x[0]).var(0) - before["variance"])
            np.testing.assert_allclose(weights(layer, 0)["mean"], mean, rtol=1e-9)
            np.testing.assert_allclose(weights(layer, 0)["variance"], variance, rtol=1e-9)
        assert int(layer.batches) == (4 if warm else 3)
        np.testing.assert_allclose(
            f64(layer(x)[0]), renormed(weights(layer, 0), f64(x[0]), False, False), rtol=1e-9
        )


# --- losses -------------------------------------------------------------------------------------


def double(batch: Batch) -> Batch:
    return Batch(*(x.double() if x is not None and x.is_floating_point() else x for x in batch))


def test_both_sides_of_crossqs_error_come_from_one_batch() -> None:
    batch = double(random_batch(size=12))
    chosen, bonus = torch.rand(12, BOX.action_dim).double(), torch.randn(12).double()
    critics: Any = EnsembleCritic(3, BOX.obs_dim, BOX.action_dim, Architecture((8,), kind="crossq"))
    critics = disturbed(critics.double())
    now = np.concatenate([f64(batch.obs), f64(batch.action)], 1)
    then = np.concatenate([f64(batch.next_obs), f64(chosen)], 1)
    for members in (None, torch.tensor([2, 0])):
        loss, metrics = crossed_td_loss(critics, batch, chosen, bonus, members)
        values = [
            numpy_net("crossq", critics.net, i, np.concatenate([now, then]), True)[:, 0]
            for i in range(3)
        ]
        q, following = np.array(values)[:, :12], np.array(values)[:, 12:]
        lowest = (following if members is None else following[[2, 0]]).min(0)
        target = f64(batch.reward) + f64(bonus) + f64(batch.discount) * lowest
        expected = ((q - target) ** 2).mean(1).sum()
        np.testing.assert_allclose(float(loss.detach()), expected, rtol=1e-9)
        np.testing.assert_allclose(float(metrics["q_mean"].detach()), q.mean(), rtol=1e-9)
        # of a pass for each side the error would be another
        apart = np.array([numpy_net("crossq", critics.net, i, now, True)[:, 0] for i in range(3)])
        assert abs(((apart - target) ** 2).mean(1).sum() - expected) > 1e-3
    # the target is a constant: its gradient would show in the next actions
    free = chosen.clone().requires_grad_()
    critics.eval()
    loss, _ = crossed_td_loss(critics, batch, free, bonus)
    with batch_statistics(critics):
        q = critics(torch.cat([batch.obs, batch.next_obs]), torch.cat([batch.action, free]))
    constant = (q[:, :12] - torch.from_numpy(target_of(critics, batch, chosen, bonus))) ** 2
    expected_gradient = torch.autograd.grad(constant.mean(1).sum(), free)[0]
    found_gradient = torch.autograd.grad(loss, free)[0]
    torch.testing.assert_close(found_gradient, expected_gradient)


def target_of(critics: Any, batch: Batch, chosen: Any, bonus: Any) -> np.ndarray:
    with torch.no_grad(), batch_statistics(critics):
        q = critics(torch.cat([batch.obs, batch.next_obs]), torch.cat([batch.action, chosen]))
    lowest = f64(q[:, len(batch.reward) :]).min(0)
    return f64(batch.reward) + f64(bonus) + f64(batch.discount) * lowest


def test_returns_of_simbav2_are_distributions() -> None:
    learner = make_learner("sac", architecture="simbav2", hidden_sizes=(8,)).double()
    critics, targets = disturbed(learner.model.critics), disturbed(learner.target_critics)
    batch = double(random_batch(size=9))
    batch = batch._replace(reward=batch.reward * 4.0)  # some returns leave the atoms
    chosen, bonus = torch.rand(9, BOX.action_dim).double(), 0.3 * torch.randn(9).double()
    atoms = np.linspace(-5.0, 5.0, 101)

    def probs(net: Any, obs: Any, action: Any) -> np.ndarray:
        x = np.concatenate([f64(obs), f64(action)], 1)
        logits = np.array([numpy_net("simbav2", net, i, x) for i in range(2)])
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        return shares / shares.sum(-1, keepdims=True)

    ahead = probs(targets.net, batch.next_obs, chosen)
    expected = np.zeros((9, 101))
    for row in range(9):
        lowest = ahead[np.argmin((ahead[:, row] * atoms).sum(-1)), row]
        for share, atom in zip(lowest, atoms, strict=True):
            shift = float(batch.reward[row] + bonus[row])
            place = (np.clip(shift + float(batch.discount[row]) * atom, -5.0, 5.0) + 5.0) / 0.1
            below = min(int(np.floor(place)), 99)
            expected[row, below] += share * (below + 1 - place)
            expected[row, below + 1] += share * (place - below)
    target = categorical_target(targets, batch, chosen, bonus)
    np.testing.assert_allclose(f64(target), expected, rtol=1e-4, atol=1e-6)
    assert f64(target).sum(1) == pytest.approx(np.ones(9), abs=1e-5)
    loss, metrics = categorical_td_loss(critics, batch, target)
    now = probs(critics.net, batch.obs, batch.action)
    entropy = -(expected * np.log(now)).sum(-1).mean(-1).sum()
    np.testing.assert_allclose(float(loss.detach()), entropy, rtol=1e-4)
    means = (now * atoms).sum(-1)
    np.testing.assert_allclose(float(metrics["q_mean"].detach()), means.mean(), rtol=1e-4)
    np.testing.assert_allclose(f64(critics(batch.obs, batch.action)), means, rtol=1e-4)
    learner.reward_divisor.fill_(3.0)  # values are in the units of the rewards
    values = learner.action_values(batch.obs, batch.action)
    np.testing.assert_allclose(f64(values), 3.0 * means.min(0), rtol=1e-4)


def test_adam_with_decoupled_decay_another_momentum_and_weights_on_a_sphere() -> None:
    for mask in (None, torch.tensor(True), torch.tensor(False)):
        start = [torch.randn(2, 4, 3), torch.randn(5)]
        ours, theirs = ([nn.Parameter(x.clone()) for x in start] for _ in range(2))
        mine = FusedAdam(ours, 0.05, beta1=0.5, decay=0.1, on_sphere=ours[:1])
        reference = torch.optim.AdamW(theirs, 0.05, betas=(0.5, 0.999), weight_decay=0.1)
        for _ in range(3):
            gradients = [torch.randn_like(x) for x in start]
            for parameter, gradient in zip(theirs, gradients, strict=True):
                parameter.grad = gradient
            if mask is None or bool(mask):
                reference.step()
                with torch.no_grad():
                    theirs[0] /= theirs[0].norm(dim=1, keepdim=True)
            mine.step(gradients, mask)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other)


def test_rewards_are_divided_so_that_returns_fit() -> None:
    rng = np.random.default_rng(3)
    scale, seen, returns, largest = ReturnScale(2, 0.9, 5.0), [], np.zeros(2), 0.0
    for _ in range(40):
        reward, ended = rng.standard_normal(2) * 7.0 + 2.0, rng.random(2) < 0.1
        divisor = scale.after(torch.from_numpy(reward).float(), torch.from_numpy(ended))
        returns = 0.9 * returns + reward
        seen.append(returns.copy())
        largest = max(largest, np.abs(returns).max())
        expected = max(np.std(seen), largest / 5.0)
        assert float(divisor) == pytest.approx(expected, rel=1e-4)
        returns = np.where(ended, 0.0, returns)


def test_simba_standardises_what_it_has_seen() -> None:
    learner = make_learner("td3", architecture="simba", hidden_sizes=(8,))
    seen = []
    for seed in range(3):
        batch = random_batch(seed=seed)
        batch = batch._replace(obs=5.0 + 3.0 * batch.obs)
        seen.append(f64(batch.obs))
        prepared = learner.prepared(batch)
        rows = np.concatenate(seen)
        expected = (f64(batch.next_obs) - rows.mean(0)) / rows.std(0)
        np.testing.assert_allclose(f64(prepared.next_obs), expected, rtol=1e-4, atol=1e-4)
    raw = torch.randn(4, BOX.obs_dim)
    expected_action = learner.policy.mode((raw - learner.normalizer.mean) / learner.normalizer.std)
    assert torch.allclose(learner.act(raw, explore=False).action, expected_action, atol=1e-6)


# --- updates and runs ---------------------------------------------------------------------------

CASES = [
    ("sac", "simba"),
    ("td3", "crossq"),
    ("td3", "simbav2"),
    ("rlpd", "crossq"),
]


@each(("algo", "kind"), CASES)
@pytest.mark.usefixtures("no_branches")
def test_updates_are_capturable_move_everything_and_keep_the_sphere(algo: str, kind: str) -> None:
    knobs = {"architecture": kind, "hidden_sizes": [8, 8]}
    learner, table = small_learner(small_config(algo, "box", algo_kwargs=knobs))
    before = copy.deepcopy(learner.state_dict())
    logs = []
    for _ in range(3):
        batch = table.sample(32)
        with OperationLog() as log:
            metrics = learner.step(batch)
        logs.append(log.operations)
    assert all(value.shape == () for value in metrics.values())
    assert logs[1] == logs[2]
    assert not [name for name, _ in logs[2] if name in HOST_SYNCS]
    skipped = ("dynamics", "target", "reward_divisor")
    still = [
        name
        for name, value in learner.state_dict().items()
        if torch.equal(value, before[name]) and not any(part in name for part in skipped)
    ]
    unused = ("normalizer",) if kind == "crossq" else ()
    assert not [name for name in still if not name.startswith(unused)], still
    assert ("target_critics" in " ".join(before)) == (kind != "crossq")
    if kind == "simbav2":
        for optimizer in ("policy", "critics"):
            lengths = [w.norm(dim=-2) for w in learner.optimizers[optimizer].parameters]
            on_sphere = [x for x in lengths if x.dim() == 2 and x.shape[-1] > 1]
            assert any(torch.allclose(x, torch.ones_like(x), atol=1e-5) for x in on_sphere)


@each("kind", KINDS)
def test_several_agents_at_once_learn_as_each_alone(kind: str) -> None:
    knobs = {"architecture": kind, "hidden_sizes": [8], "policy_delay": 2}
    config = small_config("sac", "box", algo_kwargs=knobs)
    seeds = (4, 7)
    _, table = small_learner(config)

    def draw(learner: Any) -> Batch:
        return table.sample(16, learner.random)

    alone, stacked = (
        [small_learner(config.replace(seed=seed))[0] for seed in seeds] for _ in range(2)
    )
    for seed, agent in zip(seeds, alone, strict=True):
        Engine(SingleLearner(agent, draw, seed=seed), "eager", 5).run(5)
    Engine(VmapLearner(stacked, draw, seeds), "eager", 5).run(5)
    for one, other in zip(alone, stacked, strict=True):
        for name, value in one.state_dict().items():
            torch.testing.assert_close(other.state_dict()[name], value, rtol=2e-3, atol=2e-4)


def run_config(kind: str, folder: Path) -> Any:
    knobs = {"architecture": kind, "hidden_sizes": [8], "policy_delay": 2, "learning_starts": 8}
    return small_config(
        "sac", "box", algo_kwargs=knobs, total_timesteps=24, output_dir=str(folder), threads=1
    )


@each("kind", ["crossq", "simbav2"])
def test_runs_resume_exactly_and_policies_are_exported(kind: str, tmp_path: Path) -> None:
    whole = ManagedAlgorithm(run_config(kind, tmp_path / f"{kind}-whole"))
    whole.learn(progress=False)
    half = ManagedAlgorithm(run_config(kind, tmp_path / f"{kind}-half"))
    half.learn(total_timesteps=15, progress=False)
    assert half.run_dir is not None
    resumed = ManagedAlgorithm.resume(half.run_dir, total_timesteps=24, progress=False)
    assert_same_state(whole.algorithm.training_state(), resumed.algorithm.training_state())
    if kind == "simbav2":
        assert float(resumed.algorithm.reward_divisor) > 1.0
    obs = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    stored = load(half.run_dir)
    assert (stored.predict(obs)[0] == resumed.predict(obs)[0]).all()
    if kind == "crossq":
        with quick_exporter():
            exported = export(resumed, tmp_path / f"{kind}-exported", episodes=1)
        assert exported.parity.largest_error < 1e-4


def test_what_does_not_fit_together_is_refused() -> None:
    def refused(message: str, make: Any) -> None:
        with pytest.raises(ConfigError, match=message):
            make()

    refused(
        r"algo_kwargs\.architecture: simba makes one block .* policy has \[8, 4\]",
        lambda: SAC("Pendulum-v1", architecture="simba", hidden_sizes=[8, 4]),
    )
    refused(
        "simbav2 has critics only for Box actions",
        lambda: SAC("CartPole-v1", architecture="simbav2"),
    )
    refused(
        "networks: a function of your own replaces the layers",
        lambda: SAC("Pendulum-v1", architecture="simba", networks="a.b:c"),
    )
    refused(
        "offline_pretrain_updates: simbav2 divides rewards",
        lambda: make_learner("rlpd", architecture="simbav2", offline_pretrain_updates=5),
    )
    refused(
        r"algo_kwargs\.sac\.architecture: simbav2 divides rewards",
        lambda: small_config(
            "gail",
            algo_kwargs={"generator": "sac", "ppo": {}, "sac": {"architecture": "simbav2"}},
        ),
    )
