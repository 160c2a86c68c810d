"""Rows of the inventory that no other test shows by itself; see docs/fidelity.md."""

from __future__ import annotations

import copy
import importlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._library.fake_class_registry import FakeScriptObject
from torch.export import ExportedProgram
from torch.fx import Graph

import fxpress.unflatten as ours
from fxpress._torch.fx import EMPTY_NN_MODULE_STACK
from tests.support.unflatten_cases import (
    assert_unflattens_as_torch,
    exported,
    ours_of,
    outcome,
    quietly,
    torchs,
)
from tests.support.unflatten_compare import (
    assert_runs_as_eager,
    assert_same_outputs,
    assert_untouched,
    parts,
    snapshot,
)
from tests.support.unflatten_models import Counter, Deep, Nest, Repeated, Shared, Unused

theirs = importlib.import_module("torch.export.unflatten")


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    torch.manual_seed(0)
    yield
    capfd.readouterr()


def functions(graph: Graph) -> list[torch.fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def path_of(node: torch.fx.Node) -> str:
    return str(list(node.meta["nn_module_stack"].values())[-1][0])


def args() -> tuple[Tensor, ...]:
    return torch.randn(3, 4), torch.randn(3, 4)


# ---- U-9, U-100, U-101: who owns graphs ----------------------------------------------------------


@pytest.mark.parametrize("preserved", [(), ("inner",)], ids=["plain", "dispatched"])
def test_u9_u100_u101_owners_of_graphs(preserved: tuple[str, ...]) -> None:
    """Each module owns its graph, until somebody asks for a `graph_module`: it owns it as torch's
    does from the start."""
    program = exported(
        Repeated(Counter()), torch.randn(4), preserve_module_call_signature=preserved
    )
    ours_, theirs_ = quietly(program), torchs(program)
    graphs = [m.graph for _, m in parts(ours_) if isinstance(getattr(m, "graph", None), Graph)]
    assert len({id(graph) for graph in graphs}) >= 2
    assert ours_.graph is not program.graph
    seen: set[int] = set()
    for (name, a), (_, b) in zip(parts(ours_), parts(theirs_), strict=True):
        if id(a) in seen or not isinstance(getattr(b, "graph", None), Graph):
            continue
        seen.add(id(a))
        assert "graph_module" not in vars(a), name
        assert a.graph.owning_module is a, name
        made = a.graph_module
        assert type(made).__name__ == type(b.graph_module).__name__ == "GraphModule"
        assert (made.graph is a.graph, b.graph_module.graph is b.graph) == (True, True)
        assert b.graph.owning_module is b.graph_module
        assert a.graph.owning_module is made, name
        assert a.graph_module is made
        assert "graph_module" not in a._modules
        a.finalize()
        assert a.graph_module is not made, "finalize() forgets what was made"
        assert a.graph.owning_module is a.graph_module
    assert_runs_as_eager(ours_, Repeated(Counter()), (torch.randn(4),))


# ---- U-33: nodes without a stack of their own ----------------------------------------------------

MARKER = {EMPTY_NN_MODULE_STACK: (EMPTY_NN_MODULE_STACK, EMPTY_NN_MODULE_STACK)}


@pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])
@pytest.mark.parametrize("preserved", [(), ("second",)], ids=["plain", "preserved"])
@pytest.mark.parametrize("shared", [True, False], ids=["one stack", "copies"])
def test_u33_nodes_without_a_stack_belong_where_they_stand(
    strict: bool, preserved: tuple[str, ...], shared: bool
) -> None:
    """A pass adds a node behind every node of the program, marked as torch's metadata hook does."""
    inputs = args()
    program = exported(Nest(), *inputs, strict=strict, preserve_module_call_signature=preserved)
    named = {
        argument.name
        for entry in program.module_call_graph
        if entry.fqn and entry.signature
        for argument in (*entry.signature.inputs, *entry.signature.outputs)
    }
    added: dict[str, list[str]] = {}
    for node in functions(program.graph):
        if node.name in named:  # a signature wants this very node
            continue
        with program.graph.inserting_after(node):
            new = program.graph.call_function(torch.ops.aten.relu.default, (node,))
        new.meta = {**node.meta, "nn_module_stack": MARKER if shared else dict(MARKER)}
        node.replace_all_uses_with(new, lambda user, new=new: user is not new)
        added.setdefault(path_of(node), []).append(new.name)
    program.graph_module.recompile()
    expected = program.module()(*inputs)
    ours_ = assert_unflattens_as_torch(program).ours
    assert_same_outputs(ours_(*inputs), expected, exact=True)
    assert {"first.leaf", "first.linear", "second.linear", "norm", ""} <= set(added)
    for path, names in added.items():
        found = {n.name for n in functions(ours_.get_submodule(path).graph)}
        assert found >= set(names), path


