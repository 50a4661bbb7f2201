"""Tiled products: the same update, in fewer passes, and only where a run asks for them."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from rl_training import BC, TrainConfig
from rl_training.execution import tiling
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.tracking import read_run_config
from rl_training.runtime import build, products
from rl_training.runtime import engine as engine_module
from rl_training.runtime.agents import VmapLearner
from rl_training.runtime.engine import Engine
from rl_training.runtime.products import tile_products, tiled_product
from rl_training.runtime.recording import Compiled
from rl_training.runtime.signals import Pause, RunLink

from ..contract.small_runs import small_config, small_learner

aten = torch.ops.aten
SEEDS, ROWS, HIDDEN = 16, 24, 32
needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler"
)


def targets(recorded: GraphModule) -> list[str]:
    return [str(node.target) for node in recorded.graph.nodes]


def stacked_agents() -> VmapLearner:
    config = small_config("iql", algo_kwargs={"hidden_sizes": [HIDDEN, HIDDEN]})
    agents = [small_learner(config.replace(seed=seed))[0] for seed in range(SEEDS)]
    table = small_learner(config)[1]
    return VmapLearner(agents, lambda one: table.sample(ROWS, one.random), range(SEEDS))


def recorded_update(learner: VmapLearner) -> GraphModule:
    return make_fx(lambda _: learner.update())([])


def test_an_update_with_tiled_products_is_the_same_update() -> None:
    learners = []
    for tiled in (False, True):
        learner = stacked_agents()
        learner.prepare()
        before = [tensor.clone() for tensor in learner.tensors()]
        recorded = recorded_update(learner)
        with torch.no_grad():
            for tensor, value in zip(learner.tensors(), before, strict=True):
                tensor.copy_(value)
            if tiled:
                # two layers of five networks; of the three that learn, the gradients of what is
                # below the last layers, but for the critics', of the second layers' weights, and of
                # the critics' first ones, which four inputs make just wide enough
                assert tile_products(recorded, ("cpu",)) == (10 + 5 + 3 + 1, 0)
                recorded.graph.lint()
                found = targets(recorded)
                assert found.count("aten.relu_.default") == 0
                assert found.count("aten.threshold_backward.default") == 1  # of one column
                fused = [n.args[2:6] for n in recorded.graph.nodes if "tiled" in str(n.target)]
                assert sum(bias is not None and relu for bias, _, relu, _ in fused) == 10
                assert sum(mask is not None for _, mask, _, _ in fused) == 5
                assert sorted(sums for *_, sums in fused if sums) == [1, 1, 2, 2]
            for _ in range(3):
                recorded([])
        learners.append(learner)
    for one, other in zip(*(learner.tensors() for learner in learners), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    moved = zip(before, learners[1].tensors(), strict=True)
    assert sum(not torch.equal(one, other) for one, other in moved) > 20


def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.relu_(torch.bmm(x, weight) + bias)


def used_twice(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    out = torch.bmm(x, weight)
    return torch.relu(out + bias) + out


def written_between(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    out = torch.bmm(x, weight)
    weight.mul_(2.0)
    return torch.relu(out + bias)


def scaled_bias(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(torch.add(torch.bmm(x, weight), bias, alpha=2.0))


def row_bias(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(torch.bmm(x, weight) + bias.transpose(1, 2))


@pytest.mark.parametrize(
    ("function", "fused"),
    [(layer, 1), (used_twice, 0), (written_between, 0), (scaled_bias, 0), (row_bias, 0)],
)
def test_only_what_belongs_to_a_product_alone_is_fused(function: Any, fused: int) -> None:
    shapes = ((SEEDS, 20, 18), (SEEDS, 18, 20), (SEEDS, 1, 20))
    given = [torch.randn(shape) for shape in shapes]
    recorded = make_fx(function)(*(x.clone() for x in given))
    assert tile_products(recorded, ("cpu",)) == (1, 0)
    nodes = [node for node in recorded.graph.nodes if "tiled" in str(node.target)]
    assert sum(node.args[2] is not None for node in nodes) == fused
    expected = function(*(x.clone() for x in given))
    torch.testing.assert_close(recorded(*(x.clone() for x in given)), expected)


def test_small_and_other_products_stay_as_they_are() -> None:
    for batch, width, dtype, device in (
        (15, 20, torch.float32, "cpu"),
        (16, 3, torch.float32, "cpu"),
        (16, 20, torch.float64, "cpu"),
        (16, 20, torch.float32, "cuda"),
    ):
        x, y = torch.randn(batch, 20, 4, dtype=dtype), torch.randn(batch, 4, width, dtype=dtype)
        recorded = make_fx(torch.bmm)(x, y)
        assert tile_products(recorded, (device,)) == (0, 0)
        assert "aten.bmm.default" in targets(recorded)


Results = tuple[Tensor, Tensor]


def zeros(out: Tensor, totals: Tensor, calls: int) -> Results:
    return torch.zeros_like(out), totals


def one_column(out: Tensor, totals: Tensor, calls: int) -> Results:
    return out.index_fill(2, torch.tensor(3), 0.0), totals


def not_numbers(out: Tensor, totals: Tensor, calls: int) -> Results:
    return out * float("nan"), totals


def other_bits_the_second_time(out: Tensor, totals: Tensor, calls: int) -> Results:
    return out * (1.0 + 1e-6 * calls), totals


def other_sums(out: Tensor, totals: Tensor, calls: int) -> Results:
    return out, totals * 1.1


def less_precise(out: Tensor, totals: Tensor, calls: int) -> Results:
    return out * 1.001, totals


def broken(how: Any) -> Any:
    calls = itertools.count()
    return lambda *given: how(*tiled_product(*given), next(calls))


def gradient(x: Tensor, weight: Tensor) -> Results:
    return torch.bmm(x.transpose(1, 2), weight), weight.sum(1)


WRONG = [zeros, one_column, not_numbers, other_bits_the_second_time, other_sums, less_precise]


@pytest.mark.parametrize("how", WRONG)
def test_a_product_for_which_the_kernel_is_wrong_stays_as_it_is(how: Any) -> None:
    x, y = torch.randn(SEEDS, 30, 20), torch.randn(SEEDS, 30, 24)
    recorded = make_fx(gradient)(x, y)
    before = targets(recorded)
    assert tile_products(recorded, ("cpu",), broken(how)) == (0, 1)
    assert targets(recorded) == before
    assert tile_products(recorded, ("cpu",)) == (1, 0)
    assert "aten.bmm.default" not in targets(recorded)


def test_tf32_may_be_less_precise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(allow_tf32=True))
    recorded = make_fx(torch.bmm)(torch.randn(SEEDS, 20, 4), torch.randn(SEEDS, 4, 20))
    assert tile_products(recorded, ("cpu",), broken(less_precise)) == (1, 0)


def test_each_form_is_checked_once_and_no_random_number_is_taken() -> None:
    checked = []

    def kernel(*given: Any) -> Results:
        a, b, *_ = given
        checked.append((a.shape, a.stride(), b.stride()))
        return tiled_product(*given)

    def function(x: Tensor, shared: Tensor) -> Tensor:
        weight = shared.expand(SEEDS, 20, 20)
        return (x @ weight) + (x * 2.0) @ weight + x.transpose(1, 2) @ weight

    state = torch.get_rng_state()
    recorded = make_fx(function)(torch.ones(SEEDS, 20, 20), torch.ones(20, 20))
    for _ in range(2):
        assert sum(tile_products(deepcopy(recorded), ("cpu",), kernel)) == 3
    shape, plain, turned = (SEEDS, 20, 20), (400, 20, 1), (400, 1, 20)
    forms = [(shape, strides, (0, 20, 1)) for strides in (plain, turned)]
    assert checked == [form for form in forms for _ in range(2)]
    assert torch.equal(state, torch.get_rng_state())


def test_nan_is_not_hidden_by_a_relu() -> None:
    x, y = torch.full((16, 16, 4), float("nan")), torch.ones(16, 4, 16)
    out, _ = tiled_product(x, y, torch.zeros(16, 16), torch.ones(16, 16, 16), True, 0, "tf32")
    assert out.isnan().all()


def test_the_operation_keeps_what_pytorch_asks_of_one() -> None:
    x, y = torch.randn(16, 20, 4), torch.randn(16, 4, 18)
    for sums in (0, 1, 2):
        given = (x, y, torch.randn(16, 18), torch.randn(16, 20, 18), True, sums, "tf32x3")
        torch.library.opcheck(tiled_product, given)


class OnDevice:
    """A learner that keeps what it was compiled by."""

    slow_to_compile, fuses, cycle = False, False, 1

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)

    def compile(self, compiler: Any) -> None:
        self.compiled = compiler(dict)


def tile_in(device: str, products: bool) -> Any:
    learner: Any = OnDevice(device)
    with tiling(products):
        Engine(learner, "compile", 1)
    return learner.compiled.tile


@needs_compiler
def test_products_are_tiled_only_where_a_run_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration of an earlier version has no such key, and keeps its last bits."""
    values = {"algo": "bc", "dataset": {"kind": "random"}, "env_id": "Pendulum-v1"}
    assert TrainConfig(**values, total_updates=1).products == "library"
    assert Compiled(dict, nullcontext, Pause()).tile is None
    monkeypatch.setattr(products, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert tile_in("cuda", True) is not None
    for device, tiled in (("cuda", False), ("cpu", True), ("cpu", False)):
        assert tile_in(device, tiled) is None


@needs_compiler
def test_what_the_kernel_needs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(products, "find_spec", lambda name: name)
    with pytest.raises(
        ConfigError, match=r"'tiled' needs a GPU with TF32.* has 7\.5; use products"
    ):
        tile_in("cuda", True)
    monkeypatch.setattr(products, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="'tiled' needs Triton, which is not installed; "):
        tile_in("cuda", True)
    assert tile_in("cuda", False) is None


@needs_compiler
def test_an_update_without_such_products_is_said_once() -> None:
    learner: Any = OnDevice("cpu")
    engine = Engine(learner, "compile", 1)
    for _ in range(2):
        engine._tile(make_fx(torch.bmm)(torch.ones(2, 3, 4), torch.ones(2, 4, 3)))
    (note,) = engine.notes
    assert note.startswith("products: 'tiled' has no effect on a compiled update without batches")


@needs_compiler
def test_products_that_are_kept_are_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong_for_wide_ones(*given: Any) -> Results:
        out, totals = tiled_product(*given)
        return out * float(out.shape[2] < 64), totals

    on_host = partial(tile_products, devices=("cpu",), kernel=wrong_for_wide_ones)
    monkeypatch.setattr(engine_module, "tile_products", on_host)
    learner: Any = OnDevice("cpu")
    engine = Engine(learner, "compile", 1)
    for _ in range(2):
        recorded = make_fx(lambda x, y, z: x @ y @ z)(
            *(torch.randn(SEEDS, *shape) for shape in ((20, 8), (8, 32), (32, 64)))
        )
        engine._tile(recorded)
        assert targets(recorded).count("aten.bmm.default") == 1
    (note,) = engine.notes
    assert note.startswith("products: 1 of the 2 products that 'tiled' would compute are left to")


def test_a_run_says_once_that_the_key_has_no_effect_and_keeps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"device": "cpu", "products": "tiled", "hidden_sizes": [8, 8]}
    options |= {"dataset": {"kind": "random", "steps": 300}, "output_dir": str(tmp_path)}
    agent = BC("Pendulum-v1", **options)
    agent.learn(total_updates=4)
    said = "warning: products: 'tiled' has no effect on cpu"
    assert capsys.readouterr().err.count(said) == 1
    assert agent.run_dir is not None
    assert TrainConfig.stored(read_run_config(agent.run_dir)).products == "tiled"
    with pytest.raises(ConfigError, match="products"):
        BC.resume(agent.run_dir, total_updates=6, products="library")
    BC.resume(agent.run_dir, total_updates=6)
    assert capsys.readouterr().err.count(said) == 1
    assert TrainConfig.stored(read_run_config(agent.run_dir)).products == "tiled"


