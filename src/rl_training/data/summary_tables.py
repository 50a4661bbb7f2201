"""Summaries of data sets as rich tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rl_training.data.summary import ColumnSummary, DatasetSummary, FileReport, Trainability

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType

SHOWN_COLUMNS = 24


def render(summary: DatasetSummary) -> RenderableType:
    """The summary as rich tables with a histogram of episode returns."""
    from rich.console import Group
    from rich.text import Text

    blocks: list[RenderableType] = [_overview(summary)]
    if summary.return_quantiles:
        blocks.append(_returns_table(summary))
    if summary.observations:
        blocks.append(_columns_table("observation", summary.observations))
    if summary.action_kind != "discrete":
        shares = {"coverage": summary.action_coverage}
        if summary.action_kind == "box":
            shares["at edge"] = summary.actions_at_edge
        blocks.append(_columns_table("action", summary.actions, shares))
    else:
        blocks.append(_shares_table(summary.action_coverage))
    if summary.trainable:
        blocks.append(_trainable_table(summary.trainable))
    lines = [*(f"hint: {hint}" for hint in summary.hints)]
    lines += [f"note: {note}" for note in summary.notes]
    if lines:
        blocks.append(Text("\n".join(lines)))
    spaced = [item for block in blocks for item in (block, Text(""))]
    return Group(*spaced[:-1])


def render_file_report(report: FileReport) -> RenderableType:
    """The arrays as a table; the sentence of refusal is left to the caller."""
    rows = [(a.key, str(a.shape), a.dtype, str(a.nans), str(a.infinities)) for a in report.arrays]
    return _table(("array", "shape", "dtype", "NaN", "infinite"), rows)


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
    if summary.action_noise is not None:
        noise = summary.action_noise
        rows.append(
            (
                "actions",
                f"{noise.verdict}: {noise.share:.0%} of their variance remains between nearest "
                f"observations, {noise.repeated:.0%} of the rows act as their nearest neighbour",
            )
        )
    if len(summary.parts) > 1:
        mixed = ", ".join(f"{size} rows x weight {weight:g}" for size, weight in summary.parts)
        rows.append(("mixed from", mixed))
    return _table(("data set", summary.name), rows, words=True)


def _returns_table(summary: DatasetSummary) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    # One row per quantile: side by side they do not fit into 80 columns.
    rows = [
        (name, _short(value), _short(summary.reward_quantiles[name]))
        for name, value in summary.return_quantiles.items()
    ]
    rows.append(("mean", _short(summary.return_mean), _short(summary.reward_mean)))
    rows.append(("std", "", _short(summary.reward_std)))
    table = _table(("", "return of an episode", "reward of a step"), rows)
    most = max(count for _, _, count in summary.return_histogram)
    lines = [
        f"{_short(low):>12} .. {_short(high):>12} {'#' * -(-40 * count // most):<40} {count}"
        for low, high, count in summary.return_histogram
    ]
    return Group(table, Text("\n".join(lines), no_wrap=True))


def _short(value: float | None) -> str:
    """A number with the digits that count: two decimals, or six digits of larger ones."""
    if value is None:
        return ""
    return f"{value:.2f}" if 0.1 <= abs(value) < 1e6 or value == 0.0 else f"{value:.3g}"


def _columns_table(
    what: str,
    columns: tuple[ColumnSummary, ...],
    shares: Mapping[str, tuple[float, ...]] | None = None,
) -> RenderableType:
    shares = shares or {}
    headers = (what, "min", "max", "mean", "std", *shares)
    rows = []
    for index, column in enumerate(columns[:SHOWN_COLUMNS]):
        numbers = (column.low, column.high, column.mean, column.std)
        row = (str(index), *(f"{value:.4g}" for value in numbers))
        rows.append((*row, *(f"{share[index]:.0%}" for share in shares.values())))
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
    return _table(("algorithm", "trainable", "what it does, or why not"), rows, words=True)
