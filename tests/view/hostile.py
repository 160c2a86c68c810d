"""Programs whose names are markup, and a reader of pages that finds markup which is not ours."""

from __future__ import annotations

import json
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

MARKUP = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&lt;b&gt;</style></title>{{7*7}}"
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


class Page(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.text = ""
        self.cells: list[list[str]] = []  # of each row of the tree or of a table
        self._is_in_cell = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes.update(attrs)
        if tag == "tr" or (dict(attrs).get("class") or "").startswith("row"):
            self.cells.append([])
        if self.cells and (tag in ("td", "dd") or dict(attrs).get("class") in ("name", "number")):
            self.cells[-1].append("")
            self._is_in_cell = True
        if tag == "dt":
            self.cells.append([""])
            self._is_in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "dd", "dt", "summary", "div"):
            self._is_in_cell = False

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._is_in_cell:
            self.cells[-1][-1] += data

    def row(self, name: str) -> list[str]:
        """Return the cells of the only row that begins with a name."""
        (found,) = [
            [cell.strip() for cell in row]
            for row in self.cells
            if row and row[0].strip().split(" ")[0] == name
        ]
        return found
