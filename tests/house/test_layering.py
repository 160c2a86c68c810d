"""The components of the house: who may include whom, and who may know torch's private names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INCLUDE = re.compile(r'#include ["<]([^">]+)[">]')
# What the files of each folder of csrc may include of ours, besides those of the folder itself.
COMPONENTS = {
    *("split", "unflatten", "export", "decompose", "capture", "tracking", "serde", "install")
}
ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "archive": {"core"},
    "archive/objects": {"archive", "core", "py"},
    "schema": {"core", "archive"},
    "split/plan": {"core"},
    "unflatten/plan": {"core"},
    "export/plan": {"core"},
    "capture/text": {"core"},
    "py": {"core"},
    "fx": {"core", "py"},
    "split": {"core", "py", "fx", "split/plan"},
    "unflatten": {"core", "py", "fx", "unflatten/plan"},
    "export": {"core", "py", "fx", "export/plan"},
    "capture": {"core", "py", "fx", "capture/text"},
    "decompose": {"core", "py", "fx"},
    "tracking": {"py"},
    "serde": {"core", "py", "fx", "schema"},
    "install": {"py"},
    "engine": {"core", "py", "fx"},
    "tensor": {"core", "py"},
    "bind": {
        "archive",
        "archive/objects",
        "core",
        "schema",
        "py",
        "fx",
        "capture/text",
        *COMPONENTS,
    },
    "aten": {"core", "engine", "tensor"},
}
# These compile without Python and torch.
PLAIN = {"core", "archive", "schema", "capture/text"} | {
    f"{component}/plan" for component in ("split", "unflatten", "export")
}
WITH_TORCH = {"engine", "tensor", "aten"}
PYTHON_OR_TORCH = re.compile(r"^(Python\.h|structmember\.h|pybind11/|torch/|ATen/|c10/)")


def folders() -> list[str]:
    root = ROOT / "csrc"
    files = [*root.rglob("*.h"), *root.rglob("*.cpp")]
    return sorted({str(path.parent.relative_to(root)) for path in files})


def test_every_folder_has_its_rule() -> None:
    assert folders() == sorted(ALLOWED)


@pytest.mark.parametrize("folder", sorted(ALLOWED))
def test_includes(folder: str) -> None:
    for path in sorted((ROOT / "csrc" / folder).glob("*")):
        for name in INCLUDE.findall(path.read_text()) if path.is_file() else ():
            where = name.rpartition("/")[0]
            if (ROOT / "csrc" / name).exists():
                assert where == folder or where in ALLOWED[folder], f"{path}: {name}"
            if folder in PLAIN:
                assert not PYTHON_OR_TORCH.match(name), f"{path}: {name}"
            if folder not in WITH_TORCH:
                assert not re.match(r"torch/|ATen/|c10/", name), f"{path}: {name}"


@pytest.mark.parametrize("folder", sorted(ALLOWED))
def test_a_component_has_one_namespace(folder: str) -> None:
    """A namespace has the component's name, unless pybind11 or a C++ keyword has the name."""
    component = folder.split("/", maxsplit=1)[0]
    expected = {f"fxpress::{ {'py': 'cpython', 'export': 'exporting'}.get(component, component) }"}
    for path in sorted((ROOT / "csrc" / folder).glob("*")):
        if path.suffix in (".h", ".cpp"):
            found = set(re.findall(r"^namespace (fxpress::[\w:]+) \{", path.read_text(), re.M))
            assert found == expected, path


@pytest.mark.parametrize("folder", ["csrc", "python", "tests", "benchmarks", "cmake"])
def test_no_file_is_longer_than_600_lines(folder: str) -> None:
    for path in (ROOT / folder).rglob("*"):
        if path.suffix in (".py", ".pyi", ".h", ".cpp", ".cmake", ".def"):
            assert len(path.read_text().splitlines()) <= 600, path


def test_json_of_files_is_read_in_one_place() -> None:
    """`fields.load_json` counts depth; the others read texts of ranks, and one text of ours."""
    others = {"_files/format/fields.py", "_files/format/torch_facts.py"}
    others |= {"_files/serde/native_table.py"}  # the depth was counted in C++
    others |= {f"_distributed/pipeline/{name}.py" for name in ("agreement", "watch")}
    root = ROOT / "python" / "fxpress"
    found = {
        path for path in root.rglob("*.py") if re.search(r"\bjson\.loads?[(,]", path.read_text())
    }
    assert {str(path.relative_to(root)) for path in found} == others


def test_tables_by_text_have_a_hash_with_a_secret() -> None:
    """Texts of a file are keys of nearly all of them."""
    others = {
        "engine/operators.cpp",  # names of torch's operators
        "schema/schema.h",  # names of the schema
        "archive/zip_writer.h",  # torch's number of an archive depends on the order of this one
    }
    table = re.compile(r"unordered_(map|set)<std::string")
    root = ROOT / "csrc"
    found = {path for path in root.rglob("*.[hc]*") if table.search(path.read_text())}
    assert {str(path.relative_to(root)) for path in found} == {*others, "core/text_hash.h"}


def test_ci_runs_the_commands_of_the_readme_first() -> None:
    """CI runs the commands in the README, and installs other packages only after them."""
    script = (ROOT / ".ci" / "run").read_text()
    function = re.search(r"^readme_block\(\) \{\n.*?^\}\n", script, re.DOTALL | re.MULTILINE)
    assert function is not None
    bash = f"{function[0]} for number in 1 2 3; do readme_block $number; done"
    found = subprocess.run(
        ["bash", "-c", bash], cwd=ROOT, capture_output=True, text=True, check=True
    )
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)\n```", readme, flags=re.DOTALL)[:3]
    assert found.stdout.splitlines() == blocks
    assert "pip install '.[bench]' && python benchmarks/run.py" in blocks[0]
    assert blocks[1].endswith("pip install '.[test]' && pytest")
    assert blocks[2].startswith("apt-get install ")
    steps = [
        'install "${needed[@]:2}"',
        *(f'as_in_the_readme "$(readme_block {n})"' for n in (1, 2)),
    ]
    places = [script.index(text) for text in steps]
    assert places == sorted(places)
    jobs = re.search(r"^start_jobs (.*await_readme.*)$", script, re.MULTILINE)
    assert jobs is not None
    names = jobs[1].split()
    assert names.index("await_readme") < names.index("get_programs")
