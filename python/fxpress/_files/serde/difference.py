"""Find the differences between two programs."""

from __future__ import annotations

import dataclasses
import itertools
import operator
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch.export import ExportedProgram

from fxpress import _native
from fxpress._base.observing.progress import Progress, check_progress
from fxpress._base.observing.text import html_table, printable, printable_lines
from fxpress._files.format.fields import entries_of
from fxpress._files.format.tensors import dtype_of, expression
from fxpress._files.serde.hashing import hash_parts
from fxpress._files.serde.limits import Budget
from fxpress._files.serde.schema import CLASSES, SCHEMA
from fxpress._torch import serde as compat
from fxpress._torch.watching import operation, phase

# The text that is reported for nodes with equal fields and different hashes.
_ORDER = "computed differently, or in another order of writes, random operators, effects or modes"
_SYMBOL = re.compile(r"Symbol\('(\w+)'")
# Fields of the schema that do not affect the computation.
_IGNORED = {"metadata", "hint", "kind"}
_SHOWN = 100  # the maximum number of characters of a shown value, or of a list of node names
_DIFFERS = "differs"  # the `identity` of values whose differences were reported already
_schema = compat.schema


@dataclasses.dataclass(frozen=True)
class Difference:
    """One difference between two programs; `str(difference)` is one line.

    torch does not have this class.

    Attributes:
        path: the path of the value in the first program, or in the second if the first lacks it.
        first: the value in the first program, or None.
        second: the value in the second program, or None.
        nodes: the name of the node in each program; None in a program that lacks the node. Outside
            of nodes, both are None.
        module: the path of the module whose call was traced to the node, "" for the root; None
            outside of modules.
        operator: the operator of the node, such as "aten.relu.default"; None outside of nodes.

    Example:
        >>> import copy
        >>> changed = copy.deepcopy(model)
        >>> changed[1].norm.eps = 1e-3
        >>> (difference,) = fxpress.diff(program, torch.export.export(changed, (x,)))
        >>> difference.first, difference.second, difference.nodes
        (1e-05, 0.001, ('layer_norm_1', 'layer_norm_1'))
        >>> difference.module, difference.operator
        ('1.norm', 'aten.layer_norm.default')
    """

    path: str
    first: Any
    second: Any
    nodes: tuple[str | None, str | None] = (None, None)
    module: str | None = None
    operator: str | None = None

    def __str__(self) -> str:
        return printable_lines(f"{self.path}: {' → '.join(self.texts())}")

    def texts(self) -> tuple[str, str]:
        """Return both values as texts of at most 100 characters; dtypes are shown by name.

        Example:
            >>> fxpress.Difference("graph.nodes[0].inputs.dtype.as_scalar_type", 7, 13).texts()
            ('float32', 'bfloat16')
        """
        field = self.path.rpartition(".")[2]
        return _shortened(_readable(self.first, field)), _shortened(_readable(self.second, field))

    def _repr_html_(self) -> str:
        rows = [self.texts(), tuple(name or "" for name in self.nodes)]
        return html_table(self.path, ("first", "second"), rows if any(self.nodes) else rows[:1])


class Differences(list[Difference]):
    """The differences between two programs, which `print` groups by module.

    torch does not have this class.

    Args:
        differences: an iterable of `Difference`.

    Example:
        >>> import copy
        >>> changed = copy.deepcopy(model)
        >>> changed[1].norm.eps = 1e-3
        >>> print(fxpress.diff(program, torch.export.export(changed, (x,))))
        1.norm
          graph.nodes[8].inputs.eps.as_float (layer_norm_1): 1e-05 → 0.001
    """

    def grouped(self) -> Iterator[tuple[str | None, list[tuple[str, str]]]]:
        """Yield (module, lines). A line is (location, change) or (operator, names of nodes).

        A line lists all nodes of one operator that only one of the programs has.

        Example:
            >>> list(fxpress.diff(program, program).grouped())
            []
        """
        modules: dict[str | None, list[Difference]] = {}
        for each in self:
            modules.setdefault(each.module, []).append(each)
        for module, found in modules.items():
            lines: dict[str, list[str]] = {}
            for each in found:
                if each.operator is None or None not in each.nodes:
                    name = ", ".join(dict.fromkeys(filter(None, each.nodes)))
                    place = each.path.removeprefix("graph_module.")
                    lines[f"{place} ({name})" if name else place] = [" → ".join(each.texts())]
                    continue
                first, second = each.nodes
                what = f"added {each.operator}" if first is None else f"removed {each.operator}"
                lines.setdefault(what, []).append(first or second or "")
            yield module, [(what, _shortened(", ".join(texts))) for what, texts in lines.items()]

    def __str__(self) -> str:
        lines = []
        for module, found in self.grouped():
            lines.append(_module_text(module))
            lines += (f"  {what}: {text}" for what, text in found)
        return "\n".join(map(printable, lines)) or "no differences"

    def _repr_html_(self) -> str:
        rows = [(_module_text(module), *line) for module, found in self.grouped() for line in found]
        title = "differences" if rows else "no differences"
        return html_table(title, ("module", "what differs", "change"), rows)


