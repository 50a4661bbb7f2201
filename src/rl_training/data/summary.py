"""What a data set is, at a glance, and what can be trained on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.dataset import TransitionDataset
from rl_training.data.readers import read_file_arrays
from rl_training.data.sources import load_transition_dataset
from rl_training.data.spaces import Spaces
from rl_training.data.validation import describe_bounds
from rl_training.experiment.errors import RLTrainingError

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType

QUANTILES = {"min": 0.0, "5%": 0.05, "25%": 0.25, "50%": 0.5, "75%": 0.75, "95%": 0.95, "max": 1.0}
COVERAGE_BINS = 20
HISTOGRAM_BINS = 12
SHOWN_COLUMNS = 24


@dataclass(frozen=True)
class ColumnSummary:
    """One component of an observation or action."""

    low: float
    high: float
    mean: float
    std: float


@dataclass(frozen=True)
class Trainability:
    """Whether an algorithm can be trained on the data, and why not."""

    algorithm: str
    possible: bool
    reason: str


@dataclass(frozen=True)
class DatasetSummary:
    """Plain values: `dataclasses.asdict` of it can be written as JSON."""

    name: str
    spaces: str
    steps: int
    episodes: int
    parts: tuple[tuple[int, float], ...]
    return_quantiles: dict[str, float]
    return_mean: float
    return_histogram: tuple[tuple[float, float, int], ...]  # (from, to, episodes)
    length_min: int
    length_mean: float
    length_max: int
    terminations: int
    truncations: int
    observations: tuple[ColumnSummary, ...]
    actions: tuple[ColumnSummary, ...]  # Box only
    action_coverage: tuple[float, ...]
    """Box: share of each component's range visited, in 20 bins; Discrete: share of each action."""
    action_kind: str
    duplicate_rows: int
    notes: tuple[str, ...] = ()
    trainable: tuple[Trainability, ...] = field(default=())


def summarize(
    dataset: TransitionDataset,
    requirements: Mapping[str, tuple[frozenset[str], bool]] | None = None,
) -> DatasetSummary:
    """Summary of `dataset`; `requirements` are, for each algorithm, the action kinds that
    it takes ("box", "discrete") and whether it needs whole episodes."""
    returns, lengths = dataset.episode_returns(), dataset.episode_lengths()
    counts, edges = np.histogram(returns, bins=HISTOGRAM_BINS if np.ptp(returns) > 0 else 1)
    discrete = dataset.spaces.is_discrete
    return DatasetSummary(
        name=dataset.name,
        spaces=f"observations ({dataset.spaces.obs_dim},), actions "
        f"{describe_bounds(dataset.spaces)}",
        steps=len(dataset),
        episodes=dataset.num_episodes,
        parts=dataset.parts,
        return_quantiles={
            name: float(np.quantile(returns, share)) for name, share in QUANTILES.items()
        },
        return_mean=float(returns.mean()),
        return_histogram=tuple(
            (float(edges[i]), float(edges[i + 1]), int(count)) for i, count in enumerate(counts)
        ),
        length_min=int(lengths.min()),
        length_mean=float(lengths.mean()),
        length_max=int(lengths.max()),
        terminations=int(dataset.terminations.sum()),
        truncations=int(dataset.truncations.sum()),
        observations=_columns(dataset.observations),
        actions=() if discrete else _columns(dataset.actions),
        action_coverage=action_coverage(dataset),
        action_kind=dataset.spaces.action_kind,
        duplicate_rows=count_duplicate_rows(dataset),
        notes=dataset.notes,
        trainable=tuple(
            trainability(dataset, name, kinds, needs_episodes)
            for name, (kinds, needs_episodes) in (requirements or {}).items()
        ),
    )


def trainability(
    dataset: TransitionDataset, algorithm: str, kinds: frozenset[str], needs_episodes: bool
) -> Trainability:
    """Whether an algorithm with these requirements can be trained on `dataset`."""
    kind = dataset.spaces.action_kind
    if kind not in kinds:
        return Trainability(
            algorithm, False, f"takes {' and '.join(sorted(kinds))} actions, these are {kind}"
        )
    if needs_episodes and not dataset.has_whole_episode:
        return Trainability(
            algorithm, False, "needs returns, but no row is marked as an episode's end"
        )
    return Trainability(algorithm, True, "")


