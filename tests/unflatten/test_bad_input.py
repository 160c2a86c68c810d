"""Bad programs and bad arguments: torch's exception type, a message that says where, no output,
nothing changed and nothing half-built."""

from __future__ import annotations

import copy
import dataclasses
import gc
import io
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export
from torch.export import unflatten as torch_unflatten
from torch.export.exported_program import ModuleCallEntry
from torch.export.graph_signature import CustomObjArgument, InputKind, OutputKind
from torch.utils._pytree import tree_structure

from fxpress import _native
from fxpress.unflatten import (
    FlatArgsAdapter,
    InterpreterModuleDispatcher,
    _assign_attr,
    _AttrKind,
    _ModuleFrame,
    _sink_params,
    unflatten,
)
from tests.support.unflatten_cases import exported, ours_of
from tests.support.unflatten_compare import assert_untouched, snapshot
from tests.support.unflatten_models import Nest


def args() -> tuple[Tensor, ...]:
    return torch.randn(3, 4), torch.randn(3, 4)


def nest(**options: Any) -> ExportedProgram:
    return exported(Nest(), *args(), **options)


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    yield
    assert capfd.readouterr().out == ""


def raised(call: Callable[[], object]) -> Exception:
    with redirect_stdout(io.StringIO()):
        try:
            call()
        except Exception as error:
            return error
    raise AssertionError("nothing was raised")


def assert_refused(
    program: ExportedProgram, kind: type[Exception], match: str, *, as_torch: bool = True
) -> None:
    """Both raise `kind`; ours with this text, with the program as it was."""
    before = snapshot(program)
    enabled = gc.isenabled()
    with pytest.raises(kind, match=match):
        unflatten(program)
    assert_untouched(program, before)
    assert "unflattened_module" not in program.graph_module.meta
    assert gc.isenabled() == enabled
    assert _native.gc_pauses() == 0
    if as_torch:
        assert isinstance(raised(lambda: torch_unflatten(program)), kind)


# ---- programs -----------------------------------------------------------------------------------


def test_u6_backward_signature() -> None:
    program = nest()
    program.graph_signature.output_specs[0].kind = OutputKind.LOSS_OUTPUT
    assert program.graph_signature.backward_signature is not None
    assert_refused(program, ValueError, "Unflattening on JointExportModule NYI")


def test_u7_first_entry_of_the_call_graph() -> None:
    program = nest()
    program.module_call_graph.pop(0)
    assert_refused(program, AssertionError, "'first'")


def node_of(program: ExportedProgram, target: Any) -> torch.fx.Node:
    return next(n for n in program.graph.nodes if n.target is target)


def test_u33_missing_stack() -> None:
    """Of a node that no module alone uses: it is returned."""
    program = nest()
    node = node_of(program, torch.ops.aten.layer_norm.default)
    del node.meta["nn_module_stack"]
    assert_refused(program, RuntimeError, rf"Unable to find nn_module_stack for node {node.name}")


@pytest.mark.parametrize("stack", [3, {"a": "path"}, {"a": ("x", "y", "z")}, {1: ("", "T")}])
def test_malformed_stack(stack: Any) -> None:
    """Whatever torch stumbles over: an exception that names the node."""
    program = nest()
    node = node_of(program, torch.ops.aten.tanh.default)
    node.meta["nn_module_stack"] = stack
    before = snapshot(program)
    with pytest.raises(Exception, match=node.name) as caught:
        unflatten(program)
    assert isinstance(caught.value, (RuntimeError, AssertionError, TypeError, ValueError))
    assert_untouched(program, before)


def test_u39_child_that_is_not_below_its_parent() -> None:
    """A stack whose keys and paths disagree from one node to the next is dropped to what is one."""
    program = nest()
    node = node_of(program, torch.ops.aten.layer_norm.default)
    stack = dict(node.meta["nn_module_stack"])
    key = next(reversed(stack))
    node.meta["nn_module_stack"] = {
        **{k: v for k, v in stack.items() if k != key},
        "L['self'].first": ("first", "Middle"),
        key: stack[key],
    }
    module = unflatten(program)  # "norm" is dropped from below "first", with a warning
    inputs = args()
    torch.testing.assert_close(module(*inputs), program.module()(*inputs))


