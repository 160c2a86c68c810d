"""Measures the tests by planted faults: `python tools/plant_faults.py core-depth serde`.

tools/faults/faults.toml lists small errors of logic. For each fault, this script edits a copy of
the working tree, builds C++ again, and runs the fault's `tests` until one fails: all tests of a
file except deep and browser tests; in a folder, first the fast tests, then the default tests. It
writes the first failures to `caught`. `--check` runs the tests in `caught` without a fault.
Needs Python 3.11 or newer, without an editable install of fxpress.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tools" / "faults" / "faults.toml"
CAUGHT = r'(id = "{}"\n(?:(?!\[\[fault\]\]).)*?\n)caught = \[.*?\]\n'
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", re.MULTILINE)
CASE = re.compile(r"^\S*?(tests/cpp/\S+?):\d+:\nTEST CASE: +(.*)$", re.MULTILINE)
ENDED = re.compile(r"^FAILED|^ERROR|\d (?:passed|deselected|skipped)|no tests ran", re.MULTILINE)
ALONE = ("-n", "0", "-m", "not deep and not browser")  # options for a file
FIRST = 5  # a run of tests ends after this many failures, which are recorded


class Tree:
    """A copy of the working tree in which faults are planted."""

    def __init__(self, path: Path) -> None:
        self.path, self.build = path, path / "build" / "faults"
        paths = {"PYTHONPATH": str(path / "python"), "CCACHE_BASEDIR": str(path)}
        self.environment = {**os.environ, **paths, "CCACHE_NOHASHDIR": "1"}
        listed = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"]
        names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
        for name in names:
            self.write(name, (ROOT / name).read_bytes())
        for old in (old for kind in ("py", "cpp", "h") for old in path.rglob(f"*.{kind}")):
            if not {str(old.relative_to(path)), "build"} & {*names, old.relative_to(path).parts[0]}:
                old.unlink()

    def write(self, name: str, data: bytes) -> None:
        """Write a file, unless it has these bytes: a new time would make Ninja compile it again."""
        file = self.path / name
        if not file.is_file() or file.read_bytes() != data:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            file.chmod((ROOT / name).stat().st_mode)

    def run(self, *command: str) -> str:
        """Run a command; return its output."""
        options: dict[str, Any] = {"cwd": self.path, "env": self.environment, "text": True}
        return subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **options
        ).stdout

    def make(self, *targets: str) -> None:
        """Build targets of CMake, and link the extensions into the package."""
        pybind = self.run(sys.executable, "-m", "pybind11", "--cmakedir").strip()
        options = [f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind}"]
        options += ["-DCMAKE_BUILD_TYPE=Release", "-DFXPRESS_TESTS=ON"]
        options += ["-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON"]
        text = self.run("cmake", "-S", ".", "-B", str(self.build), "-G", "Ninja", *options)
        text += self.run("cmake", "--build", str(self.build), "--target", *targets)
        if "FAILED:" in text or "Error" in text:
            raise SystemExit(f"the build fails:\n{text}")
        for made in (*self.build.glob("_native*.so"), *self.build.glob("_aten_*.so")):
            link = self.path / "python" / "fxpress" / made.name
            link.unlink(missing_ok=True)
            link.symlink_to(made)

    def failures(self, *options: str) -> list[str]:
        """Return the tests that fail in a run of pytest."""
        pytest = (sys.executable, "-m", "pytest", "-q", "-rfE", "--maxfail", str(FIRST))
        text = self.run(*pytest, "-p", "no:cacheprovider", "-o", "timeout=180", *options)
        if re.search(r"^ERROR: ", text, re.MULTILINE):
            raise SystemExit(text)
        found = list(dict.fromkeys(FAILED.findall(text)))
        return found if ENDED.search(text) else [f"{options[-1]}: a crash"]

    def cxx_failures(self) -> list[str]:
        """Return the C++ tests that fail."""
        self.make("fxpress_core_tests")
        text = self.run(str(self.build / "tests" / "cpp" / "fxpress_core_tests"))
        found = [f"{file}: {case}" for file, case in dict.fromkeys(CASE.findall(text))]
        return found if found or "Status: SUCCESS" in text else ["tests/cpp: a crash"]


def measure(tree: Tree, fault: dict[str, Any], instead: list[str]) -> list[str]:
    """Return the tests that fail with a fault."""
    name, find = fault["file"], fault["find"]
    text = (ROOT / name).read_text()
    if text.count(find) != 1:
        raise SystemExit(f"{fault['id']}: {name} has its text {text.count(find)} times, not once")
    tree.write(name, text.replace(find, fault["replace"]).encode())
    found: list[str] = []
    for tests in instead or fault["tests"]:
        if not found and tests == "tests/cpp":
            found = tree.cxx_failures()
        elif not found:
            tree.make("_native", "aten")
            is_file = tests.endswith(".py")
            found = tree.failures(*(ALONE if is_file else ("-m", "fast")), tests)
            found = found or ([] if is_file else tree.failures(tests))
    tree.write(name, text.encode())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("faults", nargs="*", help="ids, components or languages (csrc, python)")
    parser.add_argument("--check", action="store_true", help="run what is recorded, with no fault")
    parser.add_argument("--survivors", action="store_true", help="only faults that nothing caught")
    parser.add_argument("--tests", nargs="+", default=[], help="run other tests than the table")
    parser.add_argument("--tree", type=Path, default=ROOT / "build" / "faults-tree")
    given = parser.parse_args()
    tree = Tree(given.tree.resolve())
    recorded: list[str] = []
    for fault in tomllib.loads(TABLE.read_text())["fault"]:
        names = {fault["id"], fault["component"], fault["file"].partition("/")[0]}
        if given.faults and names.isdisjoint(given.faults):
            continue
        if given.survivors and fault["caught"]:
            continue
        recorded += [test for test in fault["caught"] if "::" in test]
        if given.check:
            continue
        found = measure(tree, fault, given.tests)
        lines = "".join(f"    '''{test}''',\n" for test in found[:FIRST])
        entry = re.compile(CAUGHT.format(re.escape(fault["id"])), re.DOTALL)
        made = f"caught = [\n{lines}]\n" if found else "caught = []\n"
        TABLE.write_text(entry.sub(lambda at, made=made: at[1] + made, TABLE.read_text()))
        print(f"{fault['id']}: {len(found)} failures, {found[:FIRST]}", flush=True)
    if given.check:
        tree.make("_native", "aten")
        print("\n".join(tree.failures(*dict.fromkeys(recorded))) or "all pass")


if __name__ == "__main__":
    main()
