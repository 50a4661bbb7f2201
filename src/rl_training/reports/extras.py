"""What a report can hold beside the numbers in the files of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # PyTorch, without which a list of runs starts sooner
    from rl_training.data.dataset import TransitionDataset

PREDICTIONS = "model/open_loop"
"""Name under which a run logs what its world model expected."""


@dataclass(frozen=True)
class Extras:
    """What a report holds beside the files of a run folder."""

    videos: tuple[tuple[str, str], ...] = ()
    """Captions, and videos as data URIs."""
    predictions: str = ""
    """An animated image of what a world model expected, as a data URI."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """A summary of the data, by name; `return mean` and `return max` are drawn in."""
    notes: tuple[str, ...] = ()


def data_summary(dataset: TransitionDataset) -> dict[str, Any]:
    """Size and returns of the data that a run learned from."""
    lengths = dataset.episode_lengths()
    about: dict[str, Any] = {
        "name": dataset.name,
        "fingerprint": dataset.fingerprint(),
        "steps": f"{len(dataset):,}",
        "episodes": f"{dataset.num_episodes:,}",
        "episode length": " to ".join(
            f"{length:,}" for length in dict.fromkeys([lengths.min(), lengths.max()])
        ),
    }
    if dataset.has_rewards:
        returns = dataset.episode_returns()
        about |= {
            "return mean": float(returns.mean()),
            "return min": float(returns.min()),
            "return max": float(returns.max()),
        }
    return about


def newest_prediction(run_dir: Path) -> bytes | None:
    """The newest animated image of a world model's predictions that a run has logged for
    TensorBoard; None if there is none."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    newest: tuple[int, bytes] | None = None
    for file in sorted((run_dir / "tensorboard").glob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.tag == PREDICTIONS and (newest is None or event.step >= newest[0]):
                    newest = event.step, value.image.encoded_image_string
    return None if newest is None else newest[1]