def test_u32_placeholder_inside_the_body() -> None:
    program = nest()
    first = node_of(program, torch.ops.aten.sigmoid.default)
    with program.graph.inserting_after(first):
        program.graph.placeholder("late").meta = {"val": first.meta["val"]}
    assert_refused(program, AssertionError, "unexpected placeholder.*late|late.*placeholder")


def test_users_before_their_inputs() -> None:
    """As after a pass that inserts a node at the wrong location."""
    program = nest()
    first, *_, last = (node for node in program.graph.nodes if node.op == "call_function")
    last.append(first)
    expected = raised(lambda: torch_unflatten(program))
    found = raised(lambda: unflatten(program))
    assert type(found) is type(expected) is RuntimeError
    assert str(found) == str(expected).partition("\n")[0]


def test_u16_no_output() -> None:
    program = nest()
    program.graph.erase_node(program.graph.output_node())
    # torch fails before it looks, on generating code without a body.
    assert_refused(program, AssertionError, "output", as_torch=False)


@pytest.mark.parametrize("where", ["state_dict", "constants"])
def test_missing_state(where: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = nn.Linear(4, 4)
            self.constant = torch.ones(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.child(x) * self.constant

    program = exported(Model(), torch.randn(2, 4))
    name = {"state_dict": "child.weight", "constants": "constant"}[where]
    getattr(program, where).pop(name)
    assert_refused(program, KeyError, name.replace(".", r"\."))


def test_constant_that_aliases_nothing_in_the_signature() -> None:
    program = nest()
    program.constants["stray"] = torch.ones(3)
    assert_refused(program, AssertionError, "stray")


def test_buffer_that_is_no_tensor() -> None:
    program = nest()
    program.state_dict["first.leaf.shift"] = "text"  # type: ignore[assignment]
    assert raised(lambda: unflatten(program)) is not None


def test_parameter_that_is_no_parameter_but_a_tensor() -> None:
    """As torch: a parameter is made from it."""
    program = nest()
    name = "norm.weight"
    program.state_dict[name] = program.state_dict[name].detach()  # type: ignore[assignment]
    mine, other = unflatten(program), torch_unflatten(program)
    assert isinstance(mine.norm.weight, nn.Parameter)
    assert mine.norm.weight.requires_grad == other.norm.weight.requires_grad is False


def replace_signature(program: ExportedProgram, name: str, **change: Any) -> None:
    entries = program.module_call_graph
    index = next(i for i, entry in enumerate(entries) if entry.fqn == name)
    signature = dataclasses.replace(entries[index].signature, **change)
    entries[index] = ModuleCallEntry(name, signature)


ODD = CustomObjArgument("x", "some.Class")


@pytest.mark.parametrize(
    ("change", "kind", "match"),
    [
        ({"in_spec": tree_structure((1,))}, AssertionError, "2 children|in_spec|first"),
        ({"in_spec": tree_structure([(1,), {}])}, AssertionError, "tuple"),
        ({"in_spec": tree_structure(([1], {}))}, AssertionError, "tuple"),
        ({"in_spec": tree_structure(((1,), [1]))}, AssertionError, "dict"),
        ({"inputs": [ODD] * 3}, AssertionError, "TensorArgument|CustomObjArgument"),
        ({"outputs": [ODD] * 2}, RuntimeError, "Unsupported data type for output node"),
    ],
    ids=["u52-1", "u52-2", "u52-3", "u52-4", "u55", "u56"],
)
def test_u52_u55_u56_preserved_calls(
    change: dict[str, Any], kind: type[Exception], match: str
) -> None:
    program = nest(preserve_module_call_signature=("first",))
    replace_signature(program, "first", **change)
    assert_refused(program, kind, match)


def test_u56_output_of_another_module() -> None:
    program = nest(preserve_module_call_signature=("second",))
    entries = {entry.fqn: entry.signature for entry in program.module_call_graph}
    signature = entries["second"]
    assert signature is not None
    foreign = next(
        n.name
        for n in program.graph.nodes
        if n.op == "call_function" and "first.leaf" in str(n.meta["nn_module_stack"])
    )
    outputs = [type(signature.outputs[0])(foreign), signature.outputs[1]]
    replace_signature(program, "second", outputs=outputs)
    error = raised(lambda: unflatten(program))
    assert isinstance(error, type(raised(lambda: torch_unflatten(program))))
    assert foreign in str(error)


def test_u77_input_without_target() -> None:
    program = nest()
    spec = next(s for s in program.graph_signature.input_specs if s.kind is InputKind.PARAMETER)
    spec.target = None
    error = raised(lambda: unflatten(program))
    assert isinstance(error, type(raised(lambda: torch_unflatten(copy.deepcopy(program)))))


def test_mutation_of_an_input_that_is_not_there() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("b", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            self.b.add_(x)
            return x + self.b

    program = exported(Model(), torch.ones(2)).run_decompositions({})
    program.graph_signature.output_specs[0].target = "elsewhere"
    assert_refused(program, KeyError, "elsewhere")


def test_not_a_program() -> None:
    for value in (nn.Linear(1, 1), None, 3):
        expected = re.escape(f"unflatten expects an ExportedProgram, got {type(value)}")
        with pytest.warns(UserWarning, match=expected):
            mine = raised(lambda value=value: unflatten(value))
        assert isinstance(mine, type(raised(lambda value=value: torch_unflatten(value))))


# ---- arguments ----------------------------------------------------------------------------------


@pytest.fixture
def module() -> Any:
    return ours_of(Nest(), *args())


class Keywords(nn.Module):
    def forward(self, x: Tensor, *, scale: Tensor, flags: dict[str, Tensor]) -> Tensor:
        return x * scale + flags["a"]


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m(*args(), torch.ones(1)),
        lambda m: m(torch.ones(3, 4)),
        lambda m: m([torch.ones(3, 4)], torch.ones(3, 4)),
        lambda m: m(torch.ones(3, 4), (torch.ones(3, 4),)),
        lambda m: m(),
    ],
    ids=["one more", "one less", "list", "tuple", "nothing"],
)
def test_u104_other_structure(module: Any, call: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="There is no flat args adapter specified"):
        call(module)
    module(*args())  # and it still works
    assert module.adapted is False


def test_u104_the_error_names_both_structures() -> None:
    """torch prints them, and says its sentences alone."""
    program = nest()
    inputs = ([torch.ones(1)],)
    theirs = str(raised(lambda: torch_unflatten(program)(*inputs)))
    specs = tree_structure((inputs, {})), program.call_spec.in_spec
    with pytest.raises(TypeError) as caught:
        unflatten(program)(*inputs)
    mine = str(caught.value)
    assert mine.startswith(theirs)
    assert all(str(spec) in mine for spec in specs)


def test_u103_keyword_mismatch() -> None:
    kwargs = {"scale": torch.ones(2), "flags": {"a": torch.ones(2)}}
    program = export(Keywords(), (torch.ones(2),), kwargs, strict=False)
    module = unflatten(program)
    swapped = dict(reversed(kwargs.items()))
    torch.testing.assert_close(module(torch.ones(2), **swapped), torch.full((2,), 2.0))
    for wrong in ({"scale": torch.ones(2)}, {**kwargs, "more": torch.ones(1)}):
        with pytest.raises(ValueError, match="kwarg keyword mismatch"):
            module(torch.ones(2), **wrong)
    with pytest.raises(TypeError, match="There is no flat args adapter specified"):
        module(torch.ones(2), scale=torch.ones(2), flags={"b": torch.ones(2)})


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        ((torch.ones(2, 4), torch.ones(3, 4)), r"\*args\[0\]\.shape\[0\] to be equal to 3"),
        ((torch.ones(3, 4), torch.ones(3, 5)), r"\*args\[1\]\.shape\[1\] to be equal to 4"),
        ((torch.ones(3), torch.ones(3, 4)), r"Unexpected number of dimensions.*\*args\[0\]"),
        ((3, torch.ones(3, 4)), r"\*args\[0\] to be a tensor"),
        ((torch.ones(3, 4), None), r"\*args\[1\] to be a tensor"),
    ],
)
def test_u105_shapes(module: Any, inputs: Any, match: str) -> None:
    with pytest.raises(RuntimeError, match=match):
        module(*inputs)
    module(*args())


