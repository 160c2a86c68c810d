"""fxpress reads files of older versions of torch; the programs give the same results."""

from __future__ import annotations

import functools
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._export.serde import serialize as torch_serialize

from fxpress.serialize import SerializedArtifact, deserialize, serialize
from tests.support.serialized import with_numbered_graphs

PARTS = ("exported_program", "state_dict", "constants", "example_inputs")
FILES = sorted(Path(__file__).parent.glob("torch-*.zip"))
# Differences between files of the torch that runs the tests and of another version.
SAME_VERSION = f"torch-{torch.__version__.partition('+')[0]}-"
BUILD = str(torch.__version__)  # such as 2.13.0+cpu; the files name the build that wrote them


def names(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return sorted({name.rpartition("/")[0] for name in archive.namelist()})


CASES = [(path, name) for path in FILES for name in names(path)]
EACH = pytest.mark.parametrize(
    ("path", "name"), CASES, ids=[f"{path.stem}/{name}" for path, name in CASES]
)


@functools.cache
def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def artifact(path: Path, name: str) -> SerializedArtifact:
    return SerializedArtifact(*(contents(path)[f"{name}/{part}"] for part in PARTS))


def test_there_are_files() -> None:
    assert len(CASES) >= 100


@EACH
def test_it_is_read(path: Path, name: str) -> None:
    written = artifact(path, name)
    program = deserialize(written)
    program.validate()
    stored = json.loads(written.exported_program)["graph_module"]["graph"]
    outputs = [key for table in ("tensor_values", "sym_int_values") for key in stored[table]]
    assert {n.name for n in program.graph.nodes} >= set(outputs) - {
        key for key in outputs if "_unused_" in key
    }
    if path.name.startswith(SAME_VERSION):
        again = torch_serialize.serialize(torch_serialize.deserialize(written))
        # The written document, without ranges of symbols that the graph lacks (torch drops them).
        # Z-142: torch drops storage offsets as well.
        expected = [with_numbered_graphs(w.exported_program) for w in (again, written)]
        expected[1] = re.sub(rb'(?<="torch_version": ")[^"]*', BUILD.encode(), expected[1])
        assert serialize(program).exported_program in expected


@EACH
def test_it_does_what_it_did(path: Path, name: str) -> None:
    saved = contents(path).get(f"{name}/leaves_of_the_result")
    if saved is None:
        pytest.skip("its example does not run")
    expected: list[Any] = torch.load(io.BytesIO(saved))
    program = deserialize(artifact(path, name))
    args, kwargs = program.example_inputs or ((), {})
    result = program.module()(*args, **kwargs)
    for mine, other in zip(torch.utils._pytree.tree_leaves(result), expected, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(mine, other)
        else:
            assert mine == other