def action_coverage(dataset: TransitionDataset) -> tuple[float, ...]:
    """Box: share of 20 equal bins of each component's range that hold an action;
    Discrete: share of the rows with each action."""
    spaces = dataset.spaces
    if spaces.is_discrete:
        counts = np.bincount(dataset.actions - spaces.action_start, minlength=spaces.action_dim)
        return tuple(float(count) / len(dataset) for count in counts)
    low = np.asarray(spaces.action_low)
    width = np.asarray(spaces.action_high) - low
    bins = ((dataset.actions - low) / width * COVERAGE_BINS).astype(np.int64)
    bins = bins.clip(0, COVERAGE_BINS - 1)
    return tuple(len(np.unique(column)) / COVERAGE_BINS for column in bins.T)


def count_duplicate_rows(dataset: TransitionDataset) -> int:
    """Rows that repeat an earlier row in every array, bit for bit."""
    columns = [
        np.ascontiguousarray(array.reshape(len(dataset), -1)).view(np.uint8)
        for array in dataset.to_arrays().values()
    ]
    rows = np.concatenate(columns, axis=1)
    padding = -rows.shape[1] % 8
    words = np.pad(rows, ((0, 0), (0, padding))).view(np.uint64)
    # Sorting whole rows is slow; only rows whose cheap hash recurs can be duplicates.
    hashes = np.zeros(len(dataset), np.uint64)
    for column in words.T:
        hashes = (hashes ^ column) * np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(29)
    _, inverse, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    candidates = np.ascontiguousarray(words[counts[inverse] > 1])
    if not len(candidates):
        return 0
    whole = candidates.view([("row", np.void, candidates.shape[1] * 8)])
    return len(candidates) - len(np.unique(whole))


def _columns(array: NDArray[Any]) -> tuple[ColumnSummary, ...]:
    values = array.astype(np.float64)
    return tuple(
        ColumnSummary(float(low), float(high), float(mean), float(std))
        for low, high, mean, std in zip(
            values.min(0), values.max(0), values.mean(0), values.std(0), strict=True
        )
    )


# --- files that may be wrong -----------------------------------------------------------------


@dataclass(frozen=True)
class ArrayReport:
    """One array of a file, whatever its state."""

    key: str
    shape: tuple[int, ...]
    dtype: str
    nans: int
    infinities: int


@dataclass(frozen=True)
class FileReport:
    """What a file holds, and the sentence with which it would be refused, if any."""

    path: str
    arrays: tuple[ArrayReport, ...]
    problem: str | None


def inspect_file(
    path: str | Path,
    *,
    env_id: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    spaces: Spaces | None = None,
) -> FileReport:
    """Look into an npz or hdf5 file without insisting that it is valid."""
    problem = None
    try:
        load_transition_dataset(path, env_id=env_id, env_kwargs=env_kwargs, spaces=spaces)
    except RLTrainingError as error:
        problem = str(error)
    try:
        stored = read_file_arrays(path)
    except RLTrainingError as error:
        return FileReport(str(path), (), problem or str(error))
    reports = []
    for key, array in stored.items():
        floats = array.dtype.kind == "f"
        nans = int(np.isnan(array).sum()) if floats else 0
        infinities = int(np.isinf(array).sum()) if floats else 0
        reports.append(ArrayReport(key, array.shape, str(array.dtype), nans, infinities))
    return FileReport(str(path), tuple(reports), problem)


# --- printing --------------------------------------------------------------------------------


