"""Names, signatures and classes of `fxpress.unflatten`, and its small helpers against torch's."""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import export
from torch.fx import Graph, GraphModule

import fxpress.unflatten as ours
from tests.support.unflatten_cases import both, ours_of
from tests.support.unflatten_models import Nest, Repeated

theirs = importlib.import_module("torch.export.unflatten")

FUNCTIONS = [
    "unflatten",
    "_disable_interpreter",
    "_assign_attr",
    "_inplace_buffer_and_input_mutations",
    "_root_module_type",
    "_fix_nn_module_stacks",
    "_is_prefix",
    "_compute_accessor",
    "_check_graph_equivalence",
    "_add_spec",
    "_generate_flatten",
    "_generate_flatten_spec",
    "_generate_unflatten",
    "_get_submodule",
    "_add_submodule",
    "_call_name",
    "_is_call_name",
    "_outline_submodules",
    "_reorder_submodules",
    "_copy_graph_attrs",
    "_deduplicate_modules",
    "_sink_params",
]
METHODS = {
    "FlatArgsAdapter": ["adapt", "get_flat_arg_paths"],
    "InterpreterModule": ["__init__", "forward", "finalize", "print_readable", "type_name"],
    "InterpreterModuleDispatcher": [
        "__init__",
        "forward",
        "call_modules",
        "print_readable",
        "type_name",
    ],
    "UnflattenedModule": [
        "__init__",
        "_print_graph",
        "_adapt_flat_args",
        "process_forward_inputs",
        "forward",
        "finalize",
        "_dispatch_modules",
        "print_readable",
        "type_name",
    ],
    "_ModuleFrame": [
        "__init__",
        "add_placeholder",
        "copy_sym_call_function",
        "remap_input",
        "uplift_common_custom_metadata",
        "finalize_outputs",
        "copy_node",
        "run_outer",
        "print",
        "run_from",
    ],
    "_SubmoduleEntry": ["__init__"],
    "_IVals": ["__init__", "_is_mutable", "read", "update"],
    "_TensorID": ["__init__"],
}


def assert_same_signature(mine: Callable[..., Any], other: Callable[..., Any]) -> None:
    """The same parameters; ours may have keyword-only ones with defaults besides."""
    left, right = (list(inspect.signature(f).parameters.values()) for f in (mine, other))
    extra = left[len(right) :]
    assert [(p.name, p.kind, p.default) for p in left[: len(right)]] == [
        (p.name, p.kind, p.default) for p in right
    ]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in extra)


def test_all() -> None:
    assert ours.__all__ == theirs.__all__
    assert all(hasattr(ours, name) for name in ours.__all__)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    assert_same_signature(getattr(ours, name), getattr(theirs, name))


@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str) -> None:
    for method in METHODS[name]:
        assert_same_signature(*(getattr(getattr(m, name), method) for m in (ours, theirs)))


def test_what_goes_beyond_torch_is_for_keywords_only() -> None:
    parameters = inspect.signature(ours.unflatten).parameters
    assert parameters["share_state"].kind is inspect.Parameter.KEYWORD_ONLY
    assert parameters["share_state"].default is False
    assert parameters["device"].kind is inspect.Parameter.KEYWORD_ONLY
    assert parameters["device"].default is None


def test_torchs_own_classes_where_identity_counts() -> None:
    """An enum member or an adapter of another class would be refused, or silently ignored."""
    assert ours.FlatArgsAdapter is theirs.FlatArgsAdapter
    assert ours._AttrKind is theirs._AttrKind
    assert [(k.name, k.value) for k in ours._AttrKind] == [
        ("PARAMETER", "parameter"),
        ("BUFFER", "buffer"),
        ("CONSTANT", "constant"),
        ("MODULE", "module"),
    ]


@pytest.mark.parametrize(
    "name", ["InterpreterModule", "InterpreterModuleDispatcher", "UnflattenedModule"]
)
def test_our_classes_pass_for_torchs(name: str) -> None:
    mine, other = getattr(ours, name), getattr(theirs, name)
    assert issubclass(mine, other)
    assert issubclass(mine, theirs._SubmoduleBase)
    assert issubclass(mine, nn.Module)
    assert mine.__name__ == other.__name__


