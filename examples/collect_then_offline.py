"""From a simulator to a data set to a policy trained without the simulator.

Trains DQN briefly on CartPole, collects data of mixed quality with its best checkpoint (some
episodes with few random actions, some with many), then trains behaviour cloning and AWR on the
data alone and compares them. Run it with `python examples/collect_then_offline.py`; it takes a
minute or two.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rl_training import AWR, BC, DQN, TransitionDataset, load
from rl_training.data.convert import save_dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--timesteps", type=int, default=20_000, help="of DQN in the simulator")
    parser.add_argument("--episodes", type=int, default=50, help="of data, of each quality")
    parser.add_argument("--total-updates", type=int, default=3_000, help="of each offline policy")
    arguments = parser.parse_args()
    options = {"seed": arguments.seed, "output_dir": arguments.output_dir}

    out = Console()
    out.print("1. DQN learns in the simulator:")
    dqn = DQN.from_config("dqn/cartpole", eval_interval=5_000, **options)
    run_dir = dqn.learn(total_timesteps=arguments.timesteps).run_dir
    best = load(run_dir, checkpoint="best")

    out.print("\n2. Its best checkpoint collects data of mixed quality:")
    good = best.collect(arguments.episodes, epsilon=0.05, seed=1)
    clumsy = best.collect(arguments.episodes, epsilon=0.7, seed=2)
    data = TransitionDataset.concatenate([good, clumsy])
    path = save_dataset(data, Path(run_dir) / "mixed.npz")
    out.print(f"{data.num_episodes} episodes, {len(data):,} steps in {path}", soft_wrap=True)

    out.print("\n3. Two policies learn from the file alone:")
    offline = {"dataset": path, "total_updates": arguments.total_updates, **options}
    bc, awr = BC("CartPole-v1", **offline), AWR("CartPole-v1", **offline)
    bc.learn()
    awr.learn()

    table = Table(title="\nMean return on CartPole-v1 (500 is the maximum)", title_justify="left")
    table.add_column("policy")
    table.add_column("return", justify="right")
    table.add_row("DQN, few random actions (data)", f"{good.episode_returns().mean():,.0f}")
    table.add_row("DQN, mostly random actions (data)", f"{clumsy.episode_returns().mean():,.0f}")
    table.add_row("BC, from the data", f"{bc.evaluate(50).return_mean:,.0f}")
    table.add_row("AWR, from the data", f"{awr.evaluate(50).return_mean:,.0f}")
    table.add_row("DQN itself", f"{best.evaluate(50).return_mean:,.0f}")
    out.print(table)
    out.print("The same from the shell:")
    for command in (
        f"rl-training data collect {run_dir} --checkpoint best -n 50 --epsilon 0.7 --out new.npz",
        "rl-training data inspect new.npz --env CartPole-v1",
        f"rl-training eval {run_dir} --checkpoint best --video dqn.mp4",
    ):
        out.print(f"  {command}", soft_wrap=True)


if __name__ == "__main__":
    main()