def render(summary: DatasetSummary) -> RenderableType:
    """The summary as rich tables with a histogram of episode returns."""
    from rich.console import Group
    from rich.text import Text

    blocks: list[RenderableType] = [_overview(summary), _returns_table(summary)]
    blocks.append(_columns_table("observation", summary.observations, None))
    if summary.action_kind == "box":
        blocks.append(_columns_table("action", summary.actions, summary.action_coverage))
    else:
        blocks.append(_shares_table(summary.action_coverage))
    if summary.trainable:
        blocks.append(_trainable_table(summary.trainable))
    if summary.notes:
        blocks.append(Text("\n".join(f"note: {note}" for note in summary.notes)))
    spaced = [item for block in blocks for item in (block, Text(""))]
    return Group(*spaced[:-1])


def render_file_report(report: FileReport) -> RenderableType:
    """The report as a table of arrays and the sentence of refusal."""
    from rich.console import Group
    from rich.text import Text

    blocks: list[RenderableType] = []
    if report.arrays:
        rows = [
            (a.key, str(a.shape), a.dtype, str(a.nans), str(a.infinities)) for a in report.arrays
        ]
        blocks.append(_table(("array", "shape", "dtype", "NaN", "infinite"), rows))
    blocks.append(Text(f"problem: {report.problem}" if report.problem else "no problem found"))
    return Group(*blocks)


def _table(
    headers: tuple[str, ...], rows: Sequence[tuple[str, ...]], words: bool = False
) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    # Text, not str: a path may look like rich's markup
    table = Table(box=None, pad_edge=False)
    for index, header in enumerate(headers):
        side: JustifyMethod = "left" if words or index == 0 else "right"
        table.add_column(Text(header, overflow="fold"), justify=side, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _overview(summary: DatasetSummary) -> RenderableType:
    rows = [
        ("spaces", summary.spaces),
        ("steps", str(summary.steps)),
        ("episodes", str(summary.episodes)),
        (
            "episode length",
            f"{summary.length_min} to {summary.length_max}, mean {summary.length_mean:.1f}",
        ),
        ("terminations", str(summary.terminations)),
        ("truncations", str(summary.truncations)),
        ("duplicate rows", str(summary.duplicate_rows)),
        ("NaN or infinite", "0"),
    ]
    if len(summary.parts) > 1:
        mixed = ", ".join(f"{size} rows x weight {weight:g}" for size, weight in summary.parts)
        rows.append(("mixed from", mixed))
    return _table(("data set", summary.name), rows, words=True)


def _returns_table(summary: DatasetSummary) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    headers = ("return", *summary.return_quantiles, "mean")
    values = (*summary.return_quantiles.values(), summary.return_mean)
    table = _table(headers, [("", *(f"{value:.2f}" for value in values))])
    most = max(count for _, _, count in summary.return_histogram)
    lines = [
        f"{low:12.2f} .. {high:12.2f} {'#' * -(-40 * count // most):<40} {count}"
        for low, high, count in summary.return_histogram
    ]
    return Group(table, Text("\n".join(lines), no_wrap=True))


def _columns_table(
    what: str, columns: tuple[ColumnSummary, ...], coverage: tuple[float, ...] | None
) -> RenderableType:
    headers = (what, "min", "max", "mean", "std") + (("coverage",) if coverage else ())
    rows = []
    for index, column in enumerate(columns[:SHOWN_COLUMNS]):
        numbers = (column.low, column.high, column.mean, column.std)
        row = (str(index), *(f"{value:.4g}" for value in numbers))
        rows.append((*row, f"{coverage[index]:.0%}") if coverage else row)
    if len(columns) > SHOWN_COLUMNS:
        rows.append((f"and {len(columns) - SHOWN_COLUMNS} more", *[""] * (len(headers) - 1)))
    return _table(headers, rows)


def _shares_table(shares: tuple[float, ...]) -> RenderableType:
    rows = [(str(index), f"{share:.1%}") for index, share in enumerate(shares[:SHOWN_COLUMNS])]
    if len(shares) > SHOWN_COLUMNS:
        rows.append((f"and {len(shares) - SHOWN_COLUMNS} more", ""))
    return _table(("action", "share of rows"), rows)


def _trainable_table(trainable: tuple[Trainability, ...]) -> RenderableType:
    rows = [(item.algorithm, "yes" if item.possible else "no", item.reason) for item in trainable]
    return _table(("algorithm", "trainable", "why not"), rows, words=True)
