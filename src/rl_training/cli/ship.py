"""Commands for deployment: export, serve."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.options import OverwriteOption, QuietOption, TrustOption, WhichOption, out

app = typer.Typer()


@app.command()
def export(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="Run or checkpoint folder.")],
    folder: Annotated[Path, typer.Option("--out", help="Folder to write.")],
    checkpoint: WhichOption = "latest",
    stochastic: Annotated[
        bool,
        typer.Option(
            "--stochastic", help="Sample actions from noise that is an input of the model."
        ),
    ] = False,
    further: Annotated[
        list[str] | None,
        typer.Option("--with", help="Further output: value, q, density or support; repeatable."),
    ] = None,
    weights: Annotated[
        str, typer.Option("--weights", help="How weights are stored: float32 or float16.")
    ] = "float32",
    program: Annotated[
        bool, typer.Option("--program", help="Also write a torch.export program, policy.pt2.")
    ] = False,
    episodes: Annotated[
        int,
        typer.Option(
            "--episodes", "-n", min=0, help="Episodes of agent and export for the comparison."
        ),
    ] = 20,
    intended_use: Annotated[
        str, typer.Option("--intended-use", help="Intended use of the policy, for its card.")
    ] = "",
    limits: Annotated[str, typer.Option("--limits", help="Limits of use, for its card.")] = "",
    compare: Annotated[
        list[Path] | None,
        typer.Option("--compare", help="Run folder to compare with in the card; may be repeated."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a card without its intended use.")
    ] = False,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
    trust: TrustOption = False,
) -> None:
    """Export a policy as a folder that runs without PyTorch: ONNX, a contract, a runner, a card.

    The export is compared with the trained agent and refused if it acts differently.

    Example: rl-training export runs/sac-... --checkpoint best --out policy
    """
    from rl_training.api.managed import load
    from rl_training.api.support import find_checkpoint

    agent = load(find_checkpoint(path, checkpoint), device="cpu", trust=trust)
    result = agent.export(
        folder,
        stochastic=stochastic,
        further=further or (),
        weights=weights,
        program=program,
        episodes=episodes,
        overwrite=overwrite,
        intended_use=intended_use,
        limits=limits,
        strict=strict,
        compare=compare or (),
        progress=not quiet,
    )
    parity = result.parity
    compared = ", ".join(f"{count:,} {kind}" for kind, count in parity.observations.items())
    out.print(
        f"acts as the agent on {compared} observations: largest difference "
        f"{parity.largest_error:.1e}, {parity.ties} ties",
        soft_wrap=True,
    )
    if result.returns is not None and result.exported_returns is not None:
        out.print(f"agent:  {result.returns}")
        out.print(f"export: {result.exported_returns}")
    elif result.problem is not None:
        out.print(f"note: not tried in the environment: {result.problem}", soft_wrap=True)
    out.print(f"wrote {folder}", soft_wrap=True)


@app.command()
def serve(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Export folder.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for a free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="File with the token that clients must send."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the model.")] = 1,
    max_rows: Annotated[
        int, typer.Option("--max-rows", min=1, help="Maximum number of observations per request.")
    ] = 1024,
    max_episodes: Annotated[
        int,
        typer.Option(
            "--max-episodes", min=1, help="Maximum number of episodes whose state is kept."
        ),
    ] = 10_000,
    session_timeout: Annotated[
        float,
        typer.Option(
            "--session-timeout",
            min=1.0,
            help="Seconds after which the state of an idle episode is dropped.",
        ),
    ] = 600.0,
    bounds: Annotated[
        bool, typer.Option(help="Refuse observations beyond the bounds of the contract.")
    ] = True,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of sampled actions; random by default.")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Serve an exported policy over HTTP and WebSocket; needs no PyTorch.

    Endpoints: POST /act, WebSocket /act, /contract, /health, /metrics, and / for a browser.

    Example: rl-training serve policy --port 8000
    """
    from rl_training.experiment.errors import ConfigError
    from rl_training.serve.run import serve as run

    token = os.environ.get("RL_TRAINING_TOKEN") or None
    if token_file is not None:
        try:
            token = token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file: '{token_file}' cannot be read ({error})") from None
    run(
        folder,
        host,
        port,
        token,
        say=(lambda text: None) if quiet else (lambda text: out.print(text, soft_wrap=True)),
        threads=threads,
        most_rows=max_rows,
        most_episodes=max_episodes,
        idle_s=session_timeout,
        bounds=bounds,
        seed=seed,
    )
