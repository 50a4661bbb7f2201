"""A data set and a simulator together: better than either alone, within few steps.

The pendulum of `rl_training/SparsePendulum-v0` gets a reward only near the upright position.
Thirty poor episodes show that this is possible. Cloning uses the data alone, SAC the simulator
alone, RLPD both. Run it with `python examples/offline_to_online.py`; it takes a few minutes.
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from rl_training import BC, RLPD, SAC, load_transition_dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--timesteps", type=int, default=8_000, help="in the simulator")
    parser.add_argument("--total-updates", type=int, default=3_000, help="of cloning")
    arguments = parser.parse_args()
    options = {"seed": arguments.seed, "output_dir": arguments.output_dir}

    out = Console()
    rlpd = RLPD.from_config("rlpd/pendulum", **options)
    task = rlpd.config.env_id
    data = load_transition_dataset("sparse-pendulum-clumsy")
    sizes = {name: rlpd.config.algo_kwargs[name] for name in ("hidden_sizes", "learning_starts")}

    out.print("1. Cloning, from the data alone:")
    bc = BC(task, dataset=data, hidden_sizes=sizes["hidden_sizes"], **options)
    bc.learn(total_updates=arguments.total_updates)
    out.print("\n2. SAC, in the simulator alone:")
    sac = SAC(task, **sizes, **options)
    sac.learn(total_timesteps=arguments.timesteps)
    out.print("\n3. RLPD, from the data and in the simulator:")
    result = rlpd.learn(total_timesteps=arguments.timesteps)

    table = Table(title="\nMean return on the sparse pendulum", title_justify="left")
    table.add_column("policy")
    table.add_column("return", justify="right")
    table.add_row("the data", f"{data.episode_returns().mean():,.0f}")
    for name, agent in (("BC, data alone", bc), ("SAC, simulator alone", sac), ("RLPD", rlpd)):
        table.add_row(name, f"{agent.evaluate(20).return_mean:,.0f}")
    out.print(table)
    out.print("The same from the shell:")
    out.print(f"  rl-training train rlpd/pendulum --seed {arguments.seed}", soft_wrap=True)
    out.print(f"  rl-training eval {result.run_dir}", soft_wrap=True)


if __name__ == "__main__":
    main()
