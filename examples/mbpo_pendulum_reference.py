"""MBPO on Pendulum with the packaged config: few real steps, and the quality of its model.

Trains `mbpo/pendulum` and prints, for every evaluation, the return next to the error and the
calibration of the current model. The whole budget takes a few minutes on one core;
`--timesteps 2000` is a quicker look. Run it with `python examples/mbpo_pendulum_reference.py`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rl_training import MBPO

SOLVED_RETURN = -200.0
EVERY = 500
MODEL = ("model/mse_state", "model/mse_reward", "model/calibration", "imagined/reward_mean")


def read_looks(run_dir: Path) -> list[dict[str, Any]]:
    """Every evaluation with the training metrics that were logged at the same step."""
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    logged = {event["tick"]: event for event in events if event["event"] == "train"}
    return [
        {**logged.get(event["tick"], {}), **event} for event in events if event["event"] == "eval"
    ]


def table_of(looks: list[dict[str, Any]]) -> Table:
    table = Table(title="\nMBPO on Pendulum-v1", title_justify="left")
    names = ("state error", "reward error", "calibration", "imagined reward")
    for name in ("real steps", "return", *names):
        table.add_column(name, justify="right")
    for look in looks:
        model = [f"{look[key]:.4f}" if key in look else "–" for key in MODEL]
        table.add_row(f"{look['tick']:,}", f"{look['eval/return_mean']:,.1f}", *model)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--timesteps", type=int, default=4_000, help="fewer for a quicker look")
    arguments = parser.parse_args()

    out = Console()
    agent = MBPO.from_config(
        "mbpo/pendulum",
        seed=arguments.seed,
        output_dir=arguments.output_dir,
        eval_interval=EVERY,
        log_interval=EVERY,
    )
    result = agent.learn(total_timesteps=arguments.timesteps)

    looks = read_looks(result.run_dir)
    out.print(table_of(looks))
    out.print(
        "Errors are squared and standardised: 1 is that of predicting the mean. A calibration of "
        "0.68 is right; a larger one means that the model is underconfident.",
        soft_wrap=True,
    )
    solved = next((look for look in looks if look["eval/return_mean"] >= SOLVED_RETURN), None)
    if solved:
        out.print(f"Swings up ({SOLVED_RETURN:.0f} or more) by real step {solved['tick']:,}.")
    else:
        best = max(look["eval/return_mean"] for look in looks)
        out.print(f"Not swinging up yet: the best return was {best:,.1f}.")
    out.print(f"Run folder: {result.run_dir}", soft_wrap=True)


if __name__ == "__main__":
    main()
