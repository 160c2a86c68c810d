"""What the command `fxpress` takes, and how it fails."""

from __future__ import annotations

import enum
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fxpress._cli.output import working
from fxpress._errors import Error
from fxpress._inspection.text import printable

app = typer.Typer(
    name="fxpress",
    help="Look at files of exported programs, compare, convert and split them. Nothing of a file "
    "runs, and inspect, verify and hash start without torch.",
    epilog="Exit status: 0 for success, 1 when the answer is no (a fault, a difference, no such "
    "node), 2 for a failure, which is one line on the standard error.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_STARTING = "importing torch"
_File = Annotated[Path, typer.Argument(show_default=False, help="a file of exported programs")]
_Json = Annotated[bool, typer.Option("--json", help="as JSON")]
_Inputs = Annotated[
    Path | None, typer.Option(show_default=False, help="a file of torch.save with (args, kwargs)")
]
_Pickle = Annotated[
    bool, typer.Option("--allow-pickle", help="unpickle objects, which may run any code")
]


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="show where a failure comes from")] = False,
) -> None:
    _Failures.are_shown_whole = debug


class Weights(enum.Enum):
    """Where the values of weights go."""

    INLINE = "inline"
    SAFETENSORS = "safetensors"
    NONE = "none"


class By(enum.Enum):
    """What the stages share out."""

    PARAMETERS = "parameters"
    BYTES = "bytes"
    FLOPS = "flops"
    TIME = "time"
    MODULE = "module"


class _Failures:
    """How an error is shown."""

    are_shown_whole = False


@app.command()
def inspect(
    file: _File,
    tree: Annotated[
        int | None, typer.Option(show_default=False, help="show all modules down to this depth")
    ] = None,
    ops: Annotated[bool, typer.Option("--ops", help="show all operators")] = False,
    weights: Annotated[bool, typer.Option("--weights", help="show all weights")] = False,
    node: Annotated[
        str | None, typer.Option(show_default=False, help="show the nodes of this name instead")
    ] = None,
    json: _Json = False,
) -> None:
    """Say what a file holds.

    Weights are not read: the time does not depend on their size.
    """
    from fxpress._cli import inspect as command

    if node is not None:
        raise typer.Exit(command.show_nodes(file, node, json))
    command.show_file(file, command.Wanted(tree, ops, weights, json))


@app.command()
def verify(
    file: _File,
    load: Annotated[
        bool, typer.Option("--load", help="load it with torch too, which finds the rest")
    ] = False,
    json: _Json = False,
) -> None:
    """Say everything that is wrong with a file.

    All of it is read. Status 1: there is a fault. A note says what a load of a sound file takes.
    """
    from fxpress._cli import verify as command

    raise typer.Exit(command.show_faults(file, load, json))


@app.command(name="hash")
def hash_(
    file: _File,
    state: Annotated[bool, typer.Option("--state", help="hash the values of weights too")] = False,
    json: _Json = False,
) -> None:
    """Print a hash of what each program does.

    It is `fxpress.graph_hash` of the loaded program: equal for programs that compute the same.
    """
    from fxpress._cli import hash as command

    command.show_hashes(file, state, json)


@app.command()
def diff(
    first: _File,
    second: _File,
    weights: Annotated[
        bool, typer.Option("--weights", help="compare the values of weights too")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="how many differences to show")] = 20,
    json: _Json = False,
) -> None:
    """Say where two programs differ.

    Names and metadata do not count, only what is computed. Status 0: nowhere, 1: somewhere.
    """
    from fxpress._cli import diff as command

    raise typer.Exit(command.show_difference(first, second, limit, weights, json))


@app.command()
def convert(
    source: _File,
    target: Annotated[Path, typer.Argument(show_default=False, help="the file to write")],
    weights: Annotated[
        Weights, typer.Option(help="where weights go: a safetensors file lies beside the target")
    ] = Weights.INLINE,
    dtype: Annotated[
        str | None,
        typer.Option(
            show_default=False, help="store weights as this type, such as bfloat16; cast them back"
        ),
    ] = None,
    example_inputs: _Inputs = None,
    allow_pickle: _Pickle = False,
) -> None:
    """Write a program into a new file.

    Files of older releases of torch become files of today's. The target is replaced at once when it
    is complete; it may be the source.
    """
    with working(_STARTING):
        from fxpress._cli import convert as command

    command.convert(
        source,
        target,
        weights=weights.value,
        dtype=dtype,
        example_inputs=example_inputs,
        allow_pickle=allow_pickle,
    )


