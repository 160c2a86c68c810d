"""Each step of unflattening, compared with torch's on its own inputs."""

from __future__ import annotations

import copy
import importlib
import io
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, GraphModule, Interpreter, Node

import fxpress
import fxpress.unflatten as ours
from tests.support.unflatten_cases import exported
from tests.support.unflatten_compare import (
    assert_same_graphs,
    assert_same_outputs,
    assert_same_state,
    assert_same_tree,
    assert_same_unflattened_graph,
    leaves,
    parts,
)
from tests.support.unflatten_models import (
    Counter,
    Deep,
    Nest,
    Repeated,
    RootState,
    Shared,
    Special,
    Unused,
)

theirs = importlib.import_module("torch.export.unflatten")


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    torch.manual_seed(0)
    yield
    capfd.readouterr()


# ---- a root to outline into ---------------------------------------------------------------------


class Root(nn.Module):
    """The attributes of an `UnflattenedModule` that the steps use."""

    def __init__(self, side: Any, program: ExportedProgram) -> None:
        super().__init__()
        self.graph = Graph()
        self.graph.owning_module = self
        self.module_call_graph = copy.deepcopy(program.module_call_graph)
        self.ivals = side._IVals()
        self._run_with_interpreter = True


class Steps:
    """The steps in torch's order, by the functions of one side."""

    def __init__(self, side: Any, program: ExportedProgram) -> None:
        self.side = side
        self.program = program
        self.signature = copy.deepcopy(program.graph_signature)
        self.flat = copy.deepcopy(program.graph)
        self.root = Root(side, program)
        self.seen_modules: dict[Any, list[Any]] = {}
        self.seen_attrs: dict[str, set[str]] = {}
        self.removed: dict[str, set[str] | None] = {}
        self.redirected: dict[str, str] = {}

    def mutate(self) -> None:
        self.side._inplace_buffer_and_input_mutations(self.flat, self.signature)
        self.side._fix_nn_module_stacks(self.flat)

    def outline(self) -> None:
        with redirect_stdout(io.StringIO()):
            found = self.side._outline_submodules(self.flat, self.root)
        self.seen_modules, self.seen_attrs = found
        self.root.ivals.update(self.seen_modules.values())
        rebuild_inputs(self.root)
        self.assign()

    def assign(self) -> None:
        """Attributes of graphs, parameters, buffers and constants; the values are the program's."""
        assign, kinds = self.side._assign_attr, self.side._AttrKind
        self.side._copy_graph_attrs(self.program.graph_module, self.root, self.seen_attrs)
        signature, values = self.signature, {**self.program.state_dict, **self.program.constants}
        for name in signature.parameters:
            assign(values[name], self.root, name, attr_kind=kinds.PARAMETER)
        for name in signature.buffers:
            kept = name not in signature.non_persistent_buffers
            assign(values[name], self.root, name, attr_kind=kinds.BUFFER, persistent=kept)
        for name, value in values.items():
            if name in signature.parameters or name in signature.buffers:
                continue
            kind = kinds.PARAMETER if isinstance(value, nn.Parameter) else kinds.CONSTANT
            assign(value, self.root, name, attr_kind=kind)

    def targets(self) -> dict[str, list[str]]:
        values = {**self.program.state_dict, **self.program.constants}
        specs = [s for s in self.signature.input_specs if s.kind is not InputKind.USER_INPUT]
        return {
            spec.arg.name: sorted(
                (n for n, value in values.items() if value is values[spec.target]),
                key=lambda n, first=spec.target: n != first,  # type: ignore[misc]
            )
            for spec in specs
        }

    def sink(self) -> None:
        removed: dict[int, set[str]] = defaultdict(set)
        found = self.side._sink_params(self.root, self.targets(), [], removed)
        assert list(found) == [id(self.root)]
        removed.update(found)
        self.removed = {n: removed.get(id(m)) for n, m in parts(self.root)}

    def deduplicate(self) -> None:
        self.redirected = self.side._deduplicate_modules(self.seen_modules.values())

    def dispatch(self) -> None:
        dispatch = self.side.UnflattenedModule._dispatch_modules
        dispatch(
            self.root, self.redirected, {n for names in self.targets().values() for n in names}
        )

    def reorder(self) -> None:
        paths = [e.fqn for e in self.root.module_call_graph if e.fqn not in self.redirected]
        order = {path: i for i, path in enumerate(p for p in paths if "@" not in p)}
        for name, _ in self.root.named_modules(remove_duplicate=False):
            order.setdefault(name, len(order))
        self.side._reorder_submodules(self.root, order)

    def run(self, *args: Any) -> Any:
        with redirect_stdout(io.StringIO()):
            return Interpreter(self.root, graph=self.root.graph).run(
                *args, enable_io_processing=False
            )