def test_results_pass_for_torchs() -> None:
    module = ours_of(Repeated(Leaf1()), torch.randn(4), preserve_module_call_signature=("inner",))
    assert isinstance(module, theirs.UnflattenedModule)
    assert isinstance(module, ours.UnflattenedModule)
    assert isinstance(module.inner, theirs.InterpreterModuleDispatcher)
    assert isinstance(module.inner.call_modules()[0], theirs.InterpreterModule)
    assert not isinstance(module, GraphModule)
    assert torch.export.UnflattenedModule is theirs.UnflattenedModule


class Leaf1(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


def test_class_names_of_the_original() -> None:
    module = ours_of(Nest(), torch.randn(3, 4), torch.randn(3, 4))
    names = {name: child.type_name() for name, child in module.named_modules() if name}
    assert names["first"].endswith(".Middle")
    assert names["second.leaf"].endswith(".Leaf")
    assert names["norm"] == "torch.nn.modules.normalization.LayerNorm"
    assert module.type_name().endswith(".Nest")


def test_interpreter_flag() -> None:
    """RUN_WITH_INTERPRETER is read when a module is made, and the manager restores it."""
    assert ours.RUN_WITH_INTERPRETER is True
    program = export(Nest(), (torch.randn(3, 4), torch.randn(3, 4)), strict=False)
    with ours._disable_interpreter():
        generated = ours.unflatten(program)
    interpreted = ours.unflatten(program)
    flags = {m._run_with_interpreter for m in generated.modules() if hasattr(m, "graph")}
    assert flags == {False}
    flags = {m._run_with_interpreter for m in interpreted.modules() if hasattr(m, "graph")}
    assert flags == {True}
    args = (torch.randn(3, 4), torch.randn(3, 4))
    torch.testing.assert_close(generated(*args), interpreted(*args), rtol=0, atol=0)
    with pytest.raises(ZeroDivisionError), ours._disable_interpreter():
        1 / 0
    assert ours.RUN_WITH_INTERPRETER is True


def test_torchs_manager_reaches_ours_when_installed() -> None:
    import fxpress

    program = export(Leaf1(), (torch.randn(3),), strict=False)
    with fxpress.installed(), theirs._disable_interpreter():
        assert theirs.unflatten(program)._run_with_interpreter is False


# ---- helpers ------------------------------------------------------------------------------------

NAMES = ["", "a", "a.b", "a.b.c", "ab", "a1", "layers.1", "layers.10", "layers.1.x", "b"]


@pytest.mark.parametrize("paths", list(itertools.product(NAMES, NAMES)), ids=lambda p: "|".join(p))
def test_compute_accessor(paths: tuple[str, str]) -> None:
    results = []
    for module in (ours, theirs):
        try:
            results.append(module._compute_accessor(*paths))
        except RuntimeError as error:
            assert "is not a descendant of parent module" in str(error)  # noqa: PT017
            results.append(RuntimeError)
    assert results[0] == results[1]


@pytest.mark.parametrize("base", ["a", "a.b", "a@1", "a+"])
def test_call_names(base: str) -> None:
    for count in (1, 2, 3, 11):
        name = ours._call_name(base, count)
        assert name == theirs._call_name(base, count)
        assert ours._is_call_name(name, base)
    for other in ("a", "a@1", "a@x", "a@1@2", "aa", "a.b@3", "a+@4", "", "a@"):
        assert ours._is_call_name(other, base) == theirs._is_call_name(other, base)


@pytest.mark.parametrize(
    ("candidate", "target"),
    [
        ("", "a"),
        ("a", "a.b"),
        ("a", "a"),
        ("a.b", "a"),
        ([1], [1, 2]),
        ([2], [1, 2]),
        ([], []),
        ([("", None, 0)], [("", None, 0), ("a", "A", 0)]),
    ],
)
def test_is_prefix(candidate: Any, target: Any) -> None:
    assert ours._is_prefix(candidate, target) == theirs._is_prefix(candidate, target)


def test_submodules_by_path() -> None:
    for module in (ours, theirs):
        root = nn.Module()
        root.number = 3
        leaf = nn.ReLU()
        made: list[str] = []

        def create(path: str, made: list[str] = made) -> nn.Module:
            made.append(path)
            return nn.Identity()

        assert module._add_submodule(root, "a.b.c", leaf, create) is None
        assert made == ["a", "a.b"]
        assert isinstance(root.a, nn.Identity)
        assert module._get_submodule(root, "a.b.c") is leaf
        assert module._get_submodule(root, "a.x.c") is None
        assert module._get_submodule(root, "number.c") is None
        module._add_submodule(root, "a.d", leaf)
        assert type(root.a.d) is nn.ReLU
        assert module._add_submodule(root, "number.x", leaf) is False


def test_specs() -> None:
    spec = torch.utils._pytree.tree_structure(((1, 2), {}))
    for module in (ours, theirs):
        owner = GraphModule({}, Graph())
        assert [module._add_spec(owner, spec) for _ in range(3)] == [
            "_spec_0",
            "_spec_1",
            "_spec_2",
        ]
        x = owner.graph.placeholder("x")
        nodes = [
            module._generate_flatten(owner, x),
            module._generate_flatten_spec(owner, x, spec),
            module._generate_unflatten(owner, [x, None], spec),
        ]
        owner.graph.output(nodes)
        assert [str(n) for n in owner.graph.nodes] == [
            "x",
            "tree_flatten",
            "getitem",
            "_spec_3",
            "tree_flatten_spec",
            "_spec_4",
            "tree_unflatten",
            "output",
        ]
        assert owner._spec_4 is spec


def equivalent(module: Any, *graphs: Graph) -> bool:
    holders = [nn.Module(), nn.Module()]
    for holder, graph in zip(holders, graphs, strict=True):
        holder.graph = graph
    return bool(module._check_graph_equivalence(*holders))


def small_graph(
    target: Any = torch.neg, name: str = "x", number: float = 1, op: str = "f"
) -> Graph:
    graph = Graph()
    x = graph.placeholder(name)
    y = graph.call_module(op, (x,))
    z = graph.call_function(target, (y, [x, number]), {"k": (x, slice(y, None))})
    graph.output((z, graph.get_attr("attr")))
    return graph


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({}, {}),
        ({}, {"name": "other"}),
        ({}, {"target": torch.sin}),
        ({}, {"number": 2}),
        ({"number": 1}, {"number": 1.0}),
        ({"number": 1}, {"number": True}),
        ({}, {"op": "another_module"}),
    ],
)
def test_graph_equivalence(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Index, op, arguments, and targets of functions and attributes count; names do not."""
    results = {equivalent(m, small_graph(**left), small_graph(**right)) for m in (ours, theirs)}
    assert len(results) == 1


def test_graph_equivalence_wants_graphs() -> None:
    for module in (ours, theirs):
        with pytest.raises(AssertionError, match="graph"):
            equivalent(module, "no graph", small_graph())  # type: ignore[arg-type]


def test_tensor_ids() -> None:
    x = torch.randn(3, 4)
    fields = (x.untyped_storage(), x.stride(), tuple(x.shape), x.storage_offset())
    assert ours._TensorID(*fields) == ours._TensorID(*fields)
    assert hash(ours._TensorID(*fields)) == hash(ours._TensorID(*fields))
    with pytest.raises(AttributeError):
        ours._TensorID(*fields).size = ()  # type: ignore[misc]


def test_root_type_and_stacks() -> None:
    def graph() -> Graph:
        result = Graph()
        x = result.placeholder("x")
        y = result.call_function(torch.neg, (x,))
        y.meta["nn_module_stack"] = {"r": ("", "Root"), "a": ("a", "A"), "b": ("b", "B")}
        result.output(y)
        return result

    stacks = []
    for module in (ours, theirs):
        made = graph()
        assert module._root_module_type(made) == "Root"
        assert module._root_module_type(Graph()) is None
        module._fix_nn_module_stacks(made)
        stacks.append([n.meta.get("nn_module_stack") for n in made.nodes])
    assert stacks[0] == stacks[1] == [None, {"r": ("", "Root"), "a": ("a", "A")}, None]


# ---- printing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("preserved", [(), ("inner",)], ids=["plain", "dispatched"])
def test_readable_text(preserved: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    result = both(
        Repeated(nn.Linear(4, 4)), torch.randn(4), preserve_module_call_signature=preserved
    )
    capfd.readouterr()
    for name in ("", "inner"):
        mine, other = (m.get_submodule(name) for m in (result.ours, result.theirs))
        for options in ({}, {"include_stride": True, "include_device": True}, {"colored": True}):
            text = mine.print_readable(print_output=False, **options)
            assert text == other.print_readable(print_output=False, **options)
    assert capfd.readouterr().out == ""
    printed = []
    for module in (result.ours, result.theirs):
        module.print_readable()
        module._print_graph()
        printed.append(capfd.readouterr().out)
    assert printed[0] == printed[1] != ""