def test_u105_symbolic_shapes() -> None:
    batch = torch.export.Dim("batch", min=2, max=8)
    module = ours_of(Nest(), *args(), dynamic_shapes=({0: batch}, {0: batch}))
    module(torch.ones(8, 4), torch.ones(8, 4))
    with pytest.raises(RuntimeError, match=r"\*args\[0\]\.shape\[0\]"):
        module(torch.ones(9, 4), torch.ones(9, 4))
    with pytest.raises(RuntimeError, match=r"\*args\[1\]\.shape\[0\] to be equal to 4"):
        module(torch.ones(4, 4), torch.ones(5, 4))
    module.check_input_constraints = False
    module(torch.ones(9, 4), torch.ones(9, 4))


def test_u105_guards_of_the_trace() -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor, n: int, *, y: Tensor) -> Tensor:
            return x.sum() if x.shape[0] * y.shape[0] > 5 else x.mean() * n

    dynamic = {0: torch.export.Dim.DYNAMIC}
    inputs = (torch.ones(4), 2), {"y": torch.ones(3)}
    for strict in (False, True):
        shapes = {"x": dynamic, "n": None, "y": dynamic}
        program = export(Branch(), *inputs, dynamic_shapes=shapes, strict=strict)
        made = unflatten(program)
        for module in (made, copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
            assert module(torch.ones(6), 2, y=torch.ones(1)) == 6
            for call in (module, program.module()):
                with pytest.raises(AssertionError, match=r"Guard failed: .* > 5"):
                    call(torch.ones(2), 2, y=torch.ones(2))
            with pytest.raises(RuntimeError, match="number of dimensions"):
                module(torch.ones(4, 1), 2, y=torch.ones(3))
            with pytest.raises(RuntimeError, match="to be equal to 2"):
                module(torch.ones(4), 2.0, y=torch.ones(3))
        unchecked = unflatten(program, check_guards=False)
        assert unchecked(torch.ones(2), 2, y=torch.ones(2)) == 2


def test_constants_among_the_inputs() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor, flag: bool, power: int, name: str) -> Tensor:
            return x**power if flag and name == "a" else x

    module = ours_of(Model(), torch.ones(2) * 2, True, 3, "a")
    torch.testing.assert_close(module(torch.ones(2) * 2, True, 3, "a"), torch.full((2,), 8.0))
    for wrong in ((False, 3, "a"), (True, 2, "a"), (True, 3, "b"), (1, 3, "a"), (True, 3.0, "a")):
        with pytest.raises(RuntimeError, match=r"Expected input at \*args\[\d\] to be equal to"):
            module(torch.ones(2), *wrong)