def rebuild_inputs(root: nn.Module) -> None:
    """torch adds arguments one by one at the front, and `all_input_nodes` gets them at the end;
    `_sink_params` sets the arguments again."""
    for _, module in parts(root):
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            node.args = node.args


def calls_of(steps: Steps) -> list[Any]:
    """`seen_modules` in terms that compare: modules by the first name they have in the tree."""
    names: dict[int, str] = {}
    for name, module in parts(steps.root):
        names.setdefault(id(module), name)
    return [
        (
            key,
            [
                (
                    entry.parent_fqn,
                    names.get(id(entry.parent_module)),
                    (entry.parent_call_module.name, str(entry.parent_call_module.target)),
                    entry.fqn,
                    entry.call_idx,
                    names.get(id(entry.module)),
                )
                for entry in entries
            ],
        )
        for key, entries in steps.seen_modules.items()
    ]


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.linear(x), lambda x: x.sin(), (x,))


class Constants(nn.Module):
    """A constant, a buffer that is not persistent, and a buffer that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.constant = torch.arange(4.0)
        self.register_buffer("transient", torch.ones(4), persistent=False)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return (x * self.constant + self.transient) * self.count


X, Y = torch.randn(3, 4), torch.randn(3, 4)
CASES: dict[str, Callable[[], tuple[nn.Module, ExportedProgram]]] = {}


def case(
    name: str, build: Callable[[], nn.Module], *, decomposed: bool = False, **options: Any
) -> None:
    def make() -> tuple[nn.Module, ExportedProgram]:
        torch.manual_seed(0)
        model = build()
        args = (X, Y) if build in (Nest, Unused) else (X,)
        program = exported(model, *args, **options)
        program = program.run_decompositions({}) if decomposed else program
        program.graph.eliminate_dead_code()  # as `unflatten` does before the steps
        return model, program

    CASES[name] = make


case("nested", Nest)
case("strict", Nest, strict=True)
case("preserved", Nest, preserve_module_call_signature=("first", "second.leaf"))
case("deep", Deep)
case("deep, preserved", Deep, preserve_module_call_signature=("block", "block.inner"))
case("special", Special)
case("counter", lambda: Repeated(Counter()))
case("written", lambda: Repeated(Counter()), decomposed=True)
INNER = {"preserve_module_call_signature": ("inner",)}
case("written, preserved", lambda: Repeated(Counter()), decomposed=True, **INNER)
case("special, preserved", Special, **INNER)
case("constants", lambda: nn.Sequential(Constants(), nn.ReLU()), decomposed=True)
case("state of the root", RootState)
case("shared", Shared)
case("shared, strict", Shared, strict=True)
case("unused", Unused)
case("branches", lambda: Repeated(Branches()))
case("branches, strict", lambda: Repeated(Branches()), strict=True)


@pytest.fixture(params=list(CASES))
def made(request: pytest.FixtureRequest) -> tuple[nn.Module, ExportedProgram]:
    return CASES[request.param]()


def test_step_by_step(made: tuple[nn.Module, ExportedProgram]) -> None:
    """After each step both have the same; at the end both run as the eager module."""
    model, program = made
    args = [X, Y][: len(program.graph_signature.user_inputs)]
    expected = copy.deepcopy(model)(*args)
    mine, other = Steps(ours, program), Steps(theirs, program)
    for step in ("mutate", "outline", "sink", "deduplicate", "dispatch", "reorder"):
        for side in (mine, other):
            getattr(side, step)()
        if step == "mutate":
            assert_same_unflattened_graph(mine.flat, other.flat, step)
            continue
        assert calls_of(mine) == calls_of(other), step
        assert not any(mine.root.ivals.node_names_by_fqn.values()), "F64"
        assert mine.seen_attrs == other.seen_attrs, step
        assert mine.removed == other.removed, step
        assert list(mine.redirected.items()) == list(other.redirected.items()), step
        assert_same_tree(mine.root, other.root)
        assert_same_graphs(mine.root, other.root, code=False)
        assert_same_state(mine.root, other.root, None)
    assert len(mine.root.graph.find_nodes(op="placeholder")) == len(args), "state is sunk"
    assert_same_outputs(leaves(mine.run(*args)), leaves(expected))


# ---- _ModuleFrame -------------------------------------------------------------------------------


def frame(side: Any, flat: Graph, module: Any, calls: dict[str, Any] | None = None) -> Any:
    """The root frame, as `torch.distributed.pipelining` makes it."""
    tables: list[Any] = [{}, defaultdict(list), defaultdict(set), {}]
    return side._ModuleFrame(
        flat, tuple(flat.nodes), *tables, None, [("", None, 0)], "", calls or {}, module=module
    )


def pipelined(side: Any, program: ExportedProgram) -> Any:
    """The root frame after `run_outer`, around a plain GraphModule."""
    flat = copy.deepcopy(program.graph)
    flat.owning_module = program.graph_module
    made = frame(side, flat, GraphModule(nn.Module(), Graph()))
    with redirect_stdout(io.StringIO()):
        made.run_outer()
    rebuild_inputs(made.module)
    return made


@pytest.mark.parametrize("name", [n for n in CASES if "preserved" not in n])
def test_u28_u44_tables_of_a_frame(name: str) -> None:
    """`seen_*` are as torch's; `node_map` and `created_modules` stay empty."""
    _, program = CASES[name]()
    mine, other = pipelined(ours, program), pipelined(theirs, program)
    assert list(mine.seen_nodes) == list(other.seen_nodes)
    assert all(node is mine.nodes[i] for i, node in enumerate(mine.seen_nodes.values()))
    assert mine.seen_attrs == other.seen_attrs
    assert list(mine.seen_attrs) == list(other.seen_attrs)
    assert list(mine.seen_modules) == list(other.seen_modules)
    for key, entries in other.seen_modules.items():
        found = mine.seen_modules[key]
        assert [type(entry) for entry in found] == [ours._SubmoduleEntry] * len(entries)
        for a, b in zip(found, entries, strict=True):
            assert (a.parent_fqn, a.fqn, a.call_idx) == (b.parent_fqn, b.fqn, b.call_idx)
            assert a.parent_call_module.name == b.parent_call_module.name
            assert a.parent_call_module.target == b.parent_call_module.target
            assert a.parent_call_module.graph is a.parent_module.graph
            path = ours._call_name(a.fqn, a.call_idx)
            accessor = ours._compute_accessor(a.parent_fqn, path)
            assert a.parent_call_module.target == accessor
            assert a.parent_module.get_submodule(accessor) is a.module
            assert_same_unflattened_graph(a.module.graph, b.module.graph, path)
        assert [entry.call_idx for entry in found] == list(range(1, len(found) + 1))
    assert_same_unflattened_graph(mine.graph, other.graph, "root")
    assert other.node_map != {}, "torch's has all nodes of the root"
    assert mine.node_map == {}
    assert mine.created_modules == {}
    assert (mine.fqn, mine.child_fqn) == (other.fqn, other.child_fqn) == ("", "")
    assert mine.parent_call_module is other.parent_call_module is None


