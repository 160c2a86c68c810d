"""Summarize a program in a file from its JSON text."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from fxpress._files.format import fields
from fxpress._files.format.fields import damage_is_named, expect_list, expect_object, expect_str
from fxpress._files.format.stored import STATE
from fxpress._files.format.tensors import expression, tensor_of
from fxpress._files.format.torch_facts import refusal
from fxpress._tools.inspect.arguments import bodies_in, operators_in
from fxpress._tools.inspect.modules import Module, Weight, tree_of


@dataclasses.dataclass
class Value:
    """An input from the caller, or a result."""

    name: str  # the name of the value in the graph; empty for a constant
    kind: str  # the kind in the signature, such as "user_input" or "buffer_mutation"
    type: str  # a tensor as "float32[s0, 4]", or the type of another value
    target: str | None = None  # the target of a mutation or a gradient; otherwise None


@dataclasses.dataclass
class Program:
    """The summary of a program."""

    name: str  # its name in the file
    torch_version: str  # the release of torch that wrote the text; empty if unknown
    schema_version: str  # the version of the text's schema
    dialect: list[str]  # the dialects that its verifiers accept, such as ["TRAINING"]
    inputs: list[Value]  # the inputs from the caller
    outputs: list[Value]  # the results, and mutations
    operators: dict[str, int]  # operator -> number of calls, also in subgraphs; most frequent first
    refused: dict[str, str]  # operator that a load refuses without `allow_operators` -> why
    # The least and the greatest value of each symbol; None: no bound.
    symbols: dict[str, tuple[int | None, int | None]]
    guards: list[str]  # conditions on inputs, as Python
    root: Module
    weights: list[Weight]  # parameters, buffers and constants


def read_program(
    document: dict[str, Any],
    name: str,
    record: str,
    weights: list[Weight] | None,
    ties: Mapping[str, Hashable] = MappingProxyType({}),
) -> Program:
    """Return a summary of a program; `ties` maps names of the same tensor to equal values."""
    place = f"record {record!r}"
    with damage_is_named(place):
        module = expect_object(document["graph_module"])
        graph = expect_object(module["graph"])
        signature = expect_object(module["signature"])
        version = document.get("schema_version")
        numbers = list(expect_object(version).values()) if version is not None else []
    with damage_is_named(f"{place}: graph.tensor_values"):
        metas = expect_object(graph["tensor_values"])
    if weights is None:
        weights = list(_weights(signature, metas, place))
    nodes = list(nodes_of(graph, place))
    stacks = (_stack(node, place) for node in nodes)
    firsts: dict[Hashable, str] = {}
    for each in weights:
        first = firsts.setdefault(_identity(each, ties), each.name)
        each.tied_to = first if first != each.name else None
    with damage_is_named(place):
        counted = Counter(expect_str(node["target"]) for node in nodes)
        return Program(
            name=name,
            torch_version=expect_str(document.get("torch_version") or ""),
            schema_version=".".join(map(str, numbers)),
            dialect=[expect_str(each) for each in expect_list(document.get("verifiers") or [])],
            inputs=list(_inputs(signature, metas, place)),
            outputs=list(_outputs(signature, metas, place)),
            operators=dict(counted.most_common()),
            refused=refused_operators(nodes),
            symbols=_symbols(document),
            guards=[expect_str(each) for each in expect_list(document.get("guards_code") or [])],
            root=tree_of(stacks, weights),
            weights=weights,
        )


def _identity(weight: Weight, ties: Mapping[str, Hashable]) -> Hashable:
    """Return a key that is equal for weights that are the same tensor."""
    if weight.record is None:
        return ties.get(weight.name, weight.name)
    return weight.record, weight.offset, str(weight.tensor)


def nodes_of(graph: dict[str, Any], place: str) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a graph and of its subgraphs, such as the branches of `torch.cond`."""
    waiting = [graph]
    while waiting:
        with damage_is_named(f"{place}: graph.nodes"):
            nodes = [expect_object(node) for node in expect_list(waiting.pop()["nodes"])]
        for number, node in enumerate(nodes):
            yield node
            with damage_is_named(f"{place}: graph.nodes[{number}]"):
                for argument in expect_list(node["inputs"]):
                    waiting += map(expect_object, bodies_in(expect_object(argument)["arg"]))


def refused_operators(
    nodes: Iterable[dict[str, Any]], allowed: frozenset[str] = frozenset()
) -> dict[str, str]:
    """Return operator -> reason, for the called or passed operators that a load refuses."""
    named = set()
    for node in nodes:
        named.add(expect_str(node["target"]))
        for argument in expect_list(node["inputs"]):
            named.update(operators_in(expect_object(argument)["arg"]))
    return {n: why for n in sorted(named) if (why := refusal(n, allowed)) is not None}


def _stack(node: dict[str, Any], place: str) -> str:
    with damage_is_named(f"{place}: the metadata of a node"):
        return expect_str(expect_object(node["metadata"]).get("nn_module_stack") or "")


def _describe(argument: Any, metas: dict[str, Any]) -> tuple[str, str]:
    """Return name and type of a value of the signature; `metas` maps tensors' names to metadata."""
    kind, held = fields.expect_one_of(argument)
    if kind == "as_tensor":
        name = expect_str(expect_object(held)["name"])
        return name, str(tensor_of(metas[name]))
    kind = kind.removeprefix("as_").removeprefix("sym_")
    if type(held) is dict:
        return next((each for each in held.values() if type(each) is str), ""), kind
    return "", kind if held in (None, True, []) else f"{kind} {held}"


def _inputs(signature: dict[str, Any], metas: dict[str, Any], place: str) -> Iterator[Value]:
    for number, spec in enumerate(expect_list(signature["input_specs"])):
        with damage_is_named(f"{place}: signature.input_specs[{number}]"):
            kind, held = fields.expect_one_of(spec)
            if kind == "user_input":
                name, described = _describe(expect_object(held)["arg"], metas)
                yield Value(name, kind, described)
            elif kind == "constant_input":
                _, described = _describe(expect_object(held)["value"], metas)
                yield Value(expect_str(held["name"]), kind, described)


def _outputs(signature: dict[str, Any], metas: dict[str, Any], place: str) -> Iterator[Value]:
    for number, spec in enumerate(expect_list(signature["output_specs"])):
        with damage_is_named(f"{place}: signature.output_specs[{number}]"):
            kind, held = fields.expect_one_of(spec)
            argument = expect_object(held)["arg"]
            if "name" in expect_object(argument):  # mutations and gradients have no kind
                argument = {"as_tensor": argument}
            targets = [value for key, value in held.items() if key != "arg"]
            target = expect_str(targets[0]) if targets else None
            if kind != "token":
                name, described = _describe(argument, metas)
                yield Value(name, kind, described, target)


def _weights(signature: dict[str, Any], metas: dict[str, Any], place: str) -> Iterator[Weight]:
    for number, spec in enumerate(expect_list(signature["input_specs"])):
        with damage_is_named(f"{place}: signature.input_specs[{number}]"):
            kind, held = fields.expect_one_of(spec)
            if kind in STATE:
                name = expect_str(expect_object(held)[STATE[kind].field])
                tensor = tensor_of(metas[expect_str(expect_object(held["arg"])["name"])])
                yield Weight(name, "constant" if kind == "tensor_constant" else kind, tensor)


def _symbols(document: dict[str, Any]) -> dict[str, tuple[int | None, int | None]]:
    ranges = expect_object(document.get("range_constraints") or {})
    return {
        expression(symbol): (expect_object(bounds).get("min_val"), bounds.get("max_val"))
        for symbol, bounds in ranges.items()
    }
