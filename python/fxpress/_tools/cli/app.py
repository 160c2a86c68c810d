"""Define the options of the command `fxpress`, run a command, and return its exit status."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import click

import fxpress
from fxpress._base.errors import Error, UnsupportedError
from fxpress._base.observing.text import printable, printable_lines
from fxpress._files.remote.urls import machine_path
from fxpress._tools.cli.output import Allowed, shortened, working

_STARTING = "importing torch"


class _MachinePath(click.Path):  # type: ignore[misc]
    """A path on this machine. A URL is an error, which omits the URL's secrets."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(machine_path(value), param, ctx)
        except UnsupportedError as error:
            self.fail(str(error), param, ctx)


_PATH = _MachinePath(path_type=Path)
_file = click.argument("file", type=_PATH)
_files = click.argument("files", type=_PATH, nargs=-1, required=True)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_example_inputs = click.option(
    "--example-inputs", type=_PATH, help="A file with (args, kwargs), written by torch.save."
)
_allow_pickle = click.option(
    "--allow-pickle", is_flag=True, help="Unpickle objects, which may run any code."
)
_allow_operator = click.option(
    "--allow-operator",
    "allow_operators",
    multiple=True,
    metavar="NAME",
    help="Let files call this operator of torch, or all of this namespace; the default refuses it.",
)
_LOADING = ("verify", "hash", "diff", "convert", "split")  # the commands that may load a file


def _not_printed(_: click.Context, __: click.Parameter, target: Path | None) -> Path | None:
    if target == Path("-"):
        raise click.BadParameter("this output cannot be written to the standard output")
    return target


def _import_modules(context: click.Context, _: click.Parameter, modules: tuple[str, ...]) -> None:
    if not modules or context.resilient_parsing:  # a shell is completing the line
        return
    with working(_STARTING):
        from fxpress._tools.cli.loading import import_module
    for module in modules:
        with working(f"importing {module}"):
            import_module(module)


class _Failures:
    """The setting of --debug."""

    are_shown_in_full = False


def _enable_debug(_: click.Context, __: click.Parameter, debug: bool) -> None:
    _Failures.are_shown_in_full |= debug


_debug = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_enable_debug,
    help="Show the traceback of a failure.",
)
_import = click.option(
    "--import",
    multiple=True,
    metavar="MODULE",
    expose_value=False,
    callback=_import_modules,
    help="First import a module, or a .py file, that registers classes or operators of the file.",
)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 for success, 1 when the answer is no (a fault, a difference, no such "
    "node), 2 for a failure, which is one line on the standard error.",
    no_args_is_help=True,
)
@click.version_option(fxpress.__version__, message="fxpress %(version)s", help="Show the version.")
@_debug
def app() -> None:
    """Inspect, compare, convert and split files of exported programs.

    No code in a file is run without --allow-pickle. inspect, verify and hash start without torch.
    """


@app.command()
@_file
@click.option("--tree", type=int, metavar="DEPTH", help="Show all modules down to this depth.")
@click.option("--ops", is_flag=True, help="Show all operators.")
@click.option("--weights", is_flag=True, help="Show all weights.")
@click.option(
    "--node",
    metavar="NAME",
    help="Show only the nodes of this name, or the node at a location that diff shows.",
)
@_json
def inspect(
    file: Path, tree: int | None, ops: bool, weights: bool, node: str | None, as_json: bool
) -> int:
    """Show the contents of a file.

    Weights are not read: the time does not depend on their size.
    """
    from fxpress._tools.cli import inspect as command

    if node is not None:
        return command.show_nodes(file, node, as_json)
    command.show_file(file, command.Wanted(tree, ops, weights, as_json))
    return 0


@app.command()
@_file
@click.option("--load", is_flag=True, help="Also load the file with torch, on the meta device.")
@_allow_pickle
@_json
def verify(
    file: Path, load: bool, allow_pickle: bool, allow_operators: tuple[str, ...], as_json: bool
) -> int:
    """Report all faults in the bytes of a file.

    The entire file is read. Status 1: there is a fault. Notes state what loading requires.
    """
    from fxpress._tools.cli import verify as command

    return command.show_faults(file, load, Allowed(allow_pickle, allow_operators), as_json)


@app.command(name="hash")
@_files
@click.option("--state", is_flag=True, help="Hash the values of weights too.")
@_json
def hash_(
    files: tuple[Path, ...], state: bool, allow_operators: tuple[str, ...], as_json: bool
) -> int:
    """Print a hash of what each program does.

    The hash is `fxpress.graph_hash` of the loaded program. Programs that compute the same have
    equal hashes. After an error in one file, the command hashes the other files.
    """
    from fxpress._tools.cli import hash as command

    failures = command.show_hashes(files, state, allow_operators, as_json)
    return max(map(_failed, failures), default=0)


@app.command()
@click.argument("first", type=_PATH)
@click.argument("second", type=_PATH)
@click.option("--weights", is_flag=True, help="Compare the values of weights too.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="The maximum number of differences to show.",
)
@_allow_pickle
@_json
def diff(
    first: Path, second: Path, allow_pickle: bool, allow_operators: tuple[str, ...], **options: Any
) -> int:
    """Show where two programs differ.

    Only their computations are compared, not names and metadata. Status 0: no difference, 1: there
    are differences.
    """
    from fxpress._tools.cli import diff as command

    allowed = Allowed(allow_pickle, allow_operators)
    return command.show_difference(first, second, allowed=allowed, **options)


