"""Dreamer's update in its fast forms computes what the plain ones do."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rl_training.algorithms.dreamer import DreamerAlgorithm, DreamerParams
from rl_training.envs.spaces import Spaces
from rl_training.models import dreamer as networks
from rl_training.models.dreamer import (
    RSSM,
    SIZES,
    LatentState,
    exponential_noise,
    heads,
    rssm,
    sample_one_hot,
    scan,
)
from rl_training.models.dreamer.scan import PLAIN, CellWeights, Kernels
from rl_training.runtime import agents
from rl_training.runtime.agents import SingleLearner
from rl_training.runtime.compiling import separate

from .test_dreamer import BOX, CATCH, SMALL, learner, sequences

ROWS, STEPS = 3, 6


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(networks.SIZES, "tiny", SMALL)


class Filtering:
    """A model and a sequence that it filters, in double precision."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = RSSM(SMALL, action_dim=3, embed_dim=5).double()
        for parameter in self.model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        self.embed = torch.randn(ROWS, STEPS, 5).double().requires_grad_()
        self.action = torch.randn(ROWS, STEPS, 3).double().requires_grad_()
        self.noise = torch.rand(ROWS, STEPS, SMALL.latents, SMALL.classes).double()
        classes = torch.randint(SMALL.classes, (ROWS, SMALL.latents))
        stoch = torch.eye(SMALL.classes).double()[classes]
        self.state = LatentState(torch.randn(ROWS, SMALL.deter).double(), stoch)
        self.first = torch.zeros(ROWS, STEPS, dtype=torch.bool)
        self.first[0, 2] = self.first[1, 0] = self.first[2, 5] = True

    def filtered(self, kernels: Kernels | None) -> list[torch.Tensor]:
        inputs = self.model.chain_inputs(self.action, self.first, self.embed, self.noise)
        states, posterior = self.model.chain(self.state, inputs, kernels)
        return [*states, posterior]

    def gradients(self, outputs: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        weights = [torch.randn(x.shape, dtype=x.dtype) for x in outputs]
        total = torch.stack([(x * w).sum() for x, w in zip(outputs, weights, strict=True)]).sum()
        weights_of = dict(self.model.named_parameters())
        unused = {name for name in weights_of if name.startswith("prior_head")}
        named = {"embed": self.embed, "action": self.action}
        named |= {name: p for name, p in weights_of.items() if name not in unused}
        return dict(zip(named, torch.autograd.grad(total, list(named.values())), strict=True))


def test_a_chain_is_its_steps_and_so_are_its_gradients() -> None:
    filtering = Filtering()
    wanted, found = filtering.filtered(None), filtering.filtered(PLAIN)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(filtering.gradients(found), filtering.gradients(wanted))


def without_latents(*arguments: Any) -> Any:
    """Gradients of a step that do not go back through the latents before it."""
    grads, chain = PLAIN.backward(*arguments)
    return grads, chain._replace(stoch=torch.zeros_like(chain.stoch))


def across_resets(*arguments: Any) -> Any:
    """Gradients that reach the state before a reset."""
    *rest, masks, outer, chain = arguments
    return PLAIN.backward(*rest, (masks[0], torch.ones_like(masks[1])), outer, chain)


def without_a_bias(cell: CellWeights, w: Any, *arguments: Any) -> Any:
    """Gradients of weights without those of the gates' bias."""
    found = list(PLAIN.weights(cell, w, *arguments))
    at = CellWeights._fields.index("gate_bias")
    found[at] = torch.zeros_like(found[at])
    return tuple(found)


def test_wrong_gradients_of_a_chain_are_found() -> None:
    filtering = Filtering()
    wanted = filtering.gradients(filtering.filtered(None))
    wrong = (
        PLAIN._replace(backward=without_latents),
        PLAIN._replace(backward=across_resets),
        PLAIN._replace(weights=without_a_bias),
    )
    for kernels in wrong:
        found = filtering.gradients(filtering.filtered(kernels))
        different = [k for k in wanted if not torch.allclose(found[k], wanted[k], rtol=1e-3)]
        assert different, kernels


def gradients_of(algorithm: DreamerAlgorithm, seed: int) -> tuple[dict[str, Any], torch.Tensor]:
    """Metrics and all gradients of one update, which is not taken."""
    found: list[Any] = []
    optimizer = algorithm.optimizers["all"]
    optimizer.step = lambda own, due=None: found.extend(own)  # type: ignore[method-assign]
    torch.manual_seed(seed)
    metrics = algorithm.step(sequences(algorithm.spaces, seed=seed))
    assert {g.dtype for g in found} == {torch.float32}
    return metrics, torch.cat([g.flatten() for g in found])


def test_bfloat16_rounds_products_and_nothing_else() -> None:
    for spaces in (CATCH, BOX):
        exact, rounded = learner(spaces), learner(spaces, precision="bfloat16")
        (metrics, wanted), (near, found) = gradients_of(exact, 5), gradients_of(rounded, 5)
        assert not torch.equal(wanted, found)
        for name, value in metrics.items():
            assert float(near[name]) == pytest.approx(float(value), rel=0.05, abs=0.02), name
        assert float(torch.cosine_similarity(wanted, found, 0)) > 0.99
        kinds = {name: x.dtype for name, x in rounded.state_dict().items() if x.is_floating_point()}
        assert set(kinds.values()) == {torch.float32}
        with rounded._rounding(rounded._rounded_weights):
            inside = {name: p.dtype for name, p in rounded.named_parameters()}
        narrow = {name for name, dtype in inside.items() if dtype == torch.bfloat16}
        assert {"rssm.gates.weight", "slow_value.head.layers.0.linear.weight"} <= narrow
        assert not [name for name in narrow if "norm" in name or ".out." in name]
        assert {p.dtype for p in rounded.parameters()} == {torch.float32}


class NarrowSums(TorchDispatchMode):
    """Shapes of sums of two tensors of a shape in bfloat16, where both have an entry that is not 0.

    Those of other shapes are products and their bias."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[torch.Size] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.add, torch.ops.aten.add_):
            kinds = {(x.dtype, x.shape) for x in args[:2] if isinstance(x, torch.Tensor)}
            dtype, shape = kinds.pop()
            if not kinds and dtype == torch.bfloat16 and bool(((args[0] * args[1]) != 0).any()):
                self.shapes.append(shape)
        return func(*args, **(kwargs or {}))


def test_logits_are_not_rounded_to_bfloat16() -> None:
    """Between 16 and 32 neighbours in bfloat16 are 1/8 apart: 12 % of a probability."""
    rounded = learner(CATCH, precision="bfloat16")
    for head in (rounded.value.head, rounded.actor.head, rounded.rssm.prior_head):
        torch.nn.init.zeros_(head.out.weight)
        with torch.no_grad():
            head.out.bias.copy_(torch.linspace(-20.0, 20.0, len(head.out.bias)))
        with rounded._rounding(rounded._rounded_weights):
            found = head(torch.randn(5, head.layers[0].linear.in_features))
        assert torch.equal(found, head.out.bias.expand_as(found))


@pytest.mark.parametrize("spaces", [CATCH, BOX], ids=["image-discrete", "vector-box"])
def test_gradients_of_a_weight_are_not_added_up_in_bfloat16(spaces: Spaces) -> None:
    """Neither over the steps of a sequence nor over the two losses of the critic."""
    rounded = learner(spaces, precision="bfloat16")
    rounded.step(sequences(spaces, seed=1))  # heads that start at zero get weights
    with NarrowSums() as sums:
        rounded.step(sequences(spaces, seed=2))
    assert not sums.shapes


def test_latents_and_actions_are_drawn_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[set[torch.dtype]] = []

    def watched(probs: torch.Tensor, wait: torch.Tensor) -> torch.Tensor:
        drawn.append({probs.dtype, wait.dtype})
        return sample_one_hot(probs, wait)

    for module in (rssm, scan, heads):
        monkeypatch.setattr(module, "sample_one_hot", watched)
    learner(CATCH, precision="bfloat16").step(sequences(CATCH))
    # 6 observed steps, 3 imagined ones with an action each, and the last action
    assert drawn == [{torch.float32}] * (6 + 2 * 3 + 1)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_equal_classes_are_drawn_equally_often_in_float32_alone(kind: torch.dtype) -> None:
    """Noise of 8 bits has ties, which the lowest class wins."""
    torch.manual_seed(0)
    classes, draws = 16, 2**18
    probs = torch.full((draws, classes), 1.0 / classes, dtype=kind)
    drawn = sample_one_hot(probs, exponential_noise(torch.rand(draws, classes, dtype=kind)))
    expected = draws / classes
    errors = drawn.sum(0, dtype=torch.float64) - expected
    likely = 45.0  # of 15 degrees of freedom, exceeded in one of 10,000 cases
    assert (float(errors.square().sum()) / expected < likely) == (kind == torch.float32)


def test_an_update_in_bfloat16_is_resumed_exactly() -> None:
    first, second = (learner(BOX, precision="bfloat16") for _ in range(2))
    first.step(sequences(BOX, seed=1))
    second.load_training_state(first.training_state())
    for algorithm in (first, second):
        torch.manual_seed(2)
        algorithm.step(sequences(BOX, seed=2))
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_every_piece_is_one_graph_and_means_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as on a GPU, without the compiler behind it."""

    def traced(piece: Any) -> Any:
        if isinstance(piece, tuple):
            return type(piece)(*(traced(function) for function in piece))
        return torch.compile(separate(piece), dynamic=False, fullgraph=True, backend="eager")

    monkeypatch.setattr(agents, "fused", traced)
    states = []
    for compiled in (False, True):
        algorithm, batch = learner(BOX, rollout_length=2), sequences(BOX, steps=3)
        runner = SingleLearner(algorithm, lambda _, batch=batch: batch)
        if compiled:
            runner.compile(lambda function: function)
        torch.manual_seed(3)
        with runner.attached():
            runner.update()
        assert algorithm._kernels is None
        assert not set(algorithm.fused_pieces()) - {"_kernels"} & set(vars(algorithm))
        states.append(algorithm.state_dict())
    torch.testing.assert_close(*states)


def test_sizes_have_the_parameters_they_name() -> None:
    """For colour images of 64 by 64 pixels and the actions of Atari games."""
    spaces = Spaces.from_gymnasium(
        gym.spaces.Box(0, 255, (64, 64, 3), np.uint8), gym.spaces.Discrete(18)
    )
    millions = {"1m": 0.79, "12m": 12.1, "25m": 27.0, "50m": 47.9, "100m": 107.6, "200m": 191.1}
    assert set(millions) | {"tiny"} == set(SIZES)
    for size, expected in millions.items():
        with torch.device("meta"):
            algorithm = DreamerAlgorithm(spaces, DreamerParams(size=size))  # type: ignore[arg-type]
        count = sum(p.numel() for p in algorithm.parameters() if p.requires_grad)
        assert count / 1e6 == pytest.approx(expected, abs=0.06), size
