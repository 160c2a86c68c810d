"""A graph of one node for each overload in torch's samples, compared with a direct call."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fxpress._graphs import engine
from tests.support.engine import assert_same, by_torch
from tests.support.exported import operator_samples

# torch's collection has deprecated and experimental operators too.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

SAMPLES = 2  # of each operator and dtype
NOT_REPEATABLE = ("rand", "bernoulli", "multinomial", "normal", "dropout", "empty", "poisson")


class Recorder(TorchDispatchMode):
    """A mode that records overloads with their arguments before the call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}

        def clone(v: Any) -> Any:
            return v.detach().clone() if isinstance(v, torch.Tensor) else v

        self.calls.append((func, *pytree.tree_map(clone, (args, kwargs))))
        return func(*args, **kwargs)


def recorded(op: Any, dtype: torch.dtype) -> Iterator[tuple[Any, Any, Any]]:
    samples = operator_samples(op, dtype)
    for _, sample in zip(range(SAMPLES), samples, strict=False):
        recorder = Recorder()
        try:
            with recorder:
                op(sample.input, *sample.args, **sample.kwargs)
        except Exception:
            continue
        yield from recorder.calls


def one_node_graph(func: Any, args: Any, kwargs: Any) -> tuple[torch.fx.Graph, list[Any]]:
    """A graph that calls the function with tensors as placeholders, the rest as constants."""
    graph = torch.fx.Graph()
    leaves, spec = pytree.tree_flatten((args, kwargs))
    inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    nodes = iter([graph.placeholder(f"x{i}") for i in range(len(inputs))])
    leaves = [next(nodes) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    graph.output(graph.call_function(func, args, kwargs))
    return graph, inputs


def repeatable(name: str) -> bool:
    return not any(word in name for word in NOT_REPEATABLE)


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    torch.manual_seed(0)
    try:
        return "value", call()
    except Exception as error:
        return "error", (type(error), str(error))


def cloned(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in tensors]


@pytest.fixture
def filled_memory() -> Iterator[None]:
    """Fill the results of `empty` and `resize_` with NaN or the largest integer."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.deep("every sample of torch's collection")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_samples(dtype: torch.dtype, filled_memory: None) -> None:
    """Several hundred overloads; each with the arguments that a sample has led to."""
    seen: dict[Any, int] = {}
    boxed = 0
    differ: list[Any] = []
    for op in op_db:
        if dtype not in op.dtypes or not repeatable(op.name):
            continue
        for func, args, kwargs in recorded(op, dtype):
            if seen.get(func, 0) >= 3 or not repeatable(str(func)):
                continue
            seen[func] = seen.get(func, 0) + 1
            graph, inputs = one_node_graph(func, args, kwargs)
            theirs = outcome(lambda: by_torch(nn.Module(), graph, *cloned(inputs)))  # noqa: B023
            ours = outcome(lambda: engine.run(nn.Module(), graph, cloned(inputs)))  # noqa: B023
            assert ours[0] == theirs[0], (func, ours, theirs)
            if ours[0] == "error":
                assert ours[1] == theirs[1], func
            else:
                try:
                    assert_same(ours[1], theirs[1])
                except AssertionError as error:
                    differ.append((func, str(error)[:300]))
            plan = engine.plan_info(graph)
            assert plan is not None, (func, args, kwargs, ours)
            boxed += plan["boxed"]
    assert not differ
    assert len(seen) > (300 if dtype == torch.float32 else 150)
    assert boxed > 0.97 * sum(seen.values())


def run_both(graph: torch.fx.Graph, *args: Any) -> Any:
    root = nn.Module()
    theirs = by_torch(root, graph, *args)
    ours = engine.run(root, graph, args)
    assert_same(ours, theirs)
    return ours


def chain(*calls: Any) -> torch.fx.Graph:
    """placeholder -> call -> call ... -> output; a call is a function of the graph and a node."""
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    for call in calls:
        node = call(graph, node)
    graph.output(node)
    return graph


def test_lists_of_nodes() -> None:
    aten = torch.ops.aten
    graph = torch.fx.Graph()
    x, n = graph.placeholder("x"), graph.placeholder("n")
    cat = graph.call_function(aten.cat.default, ([x, x], 0))
    view = graph.call_function(aten.view.default, (cat, [n, -1]))
    index = graph.call_function(aten.nonzero.default, (view,))
    rows = graph.call_function(aten.select.int, (index, 1, 0))
    picked = graph.call_function(aten.index.Tensor, (view, [None, rows]))
    graph.output((view, [picked, {"k": cat}], slice(n, None, 2)))
    graph.lint()
    run_both(graph, torch.randn(2, 3), 3)


def test_numbers_for_tensors() -> None:
    aten = torch.ops.aten
    for number in (2, 2.5, True):
        graph = chain(
            lambda g, x: g.call_function(aten.add.Tensor, (x, number)),  # noqa: B023
            lambda g, x: g.call_function(aten.mul.Tensor, (number, x)),  # noqa: B023
        )
        for x in (torch.arange(3), torch.randn(3), torch.tensor([True, False])):
            run_both(graph, x)
            run_both(graph, x)


def test_numbers_that_are_computed() -> None:
    aten = torch.ops.aten
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    size = graph.call_function(aten.sym_size.int, (x, 0))
    half = graph.call_function(operator.floordiv, (size, 2))
    total = graph.call_function(operator.mul, (half, size))
    big = graph.call_function(operator.pow, (size, 70))
    true = graph.call_function(operator.truediv, (size, 2))
    item = graph.call_function(aten.item.default, (graph.call_function(aten.sum.default, (x,)),))
    y = graph.call_function(aten.add.Tensor, (x, size))
    z = graph.call_function(aten.mul.Scalar, (y, item))
    w = graph.call_function(aten.new_zeros.default, (x, [half, total]))
    graph.output((size, half, total, big, true, item, y, z, w))
    run_both(graph, torch.randn(5))


@pytest.mark.parametrize(
    "function",
    [
        *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod),
        *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    ],
)
def test_arithmetic_of_ints(function: Any) -> None:
    graph = torch.fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    graph.output((graph.call_function(function, (a, b)), graph.call_function(function, (a, 3))))
    big = 2**63 - 1
    values = (0, 1, -1, 3, -3, 7, -7, big, -big, -big - 1, 2**70, True, 2.5)
    for first in values:
        for second in values:
            root = nn.Module()
            theirs = outcome(lambda: by_torch(root, graph, first, second))  # noqa: B023
            ours = outcome(lambda: engine.run(root, graph, (first, second)))  # noqa: B023
            assert ours == theirs, (first, second)
            if ours[0] == "value":
                assert [type(v) for v in ours[1]] == [type(v) for v in theirs[1]]


def test_items() -> None:
    aten = torch.ops.aten
    get = operator.getitem
    graph = torch.fx.Graph()
    x, d = graph.placeholder("x"), graph.placeholder("d")
    parts = graph.call_function(aten.chunk.default, (x, 3))
    top = graph.call_function(aten.topk.default, (x, 2))
    values = [graph.call_function(get, (parts, i)) for i in (0, -1, 1)]
    values += [graph.call_function(get, (top, i)) for i in (0, 1)]
    values += [graph.call_function(get, (d, "k")), graph.call_function(get, (x, 0))]
    graph.output((values, parts, top))
    run_both(graph, torch.randn(3, 6), {"k": 4})
    outside = chain(
        lambda g, n: g.call_function(aten.chunk.default, (n, 2)),
        lambda g, n: g.call_function(get, (n, 5)),
    )
    ours = outcome(lambda: engine.run(nn.Module(), outside, (torch.randn(4),)))
    assert ours == outcome(lambda: by_torch(nn.Module(), outside, torch.randn(4)))
    assert ours[0] == "error"


def test_a_list_stays_the_same_object() -> None:
    aten = torch.ops.aten
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    parts = graph.call_function(aten.split.Tensor, (x, 1))
    graph.call_method("append", (parts, x))
    graph.output((parts, parts, graph.call_function(len, (parts,))))
    a, b, n = run_both(graph, torch.randn(3))
    assert a is b
    assert n == 4


def test_same_value_twice_and_unused_values() -> None:
    aten = torch.ops.aten
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.placeholder("unused")
    y = graph.call_function(aten.sin.default, (x,))
    graph.call_function(aten.cos.default, (y,))
    z = graph.call_function(aten.add.Tensor, (y, y))
    c = graph.call_function(aten.cat.default, ([z, z, x],))
    graph.output(graph.call_function(aten.addcmul.default, (c, c, c)))
    run_both(graph, torch.randn(3), None)


def test_methods_and_python_functions() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_method("add", (x, 1), {"alpha": 2})
    z = graph.call_function(torch.nn.functional.softmax, (y,), {"dim": -1})
    graph.output(graph.call_function(dict, (), {"a": z, "b": [x, (y, 2)]}))
    run_both(graph, torch.randn(3))


def test_placeholders_with_defaults_and_stars() -> None:
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y", default_value=5)
    rest = graph.placeholder("*rest")
    graph.output((x, y, rest))
    run_both(graph, 1)
    run_both(graph, 1, 2)
    run_both(graph, 1, 2, 3, 4)


def test_no_output_and_constant_output() -> None:
    graph = torch.fx.Graph()
    graph.placeholder("x")
    assert run_both(graph, 1) is None
    graph.output([1, (2, {"a": None})])
    assert type(run_both(graph, 1)) is type(by_torch(nn.Module(), graph, 1))


def test_float_arguments() -> None:
    aten = torch.ops.aten
    graph = torch.fx.Graph()
    x, p = graph.placeholder("x"), graph.placeholder("p")
    y = graph.call_function(aten.leaky_relu.default, (x, p))
    graph.output(graph.call_function(aten.layer_norm.default, (y, [3], None, None, p)))
    for p_value in (0.5, 1):
        run_both(graph, torch.randn(2, 3), p_value)


def test_bools_that_are_computed() -> None:
    aten = torch.ops.aten
    graph = torch.fx.Graph()
    x, keep = graph.placeholder("x"), graph.placeholder("keep")
    first = graph.call_function(aten.sum.dim_IntList, (x, [0], keep))
    is_long = graph.call_function(operator.gt, (graph.call_function(aten.sym_size.int, (x, 1)), 2))
    second = graph.call_function(aten.sum.dim_IntList, (x, [0], is_long))
    graph.output((first, second))
    for keep_value in (True, False, 1):
        for width in (2, 3):
            root, x_value = nn.Module(), torch.randn(2, width)
            theirs = outcome(lambda: by_torch(root, graph, x_value, keep_value))  # noqa: B023
            ours = outcome(lambda: engine.run(root, graph, (x_value, keep_value)))  # noqa: B023
            assert ours[0] == theirs[0]
            assert_same(ours[1], theirs[1])


@pytest.fixture
def operators() -> Iterator[None]:
    with torch.library._scoped_library("fxpress_lists", "DEF") as library:
        library.define("shape(Tensor x) -> int[]")
        library.impl("shape", lambda x: list(x.shape), "CompositeExplicitAutograd")
        yield


def test_lists_that_are_computed(operators: None) -> None:
    """Computed lists of tensors, of ints, and of other types that operators accept."""
    aten = torch.ops.aten
    graph = torch.fx.Graph()
    x, sizes, scales = (graph.placeholder(name) for name in ("x", "sizes", "scales"))
    parts = graph.call_function(aten.chunk.default, (x, 2))
    cat = graph.call_function(aten.cat.default, (parts, 1))
    view = graph.call_function(aten.view.default, (cat, sizes))
    places = graph.call_function(aten.nonzero_numpy.default, (view,))
    picked = graph.call_function(aten.index.Tensor, (view, places))
    image = graph.call_function(aten.view.default, (x, [1, 1, 4, 2]))
    large = graph.call_function(aten.upsample_nearest2d.vec, (image, None, scales))
    shape = graph.call_function(torch.ops.fxpress_lists.shape.default, (x,))
    again = graph.call_function(aten.view.default, (view, shape))
    graph.output((cat, view, picked, large, shape, again))
    run_both(graph, torch.randn(4, 2), [8], [2.0, 3.0])
    run_both(graph, torch.randn(4, 2), (2, 4), [1.0, 1.0])


def test_words_that_are_computed() -> None:
    graph = torch.fx.Graph()
    x, mode = graph.placeholder("x"), graph.placeholder("mode")
    divide = torch.ops.aten.div.Tensor_mode
    graph.output(graph.call_function(divide, (x, 2), {"rounding_mode": mode}))
    for word in ("floor", "trunc", None):
        run_both(graph, torch.tensor([3, -3]), word)


def test_lists_within_lists() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.ops.aten.cat.default, ([[x], [x]],)))
    ours = outcome(lambda: engine.run(nn.Module(), graph, (torch.ones(2),)))
    assert ours[0] == "error"
    assert ours == outcome(lambda: by_torch(nn.Module(), graph, torch.ones(2)))


def test_operators_that_return_nothing() -> None:
    aten = torch.ops.aten
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(aten.neg.default, (x,))
    nothing = graph.call_function(aten._foreach_add_.Scalar, ([y, y], 1))
    graph.output((y, nothing, {"a": nothing}))
    assert run_both(graph, torch.ones(2))[1] is None


def test_methods_of_nothing() -> None:
    graph = torch.fx.Graph()
    graph.output(graph.call_method("add", ()))
    ours = outcome(lambda: engine.run(nn.Module(), graph, ()))
    assert ours[0] == "error"
    assert ours == outcome(lambda: by_torch(nn.Module(), graph))


def test_custom_operators() -> None:
    @torch.library.custom_op("fxpress_test::scale", mutates_args=())
    def scale(x: torch.Tensor, by: float, sizes: list[int]) -> torch.Tensor:
        return x * by

    graph = chain(
        lambda g, x: g.call_function(torch.ops.fxpress_test.scale.default, (x, 2.0, [1])),
        lambda g, x: g.call_function(torch.ops.aten.neg.default, (x,)),
    )
    run_both(graph, torch.randn(3))
