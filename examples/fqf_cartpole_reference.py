"""FQF on CartPole with the packaged config: does it balance, and do its fractions move?

Trains `fqf/cartpole` and records the proposed fractions after every evaluation, always in the
same states. The whole budget takes several minutes on one core; `--timesteps 10000` is a
quicker look. Run it with `python examples/fqf_cartpole_reference.py`.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from rl_training import FQF, Callback, EvalEvent
from rl_training.models.value_networks import MLPFQFNetwork

SOLVED_RETURN = 475.0
"""The mean return at which Gymnasium calls CartPole-v1 solved."""


@dataclass(frozen=True)
class Look:
    """The policy and its fractions at one evaluation."""

    timestep: int
    return_mean: float
    return_std: float
    moved: float
    """Mean distance of the fractions from the previous evaluation."""
    shift: float
    """Largest distance of a fraction from its value in equal fractions, mean over states."""
    entropy: float
    """Entropy of the widths relative to its maximum: 1 for equal ones, 0 for a collapse."""


class FractionWatch(Callback):
    """Records the fractions after every evaluation."""

    def __init__(self, agent: FQF, states: Tensor) -> None:
        assert isinstance(agent.algorithm.policy, MLPFQFNetwork)
        self.network, self.states = agent.algorithm.policy, states
        self.looks: list[Look] = []
        self.taus = self.propose()

    @torch.no_grad()
    def propose(self) -> Tensor:
        """(states, N + 1) fractions."""
        return self.network.propose(self.network.features(self.states))[0]

    def on_eval(self, event: EvalEvent) -> None:
        assert event.result is not None  # the run has an environment
        before, self.taus = self.taus, self.propose()
        widths = self.taus.diff(dim=-1)
        equal = torch.linspace(0.0, 1.0, self.taus.shape[-1], device=self.taus.device)
        entropy = torch.special.entr(widths).sum(-1).mean()
        self.looks.append(
            Look(
                event.tick,
                event.result.return_mean,
                event.result.return_std,
                moved=float((self.taus - before)[:, 1:-1].abs().mean()),
                shift=float((self.taus - equal).abs().amax(-1).mean()),
                entropy=float(entropy) / math.log(widths.shape[-1]),
            )
        )


def table_of(looks: list[Look]) -> Table:
    table = Table(title="\nFQF on CartPole-v1", title_justify="left")
    for name in ("steps", "return", "±", "fractions moved", "shift", "entropy"):
        table.add_column(name, justify="right")
    for look in looks:
        table.add_row(
            f"{look.timestep:,}",
            f"{look.return_mean:,.1f}",
            f"{look.return_std:,.1f}",
            f"{look.moved:.4f}",
            f"{look.shift:.3f}",
            f"{look.entropy:.3f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--timesteps", type=int, default=50_000, help="fewer for a quicker look")
    arguments = parser.parse_args()

    out = Console()
    agent = FQF.from_config(
        "fqf/cartpole",
        seed=arguments.seed,
        output_dir=arguments.output_dir,
        eval_interval=max(arguments.timesteps // 10, 1),
    )
    # states from random actions, the same in every evaluation
    seen = agent.collect(episodes=10, epsilon=1.0).observations
    states = torch.as_tensor(seen, device=agent.algorithm.update_count.device)
    watch = FractionWatch(agent, states)
    result = agent.learn(total_timesteps=arguments.timesteps, callbacks=[watch])

    out.print(table_of(watch.looks))
    best, last = max(watch.looks, key=lambda look: look.return_mean), watch.looks[-1]
    solved = next((look for look in watch.looks if look.return_mean >= SOLVED_RETURN), None)
    if solved:
        out.print(f"Solved ({SOLVED_RETURN:.0f} or more) by step {solved.timestep:,}.")
    else:
        out.print(f"Not solved: the best return was {best.return_mean:,.1f}.")
    out.print(
        f"Fractions moved {sum(look.moved for look in watch.looks):.4f} in all and keep "
        f"{last.entropy:.1%} of the largest entropy; best return {best.return_mean:,.1f} at step "
        f"{best.timestep:,}, last {last.return_mean:,.1f}.",
        soft_wrap=True,
    )
    out.print(f"Run folder: {result.run_dir}", soft_wrap=True)


if __name__ == "__main__":
    main()