def test_dtype_is_the_operators_business() -> None:
    """torch checks no dtypes; what the operator says names the node and the module's call."""
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 2))
    module = ours_of(model, torch.tensor([1, 2]))
    other = torch_unflatten(exported(model, torch.tensor([1, 2])))
    mine = raised(lambda: module(torch.tensor([1.0, 2.0])))
    theirs = raised(lambda: other(torch.tensor([1.0, 2.0])))
    assert type(mine) is type(theirs)
    for text in ("While executing %embedding", "While executing %_0", "Original traceback"):
        assert text in str(mine)
        assert text in str(theirs)


class Adapter(FlatArgsAdapter):
    """Gives so many leaves, and so many paths."""

    def __init__(self, leaves: int, paths: int | None = None) -> None:
        self.leaves, self.paths = leaves, paths
        self.seen: dict[str, Any] = {}

    def adapt(
        self,
        target_spec: Any,
        input_spec: Any,
        input_args: list[Any],
        metadata: dict[str, Any] | None = None,
        obj: Any | None = None,
    ) -> list[Any]:
        self.seen = {"specs": (target_spec, input_spec), "metadata": metadata, "obj": obj}
        return list(input_args)[: self.leaves]

    def get_flat_arg_paths(self) -> list[str]:
        return [] if self.paths is None else [f"path {i}" for i in range(self.paths)]


def test_u104_adapter() -> None:
    model, inputs = Nest(), (*args(), torch.ones(1))
    adapter = Adapter(2)
    module = unflatten(exported(model, *args()), adapter)
    torch.testing.assert_close(module(*inputs), model(*inputs[:2]))
    assert module.adapted is True
    assert adapter.seen["specs"][0] == module.module_call_graph[0].signature.in_spec
    assert adapter.seen["specs"][1] == tree_structure((inputs, {}))
    assert adapter.seen["metadata"] is module.meta
    assert adapter.seen["obj"] == inputs
    assert adapter.seen["metadata"]["unflattened_module"] is module


