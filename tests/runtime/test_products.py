"""Tiled products: the same update, in fewer passes, and only where a run asks for them."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from rl_training import TrainConfig
from rl_training.execution import tiling
from rl_training.runtime.agents import VmapLearner
from rl_training.runtime.products import tile_products, tiled_product
from rl_training.runtime.recording import Compiled
from rl_training.runtime.signals import Pause

from ..contract.small_runs import small_config, small_learner

aten = torch.ops.aten
SEEDS, ROWS, HIDDEN = 16, 24, 32


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
                # below the last layers, but for the critics', and of the second layers' weights
                assert tile_products(recorded, ("cpu",)) == 10 + 5 + 3
                recorded.graph.lint()
                found = targets(recorded)
                assert found.count("aten.relu_.default") == 0
                assert found.count("aten.threshold_backward.default") == 1  # of one column
                fused = [n.args[2:6] for n in recorded.graph.nodes if "tiled" in str(n.target)]
                assert sum(bias is not None and relu for bias, _, relu, _ in fused) == 10
                assert sum(mask is not None for _, mask, _, _ in fused) == 5
                assert sorted(sums for *_, sums in fused if sums) == [1, 2, 2]
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
    assert tile_products(recorded, ("cpu",)) == 1
    nodes = [node for node in recorded.graph.nodes if "tiled" in str(node.target)]
    assert sum(node.args[2] is not None for node in nodes) == fused
    expected = function(*(x.clone() for x in given))
    torch.testing.assert_close(recorded(*(x.clone() for x in given)), expected)


def test_small_and_other_products_stay_as_they_are() -> None:
    for batch, width, dtype, device in (
        (15, 20, torch.float32, "cpu"),
        (16, 15, torch.float32, "cpu"),
        (16, 20, torch.float64, "cpu"),
        (16, 20, torch.float32, "cuda"),
    ):
        x, y = torch.randn(batch, 20, 4, dtype=dtype), torch.randn(batch, 4, width, dtype=dtype)
        recorded = make_fx(torch.bmm)(x, y)
        assert tile_products(recorded, (device,)) == 0
        assert "aten.bmm.default" in targets(recorded)


def test_nan_is_not_hidden_by_a_relu() -> None:
    x, y = torch.full((16, 16, 4), float("nan")), torch.ones(16, 4, 16)
    out, _ = tiled_product(x, y, torch.zeros(16, 16), torch.ones(16, 16, 16), True, 0, "tf32")
    assert out.isnan().all()


def test_the_operation_keeps_what_pytorch_asks_of_one() -> None:
    x, y = torch.randn(16, 20, 4), torch.randn(16, 4, 18)
    for sums in (0, 1, 2):
        given = (x, y, torch.randn(16, 18), torch.randn(16, 20, 18), True, sums, "tf32x3")
        torch.library.opcheck(tiled_product, given)


def test_products_are_tiled_only_where_a_run_asks_for_it() -> None:
    """A configuration of an earlier version has no such key, and keeps its last bits."""
    values = {"algo": "bc", "dataset": {"kind": "random"}, "env_id": "Pendulum-v1"}
    assert TrainConfig(**values, total_updates=1).products == "library"
    how = (dict, nullcontext, Pause())
    assert not Compiled(*how).is_tiled
    with tiling():
        assert Compiled(*how).is_tiled
    assert not Compiled(*how).is_tiled


INTERPRETED = """
import torch
from rl_training.runtime import products, tiles
torch.manual_seed(0)
for m, n, k in ((40, 70, 90), (256, 17, 64), (23, 64, 96), (80, 130, 17), (64, 64, 1)):
    for turned_a in (False, True):
        for turned_b in (False, True):
            a = torch.randn(2, m, k + 3)[..., :k]
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
