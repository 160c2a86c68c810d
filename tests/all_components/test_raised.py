"""The functions that read and write raise the errors that their docstrings list, and no others."""

from __future__ import annotations

import builtins
import contextlib
import inspect
import io
import logging
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._export.serde import schema
from torch.export import export

import fxpress
from fxpress import archive, serialize, state
from fxpress._files.serde.schema import SCHEMA
from tests.support.archived import saved_by_us

READING: dict[str, Callable[..., Any]] = {
    "load": archive.load,
    "load_pt2": archive.load_pt2,
    "verify": archive.verify,
    "PT2ArchiveReader": archive.PT2ArchiveReader,
    "state.read": state.read,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **READING,
    "save": archive.save,
    "package_pt2": archive.package_pt2,
    "PT2ArchiveWriter": archive.PT2ArchiveWriter,
    "state.write": state.write,
    "load_into": state.load_into,
    "serialize": serialize.serialize,
    "deserialize": serialize.deserialize,
    "deserialize_torch_artifact": serialize.deserialize_torch_artifact,
    "_bytes_to_dataclass": serialize._bytes_to_dataclass,
    "graph_hash": fxpress.graph_hash,
    "diff": fxpress.diff,
    "ExportedProgramSerializer": serialize.ExportedProgramSerializer().serialize,
    "ExportedProgramDeserializer": serialize.ExportedProgramDeserializer().deserialize,
}


def listed(function: Callable[..., Any]) -> tuple[type[BaseException], ...]:
    """The exceptions that a docstring lists below "Raises:"."""
    text = inspect.getdoc(function) or ""
    _, found, rest = text.partition("Raises:\n")
    assert found, f"{function} lists no exceptions"
    names = re.findall(r"^    ([\w., ]+):", rest.split("\n\n")[0], re.M)
    kinds = []
    for name in ", ".join(names).split(", "):
        last = name.rpartition(".")[2]
        holder = next(each for each in (fxpress, builtins, torch) if hasattr(each, last))
        kinds.append(getattr(holder, last))
    return tuple(kinds)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_docstring_lists_is_not_everything(name: str) -> None:
    kinds = listed(FUNCTIONS[name])
    assert kinds
    assert not {Exception, BaseException, fxpress.InternalError} & set(kinds)


def raises_what_is_listed(name: str, *args: Any, **kwargs: Any) -> None:
    """Nothing, or one of the exceptions that the docstring lists; no bug of ours."""
    kinds = listed(FUNCTIONS[name])
    try:
        FUNCTIONS[name](*args, **kwargs)
    except fxpress.InternalError:
        raise
    except kinds:
        pass


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    return export(Model(), (torch.ones(1, 2),))


@pytest.fixture(scope="module")
def data(program: Any) -> bytes:
    return saved_by_us(program)


class Odd:
    """An exception that no function expects."""

    def __bool__(self) -> bool:
        return True


