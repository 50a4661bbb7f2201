"""Commands that hand a policy over: export, serve."""

from __future__ import annotations

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
        bool, typer.Option("--stochastic", help="Draw actions by noise that is an input.")
    ] = False,
    further: Annotated[
        list[str] | None,
        typer.Option("--with", help="Further outputs: value, q or density; may be repeated."),
    ] = None,
    weights: Annotated[
        str, typer.Option("--weights", help="How weights are stored: float32 or float16.")
    ] = "float32",
    program: Annotated[
        bool, typer.Option("--program", help="Write a torch.export program, policy.pt2, too.")
    ] = False,
    episodes: Annotated[
        int,
        typer.Option("--episodes", "-n", min=0, help="Episodes of agent and export, to compare."),
    ] = 20,
    intended_use: Annotated[
        str, typer.Option("--intended-use", help="What the policy is for, for its card.")
    ] = "",
    limits: Annotated[
        str, typer.Option("--limits", help="What it must not be used for, for its card.")
    ] = "",
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
    """Write a policy as a folder that acts without PyTorch: ONNX, a contract, a runner, a card.

    The export is compared with the trained agent and refused where it acts otherwise.

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
