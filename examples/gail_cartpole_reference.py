"""Learns to balance from demonstrations alone, and checks that they were the cause.

GAIL gets every tenth step of ten demonstrations, and never a reward. It is trained
three times: on an expert that balances in the middle, on one that balances at the left
edge, and on random actions. The task has a fixed horizon, so that staying alive gives
no advantage; see docs/algorithms/gail.md. Run it with
`python examples/gail_cartpole_reference.py`; it takes about three minutes.
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from rl_training import GAIL, load_transition_dataset

DEMONSTRATIONS = {
    "an expert in the middle": "fixed-cartpole-expert",
    "an expert at the left edge": "fixed-cartpole-left",
    "random actions": "fixed-cartpole-random",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--timesteps", type=int, default=300_000, help="in the simulator, each")
    arguments = parser.parse_args()
    options = {"seed": arguments.seed, "output_dir": arguments.output_dir}

    out = Console()
    table = Table(title="\nDemonstrations and learned policies", title_justify="left")
    table.add_column("demonstrations of")
    for column in ("their return", "their position", "return", "position"):
        table.add_column(column, justify="right")
    for i, (words, name) in enumerate(DEMONSTRATIONS.items(), 1):
        out.print(f"{i}. From {words}:")
        agent = GAIL.from_config("gail/cartpole", dataset=name, **options)
        result = agent.learn(total_timesteps=arguments.timesteps)
        shown, done = load_transition_dataset(name), agent.collect(episodes=10, seed=100)
        table.add_row(
            words,
            *(
                text
                for data in (shown, done)
                for text in (
                    f"{data.episode_returns().mean():,.0f}",
                    f"{data.observations[:, 0].mean():,.2f}",
                )
            ),
        )
    out.print(table)
    out.print("The same from the shell:")
    out.print(f"  rl-training train gail/cartpole --seed {arguments.seed}", soft_wrap=True)
    out.print(f"  rl-training eval {result.run_dir}", soft_wrap=True)


if __name__ == "__main__":
    main()
