"""Programs whose names are markup, and a reader of the data of pages."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MARKUP = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&lt;b&gt;</style></title>{{7*7}}"
_DATA = re.compile(r'(<script type="application/json" id="data">)(.*?)(?=</script>)', re.DOTALL)
# Keys whose texts mean something to every reader of the format.
_KEPT = {"expr_str", "schema_version", "path_name", "torch_version"}
_TABLES = {
    *("tensor_values", "sym_int_values", "sym_bool_values", "sym_float_values"),
    *("custom_obj_values", "range_constraints", "config", "metadata"),
}


def hostile_copy(source: Path, target: Path) -> None:
    """Write a file like another, with markup in each name and text of its program."""
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(target, "w") as made:
        for name in archive.namelist():
            data = archive.read(name)
            if name.endswith("models/model.json") or name.endswith("_config.json"):
                data = json.dumps(_hostile(json.loads(data), "")).encode()
            made.writestr(name, data)


def _hostile(value: Any, key: str) -> Any:
    if isinstance(value, list):
        return [_hostile(each, key) for each in value]
    if isinstance(value, dict):
        return {_hostile_key(k, key): _hostile(each, k) for k, each in value.items()}
    if not isinstance(value, str) or key in _KEPT:
        return value
    if key == "nn_module_stack":  # key, path and class of each module
        parts = [entry.split(",", 2) for entry in value.split(";")]
        return ";".join(",".join(part + MARKUP for part in entry) for entry in parts)
    if key == "from_node":
        return json.dumps(_hostile(json.loads(value), ""))
    return value + MARKUP


def _hostile_key(key: str, table: str) -> str:
    return key + MARKUP if table in _TABLES - {"metadata"} else key


class Page:
    """The data of a page, and what is around it."""

    def __init__(self, text: str) -> None:
        self.frame, self.text = re.sub(_DATA, r"\1", text, count=1), _DATA.search(text)[2]  # type: ignore[index]
        self.data: dict[str, Any] = json.loads(self.text)
        (*_, self.program) = (each for file in self.data["files"] for each in file["programs"])

    def _rows(self, value: Any) -> Iterator[list[str]]:
        """Yield the lists of texts in data."""
        if isinstance(value, dict):
            value = [*value.values()]
        if isinstance(value, list):
            if value and all(isinstance(each, str) for each in value):
                yield value
            for each in value:
                yield from self._rows(each)

    def row(self, name: str) -> list[str]:
        """Return the cells of the only row of a table or of the tree that begins with a name."""
        (found,) = (row for row in self._rows(self.data["files"]) if row[0] == name)
        return found

    def module(self, path: str) -> list[str]:
        """Return path, class, parameters, bytes, operators and FLOPs of a module."""
        (found,) = (row[1:] for row in self.program["modules"] if row[1] == path)
        return found

    def nodes(self, graph: int = 0) -> dict[str, dict[str, Any]]:
        """Return operator, arguments, results and texts of the nodes of a graph by their names."""
        texts, types = self.data["texts"], self.data["types"]
        nodes = self.program["graphs"][graph]["nodes"]
        found = {}
        for name, target, module, identity, arguments, constants, results, origin, _ in nodes:
            sources = zip(arguments[::3], arguments[1::3], arguments[2::3], strict=True)
            pairs = identity + constants + origin
            found[texts[name]] = {
                "operator": texts[target],
                "module": self.program["modules"][module][1],
                "arguments": {texts[k]: texts[nodes[node][6][2 * i]] for k, node, i in sources},
                "results": [types[number].get("shape") for number in results[1::2]],
                **{texts[k]: texts[v] for k, v in zip(pairs[::2], pairs[1::2], strict=True)},
            }
        return found