def _module_text(module: str | None) -> str:
    return "(no module)" if module is None else module or "(root)"


@dataclasses.dataclass(frozen=True)
class _Value:
    """The name of a value; instances compare by `identity`, such as (hash of the node, index)."""

    name: str = dataclasses.field(compare=False)
    identity: Any = None

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclasses.dataclass(frozen=True)
class _Expression:
    """A symbolic size. In `identity`, numbers replace the names of symbols."""

    text: str = dataclasses.field(compare=False)
    identity: str

    def __repr__(self) -> str:
        return self.text


class _Side:
    """One of the two programs, as dicts and lists in which a `_Value` replaces each name."""

    def __init__(
        self, document: _native.Document, whole: bytes, known: dict[str, bytes], digests: bytes
    ) -> None:
        self.hash, self.known = whole, known
        self.digests = [digests[i : i + 32] for i in range(0, len(digests), 32)]
        stored = document.field(CLASSES, "")
        self.module = stored.graph_module
        self.graph = self.module.graph
        self.stored = stored
        self.modules: dict[str, str] = {}  # node -> module, for nodes without a stored module stack
        self.symbols: dict[str, int] = {}  # name -> number, in the order of first use
        self.values: dict[str, Any] = {}  # name -> identity
        positions = Counter[str]()
        self.inputs = {}  # type and name (or position) -> input spec
        for spec in self.module.signature.input_specs:
            kind, content = str(spec.type), spec.value
            key = next((f"{v}" for k, v in vars(content).items() if k.endswith("_name")), None)
            if key is None or kind in ("tensor_constant", "custom_obj"):
                key = str(positions[kind])
                positions[kind] += 1
            self.inputs[f"{kind} {key}"] = spec
            for name in _names(getattr(content, "arg", None)):
                self.values[name] = (kind, key)
        for digest, node in zip(self.digests, self.graph.nodes, strict=True):
            for index, name in enumerate(_names(node.outputs)):
                self.values[name] = (digest, index)

    def plain(self, value: Any, values: dict[str, Any]) -> Any:
        """Return an object of the schema as dicts and lists; omit fields that the hash ignores."""
        if isinstance(value, _schema.Graph):
            inner: dict[str, Any] = {}
            for name in itertools.chain(
                _names(value.inputs), *(_names(node.outputs) for node in value.nodes)
            ):
                inner[name] = len(inner)
            parts = {f: getattr(value, f) for f in ("inputs", "nodes", "outputs")}
            return {
                **{f: self.plain(part, inner) for f, part in parts.items()},
                "values": self.metas(value, list(inner), inner),
            }
        if isinstance(value, _schema.GraphArgument):
            return self.plain(value.graph, values)
        if isinstance(value, (_schema.TensorArgument, _schema.TokenArgument)):
            return _Value(value.name, values.get(value.name))
        if isinstance(value, _schema.CustomObjArgument):
            identity = values.get(value.name, self.known.get(value.name))
            return {"name": _Value(value.name, identity), "class_fqn": value.class_fqn}
        if isinstance(value, compat.Union):
            if str(value.type) == "as_name":
                return _Value(value.value, values.get(value.value))
            return {str(value.type): self.plain(value.value, values)}
        if isinstance(value, _schema.SymExpr):
            text = value.expr_str
            return _Expression(expression(text), _SYMBOL.sub(self.symbol, text))
        if dataclasses.is_dataclass(value):
            skipped = _IGNORED | ({"name"} if isinstance(value, _schema.Node) else set())
            return {
                f.name: self.plain(getattr(value, f.name), values)
                for f in dataclasses.fields(value)
                if f.name not in skipped
            }
        if isinstance(value, (list, tuple)):
            return [self.plain(part, values) for part in value]
        if isinstance(value, dict):
            return {key: self.plain(part, values) for key, part in value.items()}
        return value

    def symbol(self, match: re.Match[str]) -> str:
        return f"Symbol('{self.symbols.setdefault(match[1], len(self.symbols))}'"

    def metas(self, graph: Any, names: list[str], values: dict[str, Any]) -> list[Any]:
        """Return the metadata of named values from the tables of a graph."""
        tables = (
            graph.tensor_values,
            graph.sym_int_values,
            graph.sym_bool_values,
            graph.sym_float_values,
        )
        found = (next((t[n] for t in tables if n in t), None) for n in names)
        return [self.plain(meta, values) for meta in found]

    def input(self, key: str) -> Any:
        spec = self.inputs.get(key)
        if spec is None:
            return None
        content = spec.value
        names = list(_names(getattr(content, "arg", None)))
        stored = next((v for k, v in vars(content).items() if k.endswith("_name")), None)
        return {
            "values": self.metas(self.graph, names, self.values),
            "known": self.known.get(stored, b"").hex() if stored else None,
            **({"value": self.plain(content.value, {})} if hasattr(content, "value") else {}),
        }

    def forget(self, key: str) -> None:
        """Treat an input as equal in both programs from now on; its difference was reported."""
        if key in self.inputs:
            names = _names(getattr(self.inputs[key].value, "arg", None))
            self.values.update(dict.fromkeys(names, _DIFFERS))

    def node(self, index: int) -> Any:
        node = self.graph.nodes[index]
        names = list(_names(node.outputs))
        inputs = {i.name or str(k): i.arg for k, i in enumerate(node.inputs)}
        return {
            "target": node.target,
            "inputs": self.plain(inputs, self.values),
            "outputs": [str(o.type) for o in node.outputs],
            "values": self.metas(self.graph, names, self.values),
        }

    def origin_of(self, index: Any) -> dict[str, str | None]:
        """Return the operator of node `index`, and the module whose call was traced to the node."""
        node = self.graph.nodes[index]
        module = self.modules.get(self.node_name(index) or "")
        if stack := node.metadata.get("nn_module_stack"):
            *_, (module, _) = entries_of(stack)
        return {"module": module, "operator": node.target.removeprefix("torch.ops.")}

    def node_name(self, index: int | None) -> str | None:
        """Return the name of node `index`; if the file lacks it, the name of its first value."""
        if index is None:
            return None
        node = self.graph.nodes[index]
        return getattr(node, "name", None) or next(_names(node.outputs), None)

    def ranges(self, names: dict[int, str]) -> dict[str, Any]:
        """Return symbol -> range; `names` maps a symbol's number to its name in the result."""
        stored = self.stored.range_constraints.items()
        numbered = {name: names.get(self.symbols.get(name, -1), name) for name, _ in stored}
        return {numbered[name]: self.plain(limits, {}) for name, limits in stored}

    def roots(self, others: Counter[bytes]) -> list[int]:
        """Return the nodes whose hashes are not in `others`, except users of such nodes."""
        left = others.copy()
        strange = {name for name, made in self.values.items() if made is _DIFFERS}
        roots = []
        for index, digest in enumerate(self.digests):
            if left[digest] > 0:
                left[digest] -= 1
                continue
            node = self.graph.nodes[index]
            names = set(_names([i.arg for i in node.inputs]))
            if names.isdisjoint(strange):
                roots.append(index)
            strange.update(_names(node.outputs))
        # From now on, treat the returned nodes and their users as equal.
        self.values.update(dict.fromkeys(strange, _DIFFERS))
        return roots


