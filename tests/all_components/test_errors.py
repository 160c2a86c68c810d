"""The exceptions of fxpress: one base class, subclasses of torch's, one class for all names."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import zipfile

import pytest
import torch
from torch._export.serde import serialize as torch_serialize

import fxpress
from fxpress import _native, archive, serialize
from fxpress._files.errors import archive_errors
from fxpress._files.serde.bounded_functions import ExpressionError
from fxpress._files.serde.expressions import parse
from fxpress._files.serde.operators import UnsupportedProgramError
from fxpress._torch import serde as compat

NAMES = ("ArchiveError", "Error", "InternalError", "SerializeError", "UnsupportedError")

LAZY = """
import sys
import fxpress
assert fxpress.Error and fxpress.InternalError and fxpress.UnsupportedError
assert "torch._export.serde.serialize" not in sys.modules
assert fxpress.SerializeError.__module__ == "fxpress"
assert issubclass(fxpress.ArchiveError, fxpress.SerializeError)
import pickle
print(pickle.loads(bytes.fromhex(sys.argv[1])))
"""


@pytest.mark.parametrize("name", NAMES)
def test_all_have_one_base(name: str) -> None:
    cls = getattr(fxpress, name)
    assert issubclass(cls, fxpress.Error)
    assert name in fxpress.__all__
    assert (cls.__module__, cls.__qualname__) == ("fxpress", name)


def test_the_kinds_that_torch_raises_stay() -> None:
    assert issubclass(fxpress.SerializeError, torch_serialize.SerializeError)
    assert issubclass(fxpress.SerializeError, RuntimeError)
    assert not issubclass(torch_serialize.SerializeError, fxpress.SerializeError)
    for kind in (fxpress.SerializeError, ValueError, zipfile.BadZipFile):
        assert issubclass(fxpress.ArchiveError, kind)
    assert issubclass(fxpress.UnsupportedError, NotImplementedError)
    assert issubclass(fxpress.InternalError, RuntimeError)
    assert issubclass(ExpressionError, fxpress.SerializeError)
    for kind in (fxpress.UnsupportedError, fxpress.SerializeError):
        assert issubclass(UnsupportedProgramError, kind)


def test_every_name_is_the_same_class() -> None:
    for module in (archive, compat):
        assert module.SerializeError is fxpress.SerializeError
    assert serialize.SerializeError is torch_serialize.SerializeError  # a drop-in catches both
    assert archive.ArchiveError is fxpress.ArchiveError


def test_native_errors_are_of_these_classes() -> None:
    with pytest.raises(fxpress.ArchiveError), archive_errors():
        _native.ArchiveReader(b"no archive")
    with pytest.raises(fxpress.SerializeError):
        serialize._bytes_to_dataclass(compat.schema.TensorMeta, b'{"dtype": "?"}')
    with pytest.raises(fxpress.Error):
        parse("Symbol(", {})


def test_installed_who_catches_torchs_error_catches_ours() -> None:
    with fxpress.installed():
        assert torch_serialize.SerializeError is not fxpress.SerializeError
        with pytest.raises(torch_serialize.SerializeError) as caught:
            torch.export.load(io.BytesIO(b"no archive"))
    assert isinstance(caught.value, fxpress.ArchiveError)


@pytest.mark.parametrize("cls", [*(getattr(fxpress, n) for n in NAMES), UnsupportedProgramError])
def test_errors_are_copied_and_pickled(cls: type[Exception]) -> None:
    error = cls("what", 3)
    for made in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(made) is cls
        assert made.args == error.args


SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
script = "try: import fxpress\\nexcept ImportError as error: print(error)"
try:
    interpreters.run_string(interpreters.create(), script)
except AttributeError:
    interpreters.exec(interpreters.create(), script)
"""


def test_a_subinterpreter_is_refused() -> None:
    command = [sys.executable, "-c", SUBINTERPRETER]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "does not support subinterpreters" in done.stdout, done.stderr


@pytest.mark.slow("imports torch in a separate process")
def test_errors_reach_another_process_that_imports_them_late() -> None:
    data = pickle.dumps(fxpress.ArchiveError("record 'a' is damaged"))
    run = subprocess.run(
        [sys.executable, "-c", LAZY, data.hex()], capture_output=True, text=True, check=False
    )
    assert run.stdout.strip() == "record 'a' is damaged", run.stderr


@pytest.mark.parametrize("cls", [*(getattr(fxpress, n) for n in NAMES), UnsupportedProgramError])
def test_messages_do_not_act_on_a_terminal(cls: type[Exception]) -> None:
    assert str(cls("a\x1b]0;b\x07\x9b31m\u202e\r\nc")) == "a\\x1b]0;b\\x07\\x9b31m\\u202e\\r\nc"
    assert len(str(cls("\x1b" * 1_000_000 + "end"))) < 50_000
    assert str(cls("a" * 1_000_000 + "end")).endswith("aend")
    error = fxpress.LimitError("memory", "record '\x1b[2J'")
    assert str(error).startswith(r"record '\x1b[2J': ")