def test_dead_code_is_outlined_too() -> None:
    """Only `unflatten` itself leaves it out (U-1): frames on their own take every node."""
    program = exported(Unused(), X, Y)
    (dead,) = [n for n in program.graph.nodes if n.op == "call_function" and not n.users]
    mine, other = pipelined(ours, program), pipelined(theirs, program)
    assert dead.name in mine.seen_nodes
    assert [n.name for n in mine.graph.nodes] == [n.name for n in other.graph.nodes]


def test_u45_created_modules_are_what_the_caller_gave() -> None:
    """torch takes modules on the way from there; ours makes its own and leaves the table alone."""
    _, program = CASES["nested"]()
    kept = nn.ReLU()
    made = frame(ours, program.graph, GraphModule(nn.Module(), Graph()))
    made.created_modules["first"] = kept
    made.run_outer()
    assert made.created_modules == {"first": kept}
    assert isinstance(made.module.first, ours.InterpreterModule)


def test_u28_only_the_root_can_be_made() -> None:
    _, program = CASES["nested"]()
    root = frame(ours, program.graph, GraphModule(nn.Module(), Graph()))
    stack = [("", None, 0), ("first", "Middle", 0)]
    arguments = (program.graph, root.nodes, {}, {}, {}, {}, root, stack, "first", {})
    for given in ({}, {"module": ours.InterpreterModule(Graph())}):
        with pytest.raises(fxpress.UnsupportedError, match="root frame"):
            ours._ModuleFrame(*arguments, **given)
    with pytest.raises(fxpress.UnsupportedError, match="root frame"):
        frame(ours, program.graph, None)
    for call in (lambda: root.run_from(0), root.finalize_outputs):
        with pytest.raises(fxpress.UnsupportedError, match="run_outer"):
            call()
    assert list(root.graph.nodes) == []
    root.run_outer()  # and it still does


