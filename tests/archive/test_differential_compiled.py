"""Code that AOTInductor compiled is written to and read from archives, and runs."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
import torch
from torch.export import export
from torch.export.pt2_archive import _package as torch_package

import fxpress
from fxpress import archive


@pytest.mark.deep("compiles C++")
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_compiled_models(tmp_path: Path) -> None:
    x = torch.ones(2, 3)
    program = export(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), (x,))
    expected = program.module()(x)
    path = str(tmp_path / "model.pt2")
    with fxpress.installed():
        made = torch._inductor.aoti_compile_and_package(program, package_path=path)
        torch.testing.assert_close(torch._inductor.aoti_load_package(made)(x), expected)
    archive.verify(path)
    data = Path(path).read_bytes()
    with open(path, "rb") as file:
        for source in (path, file, io.BytesIO(data), bytearray(data)):
            contents = archive.load_pt2(source, allow_compiled=True)
            torch.testing.assert_close(contents.aoti_runners["model"](x), expected)
    other = {name: value.detach() * 2 for name, value in program.state_dict.items()}
    outputs = []
    ours, theirs = archive.load_pt2(path, allow_compiled=True), torch_package.load_pt2(path)
    for module, contents in ((archive, ours), (torch_package, theirs)):
        runner = contents.aoti_runners["model"]
        weights = {name: other[name] for name in runner.get_constant_fqns()}  # others are code
        module.load_weights_to_pt2_contents(contents, {"model": weights})
        outputs.append(runner(x))
    torch.testing.assert_close(*outputs)
    assert not torch.equal(outputs[0], expected)
