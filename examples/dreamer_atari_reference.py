"""A world model of an Atari game and the policy trained inside it.

Dreamer plays 25,000 steps (100,000 frames) of Boxing from pixels. At the end the model gets
five images from its replay and predicts the next ones from the actions alone: its error is
printed next to that of a model that predicts no change. Run it
with `python examples/dreamer_atari_reference.py`; it needs a GPU and takes about half an hour.
`--game catch` does the same in a small task of this package, in ten minutes on one core.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from rl_training import Callback, Dreamer, EvalEvent
from rl_training.algorithms.dreamer import DreamerAlgorithm
from rl_training.experiment.checkpoint import read_checkpoint
from rl_training.replay.sequences import SequenceReplay, latent_parts

SHOWN, SEGMENTS = 5, 64


class Scores(Callback):
    """Keeps every evaluation."""

    def __init__(self) -> None:
        self.curve: list[tuple[int, float]] = []

    def on_eval(self, event: EvalEvent) -> None:
        assert event.result is not None  # the run has an environment
        self.curve.append((event.tick, event.result.return_mean))


def stored_experience(agent: Dreamer, checkpoint: Any) -> SequenceReplay:
    """Load the replay of a run from its newest checkpoint."""
    algorithm = agent.algorithm
    assert isinstance(algorithm, DreamerAlgorithm)
    size = algorithm.rssm.size
    replay = SequenceReplay(
        agent.config.params.buffer_capacity,
        agent.config.num_envs,
        algorithm.spaces,
        algorithm.update_count.device,
        latent_parts(size.deter, size.latents),
    )
    replay.load_training_state(read_checkpoint(checkpoint, ("replay",))[1]["replay"])
    return replay


def expectations(agent: Dreamer, checkpoint: Any) -> list[tuple[int, float, float]]:
    """Steps ahead, the model's squared error, and that of the last image it observed."""
    algorithm, replay = agent.algorithm, stored_experience(agent, checkpoint)
    assert isinstance(algorithm, DreamerAlgorithm)
    steps = min(SHOWN + 15, replay.shortest - 1)
    device = algorithm.update_count.device
    batch = replay.sample(SEGMENTS, steps, torch.rand(2, SEGMENTS, device=device))
    truth = algorithm.seen(batch.obs)
    expected = algorithm.open_loop(batch, SHOWN).obs
    # steps after another reset cannot be predicted
    alive = batch.first[:, SHOWN:].cumsum(1) == 0
    rows = []
    for ahead in (1, 5, 10, 15):
        t = SHOWN + ahead - 1
        if t < steps and bool(alive[:, t - SHOWN].any()):
            kept = alive[:, t - SHOWN]
            model = (expected[kept, t] - truth[kept, t]).square().mean()
            copy = (truth[kept, SHOWN - 1] - truth[kept, t]).square().mean()
            rows.append((ahead, float(model), float(copy)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--game", default="boxing", help="an Atari game, or catch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--timesteps", type=int, help="in the game; 25,000, of catch 10,000")
    arguments = parser.parse_args()
    options: dict[str, Any] = {"seed": arguments.seed, "output_dir": arguments.output_dir}
    if arguments.game == "catch":
        agent = Dreamer.from_config("dreamer/catch", **options)
    else:
        own = Dreamer.from_config("dreamer/boxing_atari", **options)
        game = {**own.config.env_kwargs, "game": arguments.game}
        agent = Dreamer.from_config("dreamer/boxing_atari", env_kwargs=game, **options)
    steps = arguments.timesteps or (10_000 if arguments.game == "catch" else 25_000)
    scores = Scores()
    result = agent.learn(total_timesteps=steps, callbacks=[scores])

    out = Console()
    table = Table(title="\nReturn of the policy without exploration", title_justify="left")
    for column in ("environment steps", "return"):
        table.add_column(column, justify="right")
    for tick, value in scores.curve:
        table.add_row(f"{tick:,}", f"{value:,.2f}")
    out.print(table)
    table = Table(title="\nOpen-loop predictions from the actions", title_justify="left")
    for column in ("steps ahead", "error of the model", "error of the last image"):
        table.add_column(column, justify="right")
    checkpoint = max((result.run_dir / "checkpoints").glob("[0-9]*"))
    for ahead, model, copy in expectations(agent, checkpoint):
        table.add_row(f"{ahead}", f"{model:.5f}", f"{copy:.5f}")
    out.print(table)
    out.print("Videos of the predictions: ")
    out.print(f"  tensorboard --logdir {result.run_dir}", soft_wrap=True)
    out.print(f"  rl-training eval {result.run_dir} --video dreamer.mp4", soft_wrap=True)


if __name__ == "__main__":
    main()
