"""Reports what a release of torch changed for fxpress: `python tools/new_torch.py 2.16.0`.

The release is installed into a new environment (gigabytes; or use `--python` with a Python that has
it). The script compares it with the torch of this Python: the names of torch that fxpress uses, the
schema, the operators, the sources of the modules that fxpress replaces, and the features that
`fxpress._torch.versions` probes. `--tests` also builds fxpress there, runs the tests, and lists the
rows of docs/fidelity.md whose tests fail. The report is Markdown on the standard output.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "python" / "fxpress"
MODULES = (
    "torch.fx.passes.split_module",
    "torch.export.unflatten",
    "torch.export._trace",
    "torch.export._unlift",
    "torch.export.exported_program",
    "torch._export.serde.schema",
    "torch._export.serde.serialize",
    "torch.export.pt2_archive._package",
    "torch._dynamo.functional_export",
    "torch._dynamo.variables.nn_module",
)

# Runs in both environments, prints JSON, and does not need fxpress.
COLLECT = """
import dataclasses, importlib, inspect, json, sys
names, modules = json.load(sys.stdin)

def find(path):
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ImportError(path)

def describe(path):
    try:
        found = find(path)
    except Exception as error:
        return {"missing": f"{type(error).__name__}: {error}"}
    described = {"kind": type(found).__name__}
    if inspect.isclass(found):
        described["members"] = sorted(vars(found))
    if callable(found):
        try:
            described["signature"] = str(inspect.signature(found))
        except (TypeError, ValueError):
            pass
    return described

def schema():
    from torch._export.serde import schema
    types = {}
    for name, value in vars(schema).items():
        if dataclasses.is_dataclass(value):
            fields = dataclasses.fields(value)
            types[name] = {field.name: str(field.type) for field in fields}
        elif inspect.isclass(value) and hasattr(value, "__members__"):
            types[name] = {member: str(each.value) for member, each in value.__members__.items()}
    types["versions"] = {"SCHEMA_VERSION": str(schema.SCHEMA_VERSION)}
    return types

def source(module):
    try:
        return inspect.getsource(importlib.import_module(module))
    except Exception as error:
        return f"{type(error).__name__}: {error}"

import torch
json.dump({
    "version": torch.__version__,
    "names": {name: describe(name) for name in names},
    "schema": schema(),
    "sources": {module: source(module) for module in modules},
}, sys.stdout)
"""
# Likewise; prints the names of all operators, and the names and types of their arguments. Modules
# of torch that may register operators are imported, except torch's own tests.
OPERATORS = r"""
import importlib, json, pathlib, re, sys
import torch

stdout, sys.stdout = sys.stdout, sys.stderr
registers = re.compile(r"Library\(|custom_op\(|library\.define\(|HigherOrderOperator\)|BaseHOP\)")
folder = pathlib.Path(torch.__file__).parent
for path in sorted(folder.rglob("*.py")):
    name = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
    if not name.startswith("torch.testing.") and registers.search(path.read_text()):
        try:
            importlib.import_module(name.removesuffix(".__init__"))
        except BaseException:
            pass  # the module needs a package that is not installed
found = {f"higher_order.{name}": [] for name in torch._ops._higher_order_ops}
for schema in torch._C._jit_get_all_schemas():
    name = schema.name.replace("::", ".") + "." + (schema.overload_name or "default")
    found[name] = [[each.name, str(each.type)] for each in schema.arguments]
json.dump(found, stdout)
"""
FEATURES = """
import functools, json, sys
sys.path.insert(0, sys.argv[1])
import types
package = types.ModuleType("fxpress")
package.__path__ = [sys.argv[1] + "/fxpress"]
sys.modules["fxpress"] = package  # without the extension modules, which are not built yet
from fxpress._torch.versions import EXPECTED, Features

def ask(name):
    try:
        return bool(getattr(Features(), name))
    except Exception as error:
        return f"{type(error).__name__}: {error}"

probes = [n for n, v in vars(Features).items() if isinstance(v, functools.cached_property)]
newest = list(EXPECTED)[-1]
json.dump({"newest": newest, "expected": sorted(EXPECTED[newest]),
           "found": {name: ask(name) for name in probes}}, sys.stdout)
