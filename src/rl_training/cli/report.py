"""Commands that show runs: report, watch."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.options import TrustOption, out

if TYPE_CHECKING:
    from rl_training.reports.extras import Extras
    from rl_training.reports.runs import Run

app = typer.Typer()

PLAIN_LINE_SECONDS = 10.0
"""Between two lines about a run, where the output is no terminal."""
EPISODES = 20
"""Held-out episodes of which the best and the worst are recorded."""


@app.command()
def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUNS", help="Run folders, or folders with runs in them."),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option("--out", help="File to write; by default report.html, with --all index.html."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="List all runs, of any tasks, in one page.")
    ] = False,
    videos: Annotated[
        bool,
        typer.Option(
            "--videos",
            help="Record the best and the worst of 20 episodes of each run, and show what a world "
            "model expected.",
        ),
    ] = False,
    data: Annotated[
        bool, typer.Option("--data", help="Read the data of each run, and summarise them.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Write the page again until the runs have ended.")
    ] = False,
    trust: TrustOption = False,
) -> None:
    """Write a page about runs that stands alone: curves, numbers, settings, how to reproduce them.

    Several runs of one task are compared. The page of a run that goes on loads itself again.

    Example: rl-training report runs/awr-... --out report.html

    All runs in one table: rl-training report --all, which reads ./runs
    """
    from rl_training.experiment.errors import ConfigError
    from rl_training.experiment.files import replace_text
    from rl_training.reports.index import index
    from rl_training.reports.report import REPORT_FILE, write_report
    from rl_training.reports.runs import RunReader, find_runs

    if not runs and not everything:
        raise ConfigError("report: name the runs, such as runs/awr-..., or list all by --all")
    if everything and (videos or data):
        raise ConfigError("--all: a list holds no videos and no data; leave those flags out")
    places = runs or [Path("runs")]
    default = places[0] / "index.html" if everything else Path(REPORT_FILE)
    path = default if target is None else target
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out: '{path}' is not an .html file; name one, such as {REPORT_FILE}")
    if path.is_dir():
        raise ConfigError(f"--out: '{path}' is a folder; name a file in it")
    extras: dict[Path, Extras] | None = None
    readers: dict[Path, RunReader] = {}
    while True:
        found = find_runs(places, readers)
        if everything:
            replace_text(path, index(found, path))
        else:
            write_report(found, path)  # refuses what cannot be compared before episodes are played
            if extras is None and (videos or data):
                extras = {run.folder: _extras(run, videos, data, trust) for run in found}
            if extras:
                write_report(found, path, extras)
        if not follow or all(run.status != "running" for run in found):
            break
        time.sleep(5.0)
    out.print(f"report: {path}", soft_wrap=True)


def _extras(run: Run, videos: bool, data: bool, trust: bool) -> Extras:
    """What is not in a run's files; what cannot be had is a note in the report."""
    from rl_training.experiment.errors import RLTrainingError
    from rl_training.reports.extras import Extras, newest_prediction

    shown: tuple[tuple[str, str], ...] = ()
    about: dict[str, Any] = {}
    notes: list[str] = []
    expected = b""
    if videos:
        expected = newest_prediction(run.seeds[0].folder) or b""
        try:
            shown = _videos(run, trust)
        except RLTrainingError as error:
            notes.append(f"No videos: {error}")
    if data:
        try:
            about = _data(run, trust)
        except RLTrainingError as error:
            notes.append(f"No summary of the data: {error}")
    for note in notes:
        out.print(f"warning: {run.folder.name}: {note}", soft_wrap=True)
    predictions = _uri("image/gif", expected) if expected else ""
    return Extras(shown, predictions, about, tuple(notes))


def _uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _videos(run: Run, trust: bool) -> tuple[tuple[str, str], ...]:
    """The best and the worst of some held-out episodes of the last policy, of the first seed."""
    import tempfile

    from rl_training.api.managed import load

    agent = load(run.seeds[0].folder, trust=trust)
    returns = agent.evaluate(EPISODES).returns
    order = sorted(range(len(returns)), key=returns.__getitem__)
    shown = []
    with tempfile.TemporaryDirectory() as folder:
        for words, episode in (("Best", order[-1]), ("Worst", order[0])):
            file = Path(folder) / f"{words}.mp4"
            earned = agent.record_video(file, episode=episode).returns[0]
            uri = _uri("video/mp4", file.read_bytes())
            caption = f"{words} of {EPISODES} held-out episodes, return {earned:,.1f}"
            shown.append((caption, uri))
    return tuple(shown)


def _data(run: Run, trust: bool) -> dict[str, Any]:
    """Size and returns of the data that a run learned from, in the rewards of the data: those of
    the run may be scaled, and evaluations are not."""
    from rl_training.data.episodes import chosen_episodes
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.errors import ConfigError
    from rl_training.experiment.trust import refuse_unknown_modules
    from rl_training.reports.extras import data_summary
    from rl_training.runtime.loops.data import read_data

    config = TrainConfig.stored(run.config)
    if config.dataset is None:
        raise ConfigError(f"dataset: '{run.folder}' learned without data")
    if not trust:
        refuse_unknown_modules(run.config, f"run '{run.folder}'")
    return data_summary(chosen_episodes(read_data(config, None), config.dataset))


@app.command()
def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    seconds: Annotated[
        float, typer.Option("--every", min=0.1, help="Seconds between two readings of the run.")
    ] = 1.0,
) -> None:
    """Follow a run of another process until it ends: curves, rate, time left.

    Ctrl-C ends the watching and leaves the run alone.
    """
    from rich.live import Live

    from rl_training.reports.live import followed
    from rl_training.reports.watching import progress_line, rendered

    plain = "utf" not in (out.encoding or "").lower()
    last_line = -PLAIN_LINE_SECONDS
    try:
        if out.is_terminal:
            with Live(console=out, auto_refresh=False) as live:
                for newest in followed(run, seconds):
                    live.update(rendered(newest, out.width, plain), refresh=True)
            return
        for newest in followed(run, seconds):
            if newest.status != "running":
                out.print(rendered(newest, out.width, plain))
            elif time.monotonic() - last_line >= PLAIN_LINE_SECONDS:
                last_line = time.monotonic()
                out.print(progress_line(newest), soft_wrap=True)
    except KeyboardInterrupt:
        out.print(f"stopped watching; the run goes on in {run}", soft_wrap=True)
        raise typer.Exit(130) from None
