"""A demo of two minutes: learn to swing up a pendulum from half good, half random data.

Trains behaviour cloning and AWR on the same scripted episodes and compares their returns.
Run it with `make demo`, or `python examples/demo.py`.
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from rl_training import AWR, BC, load_transition_dataset
from rl_training.reports.extras import Extras, data_summary
from rl_training.reports.report import write_report
from rl_training.reports.runs import read_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--total-updates", type=int, default=None, help="for a quicker look")
    arguments = parser.parse_args()
    options = {"seed": arguments.seed, "output_dir": arguments.output_dir}

    out = Console()
    data = load_transition_dataset("pendulum-mixed")
    returns = data.episode_returns()
    out.print(
        f"Data: {len(returns)} episodes of Pendulum-v1, half from a scripted expert, half random."
    )

    out.print("\n1. Behaviour cloning copies both halves:")
    bc = BC.from_config("bc/pendulum", **options)
    cloned = bc.learn(arguments.total_updates)

    out.print("\n2. AWR copies the actions that turned out better than expected:")
    awr = AWR.from_config("awr/pendulum", **options)
    result = awr.learn(arguments.total_updates)

    table = Table(title="\nMean return (higher is better)", title_justify="left")
    table.add_column("policy")
    table.add_column("return", justify="right")
    table.add_row("the data itself", f"{returns.mean():,.0f}")
    table.add_row("behaviour cloning", f"{bc.evaluate(50).return_mean:,.0f}")
    table.add_row("AWR", f"{awr.evaluate(50).return_mean:,.0f}")
    table.add_row("the scripted expert", f"{returns[: len(returns) // 2].mean():,.0f}")
    out.print(table)

    run = result.run_dir
    report = run / "comparison.html"
    about = Extras(data=data_summary(data))
    runs = [read_run(cloned.run_dir), read_run(run)]
    write_report(runs, report, {one.folder: about for one in runs})
    out.print(f"\nRun folder: {run}", soft_wrap=True)
    out.print(f"Report for the browser: {report}", soft_wrap=True)
    out.print("Continue with:", soft_wrap=True)
    for command in (
        f"rl-training eval {run} --episodes 100",
        f"rl-training predict {run} '[1.0, 0.0, 0.0]'",
        f"rl-training resume {run}",
        f"tensorboard --logdir {arguments.output_dir}",
    ):
        out.print(f"  .venv/bin/{command}", soft_wrap=True)


if __name__ == "__main__":
    main()
