"""Import modules that files need, and name the option that helps in the errors of loads."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fxpress._base.errors import Error
from fxpress._base.observing.text import printable
from fxpress._files.format.torch_facts import Traits, refusal_text
from fxpress._files.serde.damage import NeedsPickleError, RefusedOperatorError, UnknownNameError
from fxpress._files.serde.hashing import traits_of
from fxpress._files.serde.targets import find_target
from fxpress._tools.inspect.hashes import unregistered_text


class CommandError(Error):
    """A command cannot do what its options request."""


def import_module(module: str) -> None:
    """Import a module by `.py` path or name; append its folder or the current one to `sys.path`."""
    folder = str(Path(module).resolve().parent) if module.endswith(".py") else os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        if module.endswith(".py"):
            _import_file(Path(module).resolve())
        else:
            importlib.import_module(module)
    except Exception as error:  # the module's code may raise any type
        what = error.strerror if isinstance(error, OSError) else error
        text = f"{type(error).__name__}: {what}".partition("\n")[0]
        raise CommandError(f"--import {module}: {text}") from error


def _import_file(path: Path) -> None:
    """Import a file as a module of the file's name, or of a similar name if that name is taken."""
    name = path.stem
    while (known := sys.modules.get(name)) is not None:
        if getattr(known, "__file__", None) == str(path):
            return
        name += "_"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[name])
    except BaseException:
        del sys.modules[name]
        raise


def registered(targets: Sequence[str]) -> dict[str, Traits]:
    """Return target -> traits, for the operators in `targets` that this process has registered."""
    found = {}
    for target in targets:
        with suppress(UnknownNameError):
            found[target] = traits_of(find_target(target))
    return found


@contextmanager
def options_named(path: Path) -> Iterator[None]:
    """Run a block that loads a file; its error becomes a CommandError that names an option."""
    try:
        yield
    except Error as error:
        raise CommandError(f"{path}: {printable(text_of(error))}") from error


def text_of(error: BaseException) -> str:
    """Describe an error on one line, with the option that helps if there is one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UnknownNameError) and cause.name:
            return unregistered_text(cause.name)
        if isinstance(cause, RefusedOperatorError):
            return refusal_text(cause.target, cause.reason, "--allow-operator {}")
        if isinstance(cause, NeedsPickleError):
            what = f"a pickle of `{cause.name}`" if cause.name else "a pickle"
            module = cause.name.rpartition(".")[0]
            further = f"--import {module}, or " if module and module not in sys.modules else ""
            return f"{cause.record} is {what}; use {further}--allow-pickle, which may run any code"
        cause = cause.__cause__
    return str(error).partition("\n")[0]