"""


def names_from_torch() -> list[str]:
    """Return the names that fxpress imports from torch, and the attributes that it reads."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        found.update(_names_in(ast.parse(path.read_text())))
    for line in re.findall(r"torch[\w.]*:[\w.]+", (PACKAGE / "_torch" / "probes.py").read_text()):
        found.add(line.replace(":", "."))
    return sorted(found)


def _names_in(tree: ast.Module) -> Iterator[str]:
    roots = {"torch": "torch"}  # name in the file -> path of torch
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            for each in node.names:
                roots[each.asname or each.name] = f"{node.module}.{each.name}"
                yield f"{node.module}.{each.name}"
        elif isinstance(node, ast.Import):
            for each in node.names:
                if each.asname and each.name.startswith("torch."):
                    roots[each.asname] = each.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts = [node.attr]
            value = node.value
            while isinstance(value, ast.Attribute):
                parts.insert(0, value.attr)
                value = value.value
            if isinstance(value, ast.Name) and value.id in roots:
                yield ".".join([roots[value.id], *parts])


def ask(python: str, script: str, *arguments: str, given: str = "") -> Any:
    """Run a script in another Python, and return what it prints as JSON."""
    done = subprocess.run(
        [python, "-W", "ignore", "-c", script, *arguments],
        input=given,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def install(version: str, folder: Path) -> str:
    """Create an environment with a release of torch, and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "-q", f"torch=={version}", "numpy"]
    subprocess.run(pip, check=True, stdout=sys.stderr)
    return python


def report_names(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Yield the names that are gone, and the names whose signatures or members differ."""
    both = {name: (old[name], new[name]) for name in old if "missing" not in old[name]}
    gone = {name: now["missing"] for name, (_, now) in both.items() if "missing" in now}
    yield f"\n## Names that are gone: {len(gone)}\n"
    yield from (f"- `{name}`: {reason}" for name, reason in gone.items())
    left = {name: pair for name, pair in both.items() if name not in gone}
    changed = {n: p for n, p in left.items() if p[0].get("signature") != p[1].get("signature")}
    yield f"\n## Signatures that differ: {len(changed)}\n"
    for name, (before, now) in changed.items():
        yield f"- `{name}`\n  - {before.get('signature')}\n  - {now.get('signature')}"
    yield "\n## Classes whose members differ\n"
    for name, (before, now) in left.items():
        was, has = set(before.get("members", ())), set(now.get("members", ()))
        if was != has:
            words = [f"-`{each}`" for each in sorted(was - has)]
            words += [f"+`{each}`" for each in sorted(has - was)]
            yield f"- `{name}`: {', '.join(words)}"


def report_schema(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Yield the types and fields of the schema that differ."""
    yield "\n## The schema\n"
    same = True
    for name in sorted({*old, *new}):
        before, now = old.get(name, {}), new.get(name, {})
        for field in sorted({*before, *now}):
            if before.get(field) != now.get(field):
                same = False
                yield f"- `{name}.{field}`: {before.get(field)} -> {now.get(field)}"
    if same:
        yield "The same."


def report_sources(old: dict[str, str], new: dict[str, str]) -> Iterator[str]:
    """Yield the differences of the modules that fxpress replaces."""
    yield "\n## Sources\n"
    for module in MODULES:
        lines = list(
            difflib.unified_diff(
                old[module].splitlines(), new[module].splitlines(), "old", "new", lineterm="", n=2
            )
        )
        changed = sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in lines)
        yield f"### `{module}`: {changed} lines\n"
        if lines:
            yield from ("```diff", *lines, "```")


# These operators are safe although a call passes strides or an offset: torch compares the strides
# with the storage or the tensor, or creates a new storage.
_STRIDES_ARE_CHECKED = re.compile(
    "as_strided(_|_copy|_scatter)?|new_empty_strided|_assert_tensor_metadata"
)
_SIZES, _STRIDES = {"size", "shape", "nested_size"}, {"stride", "strides", "nested_strides"}


def reach_outside(operator: str, arguments: list[list[str]]) -> str | None:
    """Return how an operator may access more than its arguments, judged by the arguments' types."""
    name = operator.split(".")[1]
    for argument, kind in arguments:
        if found := re.search("Storage|RRef|Future", kind):
            return f"its argument {argument} is a {found[0]}"
        if "str" in kind and re.search("file|path", argument):
            return f"its argument {argument} is a path"
        if "indices" in argument and re.match(r"_?sparse_\w+_tensor", name):
            return "the indices are not compared with the sizes"
    names = {argument for argument, _ in arguments}
    is_view = arguments[:1] and arguments[0][1] == "Tensor"
    if is_view and names & _SIZES and names & _STRIDES and not _STRIDES_ARE_CHECKED.fullmatch(name):
        return "the strides are not compared with the storage"
    return None


def report_operators(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Yield the new operators that a file may call, that it may not call, and without a rule."""
    rules = json.loads((PACKAGE / "_files" / "format" / "torch.json").read_text())["rules"]
    listed = {name for _, names in rules["callable"] for name in names}
    ruled = {"may be called by a file": [], "are refused": [], "have no rule": []}
    for operator in sorted(set(new) - set(old)):
        namespace, name, *_ = operator.split(".")
        if reason := rules["outside"].get(operator) or reach_outside(operator, new[operator]):
            ruled["are refused"].append(f"{operator}: {reason}")
        elif not listed.isdisjoint((namespace, f"{namespace}.{name}")):
            ruled["may be called by a file"].append(operator)
        elif not {namespace, f"{namespace}.{name}"}.isdisjoint(rules["others"]):
            ruled["are refused"].append(f"{operator}: of no exported program")
        else:
            ruled["have no rule"].append(operator)
    yield "\n## New operators\n"
    yield "`python tools/write_torch_facts.py` writes the rules."
    for rule, found in ruled.items():
        yield f"\n{len(found)} {rule}:\n"
        yield from (f"- `{each}`" for each in found)


def report_features(found: dict[str, Any]) -> Iterator[str]:
    """Yield the features that differ from the newest release in the table `EXPECTED`."""
    newest, has = found["newest"], found["found"]
    yield f"\n## Features that differ from torch {newest}\n"
    for name, value in has.items():
        if value != (name in found["expected"]):
            yield f"- `{name}`: {value}"


def report_tests(python: str) -> Iterator[str]:
    """Build fxpress in the environment, run the tests, and yield failed tests with their rows."""
    yield "\n## Rows of docs/fidelity.md whose tests fail\n"
    pip = [python, "-m", "pip", "install", "-q", f"{ROOT}[test]"]
    subprocess.run(pip, check=True, stdout=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        run = [python, "-m", "pytest", "-q", "-m", "not deep", f"--junitxml={results}"]
        subprocess.run(run, check=False, cwd=ROOT, stdout=sys.stderr)
        text = results.read_text()
    failed = re.findall(
        r'<testcase classname="([\w.]+)" name="([^"]+)"[^>]*><(?:failure|error)', text
    )
    rows = [
        line
        for line in (ROOT / "docs" / "fidelity.md").read_text().splitlines()
        if re.match(r"\| [A-Z]-\d", line)
    ]
    yield f"{len(failed)} tests fail.\n"
    for classname, name in failed:
        path = classname.removeprefix("tests.").replace(".", "/") + ".py"
        function = name.partition("[")[0]
        held = [row.split("|")[1].strip() for row in rows if path in row or f"::{function} " in row]
        yield f"- {path}::{name}: {', '.join(held) or 'no row'}"


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", nargs="?", help="the release of torch, such as 2.16.0")
    parser.add_argument("--python", help="a Python that has the release")
    parser.add_argument(
        "--tests", action="store_true", help="build fxpress there, and run its tests"
    )
    arguments = parser.parse_args()
    if (arguments.version is None) == (arguments.python is None):
        parser.error("give a version or --python")
    with tempfile.TemporaryDirectory() as folder:
        python = arguments.python or install(arguments.version, Path(folder))
        given = json.dumps([names_from_torch(), MODULES])
        old = ask(sys.executable, COLLECT, given=given)
        new = ask(python, COLLECT, given=given)
        operators = [ask(each, OPERATORS) for each in (sys.executable, python)]
        print(f"# torch {new['version']} beside {old['version']}")
        for part in (
            report_names(old["names"], new["names"]),
            report_schema(old["schema"], new["schema"]),
            report_operators(*operators),
            report_features(ask(python, FEATURES, str(PACKAGE.parent))),
            report_tests(python) if arguments.tests else (),
            report_sources(old["sources"], new["sources"]),
        ):
            print(*part, sep="\n")


if __name__ == "__main__":
    main()
