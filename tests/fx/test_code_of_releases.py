"""Generated code that differs between releases of torch: complex constants and boxed arguments."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.split_module import split_module as torch_split

from fxpress import _native
from fxpress._torch import deferred_code
from fxpress._torch.versions import features
from fxpress.split_module import split_module
from tests.support.deferred import in_blocks
from tests.support.versions import needs

PARTS = (0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan)
COMPLEX = [complex(a, b) for a, b in itertools.product(PARTS, PARTS)]


def keep(x: Any, *rest: Any) -> Any:
    return rest


def codes(module: GraphModule) -> tuple[list[str], list[str]]:
    """The code of all parts of a split: ours and torch's."""
    ours = split_module(module, module, in_blocks(module, 1))
    theirs = torch_split(module, module, in_blocks(module, 1))
    return tuple(  # type: ignore[return-value]
        [m.code for m in split.modules() if isinstance(m, GraphModule)] for split in (ours, theirs)
    )


def graph_with(*arguments: Any) -> GraphModule:
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(keep, (x, *arguments)))
    return GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("value", COMPLEX, ids=repr)
def test_complex_constants(value: complex) -> None:
    nested = (value, [value, slice(None, value)], {"k": value})
    ours, theirs = codes(graph_with(*nested))
    assert ours == theirs
    assert _native.python_source(graph_with(*nested).graph) is not None


@needs("complex_constants_are_calls")
@pytest.mark.parametrize("value", COMPLEX, ids=repr)
def test_complex_constants_keep_their_parts(value: complex) -> None:
    module = graph_with(value)
    split = split_module(module, module, in_blocks(module, 1))
    (made,) = split(torch.ones(1))
    for part, given in ((made.real, value.real), (made.imag, value.imag)):
        assert repr(part) == repr(given)


def boxed(mark: str) -> GraphModule:
    graph = Graph()
    x = graph.placeholder("x")
    a = graph.call_function(torch.sin, (x,))
    b = graph.call_function(torch.cos, (x,))
    made = graph.call_function(keep, (x, [a, b], b), {})
    if mark == "meta":
        made.meta["boxed_arg_indices"] = (1,)
    elif mark == "none":
        made.meta["boxed_arg_indices"] = ()
    graph.output(made)
    return GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("mark", ["meta", "function", "none"])
def test_boxed_arguments(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mark != "meta":
        monkeypatch.setattr(keep, "_boxed_arg_indices", (1, 2), raising=False)

    def all_in_one(node: Node) -> int:
        return 0

    module = boxed(mark)
    ours = split_module(module, module, all_in_one)
    theirs = torch_split(module, module, all_in_one)
    assert ours.submod_0.code == theirs.submod_0.code
    assert ("_boxed_arg_" in ours.submod_0.code) == (features.boxed_arguments and mark != "none")
    x = torch.ones(2)
    torch.testing.assert_close(ours(x), theirs(x))


def test_releases_whose_code_the_native_generator_does_not_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Generation is left to torch."""

    def other_facts(source: str) -> Any:
        raise AssertionError("unreachable")

    writes = deferred_code._writes_as_torch.__wrapped__
    assert writes()
    with monkeypatch.context() as patch:
        patch.setattr(deferred_code._native, "python_source", lambda graph: None)
        assert not writes()
    monkeypatch.setattr(deferred_code.torch_fx, "PythonCode", other_facts)
    assert not writes()
