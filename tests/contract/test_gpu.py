"""Every update runs as a CUDA graph, sampling included, and means the same. Needs a GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from rl_training.algorithms.dynamics import ModelParams, ensemble_model, trained_parameters
from rl_training.algorithms.fitting import Fitting
from rl_training.algorithms.optim import FusedAdam
from rl_training.execution import tiling
from rl_training.experiment.registry import algorithm_class
from rl_training.models import stacked
from rl_training.models.dreamer import SIZES, PixelEncoder
from rl_training.replay.batch import Batch
from rl_training.replay.replay import Priorities, ReplayBuffer
from rl_training.runtime.agents import SingleLearner, VmapLearner
from rl_training.runtime.engine import Engine
from rl_training.runtime.products import tiled_product

from .small_runs import cases, small_config, small_learner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def engine_of(config: Any, mode: str, *, double: bool = False) -> tuple[Any, Engine]:
    algorithm, table = small_learner(config)
    size = algorithm.params.batch_size
    # the last bit of a sum decides which latent state is drawn
    double = double or algorithm.recurrent

    def draw(_: Any) -> Any:
        batch = table.sample(size)
        return tree_map(in_double, batch) if double else batch

    if double:
        algorithm.double()
    return algorithm, Engine(SingleLearner(algorithm, draw), mode, 200)


def in_double(x: torch.Tensor | None) -> torch.Tensor | None:
    return x.double() if x is not None and x.is_floating_point() else x


@pytest.mark.parametrize(("algo", "kind"), cases())
def test_every_update_is_captured_and_agrees_with_eager(algo: str, kind: str) -> None:
    captured_as_eager(small_config(algo, kind, device="cuda", algo_kwargs={"grad_clip": 1.0}))


def test_layers_that_policy_and_value_share_are_captured() -> None:
    captured_as_eager(small_config("ppo", device="cuda", algo_kwargs={"shared_layers": True}))


def captured_as_eager(config: Any) -> None:
    """The same random numbers, so also the algorithms with noise of their own."""
    states = {}
    for mode in ("eager", "graph"):
        algorithm, engine = engine_of(config, mode)
        before = {key: value.clone() for key, value in algorithm.state_dict().items()}
        torch.manual_seed(5)
        for updates in (1, 4, 195):
            metrics = engine.run(updates)
        assert engine.mode == mode, engine.notes
        assert int(algorithm.update_count) == 200
        assert algorithm.first_nonfinite() is None
        states[mode] = {k: v.double().cpu() for k, v in algorithm.state_dict().items()}
        states[mode] |= {f"metric {k}": v.double().cpu() for k, v in metrics.items()}
    state = algorithm.state_dict()
    moved = [key for key, value in state.items() if not value.equal(before[key])]
    outside = {
        id(p) for name in algorithm.outside_update for p in algorithm.optimizers[name].parameters
    }
    assert set(moved) >= {
        key for key, p in algorithm.named_parameters() if p.requires_grad and id(p) not in outside
    }
    for key, value in states["eager"].items():
        assert torch.allclose(value, states["graph"][key], rtol=2e-3, atol=2e-4), key


def test_pieces_compiled_with_their_gradients_agree_with_eager() -> None:
    config = small_config("dreamer", "discrete", device="cuda", algo_kwargs={"lr_warmup": 1})
    results = {}
    for mode in ("eager", "compiled_graph"):
        _, engine = engine_of(config, mode)
        torch.manual_seed(5)
        metrics = engine.run(3)
        assert engine.mode == mode, engine.notes
        results[mode] = {key: value.double().cpu() for key, value in metrics.items()}
    torch.testing.assert_close(results["eager"], results["compiled_graph"], rtol=1e-4, atol=1e-5)


def test_updates_in_bfloat16_are_compiled_and_captured() -> None:
    knobs = {"lr_warmup": 1, "precision": "bfloat16"}
    config = small_config("dreamer", "discrete", device="cuda", algo_kwargs=knobs)
    algorithm, source = small_learner(config)
    draw = lambda _: source.sample(algorithm.params.batch_size)  # noqa: E731
    engine = Engine(SingleLearner(algorithm, draw), "compiled_graph", 50)
    # detached: a copy with a gradient would tie the accumulation of gradients to this stream
    before = {key: p.detach().clone() for key, p in algorithm.named_parameters()}
    engine.run(20)
    assert engine.mode == "compiled_graph", engine.notes
    assert algorithm.first_nonfinite() is None
    still = [key for key, p in algorithm.named_parameters() if torch.equal(p, before[key])]
    assert not still


def test_an_encoder_of_images_means_the_same_on_both_devices() -> None:
    encoder = PixelEncoder(3, 64, 64, SIZES["tiny"]).double()
    images = torch.rand(5, 3, 64, 64, dtype=torch.float64)
    weights = torch.randn(5, encoder.out_dim, dtype=torch.float64)
    found = []
    for device in ("cpu", "cuda"):
        encoder.zero_grad()  # before the move, which would take the stored gradients along
        out = encoder.to(device)(images.to(device))
        (out * weights.to(device)).sum().backward()
        gradients = [x.grad.cpu() for x in encoder.parameters() if x.grad is not None]
        found.append([out.detach().cpu(), *gradients])
    torch.testing.assert_close(*found)


def test_a_schedule_changes_the_rate_inside_the_graph() -> None:
    algorithm, engine = engine_of(small_config("bc", device="cuda"), "graph")
    engine.run(3)
    algorithm.set_lr_factor(0.0)
    before = {key: p.clone() for key, p in algorithm.named_parameters()}
    engine.run(5)
    assert all(torch.equal(p, before[key]) for key, p in algorithm.named_parameters())


def test_priorities_are_drawn_and_fed_back_inside_the_graph() -> None:
    config = small_config("dqn", device="cuda", algo_kwargs={"prioritized": True})
    results = {}
    for mode in ("eager", "graph"):
        algorithm, table = small_learner(config)
        device = algorithm.update_count.device
        priorities = Priorities(64, device)
        replay = ReplayBuffer(
            64, 1, algorithm.spaces, device, gamma=0.9, n_step=1, priorities=priorities
        )
        torch.manual_seed(1)
        rows = table.sample(64)
        for i in range(64):
            obs, action, reward, following = (
                x[i : i + 1].cpu().numpy()
                for x in (rows.obs, rows.action, rows.reward, rows.next_obs)
            )
            ended = (rows.discount[i : i + 1] == 0).cpu().numpy()
            replay.add(obs, action, reward, following, ended, ended & False)

        def learned(batch: Any, replay: Any = replay, algorithm: Any = algorithm) -> None:
            replay.feed_back(batch.index, algorithm.last_td_errors)

        touched = (priorities.tree, priorities.max_priority)
        draw = lambda _, replay=replay: replay.sample(12)  # noqa: E731
        engine = Engine(SingleLearner(algorithm, draw, learned, touched), mode, 50)
        torch.manual_seed(2)
        engine.run(50)
        assert engine.mode == mode, engine.notes
        results[mode] = priorities.leaves.clone()
    assert len(results["graph"].unique()) > 20
    torch.testing.assert_close(results["eager"], results["graph"], rtol=1e-2, atol=1e-3)


def test_what_cannot_be_captured_runs_eagerly_and_says_so() -> None:
    algorithm, table = small_learner(small_config("bc", device="cuda"))

    def draw(_: Any) -> Any:
        batch = table.sample(32)
        float(batch.reward.sum())  # asks the host
        return batch

    engine = Engine(SingleLearner(algorithm, draw), "auto", 100)
    assert engine.mode == "graph"
    engine.run(10)
    assert engine.mode == "eager"
    assert "cannot be captured" in engine.notes[0]
    assert int(algorithm.update_count) == 10
    engine.run(5)
    assert int(algorithm.update_count) == 15


OFFLINE = [(algo, kind) for algo, kind in cases() if algorithm_class(algo).loop == "offline"]


@pytest.mark.parametrize(("algo", "kind"), OFFLINE)
def test_several_agents_are_captured_and_agree_with_separate_ones(algo: str, kind: str) -> None:
    """Their own random numbers, drawn ahead; enough updates for graphs of one and of many."""
    seeds = (4, 7, 1)
    config = small_config(algo, kind, device="cuda", algo_kwargs={"grad_clip": 1.0})

    def agents() -> list[Any]:
        return [small_learner(config.replace(seed=seed))[0] for seed in seeds]

    _, table = small_learner(config)
    draw = lambda learner: table.sample(32, learner.random)  # noqa: E731
    alone, stacked = agents(), agents()
    for seed, agent in zip(seeds, alone, strict=True):
        Engine(SingleLearner(agent, draw, seed=seed), "eager", 57).run(57)
    engine = Engine(VmapLearner(stacked, draw, seeds), "graph", 57)
    for updates in (3, 54):
        engine.run(updates)
    assert engine.mode == "graph", engine.notes
    for one, other in zip(alone, stacked, strict=True):
        assert int(other.update_count) == 57
        for key, value in one.state_dict().items():
            found = other.state_dict()[key]
            assert torch.allclose(value.double(), found.double(), rtol=2e-3, atol=2e-4), key


@pytest.mark.parametrize("tf32", [False, True])
def test_tiled_products_are_captured_agree_with_the_librarys_and_repeat(
    tf32: bool, request: pytest.FixtureRequest
) -> None:
    """More agents than are stacked; the same bits again, in graphs cut elsewhere."""
    matmul = torch.backends.cuda.matmul  # has no attributes that monkeypatch could take back
    request.addfinalizer(partial(setattr, matmul, "allow_tf32", matmul.allow_tf32))
    matmul.allow_tf32 = tf32
    knobs = {"hidden_sizes": [64, 64]}
    config, seeds = small_config("iql", device="cuda", algo_kwargs=knobs), range(20)
    _, table = small_learner(config)
    states = []
    for tiled, parts in ((False, (3, 54)), (True, (3, 54)), (True, (20, 37))):
        agents = [small_learner(config.replace(seed=seed))[0] for seed in seeds]
        learner = VmapLearner(agents, lambda one: table.sample(32, one.random), seeds)
        with tiling(tiled):
            engine = Engine(learner, "compiled_graph", 57)
        for updates in parts:
            engine.run(updates)
        assert engine.mode == "compiled_graph", engine.notes
        assert not any(note.startswith("products") for note in engine.notes), engine.notes
        states.append([tensor.clone() for tensor in learner.stacked])
    assert all(torch.equal(one, other) for one, other in zip(*states[1:], strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(*states[:2], strict=True))
    bounds = {"rtol": 2e-2, "atol": 5e-3} if tf32 else {"rtol": 2e-3, "atol": 2e-4}
    for one, other in zip(*states[:2], strict=True):
        assert torch.allclose(one.double(), other.double(), **bounds)


@pytest.mark.parametrize("precision", ["tf32x3", "tf32"])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        *((256, 256, 256), (256, 256, 17), (23, 256, 256), (256, 17, 256), (256, 96, 1)),
        *((96, 80, 48), (256, 6, 256), (6, 256, 256)),
    ],
)
def test_a_tiled_product_is_as_precise_as_it_says(m: int, n: int, k: int, precision: str) -> None:
    torch.manual_seed(0)
    bound = {"tf32x3": 2e-6, "tf32": 2e-3}[precision]
    for turned_a in (False, True):
        for turned_b in (False, True):
            a = torch.randn(16, k, m).transpose(1, 2) if turned_a else torch.randn(16, m, k)
            b = torch.randn(16, n, k).transpose(1, 2) if turned_b else torch.randn(16, k, n)
            bias, mask = torch.randn(16, n), torch.randn(16, m, n)
            for how in (
                *((bias, None, True, 0), (None, mask, False, 0)),
                *((None, None, False, 1), (None, None, False, 2)),
            ):
                means = [x.double() if isinstance(x, torch.Tensor) else x for x in (a, b, *how)]
                given = [x.cuda() if isinstance(x, torch.Tensor) else x for x in (a, b, *how)]
                for found, again, exact in zip(
                    *(tiled_product(*values, precision) for values in (given, given, means)),
                    strict=True,
                ):
                    error = (found.cpu().double() - exact).norm()
                    assert error <= bound * exact.norm(), (turned_a, turned_b, how[2:])
                    assert torch.equal(found, again), (turned_a, turned_b, how[2:])


def test_stacked_networks_answer_as_they_do_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    states = []
    for most in (0, 16):
        monkeypatch.setattr(stacked, "MOST_AGENTS", most)
        algorithm, engine = engine_of(small_config("iql", device="cuda"), "graph")
        torch.manual_seed(3)
        engine.run(40)
        states.append(algorithm.state_dict())
    for key, value in states[0].items():
        assert torch.allclose(value.double(), states[1][key].double(), rtol=2e-3, atol=2e-4), key


@pytest.mark.parametrize("termination", ["never", "learned"])
@pytest.mark.parametrize("mode", ["graph", "compiled_graph"])
def test_captured_fits_of_a_model_are_those_taken_step_by_step(mode: str, termination: str) -> None:
    """Two fits, the second to more data, with a last minibatch that is smaller."""
    found = []
    for how in ("eager", mode):
        params = ModelParams(
            num_members=3,
            num_elites=2,
            model_hidden_sizes=(32, 32),
            model_batch_size=64,
            model_max_epochs=4,
            termination=termination,
        )
        torch.manual_seed(0)
        model = ensemble_model(3, 2, params).cuda()
        parameters, decays = trained_parameters(model, params)
        fitting = Fitting(model, FusedAdam(parameters, 1e-3, decays), params, capacity=3_000)
        engine = Engine(fitting, how, 0)
        obs, action = torch.randn(2_500, 3).cuda(), torch.rand(2_500, 2).cuda()
        next_obs = obs + action.sum(1, keepdim=True) + 0.1 * torch.randn_like(obs)
        ended = (next_obs[:, 0] > 1.0).float()
        columns = (obs, action, obs[:, 0], next_obs, 0.99 * (1.0 - ended))
        reports = []
        for rows in (1_500, 2_500):
            torch.manual_seed(rows)
            reports.append(fitting.fit(Batch(*(x[:rows] for x in columns)), engine.run))
        assert engine.mode == how, engine.notes
        assert [report.rows for report in reports] == [1_200, 2_000]
        found.append([*model.parameters(), model.holdout_error])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("algo", [a for a, kind in cases() if kind == "box" and a != "gail"])
def test_networks_of_ones_own_are_captured_and_agree_with_eager(algo: str) -> None:
    knobs = {"networks": "tests.contract.own_networks:all_of_them"}
    config = small_config(algo, "box", device="cuda", algo_kwargs=knobs)
    states = {}
    for mode in ("eager", "graph"):
        algorithm, engine = engine_of(config, mode)
        torch.manual_seed(5)
        engine.run(40)
        assert engine.mode == mode, engine.notes
        states[mode] = {k: v.double().cpu() for k, v in algorithm.state_dict().items()}
    for key, value in states["eager"].items():
        assert torch.allclose(value, states["graph"][key], rtol=2e-3, atol=2e-4), key


@pytest.mark.parametrize("kind", ["crossq", "simba", "simbav2"])
def test_kinds_of_networks_are_captured_and_agree_with_eager(kind: str) -> None:
    for algo in ("sac", "td3", "rlpd"):
        knobs = {"architecture": kind, "hidden_sizes": [8]}
        config = small_config(algo, "box", device="cuda", algo_kwargs=knobs)
        states = {}
        for mode in ("eager", "graph"):
            algorithm, engine = engine_of(config, mode, double=True)
            torch.manual_seed(5)
            engine.run(40)
            assert engine.mode == mode, engine.notes
            states[mode] = {k: v.double().cpu() for k, v in algorithm.state_dict().items()}
        for key, value in states["eager"].items():
            other = states["graph"][key]
            assert torch.allclose(value, other, rtol=2e-3, atol=2e-4), (algo, key)


def test_networks_of_ones_own_and_other_activations_are_compiled() -> None:
    own = {"networks": "tests.contract.own_networks:all_of_them"}
    # without noise in the update: a compiled one draws other numbers
    for algo, knobs in (("iql", own), ("iql", {"activation": "silu", "layer_norm": True})):
        config = small_config(algo, "box", device="cuda", algo_kwargs=knobs)
        states = {}
        for mode in ("eager", "compiled_graph"):
            # Adam would turn the rounding of compiled kernels into steps of its own
            algorithm, engine = engine_of(config, mode, double=True)
            torch.manual_seed(5)
            engine.run(40)
            assert engine.mode == mode, engine.notes
            states[mode] = {k: v.double().cpu() for k, v in algorithm.state_dict().items()}
        for key, value in states["eager"].items():
            other = states["compiled_graph"][key]
            assert torch.allclose(value, other, rtol=2e-3, atol=2e-4), (algo, key)
