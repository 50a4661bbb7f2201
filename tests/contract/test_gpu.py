"""Every update can be captured in a CUDA graph, sampling included. Needs a GPU."""

from __future__ import annotations

import copy

import pytest
import torch

from .small_runs import cases, small_config, small_learner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def captured(step):
    """`step` as a graph replay, after the warm-up that capturing asks for."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


@pytest.mark.parametrize(("algo", "kind"), cases())
def test_update_and_sampling_are_captured(algo: str, kind: str) -> None:
    config = small_config(algo, kind, device="cuda", algo_kwargs={"grad_clip": 1.0})
    algorithm, table = small_learner(config)
    replay = captured(lambda: algorithm.step(table.sample(32)))
    before = {key: value.clone() for key, value in algorithm.state_dict().items()}
    for _ in range(5):
        replay()
    torch.cuda.synchronize()
    assert int(algorithm.update_count) == int(before["update_count"]) + 5
    assert algorithm.first_nonfinite() is None
    assert algorithm.nonfinite_weight() is None
    moved = [key for key, value in algorithm.state_dict().items() if not value.equal(before[key])]
    assert set(moved) >= {key for key, p in algorithm.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("algo", ["bc", "awr", "marwil", "iql"])
def test_graph_and_eager_agree(algo: str) -> None:
    """For algorithms without noise of their own, on one fixed batch."""
    algorithm, table = small_learner(small_config(algo, device="cuda"))
    eager = copy.deepcopy(algorithm)
    batch = table.sample(32)
    replay = captured(lambda: algorithm.step(batch))
    for _ in range(200):
        replay()
    for _ in range(203):
        eager.step(batch)
    torch.cuda.synchronize()
    for key, value in eager.state_dict().items():
        other = algorithm.state_dict()[key]
        assert torch.allclose(value.float(), other.float(), rtol=1e-3, atol=1e-4), key