def test_u28_nodes_copied_by_hand() -> None:
    """`copy_node`, `remap_input` and `copy_sym_call_function` of the root."""
    flat = Graph()
    x, y = flat.placeholder("x"), flat.placeholder("y")
    size = flat.call_function(torch.ops.aten.sym_size.int, (x, 0))
    size.meta = {"val": 3, "custom": {"a": 1}}
    flat.output(flat.call_function(torch.add, (y, size), {"alpha": size}))
    made = [frame(side, flat, GraphModule(nn.Module(), Graph())) for side in (ours, theirs)]
    for each in made:
        for node in (x, y):
            each.copy_node(node)
        copied = each.copy_sym_call_function(size)
        assert each.node_map[size] is each.remap_input(size) is copied
        assert copied.meta == size.meta
        assert copied.meta is not size.meta
        for node in list(flat.nodes)[3:]:
            each.copy_node(node)
        assert list(each.node_map) == list(flat.nodes)
        assert "sym_size_int" not in each.seen_nodes
    assert list(made[0].seen_nodes.items()) == list(made[1].seen_nodes.items())
    assert_same_unflattened_graph(made[0].graph, made[1].graph, "root")
    stranger = Graph().placeholder("x")
    for each in made:
        with pytest.raises(AssertionError, match="different graph"):
            each.remap_input(stranger)
        with pytest.raises(AssertionError, match="Cannot add placeholder"):
            each.add_placeholder(x)


def test_u61_verbose(capfd: pytest.CaptureFixture[str]) -> None:
    """Silent unless `verbose` is set; then `copy_node` and `print` say what torch's say."""
    _, program = CASES["nested"]()
    node = next(iter(program.graph.nodes))
    printed: dict[bool, list[str]] = {False: [], True: []}
    for side in (ours, theirs):
        for verbose in (False, True):
            each = frame(side, program.graph, GraphModule(nn.Module(), Graph()))
            assert each.verbose is False
            each.verbose = verbose
            capfd.readouterr()
            each.print("one", 2, sep="|")
            each.copy_node(node)
            printed[verbose].append(capfd.readouterr().out)
    assert printed[False] == ["", ""]
    assert printed[True][0] == printed[True][1]
    assert printed[True][0].startswith("one|2\ncopying %")
    loud = frame(ours, program.graph, GraphModule(nn.Module(), Graph()))
    loud.verbose = True
    loud.run_outer()
    assert capfd.readouterr().out == "", "the native pass prints nothing"