WRONG = [None, 3, -1, 1.5, "x", b"x", "\ud800", "a\0b", [], [3], {}, {3: 3}, {"a": 3}, Odd(), Odd]
WRONG += [{"a": "\ud800"}, {"\ud800": "a"}, {"a": b"x"}, {"../a": "x"}, 2**70, torch.ones(1)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_of_wrong_types(
    name: str, program: Any, data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some are names of files that can be written
    # The workers of xdist cannot send what was logged of a text that is not Unicode.
    monkeypatch.setattr(logging.getLogger("fxpress"), "disabled", True)
    good: dict[str, Any] = {
        **{"ep": program, "exported_program": program, "exported_programs": {"model": program}},
        "tensors": {"a": torch.ones(2)},
        "source": {k: v.detach() for k, v in program.state_dict.items()},
        "artifact": serialize.serialize(program),
        "serialized": serialize.serialize(program).state_dict,
        **{"cls": schema.TensorMeta, "artifact_bytes": b"{}"},
        **{"program": program, "first": program, "second": program},
    }
    if name == "ExportedProgramDeserializer":
        good = dict(vars(serialize.ExportedProgramSerializer().serialize(program)))
    reads = name in READING
    parameters = inspect.signature(FUNCTIONS[name]).parameters
    for parameter in parameters:
        for wrong in WRONG:
            given = {key: value for key, value in good.items() if key in parameters}
            for key in {"f", "archive_path_or_buffer"} & set(parameters):
                given[key] = io.BytesIO(data) if reads else io.BytesIO()
            given[parameter] = wrong
            raises_what_is_listed(name, **given)


@pytest.mark.parametrize("wrong", WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_whether_anything_is_a_package(wrong: Any) -> None:
    assert archive.is_pt2_package(wrong) is False


@pytest.mark.parametrize("wrong", WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_records_of_wrong_names_and_contents(wrong: Any, data: bytes, tmp_path: Path) -> None:
    with archive.PT2ArchiveReader(bytearray(data)) as reader:
        for read in (reader.read_bytes, reader.read_string):
            with pytest.raises((fxpress.ArchiveError, TypeError)):
                read(wrong)
    with archive.PT2ArchiveWriter(io.BytesIO()) as writer:
        for write in (writer.write_bytes, writer.write_string):
            with contextlib.suppress(fxpress.ArchiveError, AssertionError):
                write(f"of {write.__name__}", wrong)
        for write, content in (
            *((writer.write_bytes, b"x"), (writer.write_string, "x")),
            *((writer.write_file, tmp_path / "none"), (writer.write_folder, tmp_path / "none")),
        ):
            with contextlib.suppress(fxpress.ArchiveError, AssertionError, TypeError):
                write(wrong, content)
        for write in (writer.write_file, writer.write_folder):
            with contextlib.suppress(AssertionError, TypeError):
                write("name", wrong)


class Raising:
    """A file whose methods raise an exception that only this test has."""

    class Mine(Exception):
        pass

    def __init__(self, method: str, data: bytes = b"") -> None:
        self.method, self.file = method, io.BytesIO(data)

    def __getattr__(self, name: str) -> Any:
        if name == "getbuffer":
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            if name == self.method:
                raise Raising.Mine(name)
            return getattr(self.file, name)(*args)

        return call


@pytest.mark.parametrize("name", [*READING, "save"])
def test_what_file_objects_raise_comes_out_as_it_is(name: str, program: Any, data: bytes) -> None:
    method = "write" if name == "save" else "read"
    file = Raising(method, data)
    with pytest.raises(Raising.Mine, match=method):
        FUNCTIONS[name](*([program] if name == "save" else []), file)


class Nonsense:
    """A file that gives anything."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def read(self, *_: Any) -> Any:
        return self.given

    def write(self, *_: Any) -> Any:
        return self.given

    tell = seek = read


@pytest.mark.parametrize("given", WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_file_objects_that_give_nonsense(given: Any, program: Any) -> None:
    for name in READING:
        raises_what_is_listed(name, Nonsense(given))
    raises_what_is_listed("save", program, Nonsense(given))
    if isinstance(given, int):
        with pytest.raises(OSError, match=r"expected write.* to accept"):
            archive.save(program, Nonsense(given))


def test_closed_and_other_files(program: Any, data: bytes, tmp_path: Path) -> None:
    closed = io.BytesIO(data)
    closed.close()
    path = tmp_path / "model.pt2"
    path.write_bytes(data)
    with open(path, "rb") as only_read, open(path, encoding="latin-1") as text:
        for name in READING:
            for file in (closed, text, tmp_path, tmp_path / "none", tmp_path / "none" / "none"):
                raises_what_is_listed(name, file)
        for file in (closed, only_read, text, tmp_path, tmp_path / "none" / "none.pt2"):
            raises_what_is_listed("save", program, file)
    with open(os.devnull, "rb") as closed_again:
        pass
    for name in READING:
        raises_what_is_listed(name, closed_again)


def test_kinds_of_torch_stay(program: Any, data: bytes) -> None:
    """An except clause for torch's class or for `fxpress.Error` catches the error."""
    buffer = io.BytesIO()
    archive.package_pt2(buffer, exported_programs={"other": program})
    with pytest.raises(KeyError, match="does not contain a program 'model'") as missing:
        archive.load(buffer)
    with archive.PT2ArchiveWriter(io.BytesIO()) as writer:
        writer.write_string("archive_format", "pt3")
    other = io.BytesIO()
    with archive.PT2ArchiveWriter(other) as writer:
        writer.write_string("archive_format", "pt3")
    other.seek(0)
    with pytest.raises(AssertionError, match="Invalid archive format") as format:
        archive.load(other)
    for error in (missing, format):
        assert isinstance(error.value, fxpress.ArchiveError)
        assert isinstance(error.value, zipfile.BadZipFile)
    broken = export(Model(), (torch.ones(1, 2),))
    broken.graph_module.graph.output_node().args = ((3,),)
    del broken.state_dict["linear.weight"]
    with pytest.raises(fxpress.SerializeError):
        serialize.serialize(broken)


def test_documents_of_arguments_of_wrong_types() -> None:
    """Documents refer to their schema; creating one without a schema must raise, not crash."""
    for arguments in ((), ("text", "TensorMeta"), (None, "TensorMeta"), (b"{}", 3)):
        with pytest.raises(TypeError):
            SCHEMA.read(*arguments)
    for method in (SCHEMA.to_document, SCHEMA.encode_document, SCHEMA.encode_part):
        with pytest.raises(TypeError):
            method(3, 3)  # type: ignore[arg-type, call-arg]
