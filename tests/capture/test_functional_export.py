"""Capture for export: equal to torch's, and right where torch is not."""

from __future__ import annotations

import contextlib
import inspect
import logging
import traceback
from typing import Any, NamedTuple
from unittest import mock

import pytest
import sympy
import torch
from torch import nn
from torch._dynamo import functional_export as torch_capture
from torch._dynamo.exc import UserError
from torch._dynamo.source import GetItemSource, LocalSource
from torch._guards import Guard
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

import fxpress
from fxpress import functional_export
from fxpress._graphs.capture import functional_export as capture_impl
from fxpress._torch.capture import guards_are_logged
from fxpress.functional_export import (
    _dynamo_graph_capture_for_export,
    check_constraints,
    clean_export_root,
    clean_export_root_string,
    clean_nn_module_stack_and_source_fn,
)
from tests.support.captured import (
    assert_captures_as_torch,
    assert_same_captured_graph,
    rewritten_by_both,
)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("shift", torch.zeros(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) * self.scale + self.shift


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Inner()
        self.layers = nn.ModuleList([Inner(), Inner()])
        self.weight = nn.Parameter(torch.rand(4))

    def forward(self, x: torch.Tensor, *, extra: torch.Tensor | None = None) -> Any:
        y = self.first(x)
        for layer in self.layers:
            y = layer(y) + self.weight
        return {"y": y, "x": x, "n": 3} if extra is None else (y + extra, extra)


class Point(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


def x() -> torch.Tensor:
    return torch.arange(8.0).reshape(2, 4)


CALLS = {
    "module": (Model(), (x(),), {}),
    "keyword": (Model(), (x(),), {"extra": x()}),
    "eval": (Model().eval(), (x(),), {}),
    "function": (lambda a, b: (a + b, a), (x(), x()), {}),
    "method": (Model().first.forward, (x(),), {}),
    "constant": (lambda a: (3,), (x(),), {}),
    "none": (lambda a: None, (x(),), {}),
    "unused": (lambda a, b, c: b.sum(), (x(), x(), 3), {}),
    "nested": (lambda a: {"u": [a["p"] + 1, a["q"]]}, ({"p": x(), "q": x()},), {}),
    "named tuple": (lambda p: Point(p.a + 1, p.b), (Point(x(), x()),), {}),
    "numbers": (lambda a, n, f, flag, name: a * n * f if flag else a, (x(), 2, 0.5, True, "s"), {}),
    "arg_0": (lambda arg_1, arg_0: (arg_0 - arg_1, arg_1.add(arg_0)), (x(), x()), {}),
    "same input": (lambda a, b: a + b, (T := x(), T), {}),
    "in place": (lambda a: a.clone().add_(1).mul_(2), (x(),), {}),
    "unbacked": (lambda a: a.sum().item() + a.nonzero().shape[0], (x(),), {}),
    "cond": (
        lambda a: torch.cond(a.sum() > 0, lambda v: v + 1, lambda v: v - 1, (a,)),
        (x(),),
        {},
    ),
    "no grad": (lambda a: torch.no_grad()(lambda v: v * 2)(a) + 1, (x().requires_grad_(),), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_captured_as_by_torch(name: str) -> None:
    call, args, kwargs = CALLS[name]
    assert_captures_as_torch(call, args, kwargs)


@pytest.mark.parametrize("name", CALLS)
def test_runs_at_once(name: str) -> None:
    call, args, kwargs = CALLS[name]
    made = _dynamo_graph_capture_for_export(call)(*args, **kwargs)
    torch.testing.assert_close(made(*args, **kwargs), call(*args, **kwargs))


@pytest.mark.parametrize("name", sorted(set(CALLS) - {"keyword"}))
def test_rewritten_as_by_torch(name: str) -> None:
    call, args, _ = CALLS[name]
    ours, theirs = rewritten_by_both(call, *args)
    assert_same_captured_graph(ours.graph, theirs.graph)


def test_torch_cannot_run_what_it_captured() -> None:
    """torch changes names after it has generated the code, so the code uses old names."""
    theirs = torch_capture._dynamo_graph_capture_for_export(Model())(x())
    with pytest.raises(AttributeError):
        theirs(x())
    ours = _dynamo_graph_capture_for_export(Model())(x())
    assert "self.L__self____export_root_" in theirs.code
    assert "self.L__self____export_root_" not in ours.code
    theirs.recompile()
    assert ours.code == theirs.code


def test_traced_in_the_file_of_torch() -> None:
    made = _dynamo_graph_capture_for_export(Model())(x())
    trace = next(n for n in made.graph.nodes if n.op == "call_function").meta["stack_trace"]
    file = inspect.getsourcefile(torch_capture)
    assert f'File "{file}", line ' in trace
    assert "res = self._export_root(*args, **kwargs)" in trace


def test_same_names_and_signatures() -> None:
    for name, theirs in vars(torch_capture).items():
        if getattr(theirs, "__module__", None) != torch_capture.__name__ or name == "T":
            continue
        ours = getattr(functional_export, name)
        if inspect.isclass(theirs):
            for method in set(vars(theirs)) & {"__init__", "__call__", "placeholder", "output"}:
                assert list(inspect.signature(getattr(ours, method)).parameters) == list(
                    inspect.signature(getattr(theirs, method)).parameters
                ), (name, method)
        else:
            mine = [p for p in inspect.signature(ours).parameters if p not in ("check", "progress")]
            assert mine == list(inspect.signature(theirs).parameters), name
    assert functional_export.ExportTracerOutput is torch_capture.ExportTracerOutput
    assert functional_export.EXPORT_ROOT_REPLACEMENTS is torch_capture.EXPORT_ROOT_REPLACEMENTS


@pytest.mark.parametrize(
    "text",
    [
        "L__self____export_root_child",
        "L['self']._export_root.child[0]",
        "L['self']._export_root",
        "_export_root.layers.0.weight",
        "l__self____export_root_linear_1",
        "plain",
        "",
    ],
)
def test_names_are_cleaned_as_by_torch(text: str) -> None:
    assert clean_export_root_string(text) == torch_capture.clean_export_root_string(text)


def test_names_of_the_user_stay() -> None:
    """Names of the user that are similar to the name of the wrapping module are not changed."""
    assert clean_export_root_string("L['self']._export_root.my_export_root.x") == (
        "L['self'].my_export_root.x"
    )

    class Alike(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.my_export_root = nn.Linear(4, 4)

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return self.my_export_root(a)

    made = _dynamo_graph_capture_for_export(Alike())(x())
    assert set(made.meta["dynamo_flat_name_to_original_fqn"].values()) == {
        "my_export_root.weight",
        "my_export_root.bias",
    }
    stack = next(n for n in made.graph.nodes if n.op == "call_function").meta["nn_module_stack"]
    assert [path for path, _ in stack.values()] == ["L['self'].my_export_root"]


def test_attribute_of_the_user_with_the_same_name() -> None:
    """torch does not find the attribute, or reads another one."""

    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._export_root = nn.Linear(4, 4)
            self.weight = nn.Parameter(torch.rand(4, 4))

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return self._export_root(a) @ self.weight

    model = Same()
    made = _dynamo_graph_capture_for_export(model)(x())
    torch.testing.assert_close(made(x()), model(x()))
    targets = [n.target for n in made.graph.find_nodes(op="get_attr")]
    assert set(targets) == set(made.meta["dynamo_flat_name_to_original_fqn"])
    with fxpress.installed():
        program = torch.export.export(model, (x(),), strict=True)
    torch.testing.assert_close(program.module()(x()), model(x()))
    assert set(program.state_dict) == set(model.state_dict())


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.listed = [torch.rand(4), torch.rand(4)]
        self.named = {"a": torch.rand(4)}

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return a + self.listed[1] * self.named["a"] - self.listed[0]


def test_tensors_in_containers() -> None:
    assert_captures_as_torch(Held(), (x(),))


def test_names_that_are_no_text() -> None:
    assert clean_export_root_string("\udc80_export_root.") == "\udc80_export_root."
    with pytest.raises(AttributeError):
        clean_export_root_string(3)  # type: ignore[arg-type]


def _graph_module(*targets: str) -> torch.fx.GraphModule:
    root = nn.Module()
    graph = torch.fx.Graph()
    for target in targets:
        if not hasattr(root, target):
            root.register_parameter(target, nn.Parameter(torch.rand(2)))
    values = [graph.get_attr(target) for target in targets]
    graph.output(tuple(values))
    return torch.fx.GraphModule(root, graph)


def test_two_nodes_with_one_attribute() -> None:
    """The second node finds the attribute that was moved for the first one."""
    name = "L__self____export_root_w"
    made = _graph_module(name, name)
    clean_export_root(made)
    assert [n.target for n in made.graph.find_nodes(op="get_attr")] == ["L__self___w"] * 2
    assert list(made._parameters) == ["L__self___w"]
    made.recompile()
    assert made()[0] is made()[1]
    with pytest.raises(AssertionError):
        torch_capture.clean_export_root(_graph_module(name, name))


def test_modules_are_moved() -> None:
    root = nn.Module()
    root.add_module("L__self____export_root_l", nn.Linear(2, 2))
    for clean in (clean_export_root, torch_capture.clean_export_root):
        graph = torch.fx.Graph()
        value = graph.placeholder("v")
        for _ in range(2):
            value = graph.call_module("L__self____export_root_l", (value,))
        graph.output(value)
        made = torch.fx.GraphModule(root, graph)
        clean(made)
        assert list(made._modules) == ["L__self___l"]
        called = made.graph.find_nodes(op="call_module")
        assert [n.target for n in called] == ["L__self___l"] * 2
        assert [n.name for n in called] == ["l__self___l", "l__self___l_1"]


def test_attribute_that_is_not_there() -> None:
    made = _graph_module("L__self____export_root_w")
    del made.L__self____export_root_w
    with pytest.raises(AssertionError, match="L__self____export_root_w"):
        clean_export_root(made)


def test_stacks_are_cleaned_as_by_torch() -> None:
    modules = []
    for clean in (
        clean_nn_module_stack_and_source_fn,
        torch_capture.clean_nn_module_stack_and_source_fn,
    ):
        graph = torch.fx.Graph()
        node = graph.placeholder("a")
        node.meta["nn_module_stack"] = {
            "L__self____export_root": ("L['self']._export_root", nn.Module),
            "L__self____export_root_l": ("L['self']._export_root.l", nn.Linear),
            "140": ("L['self']", nn.Module),
        }
        node.meta["source_fn_stack"] = [
            ("l__self____export_root_l", nn.Linear),
            (3, 4),
            "text",
            ("a", "b", "c"),
        ]
        graph.output(node)
        made = torch.fx.GraphModule(nn.Module(), graph)
        made.meta["dynamo_flat_name_to_original_fqn"] = {
            "L__self____export_root_l": "_export_root.l"
        }
        before = node.meta["nn_module_stack"], node.meta["source_fn_stack"]
        for inline in (False, True):
            assert clean(made, inline) is made
            modules.append((dict(node.meta), dict(made.meta)))
        assert "L__self____export_root" in before[0]
        assert before[1][0][0].startswith("l__self____e")
    assert modules[:2] == modules[2:]


class Odd(dict):
    """A dict with other items."""

    def __init__(self, pairs: list[Any]) -> None:
        super().__init__(a=("b", int))
        self.pairs = pairs

    def copy(self) -> Odd:
        return self

    def items(self) -> Any:
        return self.pairs


@pytest.mark.parametrize(
    ("stack", "error"),
    [
        ({1: ("a", int)}, AttributeError),
        ({"a": (1, int)}, AttributeError),
        ({"a": "b"}, ValueError),
        (Odd([["k", ("n", int)]]), None),
        (Odd([3]), TypeError),
    ],
)
def test_stacks_that_are_none(stack: Any, error: type[Exception] | None) -> None:
    for clean in (
        clean_nn_module_stack_and_source_fn,
        torch_capture.clean_nn_module_stack_and_source_fn,
    ):
        graph = torch.fx.Graph()
        graph.placeholder("a").meta["nn_module_stack"] = stack
        graph.output(None)
        made = torch.fx.GraphModule(nn.Module(), graph)
        # A dict whose items are not tuples of two: fxpress expects tuples.
        ours = clean is clean_nn_module_stack_and_source_fn
        expected = ValueError if ours and isinstance(stack, Odd) else error
        with pytest.raises(expected) if expected else contextlib.nullcontext():
            clean(made)


def test_dynamic_sizes() -> None:
    class Sized(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a[: b.shape[0]] + b.sum()

    args = (torch.rand(6, 3), torch.rand(4, 3))
    shapes = ({0: Dim("n", min=5)}, {0: Dim("m", max=20)})
    with fxpress.installed():
        ours = torch.export.export(Sized(), args, dynamic_shapes=shapes, strict=True)
    theirs = torch.export.export(Sized(), args, dynamic_shapes=shapes, strict=True)
    assert str(ours) == str(theirs)
    assert ours.range_constraints


@pytest.mark.parametrize("size", [3, 4])
def test_violated_constraints(size: int) -> None:
    from torch.export.dynamic_shapes import _process_dynamic_shapes

    def call(a: torch.Tensor) -> torch.Tensor:
        return a + torch.ones(size)

    args = (torch.rand(size),)
    shapes = {"a": {0: Dim("n")}}
    constraints = _process_dynamic_shapes({"a": args[0]}, shapes)
    errors = []
    for way, options in (
        (functional_export, {}),
        (functional_export, {"check": "light"}),
        (torch_capture, {}),
    ):
        with pytest.raises(ConstraintViolationError) as caught:
            way._dynamo_graph_capture_for_export(
                call, constraints=constraints, dynamic_shapes=shapes, **options
            )(*args)
        errors.append(str(caught.value))
    assert errors[0] == errors[1] == errors[2]
    assert "n" in errors[0]


def test_light_checks_make_no_code_of_guards() -> None:
    real = Guard.create

    def parts(check: Any) -> int:
        made = []

        def create(self: Any, builder: Any) -> Any:
            made.append(self)
            return real(self, builder)

        with (
            mock.patch.object(Guard, "create", create),
            mock.patch("fxpress._torch.capture.guards_are_logged", return_value=False),
        ):
            _dynamo_graph_capture_for_export(Model(), check=check)(x())
        return len(made)

    assert parts("light") < parts("guards")


@pytest.mark.parametrize("name", ["guards", "verbose_guards"])
def test_light_checks_step_aside_for_logs(name: str) -> None:
    log = logging.getLogger(f"torch._dynamo.guards.__{name}")
    level = log.level
    log.setLevel(logging.DEBUG)
    try:
        assert guards_are_logged()
    finally:
        log.setLevel(level)


def test_checks_that_are_none() -> None:
    with pytest.raises(ValueError, match="light"), check_constraints("none"):  # type: ignore[arg-type]
        pass


def test_inputs_that_no_graph_has() -> None:
    for way in (functional_export, torch_capture):
        with pytest.raises(UserError):
            way._dynamo_graph_capture_for_export(lambda a, b: a)(x(), object())


def test_one_line_about_constraints() -> None:
    from torch.export.dynamic_shapes import _process_dynamic_shapes

    given = x()
    shapes = {"a": {0: Dim("n")}}
    constraints = _process_dynamic_shapes({"a": given}, shapes)
    lines = []
    for way in (functional_export, torch_capture):
        with mock.patch.object(torch_capture.log, "info") as info:
            way._dynamo_graph_capture_for_export(
                lambda a: a + 1, constraints=constraints, dynamic_shapes=shapes
            )(given)
        lines.append(info.call_args_list)
    assert lines[0] == lines[1]
    assert len(lines[0]) == 1


def test_constraints_on_numbers() -> None:
    """The error names the last size that became a constant."""
    errors = []
    for way in (functional_export, torch_capture):
        environment = mock.Mock(
            var_to_range={sympy.Integer(3): None, sympy.Symbol("s0"): None, sympy.Integer(5): None},
            var_to_stack={
                sympy.Integer(n): [traceback.FrameSummary("file", n, "f", line="")] for n in (3, 5)
            },
        )
        environment.dim_constraints.forced_specializations.return_value = {}
        with pytest.raises(ConstraintViolationError, match="static value of 5") as caught:
            way._suggest_or_raise_constraint_violation(
                Model(),
                lambda a: a,
                mock.Mock(shape_env=environment),
                mock.Mock(),
                (x(),),
                {},
                None,
            )
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_transformer_does_it_node_by_node() -> None:
    """A subclass of the class gives the results of the native rewrite."""
    seen = []
    real = capture_impl.rewrite_and_clean

    def both(*args: Any) -> torch.fx.GraphModule:
        ours = functional_export.DynamoGraphTransformer(*args).transform()
        seen.append(ours)
        return real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture_impl, "rewrite_and_clean", both)
        made = _dynamo_graph_capture_for_export(Model())(x())
    clean_nn_module_stack_and_source_fn(seen[0], True)
    clean_export_root(seen[0])
    assert_same_captured_graph(made.graph, seen[0].graph)


def test_buffers_are_registered_again() -> None:
    made = []
    for way in (functional_export, torch_capture):
        graph = torch.fx.Graph()
        graph.get_attr("unused")
        graph.output(graph.get_attr("b"))
        root = nn.Module()
        root.register_buffer("b", torch.ones(2))
        root.register_buffer("unused", torch.ones(2))
        module = torch.fx.GraphModule(root, graph)
        way._normalize_shuffle_graph(module)
        made.append((str(module.graph), sorted(vars(module)), list(module._buffers), module.code))
        assert module.b is root.b
    assert made[0] == made[1]


def test_values_from_elsewhere_before_inputs() -> None:
    """An input has the position that Dynamo recorded."""
    captured = capture_impl._Captured(lambda a: a, [x()], None, None)
    graph = torch.fx.Graph()
    other, given = graph.placeholder("other"), graph.placeholder("given")
    for node, value in ((other, torch.zeros(3)), (given, x())):
        node.meta["example_value"] = value
    graph.output((graph.call_function(torch.neg, (given,)),))
    captured.graph_module = torch.fx.GraphModule(nn.Module(), graph)
    captured.examples = [torch.zeros(3), x()]
    local = LocalSource("flat_args", is_input=True)
    captured.out = mock.Mock()
    captured.out.graph_capture_output.output_graph.export_metadata = mock.Mock(
        graph_input_idx_to_local_source={0: local, 1: GetItemSource(local, 0)},
        output_return_type={0: ("graph_out", 0)},
        module_call_spec={},
    )
    made = captured.module()
    assert [n.op for n in made.graph.nodes] == [
        "placeholder",
        "get_attr",
        "call_function",
        "output",
    ]
    (negated,) = made.graph.find_nodes(op="call_function", target=torch.neg)
    assert negated.args[0].op == "placeholder"
    assert negated.args[0].meta["val"].shape == (2, 4)


FRONT_ENDS = pytest.mark.parametrize(
    "capture",
    [_dynamo_graph_capture_for_export, functional_export.dynamo_graph_capture_for_export],
)


@FRONT_ENDS
def test_captures_by_compiled_programs(capture: Any) -> None:
    """Dynamo does not trace the capture itself."""
    model = Inner()

    @torch.compile(backend="eager")  # type: ignore[untyped-decorator]
    def program(value: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = capture(model)(value * 2)(value)
        return made + 1

    torch._dynamo.reset()
    torch.testing.assert_close(program(x()), model(x()) + 1)


@FRONT_ENDS
@pytest.mark.parametrize("name", ["function", "fn", "self_", "args_", "call", "capture"])
def test_any_names_of_arguments(capture: Any, name: str) -> None:
    space: dict[str, Any] = {}
    exec(f"def called(x, {name}): return x + {name}", space)
    made = capture(space["called"])(x(), **{name: x()})
    torch.testing.assert_close(made(x(), **{name: x()}), x() + x())


def test_the_module_that_is_traced_runs() -> None:
    """The module that Dynamo traces gives the same result when it is called without a trace."""
    args = ((x(), {"a": 2}), {"more": (x(),)})
    flat, spec = torch.utils._pytree.tree_flatten(args)

    def called(value: Any, scales: Any, *, more: Any) -> Any:
        return {"out": value * scales["a"], "more": [*more]}

    found, expected = (
        module.ModuleToTrace(called, spec)(*flat) for module in (functional_export, torch_capture)
    )
    assert type(found) is type(expected)
    assert found.out_spec == expected.out_spec
    torch.testing.assert_close(found.flat_args, expected.flat_args)