def test_u39_a_child_that_is_not_below_its_parent() -> None:
    """Frames on their own, as pipelining's, cut no stacks."""
    _, program = CASES["nested"]()
    node = next(n for n in program.graph.nodes if n.target is torch.ops.aten.layer_norm.default)
    items = list(node.meta["nn_module_stack"].items())
    first = ("L['self'].first", ("first", "Middle"))
    node.meta["nn_module_stack"] = dict([items[0], first, items[1]])
    messages = []
    for side in (ours, theirs):
        with pytest.raises(RuntimeError, match="is not a descendant of parent module") as caught:
            pipelined(side, program)
        messages.append(str(caught.value))
    start = "Child module 'norm' is not a descendant of parent module 'first'."
    assert all(message.startswith(start) for message in messages)
    assert node.name in messages[0]


@pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])
def test_u66_bodies_of_operators_go_with_their_calls(strict: bool) -> None:
    """torch leaves that to the caller, and pipelining forgets it: its modules cannot run."""
    model, program = CASES["branches, strict" if strict else "branches"]()
    made = pipelined(ours, program)
    names = {n.target for n in program.graph.find_nodes(op="get_attr")}
    assert len(names) == 6
    assert {name for found in made.seen_attrs.values() for name in found} == names
    assert set(made.seen_attrs) == {"inner", "inner@1", "inner@2"}
    for path, found in made.seen_attrs.items():
        module = made.module.get_submodule(path)
        used = {n.target for n in module.graph.find_nodes(op="get_attr")}
        assert used == found
        for name in found:
            assert getattr(module, name) is getattr(program.graph_module, name)
        module.graph.lint()
    state = {**program.state_dict, **program.constants}
    inputs = [
        X.clone() if spec.kind is InputKind.USER_INPUT else state[spec.target]
        for spec in program.graph_signature.input_specs
    ]
    (result,) = Interpreter(made.module, graph=made.graph).run(*inputs)
    torch.testing.assert_close(result, model(X))


# ---- helpers on modules that are given ----------------------------------------------------------


