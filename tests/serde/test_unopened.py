"""If an error may come from an unopened pickle, it names `allow_pickle`."""

from __future__ import annotations

import importlib
import io
import logging
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export
from torch.utils import _pytree as pytree

import fxpress
from fxpress.serialize import SerializedArtifact, SerializeError, deserialize, serialize
from tests.support.reading_cases import edited, node_of

# torch registers classes of modules with a function that it calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.utils._pytree._register_pytree_node`")

OPENS = r"example_inputs cannot be read without unpickling.*allow_pickle=True"


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Applies(nn.Module):
    def forward(self, x: Tensor, module: nn.Module) -> Any:
        return module(x) + 1


def with_a_module() -> ExportedProgram:
    return export(Applies(), (torch.ones(3), Scale()), strict=False)


@pytest.fixture
def quiet() -> Iterator[None]:
    """A warning of torch has a format of two values, and one value."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("quiet")
def test_a_module_as_an_input_of_a_file() -> None:
    """torch unpickles it unasked."""
    stream = io.BytesIO()
    fxpress.save(with_a_module(), stream)
    data = stream.getvalue()
    with pytest.raises(SerializeError, match=rf"(?s)Scale in pytree is not registered.*{OPENS}"):
        fxpress.load(io.BytesIO(data))
    for load, options in ((torch.export.load, {}), (fxpress.load, {"allow_pickle": True})):
        read = load(io.BytesIO(data), **options)
        assert torch.equal(read.module()(torch.ones(3), Scale()), torch.full((3,), 2.0))


def test_a_module_as_an_input_of_an_artifact() -> None:
    written = serialize(with_a_module())
    with pytest.raises(SerializeError, match=rf"(?s)Scale in pytree is not registered.*{OPENS}"):
        deserialize(written)
    assert deserialize(written, allow_pickle=True).example_inputs is not None


class Secret:
    pass


def with_a_secret(program: ExportedProgram) -> SerializedArtifact:
    program._example_inputs = ((Secret(),), {})
    return serialize(program)


class Adds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


@pytest.mark.parametrize("name", ["torch.ops.elsewhere.add.default", "#elsewhere:add"])
def test_operators_that_the_module_of_an_input_registers(name: str) -> None:
    def edit(stored: Any) -> None:
        node_of(stored, "add")["target"] = name

    written = edited(with_a_secret(export(Adds(), (torch.ones(3),), strict=False)), edit)
    with pytest.raises(SerializeError, match=rf"(?s)elsewhere.*{OPENS}"):
        deserialize(written)


def test_other_errors_do_not_speak_of_pickles() -> None:
    def damage(stored: Any) -> None:
        node_of(stored, "add")["inputs"].clear()

    def rename(stored: Any) -> None:
        node_of(stored, "add")["target"] = "torch.ops.elsewhere.add.default"

    program = export(Adds(), (torch.ones(3),), strict=False)
    for written in (edited(serialize(program), rename), edited(with_a_secret(program), damage)):
        with pytest.raises(SerializeError) as caught:
            deserialize(written)
        assert "pickle" not in str(caught.value)


def test_a_class_that_its_module_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpickling imports the module, unless the process has done so."""
    name = "fxpress_tests_pair"
    source = """
        from dataclasses import dataclass
        from torch import Tensor
        from torch.export import register_dataclass

        @dataclass
        class Pair:
            left: Tensor
            right: Tensor

        register_dataclass(Pair, serialized_type_name="fxpress_tests_pair.Pair")
    """
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)

    class Sums(nn.Module):
        def forward(self, pair: Any) -> Any:
            return pair.left + pair.right

    def forget() -> None:
        pytree._deregister_pytree_node(sys.modules.pop(name).Pair)

    inputs = (importlib.import_module(name).Pair(torch.ones(2), torch.ones(2)),)
    written = serialize(export(Sums(), inputs, strict=False))
    forget()
    with pytest.raises(SerializeError, match=rf"(?s)Pair in pytree is not registered.*{OPENS}"):
        deserialize(written)
    program = deserialize(written, allow_pickle=True)
    args, kwargs = program.example_inputs
    assert torch.equal(program.module()(*args, **kwargs), torch.full((2,), 2.0))
    forget()