@app.command()
@click.argument("source", type=_PATH)
@click.argument("target", type=_PATH, callback=_not_printed)
@click.option(
    "--weights",
    type=click.Choice(["inline", "safetensors", "none"]),
    default="inline",
    show_default=True,
    help="Where to write weights; a safetensors file is written next to the target.",
)
@click.option("--dtype", help="Store weights as, e.g., bfloat16; the program casts them back.")
@_example_inputs
@_allow_pickle
def convert(
    source: Path, target: Path, allow_pickle: bool, allow_operators: tuple[str, ...], **options: Any
) -> None:
    """Write a program into a new file.

    A file of an older torch becomes a file of the installed torch. The target, which may be the
    source, is replaced when the new file is complete.
    """
    with working(_STARTING):
        from fxpress._tools.cli import convert as command

    command.convert(source, target, allowed=Allowed(allow_pickle, allow_operators), **options)


@app.command()
@_file
@click.option("--stages", type=click.IntRange(min=1), required=True, help="The number of stages.")
@click.option(
    "--by",
    type=click.Choice(["parameters", "bytes", "flops", "time", "module"]),
    default="parameters",
    show_default=True,
    help="What to balance between the stages.",
)
@click.option("--memory", type=click.IntRange(min=0), help="The memory limit per stage, in bytes.")
@click.option(
    "--slack",
    type=click.FloatRange(min=0),
    default=0.05,
    show_default=True,
    help="By which fraction stages may exceed the best balance, to pass fewer bytes between them.",
)
@click.option("--profile", type=_PATH, help="A file with times of operations; created if missing.")
@click.option(
    "--output",
    "-o",
    type=_PATH,
    callback=_not_printed,
    help="The folder or .pt2 file to write.  [default: FILE-stages]",
)
@_example_inputs
@_allow_pickle
@_json
def split(
    file: Path,
    output: Path | None,
    allow_pickle: bool,
    allow_operators: tuple[str, ...],
    **options: Any,
) -> None:
    """Cut a program into stages.

    The command writes a program for each stage, a manifest that lists the values that pass between
    stages, and a picture. The output appears when it is complete, or not at all.
    """
    with working(_STARTING):
        from fxpress._tools.cli import split as command

    target = file.with_name(f"{file.stem}-stages") if output is None else output
    command.split(file, target, allowed=Allowed(allow_pickle, allow_operators), **options)


@app.command()
@_files
@click.option(
    "--json",
    type=_PATH,
    callback=_not_printed,
    help="Write the graphs for Model Explorer into this file.",
)
@click.option("--export", type=_PATH, help="Write the page into this file; '-': print it.")
@click.option(
    "--open/--no-open",
    "opens",
    default=None,
    help="Open the page.  [default: without --export and --json]",
)
def view(
    files: tuple[Path, ...], json: Path | None, export: Path | None, opens: bool | None
) -> None:
    """Show a page about programs in the browser.

    For two files, the page shows their differences. The page does not need a server. It is a
    temporary file unless --export names a file.
    """
    from fxpress._tools.cli import view as command

    command.show(list(files), json, export, opens)


@app.command(hidden=True, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1)
def demo(arguments: tuple[str, ...]) -> None:
    """Report the replacement of this command, until the next release."""
    raise click.UsageError("fxpress demo was removed: run python examples/demo.py of the sources")


@app.command()
@_json
def doctor(as_json: bool) -> int:
    """Show which components work here, and how to fix the others.

    Status 1: a component does not work.
    """
    with working(_STARTING):
        from fxpress._tools import doctor

    return doctor.run(as_json)


for _name, _command in app.commands.items():
    if _name in _LOADING:
        _import(_allow_operator(_command))  # appends the options to the command
    _debug(_command)  # so that --debug works after the command too


def run(arguments: list[str] | None = None) -> int:
    """Run a command, by default with the arguments of this process; return the exit status."""
    _Failures.are_shown_in_full = False
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the shell closed the stream: `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):  # the encoding may lack characters
            stream.reconfigure(errors="backslashreplace")
    try:
        status = app.main(arguments, prog_name="fxpress", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _nobody_reads()
    except SystemExit as error:
        if error.code == 1:  # click and rich exit with 1 when the reader has closed the pipe
            return _nobody_reads()
        raise  # the shell's completion has printed its results, and exits
    except (Error, OSError) as error:
        return _failed(error)
    except click.Abort:
        return 128 + signal.SIGINT
    except click.ClickException as error:  # wrong arguments
        try:
            error.show()
        except OSError:  # the reader has closed the pipe
            _discard_output(sys.stderr)
        return 2
    except Exception as error:
        return _failed(error)
    return status if isinstance(status, int) else 0


def _discard_output(stream: TextIO) -> None:
    """Discard the output that is still buffered; otherwise Python fails when it exits."""
    with suppress(OSError, ValueError):  # not all streams have a descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _nobody_reads() -> int:
    _discard_output(sys.stdout)
    return 128 + signal.SIGPIPE


def _failed(error: Exception) -> int:
    if _Failures.are_shown_in_full:
        import traceback

        _report(printable_lines("".join(traceback.format_exception(error)).rstrip()))
        return 2
    text = str(error).partition("\n")[0]  # --debug shows all lines
    if isinstance(error, OSError) and error.strerror is not None:
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    elif not isinstance(error, Error):  # unexpected
        text = f"{type(error).__name__}: {text} (fxpress --debug shows where)"
    try:
        sys.stdout.flush()
    except OSError:  # for example a full disk, which may also have caused `error`
        _discard_output(sys.stdout)
    _report(shortened(printable(f"fxpress: {text}")))
    return 2


def _report(text: str) -> None:
    """Print a text on the standard error, if that can be written."""
    try:
        click.echo(text, err=True)
    except OSError:
        _discard_output(sys.stderr)