class Frame:
    """Remember the requested names."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def remap_input(self, node: Any) -> Any:
        self.asked.append(node)
        return "mapped"


def test_u62_ivals_read_and_update() -> None:
    stack = {"": ("", "Root"), "a": ("a", "A")}
    results = []
    for side in (ours, theirs):
        graph = Graph()
        x = graph.placeholder("x")
        added = graph.call_function(torch.ops.aten.add.Tensor, (x, 1))
        written = graph.call_function(torch.ops.aten.add_.Tensor, (x, 1))
        plain = graph.call_function(torch.neg, (added,))
        graph.output((plain, written))
        for node in (added, written, plain):
            node.meta = {"nn_module_stack": dict(stack), "val": node.name}
        ivals, reader = side._IVals(), Frame()
        with redirect_stdout(io.StringIO()) as printed:
            assert [ivals.read(reader, n) for n in (added, written, plain)] == ["mapped"] * 3
        assert (printed.getvalue() == "") == (side is ours)  # U-63
        assert reader.asked == [x, x, added]
        assert ivals.node_names_by_fqn == {"a": {added.name, plain.name}}
        for node in (x, graph.output_node()):
            with pytest.raises(AssertionError, match=f"'call_function', got '{node.op}'"):
                ivals.read(reader, node)
        targets = (added.target, written.target, torch.neg, "text", torch.ops.aten.add_)
        assert [ivals._is_mutable(t) for t in targets] == [False, True, False, False, False]
        module = side.InterpreterModule(graph)
        entries = [[side._SubmoduleEntry("", module, x, fqn, 1, module)] for fqn in ("b", "a")]
        ivals.update(entries)
        copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
        assert [n.args for n in copies] == [(x, added), (added, plain)]
        assert all(n.meta == n.args[1].meta and n.meta is not n.args[1].meta for n in copies)
        results.append(graph)
    assert_same_unflattened_graph(*results, "update")


def unary(side: Any, *targets: Any) -> Any:
    """A module that applies these one after the other."""
    graph = Graph()
    node: Node = graph.placeholder("x")
    for target in targets:
        node = graph.call_function(target, (node,))
    graph.output(node)
    return side.InterpreterModule(graph)


def test_u88_u89_deduplication_under_two_paths() -> None:
    """Equal to a call under another path: that module; to one under the same: its name, too."""
    results = []
    for side in (ours, theirs):
        root = nn.Module()
        root.graph = Graph()
        x: Node = root.graph.placeholder("x")
        root.deep = nn.Module()
        entries, nodes = [], []
        for fqn, number, targets in (
            ("deep.a", 1, (torch.sin,)),
            ("deep.b", 1, (torch.sin,)),
            ("deep.b", 2, (torch.cos,)),
            ("deep.b", 3, (torch.sin,)),
            ("deep.b", 4, (torch.cos,)),
            ("deep.a", 2, (torch.sin, torch.cos)),
            ("deep.a", 3, (torch.cos,)),
        ):
            module = unary(side, *targets)
            name = side._call_name(fqn, number)
            root.deep.add_module(name.split(".")[1], module)
            x = root.graph.call_module(name, (x,))
            nodes.append(x)
            entries.append(side._SubmoduleEntry("", root, x, fqn, number, module))
        root.graph.output(x)
        redirected = side._deduplicate_modules([entries, []])
        modules = {id(m): i for i, m in enumerate(e.module for e in entries)}
        found = {n: modules[id(m)] for n, m in root.deep._modules.items()}
        results.append((list(redirected.items()), found, [n.target for n in nodes]))
    assert results[0] == results[1]
    assert results[0][0] == [("deep.b@2", "deep.b"), ("deep.b@3", "deep.b@1")]
    assert results[0][1] == {"a": 0, "b": 0, "b@1": 2, "a@1": 5, "a@2": 2}


def tree_of(*paths: str) -> nn.Module:
    root = nn.Module()
    for path in paths:
        ours._add_submodule(root, path, nn.Module())
    return root


@pytest.mark.parametrize(
    "order",
    [
        ["", "c", "a", "a.y", "a.x", "b"],
        ["", "b", "a.x", "a", "c"],
        ["", "missing", "a.missing.too", "c"],
        [""],
        ["", "b@1", "b", "a.y"],
    ],
    ids=", ".join,
)
@pytest.mark.parametrize("prefix", ["", "a."])
def test_u99_reordering(order: list[str], prefix: str) -> None:
    results = []
    for side in (ours, theirs):
        root = tree_of("a.x", "a.y", "a.x@1", "b", "b@1", "a@1.y", "a@1.x", "c", "d")
        root.add_module("nothing", None)
        kept = dict(root.named_modules())
        side._reorder_submodules(root, {path: i for i, path in enumerate(order)}, prefix)
        names = [n for n, _ in root.named_modules()]
        results.append([*names, *root._modules])
        assert all(root.get_submodule(n) is kept[n] for n in names if n in kept)
    assert results[0] == results[1]


def test_copy_graph_attrs() -> None:
    bodies = {"body": nn.ReLU(), "other": nn.Tanh()}
    owner = GraphModule(nn.ModuleDict(bodies), Graph())
    for name, body in bodies.items():
        setattr(owner, name, body)
    owner.number = 3  # type: ignore[assignment]
    seen = {"": {"body"}, "a": {"body", "other"}, "a.b@1": {"number"}}
    for side in (ours, theirs):
        root = tree_of("a.b", "a.b@1")
        side._copy_graph_attrs(owner, root, seen)
        assert root.body is root.a.body is bodies["body"]
        assert root.a.other is bodies["other"]
        assert root.get_submodule("a.b@1").number == 3
        assert not hasattr(root.get_submodule("a.b"), "number")
        with pytest.raises(AttributeError):
            side._copy_graph_attrs(owner, root, {"a": {"missing"}})
        with pytest.raises(AttributeError):
            side._copy_graph_attrs(owner, root, {"a.missing": {"body"}})