def test_an_update_that_is_not_compiled_on_a_gpu_is_said() -> None:
    config = small_config("bc").replace(products="tiled")
    engine: Any = SimpleNamespace(learner=OnDevice("cuda"), mode="graph", link=RunLink())
    build._note_untiled(config, engine)
    (note,) = engine.link.notes
    assert note.startswith("products: 'tiled' has no effect with engine 'graph', which does not")
    engine.mode, engine.link = "compiled_graph", RunLink()
    build._note_untiled(config, engine)
    assert not engine.link.notes


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_tiles_with_tf32_keep_off_instructions_that_gave_wrong_results() -> None:
    from rl_training.runtime.tiles import tile_of

    sizes = (16, 17, 32, 63, 64, 256, 1024)
    for m, n, k in itertools.product(sizes, sizes, (1, *sizes)):
        for along in (False, True):
            rows, *_, warps, _ = tile_of(m, n, k, along, "tf32")
            assert rows < 64 or warps < 4


INTERPRETED = """
import torch
from rl_training.runtime import products, tiles
torch.manual_seed(0)
for m, n, k in ((40, 70, 90), (256, 17, 64), (23, 64, 96), (80, 130, 17), (64, 80, 48),
                (64, 64, 1)):
    for turned_a in (False, True):
        for turned_b in (False, True):
            a = torch.randn(2, m, k + 3)[..., 3:]  # has gaps, and is not aligned
            a = torch.randn(2, k, m).transpose(1, 2) if turned_a else a
            b = torch.randn(2, n, k).transpose(1, 2) if turned_b else torch.randn(2, k, n)
            bias, mask = torch.randn(2, n), torch.randn(2, m, n)
            for how in ((bias, None, True, 0), (None, mask, False, 0), (None, None, False, 1),
                        (None, None, False, 2)):
                for precision in ("tf32", "tf32x3"):
                    found = tiles.product(a, b, *how, precision)
                    expected = products.tiled_product(a, b, *how, precision)
                    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
print("agrees")
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernel_computes_what_the_operation_means() -> None:
    """Without a GPU, by Triton's interpreter, which does not round to TF32."""
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "agrees", done.stderr[-2000:]
