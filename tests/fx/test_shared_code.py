"""Sources that differ in local names share their compiled code: never more than that."""

from __future__ import annotations

import pytest
import torch
from torch.fx import Graph, GraphModule

from fxpress import _native
from fxpress._torch import deferred_code
from fxpress.split_module import split_module
from tests.support.graphs import chain
from tests.support.versions import needs_parity


@pytest.fixture(autouse=True)
def _no_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred_code, "_codes", type(deferred_code._codes)())


def compiled(graph: Graph) -> GraphModule:
    """A module of ours with this graph and code generated from it."""
    module = split_module(chain(1), None, lambda n: 0)
    module.graph = graph
    module.code
    return module


def three_minus(parameter: str) -> Graph:
    graph = Graph()
    x = graph.placeholder(parameter)
    graph.output(graph.call_function(torch.sub, (3, x)))
    return graph


def test_equal_up_to_local_names_is_shared() -> None:
    one, other = compiled(three_minus("x")), compiled(three_minus("y"))
    assert one.forward.__code__.co_code == other.forward.__code__.co_code
    assert other.forward.__code__.co_varnames == ("self", "y", "sub")
    assert one.forward.__code__.co_filename != other.forward.__code__.co_filename
    assert len(deferred_code._codes) == 1
    assert torch.equal(other(torch.ones(1)), torch.full((1,), 2.0))


def test_columns_are_those_of_the_source() -> None:
    """Names of other lengths move the columns that tracebacks show, from Python 3.11 on."""

    def columns(module: GraphModule) -> list[tuple[int | None, ...]]:
        return [at[2:] for at in getattr(module.forward.__code__, "co_positions", tuple)()]

    for name in ("x", "longer"):
        graph = three_minus(name)
        assert columns(compiled(graph)) == columns(GraphModule({}, graph))


class Odd:
    """Has a method that is called like the function of torch."""

    def sub(self, a: int, b: object) -> int:
        return -20


def test_a_parameter_called_torch() -> None:
    """Code in which `torch` is the parameter is nothing for one in which it is not."""
    odd = compiled(three_minus("torch"))
    assert odd(Odd()) == -20
    plain = compiled(three_minus("input"))  # gets a number for being a builtin, as torch does
    assert plain.code == odd.code.replace("(self, torch)", "(self, input)").replace(
        "torch_1 = torch", "input_1 = input"
    ).replace("torch_1", "input_1")
    assert torch.equal(plain(torch.full((1,), 10.0)), torch.full((1,), -7.0))


@pytest.mark.parametrize("name", ["device", "getattr", "slice", "max", "getattr_1"])
def test_parameters_called_like_what_the_text_mentions_otherwise(name: str) -> None:
    def graph(parameter: str) -> Graph:
        result = Graph()
        x = result.placeholder(parameter)
        part = result.call_function(getattr, (x, "not an identifier"))
        result.call_function(torch.neg, (slice(1, 2), torch.device("cpu")))
        result.output(result.call_function(max, (x, part)))
        return result

    shape = _native.python_source(graph(name))[4]
    assert (shape is None) == (name != "getattr_1")


@pytest.mark.filterwarnings("ignore:Raw SymInt value")
def test_a_symbolic_size_among_the_arguments_may_be_a_local_or_not() -> None:
    """The repr of a symbolic size is its name, which may be the name of a parameter."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    size = mode.from_tensor(torch.randn(5), static_shapes=False).shape[0]

    def scaled(parameter: str) -> Graph:
        graph = Graph()
        x = graph.placeholder("x")
        graph.placeholder(parameter)
        graph.output(graph.call_function(torch.mul, (x, size)))
        return graph

    name = str(size)
    assert torch.equal(compiled(scaled(name))(torch.ones(1), 4), torch.full((1,), 4.0))
    with pytest.raises(NameError):
        compiled(scaled("q" * len(name)))(torch.ones(1), 4)


@needs_parity
def test_names_that_python_normalizes() -> None:
    """To Python the ligature and "fi" are one name."""
    graph = three_minus("\ufb01x")
    x = torch.ones(1)
    for _ in range(2):
        ours = compiled(graph)
        assert ours.code == GraphModule({}, graph).code
        assert torch.equal(ours(x), GraphModule({}, graph)(x))
    assert not deferred_code._codes


def test_starred_parameters_that_nobody_uses() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    graph.create_node("placeholder", "*args", name="args")
    graph.create_node("placeholder", "**kwargs", name="kwargs")
    graph.output(graph.call_function(torch.neg, (x,)))
    ours = compiled(graph)
    assert ours.code == GraphModule({}, graph).code
    assert torch.equal(ours(torch.ones(1), 2, 3, k=4), -torch.ones(1))
    assert not deferred_code._codes


def test_a_local_that_the_generator_does_not_know_is_not_shared() -> None:
    """The function works, and its code is not cached."""
    source = "\n\n\ndef forward(self, x, *more):\n    return x\n"
    code = torch.fx.graph.PythonCode(source, {}, {}, 4)
    for _ in range(2):
        forward = deferred_code._compiled(code, b"shape", ("self", "x"), Graph())
        assert forward(None, 1, 2) == 1
    assert not deferred_code._codes


@pytest.mark.parametrize(
    ("name", "like"), [("class", "input"), ("None", "Some"), ("__debug__", "__value__")]
)
def test_names_that_only_compiling_refuses(name: str, like: str) -> None:
    """`like` differs from the name in nothing but the letters, here and in the source."""
    compiled(three_minus(like))
    with pytest.raises(SyntaxError):
        compiled(three_minus(name))


def test_keyword_arguments_called_like_locals_are_shared_all_the_same() -> None:
    def graph(name: str) -> Graph:
        result = Graph()
        x = result.placeholder("x")
        alpha = result.placeholder(name)
        result.output(result.call_function(torch.add, (x, x), {"alpha": alpha}))
        return result

    one, other = compiled(graph("alpha")), compiled(graph("omega"))
    assert len(deferred_code._codes) == 1
    for module in (one, other):
        assert torch.equal(module(torch.ones(1), 3), torch.full((1,), 4.0))


def test_attributes_called_like_locals_are_shared_all_the_same() -> None:
    def graph(name: str) -> Graph:
        result = Graph()
        x = result.placeholder(name)
        result.output(result.call_function(torch.nn.functional.relu, (x,)))
        return result

    one, other = compiled(graph("nn")), compiled(graph("zz"))
    assert len(deferred_code._codes) == 1
    assert torch.equal(one(-torch.ones(1)), other(-torch.ones(1)))


def test_sources_of_huge_partitions_are_not_kept() -> None:
    compiled(chain(5000).graph)
    assert not deferred_code._codes
    compiled(chain(500).graph)
    assert len(deferred_code._codes) == 1
