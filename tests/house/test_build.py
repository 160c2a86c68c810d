"""The two extension modules and the facts that they report about their build."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fxpress
from fxpress._torch import versions

ROOT = Path(__file__).parents[2]
MISMATCH = """
import torch
from fxpress._torch import versions
versions.built_for = lambda: ("2.1",)
import fxpress
from fxpress.split_module import split_module
graph = torch.fx.Graph()
graph.output(graph.call_function(torch.neg, (graph.placeholder("x"),)))
module = torch.fx.GraphModule({}, graph)
assert split_module(module, None, lambda n: 0)(torch.ones(1)).item() == -1
info = fxpress.build_info()["aten"]
assert info["usable"] is False and info["torch"] == ("2.1",)
try:
    import fxpress._torch.aten
except ImportError as error:
    print(error)
"""


def test_one_version() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    changes = re.findall(r"^## \[(\d.*)\] - ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert re.findall(r'^version = "(.*)"$', project, re.MULTILINE) == [fxpress.__version__]
    assert changes[0] == fxpress.__version__
    info = fxpress.build_info()
    assert info["native"]["version"] == info["aten"]["version"] == fxpress.__version__


def test_build_info() -> None:
    info = fxpress.build_info()
    assert info["torch"] == torch.__version__
    for module in ("native", "aten"):
        assert {"version", "compiler", "build_type", "pybind11"} <= info[module].keys()
        assert int(info[module]["pybind11"].split(".")[0]) >= 3
    assert info["aten"]["torch"] == torch.__version__
    assert info["aten"]["usable"] is True


def test_build_info_without_the_part_for_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fxpress._torch, "aten", raising=False)
    monkeypatch.setitem(sys.modules, "fxpress._torch.aten", None)
    info = fxpress.build_info()
    assert info["native"]["version"]
    assert info["aten"]["usable"] is False
    assert info["aten"]["torch"] == versions.built_for()
    assert "fxpress._torch.aten" in info["aten"]["reason"]


def test_aten_counts_shared_storage_once() -> None:
    from fxpress._torch import aten

    base = torch.zeros(8)
    assert aten.storage_bytes([base, base[2:], base.view(2, 4), torch.zeros(2)]) == 8 * 4 + 2 * 4
    assert aten.storage_bytes([]) == 0


def test_aten_rejects_what_is_no_tensor() -> None:
    from fxpress._torch import aten

    with pytest.raises(TypeError):
        aten.storage_bytes([1])  # type: ignore[list-item]


def test_a_second_build_keeps_the_object_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CMake's cache is removed if pip has removed the build environment; object files are kept."""
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "backend"))
    backend = importlib.import_module("fxpress_build")
    monkeypatch.chdir(tmp_path)
    for name, made_by in (("removed", tmp_path / "nowhere"), ("present", tmp_path)):
        build = tmp_path / "build" / name
        (build / "CMakeFiles").mkdir(parents=True)
        (build / "CMakeCache.txt").touch()
        info = {"source_dir": str(tmp_path), "skbuild_path": str(made_by)}
        (build / ".skbuild-info.json").write_text(json.dumps(info))
    backend._keep_objects()
    assert os.listdir("build/removed") == ["CMakeFiles"]
    assert len(os.listdir("build/present")) == 3


@pytest.mark.slow("separate processes")
def test_aten_under_another_torch() -> None:
    """The error is one sentence with both versions and the remedy; `split_module` still works."""
    run = subprocess.run(
        [sys.executable, "-c", MISMATCH], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    message = run.stdout.strip()
    assert message.count(". ") == 0
    assert "torch 2.1;" in message
    assert torch.__version__ in message
    assert "pip install" in message
