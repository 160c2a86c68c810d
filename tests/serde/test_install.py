"""After install() torch's own callers write and read with fxpress."""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._export.serde import schema
from torch._export.serde import serialize as torch_serialize
from torch.export import ExportedProgram, export

from fxpress import _install, installed, serialize
from fxpress._files.archive import contents


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.scale


@pytest.fixture
def program() -> ExportedProgram:
    return export(Model(), (torch.randn(3, 4),), strict=False)


NAMES = [e.name for e in _install.ENTRIES if e.module == torch_serialize.__name__]


def test_every_name_is_replaced_and_put_back() -> None:
    before = dict(vars(torch_serialize))
    with installed():
        for name in NAMES:
            assert vars(torch_serialize)[name] is not before[name], name
    assert all(vars(torch_serialize)[name] is before[name] for name in before)
    assert all(hasattr(serialize, name) for name in NAMES)


def test_save_and_load(program: ExportedProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    counted(contents, "decode")
    plain = io.BytesIO()
    torch.export.save(program, plain)
    with installed():
        written = io.BytesIO()
        torch.export.save(program, written)
        loaded = torch.export.load(io.BytesIO(plain.getvalue()))
        again = torch.export.load(io.BytesIO(written.getvalue()))
    assert calls == ["decode", "decode"]
    x = torch.randn(3, 4)
    expected = program.module()(x)
    for read in (loaded, again, torch.export.load(io.BytesIO(written.getvalue()))):
        torch.testing.assert_close(read.module()(x), expected)
    assert len(calls) == 2


def test_functions_and_classes(program: ExportedProgram) -> None:
    with installed():
        artifact = torch_serialize.serialize(program)
        assert str(torch_serialize.deserialize(artifact)) == str(program)
        stored = torch_serialize._bytes_to_dataclass(
            schema.ExportedProgram, artifact.exported_program
        )
        canonical = torch_serialize.canonicalize(stored)
        made = torch_serialize.ExportedProgramSerializer().serialize(program)
        assert type(made.exported_program) is schema.ExportedProgram
        assert isinstance(
            torch_serialize.ExportedProgramSerializer(), serialize.ExportedProgramSerializer
        )
    assert canonical == torch_serialize.canonicalize(stored)


def test_inductor_writes_extern_kernels_with_ours() -> None:
    import torch._inductor.ir as inductor

    original = inductor.GraphModuleSerializer
    args = (([2, 3], 1.5), {"dtype": torch.float32})
    expected = original(None, []).serialize_inputs(torch.ops.aten.full.default, *args)
    with installed():
        made = inductor.GraphModuleSerializer(None, [])
        assert type(made) is serialize.GraphModuleSerializer
        assert made.serialize_inputs(torch.ops.aten.full.default, *args) == expected
        unbound = inductor.GraphModuleSerializer.serialize_input
        assert unbound is serialize.GraphModuleSerializer.serialize_input
        assert isinstance(original(None, []), inductor.GraphModuleSerializer)
        assert pickle.loads(pickle.dumps(inductor.GraphModuleSerializer)) is type(made)
    assert inductor.GraphModuleSerializer is original
    assert "torch._inductor.ir" in sys.modules
