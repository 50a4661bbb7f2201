"""The program `rl-training`: its commands and its error handling."""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rl_training.cli import compare, data, look, ope, report, search, ship, train, use
from rl_training.cli.options import out
from rl_training.experiment.errors import RenamedKeyWarning, RLTrainingError, printable

DEBUG = "RL_TRAINING_DEBUG"
"""Environment variable that shows tracebacks."""


class Commands(TyperGroup):
    """All commands; Ctrl-C in one that has no more to say about it ends it with a word, where
    typer says nothing."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(130) from None


app = typer.Typer(
    name="rl-training",
    cls=Commands,
    help="Train, evaluate, resume and use policies from data, demonstrations and simulators.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for commands in (train, use, search, compare, report, ope, ship, look):
    app.add_typer(commands.app)
app.add_typer(data.app, name="data")


def _version(value: bool) -> None:
    if value:
        from rl_training import __version__

        out.print(f"rl-training {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            help=f"Show the traceback of an error (also after any command); so does {DEBUG}=1.",
        ),
    ] = False,
) -> None:
    pass


def _sentence_about_the_machine(error: Exception) -> str | None:
    """The message when disk or memory run out, which cannot be checked in advance."""
    if isinstance(error, OSError):
        where = f" '{error.filename}'" if error.filename else ""
        return (
            f"cannot read or write{where}: {error.strerror or error}; make room or change the path"
        )
    if isinstance(error, MemoryError) or "allocate" in str(error):
        return (
            "not enough memory; lower algo_kwargs.hidden_sizes, algo_kwargs.batch_size or the "
            "size of the data set"
        )
    return None


UsageError: Any = typer.BadParameter.__bases__[0]
"""The usage error of click, or of typer's own copy of it."""


def _sentence_about_usage(error: Any) -> str:
    """The message for a wrong command line, with a pointer to its help."""
    command = error.ctx.command_path if error.ctx else "rl-training"
    text = " ".join(error.format_message().split()).rstrip(".")
    text = re.sub(r"\. Did you mean (.*?)\?$", r" (did you mean \1?)", text)
    takes_keys = error.ctx and any(p.name == "overrides" for p in error.ctx.command.params)
    if takes_keys and "no such option" in text.lower():
        text += "; keys of the configuration are written key=value"
    return f"{command}: {text[:1].lower()}{text[1:]}; '{command} --help' explains its arguments"


def _one_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Print a warning about a key as one line, and others as Python does."""
    if issubclass(category, RenamedKeyWarning):
        return f"warning: {printable(str(message))}\n"
    return as_python_writes_it(message, category, filename, lineno, line)


as_python_writes_it = warnings.formatwarning


@contextmanager
def _shown_traceback() -> Iterator[None]:
    """Print the traceback of an exception with its causes, and re-raise it."""
    try:
        yield
    except Exception:
        traceback.print_exc()
        raise


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command, by default that of the process; user errors become one line and exit code 2.

    With `--debug` anywhere among the arguments, or RL_TRAINING_DEBUG set, the traceback of an
    error is printed above its line.
    """
    warnings.formatwarning = _one_line
    given = sys.argv[1:] if arguments is None else arguments
    arguments = [argument for argument in given if argument != "--debug"]
    debug = len(arguments) < len(given) or os.environ.get(DEBUG, "") not in ("", "0")
    try:
        with _shown_traceback() if debug else nullcontext():
            # typer's own reports of a wrong flag take many lines; in this mode it returns the exit
            # code
            sys.exit(app(arguments, prog_name="rl-training", standalone_mode=False))
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # exists in newer versions only
            error.show()
        else:
            print(f"error: {_sentence_about_usage(error)}", file=sys.stderr)
        sys.exit(2)
    except RLTrainingError as error:
        for line in str(error).splitlines():
            print(f"error: {printable(line)}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except (OSError, MemoryError, RuntimeError) as error:
        sentence = _sentence_about_the_machine(error)
        if sentence is None:
            raise
        print(f"error: {printable(sentence)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
