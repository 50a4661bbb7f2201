"""Acting again and again: one CUDA graph on a GPU, and the same actions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from rl_training.algorithms.base import Act
from rl_training.algorithms.dreamer import DreamerAlgorithm
from rl_training.envs.make import env_spaces
from rl_training.envs.toys.catch import CATCH_ID
from rl_training.experiment.registry import algorithm_class
from rl_training.models import Carry
from rl_training.runtime.acting import RepeatedActing, acts_by_tensors

from ..contract.small_runs import small_config

ENVS, STEPS = 2, 6
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class Follower(DreamerAlgorithm):
    """Its actions depend on a number of Python, which a graph would keep."""

    choice = 0

    def act(self, obs: Tensor, *, explore: bool, carry: Carry | None = None) -> Act:
        acted = super().act(obs, explore=explore, carry=carry)
        return acted._replace(action=torch.full_like(acted.action, self.choice))


class Waiter(DreamerAlgorithm):
    """Waits for the device, against what it says."""

    acts_by_tensors = True

    def act(self, obs: Tensor, *, explore: bool, carry: Carry | None = None) -> Act:
        acted = super().act(obs, explore=explore, carry=carry)
        assert int(acted.action[0]) >= 0
        return acted


def an_agent(kind: type[DreamerAlgorithm], device: str) -> DreamerAlgorithm:
    # in float64, because the last bit of a sum decides which latent state is drawn
    config = small_config("dreamer", env_id=CATCH_ID)
    return kind(env_spaces(CATCH_ID), config.params).to(device).double()


def observations(agent: DreamerAlgorithm) -> list[Tensor]:
    generator, shape = np.random.default_rng(0), (ENVS, *agent.spaces.obs_shape)
    dtype = agent.spaces.obs_dtype
    return [torch.from_numpy(generator.integers(0, 256, shape).astype(dtype)) for _ in range(STEPS)]


def acted(act: Callable[[Tensor, Carry | None], Act], agent: DreamerAlgorithm) -> list[Act]:
    """Some steps of an episode, with the same observations and seed every time."""
    torch.manual_seed(3)
    carry, found = None, []
    for obs in observations(agent):
        found.append(act(obs, carry))
        carry = found[-1].carry
    return found


def plainly(agent: DreamerAlgorithm, explore: bool = True) -> list[Act]:
    """The same by the algorithm's own `act`."""
    device = agent.update_count.device
    return acted(lambda obs, carry: agent.act(obs.to(device), explore=explore, carry=carry), agent)


def assert_same(found: list[Act], expected: list[Act]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.action.tolist() == other.action.tolist()
        for x, y in zip(tree_leaves(one.carry), tree_leaves(other.carry), strict=True):
            torch.testing.assert_close(x, y)


def test_what_an_override_depends_on_is_not_known() -> None:
    assert acts_by_tensors(DreamerAlgorithm)
    assert not acts_by_tensors(Follower)
    assert acts_by_tensors(Waiter)
    assert not acts_by_tensors(algorithm_class("dqn"))  # its epsilon is a number of Python


def test_on_the_host_it_is_the_algorithms_own_act() -> None:
    agent, notes = an_agent(DreamerAlgorithm, "cpu"), list[str]()
    assert_same(
        acted(RepeatedActing(agent, explore=True, note=notes.append), agent), plainly(agent)
    )
    assert not notes


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("explore", [True, False])
def test_a_graph_chooses_the_same_actions_and_keeps_none_of_them(explore: bool) -> None:
    agent, notes = an_agent(DreamerAlgorithm, "cuda"), list[str]()
    acting = RepeatedActing(agent, explore=explore, note=notes.append)
    found = acted(acting, agent)  # all are held at once, so a graph that reused them would show
    assert list(acting._graphs) == [ENVS]
    assert not notes
    assert_same(found, plainly(agent, explore))
    with torch.no_grad():  # new weights are seen, and the same graph serves another episode
        for parameter in agent.actor.parameters():
            parameter.neg_()
    assert_same(acted(acting, agent), plainly(agent, explore))


@pytest.mark.gpu
@needs_gpu
def test_a_graph_is_captured_for_what_is_repeated_alone() -> None:
    agent = an_agent(DreamerAlgorithm, "cuda")
    acting = RepeatedActing(agent, explore=True, patience=STEPS - 1)
    assert_same(acted(acting, agent), plainly(agent))
    assert list(acting._graphs) == [ENVS]
    acting(observations(agent)[0][:1], None)
    assert list(acting._graphs) == [ENVS]


@pytest.mark.gpu
@needs_gpu
def test_what_cannot_be_captured_acts_without_a_graph_and_says_so() -> None:
    agent, notes = an_agent(Waiter, "cuda"), list[str]()
    found = acted(RepeatedActing(agent, explore=True, note=notes.append), agent)
    (note,) = notes
    assert note.startswith("acting cannot be captured, it runs eagerly (")
    assert_same(found, plainly(agent))


@pytest.mark.gpu
@needs_gpu
def test_an_override_is_asked_at_every_step() -> None:
    agent = an_agent(Follower, "cuda")
    acting = RepeatedActing(agent, explore=True)
    for agent.choice in (1, 2):
        assert {x for act in acted(acting, agent) for x in act.action.tolist()} == {agent.choice}