def _names(value: Any) -> Iterator[str]:
    """Yield the names of values in arguments, except names inside nested graphs."""
    if isinstance(
        value, (_schema.TensorArgument, _schema.TokenArgument, _schema.CustomObjArgument)
    ):
        yield value.name
    elif isinstance(value, compat.Union):
        tag = str(value.type)  # tags of different unions are unequal, so compare texts
        if tag == "as_name":
            yield value.value
        elif tag != "as_graph":
            yield from _names(value.value)
    elif isinstance(value, dict):
        yield from _names(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _names(part)


def _compare(path: str, first: Any, second: Any) -> Iterator[Difference]:
    """Yield the differences between two trees of dicts and lists, in order."""
    if _is_union(first) and _is_union(second) and first.keys() != second.keys():
        yield Difference(path, _held(first), _held(second))
    elif isinstance(first, dict) and isinstance(second, dict):
        for key in {**first, **second}:
            yield from _compare(f"{path}.{key}", first.get(key), second.get(key))
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for i, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from _compare(f"{path}[{i}]", one, other)
    elif repr(first) != repr(second) if first != first else first != second:  # NaN != NaN
        yield Difference(path, first, second)


def _is_union(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and next(iter(value)).startswith("as_")


def _held(union: dict[str, Any]) -> Any:
    """Return the value in a union; return the union if the value is unreadable without the tag."""
    ((tag, held),) = union.items()
    if tag in (*_DTYPES, *_NUMBERED):
        return union
    return None if tag == "as_none" else held.text if isinstance(held, _Expression) else held


def _pairs(first: _Side, second: _Side) -> Iterator[tuple[int | None, int | None]]:
    """Yield pairs of differing nodes, of one operator if possible. A missing node is None."""
    others = second.roots(Counter(first.digests))
    for index in first.roots(Counter(second.digests)):
        target = first.graph.nodes[index].target
        same = (i for i in others if second.graph.nodes[i].target == target)
        found = next(same, others[0] if others else None)
        if found is not None:
            others.remove(found)
        yield index, found
    yield from ((None, index) for index in others)


def _differences(first: _Side, second: _Side) -> Iterator[Difference]:
    for key in {**first.inputs, **second.inputs}:
        path = f"graph_module.graph.inputs[{key}]"
        found = list(_compare(path, first.input(key), second.input(key)))
        kind, _, name = key.partition(" ")
        module = name.rpartition(".")[0] if kind in ("parameter", "buffer") else None
        yield from (dataclasses.replace(each, module=module) for each in found)
        for side in (first, second) if found else ():
            side.forget(key)
    for one, other in _pairs(first, second):
        path = f"graph_module.graph.nodes[{other if one is None else one}]"
        mine = None if one is None else first.node(one)
        theirs = None if other is None else second.node(other)
        if mine is None or theirs is None:
            found = [Difference(path, mine and mine["target"], theirs and theirs["target"])]
        else:
            found = list(_compare(path, mine, theirs)) or [Difference(path, _ORDER, _ORDER)]
        where: dict[str, Any] = {"nodes": (first.node_name(one), second.node_name(other))}
        where |= first.origin_of(one) if one is not None else second.origin_of(other)
        yield from (dataclasses.replace(each, **where) for each in found)
    for path in ("graph_module.signature.output_specs", "graph_module.module_call_graph"):
        parts = []
        for side in (first, second):
            whole = side.stored
            for name in path.split("."):
                whole = getattr(whole, name)
            parts.append([side.plain(each, side.values) for each in whole])
        yield from _compare(path, *parts)
    names = {number: name for side in (second, first) for name, number in side.symbols.items()}
    yield from _compare("range_constraints", first.ranges(names), second.ranges(names))
    yield from _compare("guards_code", first.stored.guards_code, second.stored.guards_code)


def _sizes(
    found: list[Difference], first: ExportedProgram, second: ExportedProgram, **_: Any
) -> dict[str, int]:
    nodes = len(first.graph.nodes) + len(second.graph.nodes)
    return {"nodes": nodes, "differences": len(found)}


@operation("diff", _sizes)
def diff(
    first: ExportedProgram,
    second: ExportedProgram,
    *,
    limit: int = 10,
    include_state: bool = False,
    progress: Progress = False,
) -> Differences:
    """Return the first differences between the computations of two programs.

    A node is compared with its counterpart in the other program. The counterpart may have another
    name and position. If nodes differ because their arguments differ, only the arguments are
    reported. torch does not have this function.

    Args:
        first, second: the programs, which are not modified.
        limit: the largest number of differences to return.
        include_state: also compare the values of parameters and buffers.
        progress: how to show the progress of hashing values, in bytes: True or a function of (done,
            total, what). The programs are hashed one after the other.

    Returns:
        The differences in inputs, nodes, outputs, ranges and guards, in this order; the list prints
        them by module. It is empty if and only if both programs have the same `graph_hash`.

    Raises:
        ValueError: `limit` is not positive.
        TypeError: `limit` is not an int, a program is not an ExportedProgram, or `progress` is of
            a wrong type.
        ImportError: `progress` needs a package that is not installed.
        fxpress.SerializeError: a node cannot be written; the message names it.
        fxpress.UnsupportedError: fxpress cannot write a part of a program, or cannot hash a
            constant.

    Example:
        >>> doubled = torch.export.export(torch.nn.Sequential(model, torch.nn.ReLU()), (x,))
        >>> fxpress.diff(program, program)
        []
        >>> fxpress.diff(program, doubled) == []
        False
    """
    if (limit := operator.index(limit)) < 1:
        raise ValueError(f"limit must be positive, not {limit}")
    check_progress(progress)
    programs = first, second
    sides = [_Side(*hash_parts(program, include_state, progress)) for program in programs]
    for side, program in zip(sides, programs, strict=True):
        for node in _native.list_nodes(program.graph):
            if stack := node.meta.get("nn_module_stack"):
                side.modules[node.name] = [*stack.values()][-1][0]
    return _diff(sides[0], sides[1], limit)


def diff_texts(
    first: tuple[bytes, bytes, dict[str, bytes], bytes],
    second: tuple[bytes, bytes, dict[str, bytes], bytes],
    limit: int,
) -> Differences:
    """Implement `diff` for tuples (JSON of a program, *hashes), with hashes from `hash_parts`."""

    def side(text: bytes, *hashes: Any) -> _Side:
        budget = Budget(None, len(text)).native
        return _Side(SCHEMA.read(text, "ExportedProgram", budget), *hashes)

    return _diff(side(*first), side(*second), limit)


def _diff(first: _Side, second: _Side, limit: int) -> Differences:
    if first.hash == second.hash:
        return Differences()
    with phase("comparison"):
        found = Differences(itertools.islice(_differences(first, second), limit))
    return found or Differences([Difference("graph_module.graph.nodes", _ORDER, _ORDER)])


def _shortened(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


# Fields of the schema that contain the number of a dtype, a layout or a memory format.
_DTYPES = ("dtype", "as_scalar_type")
_NUMBERED: dict[str, dict[int, str]] = {
    field: {0: "unknown", **{n: str(each).removeprefix("torch.") for n, each in known.items()}}
    for field, known in (
        ("layout", compat.LAYOUTS_BY_NUMBER),
        ("as_layout", compat.LAYOUTS_BY_NUMBER),
        ("as_memory_format", compat.MEMORY_FORMATS_BY_NUMBER),
    )
}


def _readable(value: Any, field: str = "") -> Any:
    """Return a schema field's value with names instead of numbers, and without dicts of unions."""
    if type(value) is int:
        return (
            dtype_of(value)[0] if field in _DTYPES else _NUMBERED.get(field, {}).get(value, value)
        )
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return [_readable(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "dtype" in value and "sizes" in value:
        dtype, _ = dtype_of(value["dtype"])
        return f"{dtype}{_readable(value['sizes'])}"
    if value.keys() == {"min_val", "max_val"}:
        low, high = value["min_val"], value["max_val"]
        return f"VR[{'-int_oo' if low is None else low}, {'int_oo' if high is None else high}]"
    kept = {key: each for key, each in value.items() if key not in ("known", "hint") or each}
    if len(kept) == 1:
        ((key, held),) = kept.items()
        if key.startswith("as_"):
            return _readable(None if key == "as_none" else held, key)
        if key == "values" and isinstance(held, list) and len(held) == 1:
            return _readable(held[0])
    return {key: _readable(each, key) for key, each in kept.items()}