@pytest.mark.parametrize("leaves", [0, 1, 3])
def test_u104_adapter_with_wrong_leaves(leaves: int) -> None:
    module = unflatten(nest(), Adapter(leaves))
    inputs = (*args(), torch.ones(1), torch.ones(1))
    with pytest.raises(TypeError, match=rf"(?s)number of args mismatch.*Adapted: {leaves}.*2"):
        module(*inputs)


def test_u105_paths_of_the_adapter() -> None:
    inputs = (torch.ones(2, 4), torch.ones(3, 4), torch.ones(1))
    for adapter, match in ((Adapter(2), "unknown location"), (Adapter(2, 2), "path 0")):
        with pytest.raises(RuntimeError, match=match):
            unflatten(nest(), adapter)(*inputs)
    with pytest.raises(AssertionError, match=r"3.*2"):
        unflatten(nest(), Adapter(2, 3))(*args(), torch.ones(1))


def test_an_adapter_that_fails() -> None:
    class Fails(Adapter):
        def adapt(self, *args: Any, **kwargs: Any) -> list[Any]:
            raise ZeroDivisionError("in the adapter")

    module = unflatten(nest(), Fails(2))
    with pytest.raises(ZeroDivisionError, match="in the adapter"):
        module(*args(), torch.ones(1))
    module(*args())


# ---- helpers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind", "match"),
    [
        (torch.ones(1), _AttrKind.PARAMETER, "Parameter"),
        ("text", _AttrKind.BUFFER, "Tensor"),
        ("text", _AttrKind.CONSTANT, "Tensor|ScriptObject|opaque"),
        (torch.ones(1), _AttrKind.MODULE, "Module"),
    ],
)
def test_u74_kinds(value: Any, kind: _AttrKind, match: str) -> None:
    root = nn.Module()
    with pytest.raises(AssertionError, match=match):
        _assign_attr(value, root, "a.b", kind)


def test_u94_dispatcher_of_nothing() -> None:
    with pytest.raises(AssertionError, match="empty"):
        InterpreterModuleDispatcher(set(), [])


def test_u81_graph_that_is_none() -> None:
    module = nn.Module()
    module.graph = nn.Module()  # has no nodes, and is no graph
    module.graph.nodes = [1]
    with pytest.raises(AssertionError, match=r"torch\.fx\.Graph"):
        _sink_params(module, {}, [])


def test_state_that_is_no_tensor() -> None:
    for sink in (_sink_params, import_module("torch.export.unflatten")._sink_params):
        graph = torch.fx.Graph()
        graph.output((graph.placeholder("p_part"),))
        module = nn.Module()
        module.graph = graph
        module.part = nn.ReLU()
        with pytest.raises(AssertionError):
            sink(module, {"p_part": ["part"]}, [])


def test_module_whose_state_is_sunk_already() -> None:
    for sink in (_sink_params, import_module("torch.export.unflatten")._sink_params):
        graph = torch.fx.Graph()
        graph.output((graph.placeholder("p_weight"),))
        module = nn.Module()
        module.graph = graph
        module.weight = nn.Parameter(torch.ones(2))
        known = {id(module): {"other"}}
        assert sink(module, {"p_weight": ["weight"]}, [], known) == known
        assert [node.op for node in graph.nodes] == ["placeholder", "output"]


def test_u47_u48_nodes_of_other_graphs() -> None:
    program = nest()
    root = torch.fx.GraphModule(nn.Module(), torch.fx.Graph())
    frame = _ModuleFrame(
        program.graph,
        tuple(program.graph.nodes),
        {},
        {},
        {},
        {},
        None,
        [("", None, 0)],
        "",
        {},
        module=root,
    )
    foreign = torch.fx.Graph().placeholder("foreign")
    with pytest.raises(AssertionError):
        frame.remap_input(foreign)
    with pytest.raises(AssertionError, match="Cannot add placeholder"):
        frame.add_placeholder(next(iter(program.graph.nodes)))