def test_u33_marker_before_the_first_call() -> None:
    """Where no module is open, it is the root."""
    program = exported(Nest(), *args())
    node = functions(program.graph)[0]
    assert path_of(node) == ""
    node.meta["nn_module_stack"] = dict(MARKER)
    ours_ = assert_unflattens_as_torch(program).ours
    assert node.name in {n.name for n in functions(ours_.graph)}


def test_u33_marker_that_is_left_of_a_longer_stack() -> None:
    """A stack is cut first, and then it may be the marker alone."""
    program = exported(Nest(), *args())
    node = functions(program.graph)[0]
    node.meta["nn_module_stack"] = {**MARKER, "x": ("x", "X")}
    theirs_ = torchs(program)
    assert node.name in {n.name for n in functions(theirs_.graph)}
    assert node.name in {n.name for n in functions(quietly(program).graph)}


# ---- U-60: custom meta ---------------------------------------------------------------------------


class Customs(nn.Module):
    """Calls with one output and with two, nested in calls."""

    class Single(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin().cos()

    class Multi(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.sin(), x.exp().neg()

    class Outer(nn.Module):
        def __init__(self, child: nn.Module) -> None:
            super().__init__()
            self.child = child

        def forward(self, x: Tensor) -> Tensor:
            y = self.child(x)
            return (y[0] + y[1] if isinstance(y, tuple) else y) * x

    def __init__(self) -> None:
        super().__init__()
        self.single = self.Outer(self.Single())
        self.multi = self.Outer(self.Multi())
        self.twice = Repeated(self.Single(), between=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.twice(self.multi(self.single(x))) + x


def by_path(**customs: Any) -> Callable[[int, torch.fx.Node], Any]:
    """Custom meta by the innermost module; `_` for a dot, `root` for the root."""
    table = {("" if k == "root" else k.replace("_", ".")): v for k, v in customs.items()}
    return lambda _, node: table.get(path_of(node))


K: dict[str, Any] = {"stage": 1}
CALL = "call_function"
ALL = ("single", "multi/child", "twice")  # `multi` gets two values of `child`, without any
INNER = by_path(single_child=K, multi_child=K, twice_inner=K)
OUTER = by_path(root=K, single=K, multi=K, twice=K)
# For each case the calls that have to get the meta, as "caller/call".
CUSTOMS: dict[str, tuple[Callable[[int, torch.fx.Node], Any], dict[str, Any]]] = {
    "all the same": (lambda i, n: K, dict.fromkeys(ALL, K)),
    "equal, not identical": (lambda i, n: {"a": [n.op]}, {at: {"a": [CALL]} for at in ALL}),
    "mixed": (lambda i, n: {"stage": i}, {}),
    "inner": (INNER, {"single/child": K, "multi/child": K, "twice": K}),
    "outer": (OUTER, {}),
    "nested, single output": (by_path(single_child=K, single={"b": 2}), {"single/child": K}),
    "nested, both": (by_path(single_child=K, single=K), {"single": K}),
    "nested, several outputs": (by_path(multi_child=K, multi=K), {"multi/child": K}),
    "empty": (lambda i, n: {}, {}),
    "some nodes without": (lambda i, n: K if i % 2 else None, {}),
    "one empty": (lambda i, n: {} if i == 0 else K, {"multi/child": K, "twice": K}),
    "no dict": (lambda i, n: "text", dict.fromkeys(ALL, "text")),
}


def with_custom(
    custom: Callable[[int, torch.fx.Node], Any], **options: Any
) -> tuple[ExportedProgram, nn.Module, Tensor]:
    model, x = Customs(), torch.randn(4)
    program = exported(model, x, **options)
    for i, node in enumerate(functions(program.graph)):
        value = custom(i, node)
        if value is not None:
            node.meta["custom"] = value
    return program, model, x


def customs_of(module: nn.Module) -> dict[tuple[str, str], Any]:
    """Custom meta of all nodes that have some."""
    return {
        (name, node.name): node.meta["custom"]
        for name, part in parts(module)
        for node in getattr(getattr(part, "graph", None), "nodes", ())
        if "custom" in node.meta
    }


@pytest.mark.parametrize("preserved", [(), ("single", "twice.inner", "multi.child")], ids=bool)
@pytest.mark.parametrize("name", list(CUSTOMS))
def test_u60_custom_meta_that_all_nodes_share(name: str, preserved: tuple[str, ...]) -> None:
    custom, expected = CUSTOMS[name]
    program, model, x = with_custom(custom, preserve_module_call_signature=preserved)
    given = {n.name: copy.deepcopy(n.meta.get("custom")) for n in program.graph.nodes}
    result = assert_unflattens_as_torch(program, model, (x,))
    found = customs_of(result.ours)
    assert found == customs_of(result.theirs)
    assert {n.name: n.meta.get("custom") for n in program.graph.nodes} == given
    if preserved:
        return
    graphs = {at: m.graph for at, m in parts(result.ours)}
    calls = {(at, n.name) for at, g in graphs.items() for n in g.nodes if n.op == "call_module"}
    moved = {"/".join(filter(None, at)): value for at, value in found.items() if at in calls}
    assert moved == expected
    for call in moved:
        below = result.ours.get_submodule(call.replace("/", ".")).graph
        assert not any("custom" in n.meta for n in functions(below))


def test_u60_calls_that_are_merged_keep_their_own() -> None:
    """One graph for all calls, the meta of each call on its node."""
    model, x = Repeated(Customs.Single(), between=False), torch.randn(4)
    program = exported(model, x)
    nodes = functions(program.graph)
    for i, node in enumerate(nodes):
        node.meta["custom"] = {"call": i // 2}
    result = assert_unflattens_as_torch(program, model, (x,))
    calls = result.ours.graph.find_nodes(op="call_module")
    assert [(n.target, n.meta["custom"]) for n in calls] == [
        ("inner", {"call": i}) for i in range(3)
    ]


def test_u60_annotations_of_the_user() -> None:
    class Annotated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Customs.Outer(Customs.Single())

        def forward(self, x: Tensor) -> Tensor:
            x = x + 1
            with torch.fx.traceback.annotate({"stage": "inner"}):
                x = self.inner(x)
            return x * 2

    model, x = Annotated(), torch.randn(4)
    with torch.fx.traceback.preserve_node_meta():
        program = exported(model, x)
    assert any(n.meta.get("custom") for n in program.graph.nodes)
    result = assert_unflattens_as_torch(program, model, (x,))
    assert customs_of(result.ours) == customs_of(result.theirs)
    (call,) = result.ours.graph.find_nodes(op="call_module")
    assert call.meta["custom"]["stage"] == "inner"


# ---- U-59, U-62: values that a preserved call cannot get -----------------------------------------


def move_to_root(program: ExportedProgram, node: torch.fx.Node) -> None:
    stack = node.meta["nn_module_stack"]
    node.meta["nn_module_stack"] = dict(list(stack.items())[:1])


def assert_cannot_be_passed(program: ExportedProgram, node: torch.fx.Node) -> Exception:
    """RuntimeError with the node; the program stays as it is. Returns torch's error."""
    before = snapshot(program)
    with pytest.raises(RuntimeError, match=rf"Could not run remap_input\(\).*\b{node.name}\b"):
        ours.unflatten(program)
    assert_untouched(program, before)
    error = outcome(lambda: torchs(program))
    assert isinstance(error, Exception)
    return error


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


class Ranged(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.arange(4.0)


def test_u62_values_of_no_function() -> None:
    """The root has the body of an operator that a preserved call runs."""
    program = exported(
        nn.Sequential(Branch()), torch.randn(3), preserve_module_call_signature=("0",)
    )
    node = program.graph.find_nodes(op="get_attr")[0]
    move_to_root(program, node)
    theirs_error = assert_cannot_be_passed(program, node)
    assert isinstance(theirs_error, AssertionError)
    assert "expected node.op to be 'call_function'" in str(theirs_error)


def test_u59_values_of_no_inputs() -> None:
    """It is neither passed, nor can it be computed again, nor is it one of a mutation."""
    program = exported(
        nn.Sequential(Ranged()), torch.randn(4), preserve_module_call_signature=("0",)
    )
    nodes = functions(program.graph)
    (node,) = [n for n in nodes if n.target is torch.ops.aten.arange.default]
    move_to_root(program, node)
    assert_cannot_be_passed(program, node)


def test_u59_without_the_signature_it_is_passed() -> None:
    model = nn.Sequential(Ranged())
    program = exported(model, torch.randn(4))
    nodes = functions(program.graph)
    move_to_root(program, next(n for n in nodes if n.target is torch.ops.aten.arange.default))
    assert_unflattens_as_torch(program, model, (torch.randn(4),))


# ---- U-67: one tensor or two ---------------------------------------------------------------------


class Views(nn.Module):
    """Two names for one storage."""

    def __init__(self, view: Callable[[Tensor], Tensor], *, kept: bool, constant: bool) -> None:
        super().__init__()
        base = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])[:4]
        if constant:
            self.a, self.b = base, view(base)
        else:
            self.register_buffer("a", base, persistent=kept)
            self.register_buffer("b", view(base), persistent=kept)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x + self.a, self.b + 1


KINDS: dict[str, dict[str, bool]] = {
    "buffers": {"kept": True, "constant": False},
    "transient buffers": {"kept": False, "constant": False},
    "constants": {"kept": True, "constant": True},
}


@pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_u67_views_in_two_dtypes_are_two_tensors(kind: str, strict: bool) -> None:
    """torch's key has no dtype: one of the names gets the other's tensor."""
    model, x = Views(lambda t: t.view(torch.int32), **KINDS[kind]), torch.randn(4)
    program = exported(model, x, strict=strict)
    values = {**program.state_dict, **program.constants}
    dtypes = {value.dtype for value in values.values()}
    assert dtypes == {torch.float32, torch.int32}
    module = quietly(program)
    assert (module.a.dtype, module.b.dtype) == (torch.float32, torch.int32)
    torch.testing.assert_close(module.a, model.a)
    torch.testing.assert_close(module.b, model.b)
    assert_runs_as_eager(module, model, (x,), exact=True)


@pytest.mark.parametrize(
    ("view", "same"),
    [
        (lambda t: t.view(4), True),
        (lambda t: t.detach(), True),
        (lambda t: t, True),
        (lambda t: t[:3], False),
        (lambda t: t[1:], False),
        (lambda t: t.as_strided((4,), (1,), 1), False),
        (lambda t: t.view(2, 2), False),
        (lambda t: t.clone(), False),
    ],
    ids=["view", "alias", "itself", "shorter", "later", "offset", "shape", "copy"],
)
def test_u67_the_same_view_is_one_tensor(view: Callable[[Tensor], Tensor], same: bool) -> None:
    model = Views(view, **KINDS["buffers"])
    program = exported(model, torch.randn(4))
    ours_, theirs_ = quietly(program), torchs(program)
    assert (ours_.a is ours_.b) == (theirs_.a is theirs_.b) == same
    torch.testing.assert_close(ours_.b, model.b)
    assert_runs_as_eager(ours_, model, (torch.randn(4),))


# ---- U-74, U-75: what may be assigned ------------------------------------------------------------


def test_u74_fake_script_objects_are_refused() -> None:
    fake = FakeScriptObject(None, "some.Class", None)
    for side in (ours, theirs):
        root = nn.Module()
        with pytest.raises(AssertionError, match="FakeScriptObject should only exist"):
            side._assign_attr(fake, root, "a.b", side._AttrKind.CONSTANT)
        assert not hasattr(root.a, "b")
    program = exported(Nest(), *args())
    program.constants["fake"] = fake
    before = snapshot(program)
    with pytest.raises(AssertionError, match=r"FakeScriptObject should only exist.*'fake'"):
        ours.unflatten(program)
    assert_untouched(program, before)
    error = outcome(lambda: torchs(program))
    assert isinstance(error, AssertionError)
    assert "FakeScriptObject should only exist" in str(error)


def test_u75_kinds_of_another_enum() -> None:
    """torch compares with all values of the graph and does nothing."""
    import enum

    other = enum.Enum("_AttrKind", {k.name: k.value for k in ours._AttrKind})  # type: ignore[misc]
    for kind in (*other, "parameter", None):
        root = nn.Module()
        theirs._assign_attr(torch.ones(1), root, "x", kind)
        assert not hasattr(root, "x")
        with pytest.raises(TypeError, match="_AttrKind"):
            ours._assign_attr(torch.ones(1), root, "x", kind)
        with pytest.raises(TypeError, match="_AttrKind"):
            ours._assign_attr(torch.ones(1), root, "below.x", kind)
        assert not hasattr(root, "x")
        assert list(root._modules) == [], "nothing is made for what is refused"
    for kind in ours._AttrKind:
        assert kind is theirs._AttrKind[kind.name]


# ---- U-94: dispatchers ---------------------------------------------------------------------------


def dispatcher(side: Any, *, fail: list[bool]) -> Any:
    """Three calls that add 1, 2 and 3; the second raises while `fail` is set."""
    adds = [lambda x: x + 1, lambda x: x + 2 / (1 - fail[0]), lambda x: x + 3]
    modules = []
    for number, add in enumerate(adds, 1):
        graph = Graph()
        graph.output(graph.call_function(add, (graph.placeholder("x"),)))
        module = side.InterpreterModule(graph, ty=f"some.Class{number}")
        module.finalize()
        modules.append(module)
    modules[0].weight = nn.Parameter(torch.ones(1))
    modules[0].constant = torch.ones(2)
    modules[0].child = nn.ReLU()
    return side.InterpreterModuleDispatcher({"weight", "constant"}, modules)


def called(module: Any, fail: list[bool], step: str) -> Any:
    """One call succeeds, raises in the second module, or lacks an input."""
    fail[0] = step == "fail"
    given = () if step == "bad" else (torch.zeros(()),)
    result = outcome(lambda: module(*given))
    return type(result).__name__ if isinstance(result, Exception) else float(result)


def test_u94_turns_errors_and_the_way_around() -> None:
    """An error of any call starts over; until one comes, the calls take turns."""
    steps = [
        *["ok"] * 4,
        "fail",
        *["ok"] * 3,
        "fail",
        "fail",
        "ok",
        "bad",
        "ok",
        "bad",
        "bad",
        "ok",
    ]
    outcomes = []
    for side in (ours, theirs):
        fail = [False]
        module = dispatcher(side, fail=fail)
        outcomes.append([called(module, fail, step) for step in steps])
        assert module.type_name() == "some.Class1"
        first = module.call_modules()[0]
        assert len(module.call_modules()) == 3
        assert module._modules is first._modules
        assert module.weight is first.weight
        assert module.constant is first.constant
        assert list(dict(module.named_parameters())) == ["weight"]
        assert list(dict(module.named_modules())) == ["", "child"]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][:6] == [1.0, 2.0, 3.0, 1.0, "ZeroDivisionError", 1.0]


def test_u94_interrupts_do_not_start_over() -> None:
    """`except Exception`, as torch has it."""
    results = []
    for side in (ours, theirs):
        graph = Graph()
        graph.output(graph.call_function(_interrupt, (graph.placeholder("x"),)))
        interrupted = side.InterpreterModule(graph)
        interrupted.finalize()
        calls = [*dispatcher(side, fail=[False]).call_modules()[::2]]
        module = side.InterpreterModuleDispatcher(set(), [calls[0], interrupted, calls[1]])
        zero = torch.zeros(())
        assert float(module(zero)) == 1.0
        with pytest.raises(KeyboardInterrupt):
            module(zero)
        results.append(float(module(zero)))
    assert results[0] == results[1] == 3.0


def _interrupt(x: Tensor) -> Tensor:
    raise KeyboardInterrupt


# ---- U-106: symbolic tracing ---------------------------------------------------------------------


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, pair: tuple[Tensor, dict[str, Tensor]]) -> dict[str, Any]:
        y = self.linear(x) * pair[0]
        return {"y": y, "nested": [y + 1, (pair[1]["k"] * y, None)], "number": 3}


class Calls(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Any:
        return self.module(x, (y, {"k": z}))


def test_u106_structure_of_outputs() -> None:
    """torch cannot trace it at all, or gives the flat outputs."""
    model = Structured()
    x, y, z = torch.randn(2, 4), torch.randn(4), torch.randn(4)
    module = ours_of(model, x, (y, {"k": z}))
    expected = model(x, (y, {"k": z}))
    graph = torch.fx.symbolic_trace(module)
    assert_same_outputs(graph(x, (y, {"k": z})), expected)
    calling = torch.fx.symbolic_trace(Calls(module))
    assert_same_outputs(calling(x, y, z), expected)
    assert set(graph(x, (y, {"k": z}))) == {"y", "nested", "number"}


# ---- repr ---------------------------------------------------------------------------------------


def lines(module: nn.Module) -> list[tuple[str, ...]]:
    """Names and classes in a `repr`; what layers say of themselves is left out."""
    text = repr(module)
    found = re.findall(r"^( *)\(([^)]+)\): (\w+)\(", text, flags=re.MULTILINE)
    return [(text.split("(", 1)[0],), *found]


@pytest.mark.parametrize(
    ("build", "strict"), [(Nest, False), (Nest, True), (Deep, False), (Deep, True), (Shared, False)]
)
def test_repr_shows_the_original_classes(build: type[nn.Module], strict: bool) -> None:
    model = build()
    inputs = args()[: 2 if build is Nest else 1]
    assert lines(ours_of(model, *inputs, strict=strict)) == lines(model)


def test_repr_of_dispatchers_and_of_what_is_never_called() -> None:
    model, x = Repeated(Counter()), torch.randn(4)
    module = ours_of(model, x, preserve_module_call_signature=("inner",))
    assert lines(module) == lines(model) == [("Repeated",), ("  ", "inner", "Counter")]
    idle = ours_of(Unused(), torch.randn(3, 4), torch.randn(3, 4))
    assert ("  ", "idle", "Module") in lines(idle)
    assert ("  ", "used", "Linear") in lines(idle)
    assert repr(ours.InterpreterModule(Graph())) == "InterpreterModule()"
