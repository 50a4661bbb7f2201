"""Follow a run with your own callback and write its metrics to your own logger.

    python examples/own_callback_and_logger.py

The logger is named in the config as `module:Class`, so that the command line can also use it:
`rl-training train ppo/cartpole loggers=[own_callback_and_logger:Best]` in this folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import rl_training
from rl_training import PPO, Callback, EvalEvent, LogEvent, StartEvent


class StopWhenSolved(Callback):
    """Prints the learning curve and ends the run at a target return."""

    def __init__(self, target: float) -> None:
        self.target = target

    def on_start(self, event: StartEvent) -> None:
        print(f"{event.config.algo} in {event.run_dir}, {event.total:,} steps at most")

    def on_log(self, event: LogEvent) -> None:
        if "rollout/return_mean" in event.metrics:
            rate = event.metrics["time/env_steps_per_second"]
            mean = event.metrics["rollout/return_mean"]
            print(f"{event.tick:>8,} steps  return {mean:6.1f}  {rate:,.0f} steps/s")

    def on_eval(self, event: EvalEvent) -> None:
        if event.result is not None and event.result.return_mean >= self.target:
            event.request_stop(f"return {event.result.return_mean:.0f} at {event.tick:,} steps")


class Best:
    """A logger: keeps the best value of every metric in `best.txt` of the run folder."""

    def open(self, run: rl_training.RunInfo) -> None:
        self.path, self.best = run.run_dir / "best.txt", dict[str, float]()

    def write(self, event: rl_training.MetricsEvent) -> None:
        for name, value in event.numbers.items():
            self.best[name] = max(value, self.best.get(name, value))

    def close(self, status: str) -> None:
        lines = [f"{name} {value:g}\n" for name, value in self.best.items()]
        self.path.write_text(f"{status}\n{''.join(lines)}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    agent = PPO.from_config(
        "ppo/cartpole",
        seed=arguments.seed,
        output_dir=arguments.output_dir,
        total_timesteps=arguments.timesteps,
        eval_interval=arguments.timesteps // 2,
        log_interval=512,
        loggers=["csv", f"{__name__}:Best"],
    )
    result = agent.learn(callbacks=[StopWhenSolved(475.0)], progress=False)
    print(f"ended: {result.stop_reason}")
    print((result.run_dir / "best.txt").read_text(encoding="utf-8").splitlines()[0])
    print(f"curves: {result.run_dir / 'metrics.csv'}")


if __name__ == "__main__":
    main()
