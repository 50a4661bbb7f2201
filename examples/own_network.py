"""Train SAC with networks of your own: Fourier features before the policy and the critics.

    python examples/own_network.py

The function is stored by its name, so the command line can use it, too: in this folder,
`rl-training train sac/pendulum algo_kwargs.networks=own_network:fourier_networks`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from rl_training import SAC, NetworkRequest


class FourierFeatures(nn.Module):
    """Sines and cosines of learned directions in the space of observations."""

    def __init__(self, inputs: int, features: int) -> None:
        super().__init__()
        self.directions = nn.Linear(inputs, features)

    def forward(self, obs: Tensor) -> Tensor:
        angles = self.directions(obs)
        return torch.cat([angles.sin(), angles.cos()], -1)


def fourier_networks(request: NetworkRequest) -> nn.Module | None:
    """An encoder for every network; policy and critics on it are the usual ones."""
    if request.role == "encoder":
        return FourierFeatures(request.in_shape[0], 64)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    for name, networks in (("MLP alone", None), ("Fourier features", fourier_networks)):
        agent = SAC(
            "Pendulum-v1",
            networks=networks,
            hidden_sizes=[128, 128],
            seed=arguments.seed,
            output_dir=arguments.output_dir,
        )
        result = agent.learn(total_timesteps=arguments.timesteps)
        assert result.held_out is not None
        print(f"{name}: {result.held_out}")
    print(f"stored as networks: {agent.config.algo_kwargs['networks']}")


if __name__ == "__main__":
    main()