@app.command()
def split(
    file: _File,
    stages: Annotated[int, typer.Option(min=1, show_default=False, help="how many")],
    by: Annotated[By, typer.Option(help="what they get equal shares of")] = By.PARAMETERS,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", show_default=False, help="the folder [FILE-stages]"),
    ] = None,
    memory: Annotated[
        int | None, typer.Option(min=0, show_default=False, help="the most bytes of a stage")
    ] = None,
    slack: Annotated[
        float, typer.Option(min=0, help="how much heavier than it has to be, to pass fewer bytes")
    ] = 0.05,
    profile: Annotated[
        Path | None,
        typer.Option(show_default=False, help="a file of times, which is made if it is missing"),
    ] = None,
    example_inputs: _Inputs = None,
    allow_pickle: _Pickle = False,
    json: _Json = False,
) -> None:
    """Cut a program into stages.

    The folder gets a program of each, a manifest that says which value goes where, and a picture.
    It is there as a whole or not at all.
    """
    with working(_STARTING):
        from fxpress._cli import split as command

    command.split(
        file,
        file.with_name(f"{file.stem}-stages") if output is None else output,
        stages=stages,
        by=by.value,
        memory=memory,
        slack=slack,
        profile=profile,
        example_inputs=example_inputs,
        allow_pickle=allow_pickle,
        as_json=json,
    )


@app.command()
def view(
    files: Annotated[list[Path], typer.Argument(show_default=False, help="files of programs")],
    json: Annotated[
        Path | None,
        typer.Option(show_default=False, help="write the graphs into this file instead"),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(show_default=False, help="write a page that needs no server instead"),
    ] = None,
    port: Annotated[int, typer.Option(help="of the local server")] = 8080,
    browser: Annotated[bool, typer.Option(help="open a browser")] = True,
) -> None:
    """Show programs in a browser; two files side by side.

    The extra `view` brings Model Explorer, the extra `report` what `--export` needs.
    """
    from fxpress._cli import view as command

    if export is not None:
        command.write_page(files, export)
    if json is not None:
        command.write_graphs(files, json)
    if json is None and export is None:
        command.show(files, port, browser)


@app.command()
def demo(
    layers: Annotated[int, typer.Option(min=1, max=200, help="of the model")] = 16,
    json: _Json = False,
) -> None:
    """Show torch's times beside fxpress's.

    A small model is exported, saved, loaded, decomposed, split, unflattened and run by both.
    """
    with working(_STARTING):
        from fxpress._cli import demo as command

    command.show(layers, json)


@app.command()
def doctor(json: _Json = False) -> None:
    """Say what works here, and how to mend the rest.

    Status 1: something does not work.
    """
    with working(_STARTING):
        from fxpress import _doctor

    raise typer.Exit(_doctor.run(json))


def run(arguments: list[str] | None = None) -> int:
    """Run the command that the arguments name, and return the exit status.

    Args:
        arguments: those of the command line without the program; None: of this process.
    """
    try:
        status = app(arguments, prog_name="fxpress", standalone_mode=False)
    except (BrokenPipeError, SystemExit):  # as typer and rich say that nobody reads any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (Error, OSError) as error:
        return _failed(error)
    except typer.Abort:
        return 128 + signal.SIGINT
    except Exception as error:
        show = getattr(error, "show", None)  # of arguments that are wrong
        if show is None:
            return _failed(error)
        show()
        return 2
    return status if isinstance(status, int) else 0


def _failed(error: Exception) -> int:
    if _Failures.are_shown_whole:
        traceback.print_exception(error)
        return 2
    text = str(error).partition("\n")[0]  # --debug shows what torch said
    if isinstance(error, OSError) and error.strerror is not None:
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    elif not isinstance(error, Error):  # nothing that a command knows of
        text = f"{type(error).__name__}: {text} (fxpress --debug shows where)"
    console = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    console.print(printable(f"fxpress: {text}"))
    sys.stdout.flush()
    return 2
