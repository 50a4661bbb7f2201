"""Steps of a model's fit: an ensemble, one member, and a list of members; and whole runs."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.process import Request, answer_job
from rl_training.algorithms.dynamics import (
    BOUND_COEF,
    ModelParams,
    ensemble_model,
    layer_decays,
    trained_parameters,
)
from rl_training.algorithms.fitting import fit_step
from rl_training.algorithms.optim import FusedAdam
from rl_training.envs.make import env_spaces
from rl_training.experiment.config import load_config
from rl_training.models import EnsembleMLP
from rl_training.runtime.build import build_algorithm, build_loop, keep_freed_memory, run_scope


def ensemble_step(spec: dict[str, Any], members: int) -> Callable[[], Any]:
    """One step of our fit on rows of noise."""
    params = ModelParams(num_members=members, num_elites=1, **spec["knobs"])
    model = ensemble_model(spec["obs_dim"], spec["action_dim"], params)
    parameters, decays = trained_parameters(model, params)
    optimizer = FusedAdam(parameters, params.model_lr, decays)
    rows = (members, params.model_batch_size)
    inputs = torch.randn(*rows, spec["obs_dim"] + spec["action_dim"])
    targets = torch.randn(*rows, spec["obs_dim"] + 1)
    return lambda: fit_step(model, optimizer, params, inputs, targets)


def list_step(spec: dict[str, Any], members: int) -> Callable[[], Any]:
    """The same step, member after member."""
    params = ModelParams(**spec["knobs"])
    width = spec["obs_dim"] + 1
    inside = spec["obs_dim"] + spec["action_dim"]
    sizes = [inside, *params.model_hidden_sizes, 2 * width]
    pairs = list(itertools.pairwise(sizes))
    decays = layer_decays(params.model_weight_decay, len(pairs))
    nets = []
    for _ in range(members):
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairs:
            layers += [nn.Linear(fan_in, fan_out), nn.SiLU()]
        nets.append(nn.Sequential(*layers[:-1]))
    high, low = (nn.Parameter(torch.full((width,), value)) for value in (0.5, -10.0))
    groups: list[dict[str, Any]] = [{"params": [high, low]}]
    for net in nets:
        linear = [layer for layer in net if isinstance(layer, nn.Linear)]
        groups += [
            {"params": [layer.weight], "weight_decay": decay}
            for layer, decay in zip(linear, decays, strict=True)
        ]
        groups.append({"params": [layer.bias for layer in linear]})
    optimizer = torch.optim.Adam(groups, params.model_lr)
    inputs = torch.randn(members, params.model_batch_size, inside)
    targets = torch.randn(members, params.model_batch_size, width)

    def step() -> None:
        total: Tensor = BOUND_COEF * (high - low).sum()
        for net, x, y in zip(nets, inputs, targets, strict=True):
            mean, log_var = net(x).chunk(2, -1)
            log_var = high - F.softplus(high - log_var)
            log_var = low + F.softplus(log_var - low)
            total = total + ((mean - y).square() * torch.exp(-log_var) + log_var).mean()
        optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def product_step(spec: dict[str, Any], members: int) -> Callable[[], Any]:
    """The matrix products of that step, forward and backward, and nothing else."""
    params = ModelParams(**spec["knobs"])
    inside = spec["obs_dim"] + spec["action_dim"]
    sizes = [inside, *params.model_hidden_sizes, 2 * (spec["obs_dim"] + 1)]
    layers = [
        (
            torch.randn(members, params.model_batch_size, fan_in),
            torch.randn(members, fan_in, fan_out),
            torch.randn(members, params.model_batch_size, fan_out),
        )
        for fan_in, fan_out in itertools.pairwise(sizes)
    ]

    def step() -> None:
        for i, (inputs, weights, gradients) in enumerate(layers):
            torch.bmm(inputs, weights)
            torch.bmm(inputs.transpose(1, 2), gradients)
            if i:  # nobody asks for the gradient of the inputs of the first
                torch.bmm(gradients, weights.transpose(1, 2))

    return step


def rate(work: Callable[[], Any], rounds: int) -> float:
    began = time.perf_counter()
    for _ in range(rounds):
        work()
    return rounds / (time.perf_counter() - began)


def compare_fits(spec: dict[str, Any]) -> dict[str, Any]:
    """Four sides that take turns."""
    members = spec["members"]
    sides = {
        "ensemble": ensemble_step(spec, members),
        "one": ensemble_step(spec, 1),
        "list": list_step(spec, members),
        "products": product_step(spec, members),
    }
    turns = {}
    for name, side in sides.items():
        rate(side, 3)
        turns[name] = max(1, round(rate(side, 5) * spec["turn_seconds"]))
    measured: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(spec["rounds"]):
        for name, side in sides.items():
            measured[name].append(rate(side, turns[name]))
    ours, one, listed, products = measured.values()
    return {
        **{name: median(values) for name, values in measured.items()},
        "times_one": median(b / a for a, b in zip(ours, one, strict=True)),
        "times_list": median(a / b for a, b in zip(ours, listed, strict=True)),
        "products_over_one": median(b / a for a, b in zip(products, one, strict=True)),
    }


@contextmanager
def member_by_member() -> Iterator[None]:
    """Inside, the members of every SiLU ensemble, which are the models, are asked in turn."""
    together = EnsembleMLP.forward

    def in_turn(self: EnsembleMLP, x: Tensor, members: Tensor | None = None) -> Tensor:
        if self.activation != "silu":
            return together(self, x, members)
        numbers = range(self.num_members) if members is None else members.tolist()
        outputs = []
        for place, member in enumerate(numbers):
            y = x if x.dim() == 2 else x[place]
            last = len(self.weights) - 1
            for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
                y = y @ weight[member] + bias[member]
                y = y if layer == last else F.silu(y)
            outputs.append(y)
        return torch.stack(outputs)

    with patch.object(EnsembleMLP, "forward", in_turn):
        yield


def compare_runs(spec: dict[str, Any]) -> dict[str, Any]:
    """Whole runs, ours and member by member, in turns."""

    def steps_per_second() -> float:
        config = load_config(spec["config"], ["device=cpu", "threads=1", "engine=eager"])
        start = config.algo_kwargs["learning_starts"]
        config = config.replace(total_timesteps=start + spec["env_steps"])
        assert config.env_id is not None
        spaces = env_spaces(config.env_id)
        with run_scope(config, spaces):
            loop = build_loop(config, build_algorithm(config, spaces))
            loop.advance(start - 1)
            began = time.perf_counter()
            loop.advance(spec["env_steps"])
            taken = time.perf_counter() - began
            loop.close()
        return float(spec["env_steps"] / taken)

    measured: list[list[float]] = [[], []]
    for _ in range(spec["rounds"]):
        measured[0].append(steps_per_second())
        with member_by_member():
            measured[1].append(steps_per_second())
    ratios = [ours / theirs for ours, theirs in zip(*measured, strict=True)]
    return {
        "ours": median(measured[0]),
        "theirs": median(measured[1]),
        "ratio": median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }


def work(request: Request) -> dict[str, Any]:
    spec = request.spec
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    load = os.getloadavg()[0]
    result = compare_fits(spec) if spec["kind"] == "fit" else compare_runs(spec)
    print(", ".join(f"{name} {value:.2f}" for name, value in result.items()))
    return {**result, "load_before": round(load, 2)}


if __name__ == "__main__":
    answer_job(work, ("rl-training", "torch", "numpy", "gymnasium"))
