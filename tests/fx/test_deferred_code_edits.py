"""Editing split modules whose code was not generated yet: graph, code generator, children, class.

torch's own split of the same graph, edited in the same way, says what is right.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule
from torch.fx.graph import CodeGen, _BoxedCodeGen, _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree

from fxpress import _native
from fxpress.split_module import split_module
from tests.support.deferred import (
    Pair,
    assert_equal,
    in_blocks,
    inputs,
    is_deferred,
    make_pair,
    negate_output,
    torch_split,
    traced_net,
)


def one_returning(value: Any) -> Graph:
    graph = Graph()
    graph.placeholder("x")
    graph.placeholder("y")
    graph.output(value)
    return graph


# ---- graphs ----


def test_edit_before_first_use_needs_no_recompile(pair: Pair) -> None:
    negate_output(pair.ours)
    negate_output(pair.theirs)
    pair.theirs.recompile()
    pair.same(lambda m: m.code)
    assert_equal(pair.ours(*pair.args), pair.expected())


@pytest.mark.parametrize("touched", [False, True], ids=["untouched", "touched"])
def test_recompile_after_an_edit(pair: Pair, touched: bool) -> None:
    if touched:
        pair.ours.code
    for module in (pair.ours, pair.theirs):
        negate_output(module)
    ours, theirs = pair.ours.recompile(), pair.theirs.recompile()
    assert ours.src == theirs.src
    assert ours._lineno_map == theirs._lineno_map
    assert ours._prologue_start == theirs._prologue_start
    assert ours.globals.keys() == theirs.globals.keys()
    assert pair.ours.code == pair.theirs.code == ours.src
    assert_equal(pair.ours(*pair.args), pair.expected())
    assert list(vars(pair.ours)) == list(vars(pair.theirs))
    assert set(vars(type(pair.ours))) == set(vars(type(pair.theirs)))


def test_edit_after_use_shows_only_after_recompile(pair: Pair) -> None:
    before = pair.expected()
    assert_equal(pair.ours(*pair.args), before)
    negate_output(pair.ours)
    assert_equal(pair.ours(*pair.args), before)
    pair.ours.recompile()
    assert_equal(pair.ours(*pair.args)[0], -before[0])


@pytest.mark.parametrize("child_touched", [False, True], ids=["untouched", "touched"])
@pytest.mark.parametrize("parent_touched", [False, True], ids=["untouched", "touched"])
def test_edited_child_and_recompiled_parent(parent_touched: bool, child_touched: bool) -> None:
    pair = make_pair("result")
    if child_touched:
        pair.ours.submod_0.code
    if parent_touched:
        pair.ours.code
    for module in (pair.ours, pair.theirs):
        negate_output(module.submod_0)
        module.recompile()
    assert_equal(pair.ours(*pair.args), pair.expected())
    assert pair.ours.submod_0.code == pair.theirs.submod_0.code


def with_inner_module() -> GraphModule:
    """A graph with a GraphModule as a child, two levels below the result of a split."""
    graph = Graph()
    x, _ = graph.placeholder("x"), graph.placeholder("y")
    called = graph.call_module("inner", (graph.call_function(torch.relu, (x,)),))
    graph.output(graph.call_function(torch.add, (called, 1)))
    inner = Graph()
    inner.output(inner.call_function(torch.add, (inner.placeholder("x"), 2)))
    return GraphModule({"inner": GraphModule({}, inner)}, graph)


def in_one_part(split: Callable[..., GraphModule], source: GraphModule) -> GraphModule:
    return split(source, None, lambda n: 0)


def test_edited_grandchild_and_recompiled_parent() -> None:
    results = []
    for split_by in (split_module, torch_split):
        split = in_one_part(split_by, with_inner_module())
        negate_output(split.submod_0.inner)
        split.recompile()
        results.append(split(*inputs()))
    assert_equal(*results)


def test_child_edited_before_the_split_and_not_recompiled() -> None:
    """torch's constructor recompiles the children, so its result shows the edit."""
    results = []
    for split_by in (split_module, torch_split):
        source = with_inner_module()
        negate_output(source.inner)
        results.append(in_one_part(split_by, source)(*inputs()))
    assert_equal(*results)


def test_another_graph(pair: Pair) -> None:
    for module in (pair.ours, pair.theirs):
        module.graph = one_returning("changed")
    assert pair.ours.code == pair.theirs.code
    assert pair.ours(1, 2) == "changed"
    assert pair.ours.graph.owning_module is pair.ours
    assert list(vars(pair.ours)) == list(vars(pair.theirs))


def test_graph_that_is_none_is_refused(pair: Pair) -> None:
    with pytest.raises(AssertionError, match="Expected a Graph instance"):
        pair.ours.graph = None
    assert_equal(pair.ours(*pair.args), pair.expected())


def test_hooks_of_the_graph_fire(pair: Pair) -> None:
    created, erased, replaced = [], [], []
    pair.ours._register_create_node_hook(created.append)
    pair.ours._register_erase_node_hook(erased.append)
    pair.ours._register_replace_node_hook(lambda old, new, user: replaced.append(new))
    negate_output(pair.ours)
    node = created[0]
    node.replace_all_uses_with(node.args[0])
    pair.ours.graph.erase_node(node)
    assert erased == [node]
    assert replaced
    assert_equal(pair.ours(*pair.args), pair.expected())


def test_dead_code_elimination_and_delete_unused(pair: Pair) -> None:
    for module in (pair.ours, pair.theirs):
        module.graph.output_node().args = (None,)
        module.graph.eliminate_dead_code()
        module.delete_all_unused_submodules()
        module.recompile()
    assert pair.ours.code == pair.theirs.code
    assert list(pair.ours._modules) == list(pair.theirs._modules)


# ---- code generators ----


def pytree_codegen(module: GraphModule) -> _PyTreeCodeGen:
    names = [n.target for n in module.graph.find_nodes(op="placeholder")]
    sample = (dict.fromkeys(names, 0),)
    _, in_spec = pytree.tree_flatten((sample, {}))
    _, out_spec = pytree.tree_flatten((0, 0))
    return _PyTreeCodeGen(_PyTreeInfo(["tree"], in_spec, out_spec))


class Announcing(CodeGen):
    """Adds a comment below the signature."""

    def gen_fn_def(self, *args: Any, **kwargs: Any) -> str:
        return super().gen_fn_def(*args, **kwargs) + "\n    # announced"


@pytest.mark.parametrize("how", ["set_codegen", "attribute"])
@pytest.mark.parametrize("recompile", [False, True], ids=["first use", "recompile"])
@pytest.mark.parametrize("touched", [False, True], ids=["untouched", "touched"])
def test_pytree_codegen(pair: Pair, how: str, recompile: bool, touched: bool) -> None:
    if touched:
        pair.ours.code
        recompile = True
    for module in (pair.ours, pair.theirs):
        if how == "set_codegen":
            module.graph.set_codegen(pytree_codegen(module))
        else:
            module.graph._codegen = pytree_codegen(module)
        if recompile or module is pair.theirs:
            module.recompile()
    names = [n.target for n in pair.ours.graph.find_nodes(op="placeholder")]
    tree = dict(zip(names, pair.args, strict=True))
    assert_equal(pair.ours(tree), pair.theirs(tree))
    assert pair.ours.code == pair.theirs.code
    assert vars(pair.ours)["_in_spec"] == vars(pair.theirs)["_in_spec"]
    if not touched:  # torch had generated code before, so that the specs come last
        assert set(vars(pair.ours)) == set(vars(pair.theirs))
    assert set(vars(type(pair.ours))) == set(vars(type(pair.theirs)))


@pytest.mark.parametrize(
    ("codegen", "mark"), [(Announcing, "# announced"), (_BoxedCodeGen, "args_list")]
)
def test_other_codegens(pair: Pair, codegen: type[CodeGen], mark: str) -> None:
    for module in (pair.ours, pair.theirs):
        module.graph.set_codegen(codegen())
    pair.theirs.recompile()
    pair.same(lambda m: m.code)
    assert mark in pair.ours.code
    assert pair.ours._boxed_call == (codegen is _BoxedCodeGen)
    ours, theirs = (
        m(list(pair.args)) if codegen is _BoxedCodeGen else m(*pair.args)
        for m in (pair.ours, pair.theirs)
    )
    assert_equal(ours, theirs)


def test_transformer_of_the_generated_code(pair: Pair) -> None:
    def add_line(body: list[str]) -> list[str]:
        return ["seen = 1\n", *body]

    for module in (pair.ours, pair.theirs):
        module.graph.on_generate_code(lambda current: add_line)
    pair.theirs.recompile()
    pair.same(lambda m: m.code)
    assert "seen = 1" in pair.ours.code
    assert_equal(pair.ours(*pair.args), pair.expected())


def test_codegen_that_fails_leaves_the_code_deferred(pair: Pair) -> None:
    class Failing(CodeGen):
        def gen_fn_def(self, *args: Any, **kwargs: Any) -> str:
            raise AttributeError("no such luck")

    pair.ours.graph.set_codegen(Failing())
    before = dict(vars(type(pair.ours)))
    for access in (lambda: pair.ours.code, lambda: pair.ours(*pair.args), pair.ours.recompile):
        with pytest.raises(RuntimeError, match="no such luck"):
            access()
    assert dict(vars(type(pair.ours))) == before
    pair.ours.graph.set_codegen(CodeGen())
    assert_equal(pair.ours(*pair.args), pair.expected())


# ---- attributes of instance and class ----


class Replacement(torch.nn.Module):
    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, x.sum(-1)


def put_into_dict(module: GraphModule) -> None:
    module.__dict__["submod_0"] = Replacement()  # vLLM's way


def put_by_setattr(module: GraphModule) -> None:
    setattr(module, "submod_0", Replacement())  # noqa: B010


def put_by_add_submodule(module: GraphModule) -> None:
    assert module.add_submodule("submod_0", Replacement())


def put_by_delattr(module: GraphModule) -> None:
    del module.submod_0
    module.submod_0 = Replacement()


@pytest.mark.parametrize(
    "put", [put_into_dict, put_by_setattr, put_by_add_submodule, put_by_delattr]
)
@pytest.mark.parametrize("touched", [False, True], ids=["untouched", "touched"])
def test_replaced_child(put: Callable[[GraphModule], None], touched: bool) -> None:
    pair = make_pair("result")
    if touched:
        pair.ours.code
    put(pair.ours)
    put(pair.theirs)
    assert_equal(pair.ours(*pair.args), pair.expected())
    assert [n for n, _ in pair.ours.named_modules()] == [n for n, _ in pair.theirs.named_modules()]
    pair.ours.recompile()
    assert_equal(pair.ours(*pair.args), pair.expected())


def test_deleted_child_is_missing_when_called() -> None:
    pair = make_pair("result")
    del pair.ours.submod_0
    with pytest.raises(AttributeError, match="submod_0"):
        pair.ours(*pair.args)


def test_forward_of_the_instance(pair: Pair) -> None:
    pair.ours.forward = lambda *args: "mine"
    assert pair.ours(*pair.args) == "mine"
    assert pair.ours.forward() == "mine"
    del pair.ours.forward
    assert_equal(pair.ours(*pair.args), pair.expected())


def test_forward_in_the_instances_dict(pair: Pair) -> None:
    vars(pair.ours)["forward"] = lambda *args: "mine"
    assert pair.ours.forward() == "mine"
    assert pair.ours(*pair.args) == "mine"
    del vars(pair.ours)["forward"]
    assert_equal(pair.ours(*pair.args), pair.expected())


def test_deleting_what_is_not_on_the_instance(pair: Pair) -> None:
    for module in (pair.ours, pair.theirs):
        with pytest.raises(AttributeError):
            del module.forward
    assert_equal(pair.ours(*pair.args), pair.expected())


def test_deleting_code(pair: Pair) -> None:
    for module in (pair.ours, pair.theirs):
        del module._code
        with pytest.raises(RuntimeError, match="Code has not been generated"):
            module.code


@pytest.mark.parametrize("access", ["call", "code first"])
def test_forward_of_the_class(pair: Pair, access: str) -> None:
    for module in (pair.ours, pair.theirs):
        type(module).forward = lambda self, *args: "mine"
        if access == "code first":
            assert "def forward" in module.code
        assert module(*pair.args) == "mine"
        assert module.forward() == "mine"
    for module in (pair.ours, pair.theirs):
        module.recompile()
    assert_equal(pair.ours(*pair.args), pair.expected())


def test_recompile_takes_the_place_of_a_forward_set_on_the_class(pair: Pair) -> None:
    for module in (pair.ours, pair.theirs):
        type(module).forward = lambda self, *args: "mine"
        module.recompile()
    assert_equal(pair.ours(*pair.args), pair.expected())
    assert set(vars(type(pair.ours))) == set(vars(type(pair.theirs)))


def test_call_of_the_class(pair: Pair) -> None:
    for module in (pair.ours, pair.theirs):
        type(module).__call__ = lambda self, *args: "mine"
        assert module() == "mine"
        assert_equal(module.forward(*pair.args), pair.theirs.forward(*pair.args))


def test_reduce_of_the_class(pair: Pair) -> None:
    """torch.distributed.pipelining sends the stages this way."""
    from torch.distributed.pipelining._IR import _direct_serialization_reduce

    for module in (pair.ours, pair.theirs):
        module.__class__.__reduce__ = _direct_serialization_reduce
    sent = pickle.loads(pickle.dumps(pair.ours))
    assert sent.code == pickle.loads(pickle.dumps(pair.theirs)).code
    assert_equal(sent(*pair.args), pair.expected())
    assert_equal(pair.ours(*pair.args), pair.expected())
    assert type(pair.ours).__reduce__ is _direct_serialization_reduce


@pytest.mark.parametrize("name", ["_code", "_lineno_map", "_prologue_start"])
def test_tables_can_be_set(pair: Pair, name: str) -> None:
    setattr(pair.ours, name, "mine")
    assert getattr(pair.ours, name) == "mine"
    assert_equal(pair.ours(*pair.args), pair.expected())
    assert getattr(pair.ours, name) == "mine"


def test_subclass_made_on_the_fly(pair: Pair) -> None:
    """A subclass is created at run time, as torch.nn.utils.parametrize and FSDP do."""

    class Wrapped(type(pair.ours)):  # type: ignore[misc]
        def extra(self) -> str:
            return self.code

    pair.ours.__class__ = Wrapped
    assert_equal(pair.ours(*pair.args), pair.expected())
    assert pair.ours.extra() == pair.theirs.code


def test_parametrization_of_a_parameter() -> None:
    results = []
    for index in range(2):
        root = make_pair("result", traced_net())
        module = (root.ours, root.theirs)[index]
        torch.nn.utils.parametrize.register_parametrization(module, "scale", torch.nn.Tanh())
        results.append(module(*inputs()))
    assert_equal(*results)


def test_new_attribute(pair: Pair) -> None:
    pair.ours.note = "kept"
    pair.ours.register_buffer("extra", torch.ones(2))
    assert is_deferred(pair.ours)
    assert_equal(pair.ours(*pair.args), pair.expected())
    assert pair.ours.note == "kept"
    assert "extra" in pair.ours.state_dict()


# ---- what other code sees and does while a module is made ----


@pytest.fixture
def on_registration() -> Iterator[Callable[[Callable[[Any], object]], None]]:
    """Calls a function with every module that another one is registered in, as a global hook."""
    handles: list[Any] = []

    def register(look: Callable[[Any], object]) -> None:
        def hook(module: Any, name: str, child: Any) -> None:
            look(module)

        register_hook = torch.nn.modules.module.register_module_module_registration_hook
        handles.append(register_hook(hook))

    yield register
    for handle in handles:
        handle.remove()


NAMES_OF_CODE = ("_code", "_lineno_map", "_prologue_start")


def test_code_is_not_there_while_the_module_is_made(on_registration: Any) -> None:
    seen: list[bool] = []
    on_registration(lambda m: seen.extend(hasattr(m, name) for name in NAMES_OF_CODE))
    pair = make_pair("result")
    assert seen
    assert not any(seen)
    assert_equal(pair.ours(*pair.args), pair.expected())


def test_code_that_is_set_while_the_module_is_made(on_registration: Any) -> None:
    def look(module: Any) -> None:
        module.forward = lambda *args: "mine"
        with pytest.raises(AttributeError):
            del module._code

    source = traced_net()
    on_registration(look)
    split = split_module(source, None, in_blocks(source, 4))
    assert split(*inputs()) == "mine"


def test_buffer_called_like_a_table_of_the_code() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.add, (x, graph.get_attr("_code"))))
    root = torch.nn.Module()
    root.register_buffer("_code", torch.ones(2))
    source = torch.nn.Module()
    source.graph = graph
    source.register_buffer("_code", torch.ones(2))
    split = split_module(source, None, lambda n: 0)  # type: ignore[arg-type]
    assert list(dict(split.named_buffers())) == ["_code"]


@pytest.mark.parametrize("owner", [None, 5, "int"])
def test_descriptor_of_nothing(owner: Any) -> None:
    descriptor = vars(type(make_pair("result").ours))["_code"]
    with pytest.raises(TypeError):
        descriptor.__get__(None, owner)


def test_copy_of_the_namespace_of_a_deferred_class() -> None:
    """The descriptors in the copied namespace do not generate code for the new class."""
    body = dict(vars(type(make_pair("result").ours)))
    body.pop("_fxpress_pending")
    stray = type("Stray", (torch.nn.Module,), body)()
    with pytest.raises(AttributeError, match="_code"):
        stray._code
    stray._code = "mine"
    assert stray._code == "mine"
    del stray._code
    with pytest.raises(AttributeError):
        del stray._code


def test_graph_of_a_class_that_writes_its_own_code(pair: Pair) -> None:
    class Shouting(Graph):
        def python_code(self, *args: Any, **kwargs: Any) -> Any:
            code = super().python_code(*args, **kwargs)
            code.src = code.src.replace("return", "# AND NOW\n    return")
            return code

    for module in (pair.ours, pair.theirs):
        graph = Shouting()
        graph.output(graph.graph_copy(module.graph, {}))
        module.graph = graph
    assert "AND NOW" in pair.ours.code
    assert pair.ours.code == pair.theirs.code
    assert_equal(pair.ours(*pair.args), pair.expected())


@pytest.mark.parametrize("name", ["y_" + "9" * 25, "y_" + "0" * 25])
def test_node_whose_name_ends_in_a_long_number(pair: Pair, name: str) -> None:
    for module in (pair.ours, pair.theirs):
        output = module.graph.output_node()
        with module.graph.inserting_before(output):
            node = module.graph.create_node("call_function", torch.neg, (1.5,), name=name)
            module.graph.create_node("call_function", torch.neg, (node,), name=name)
    pair.theirs.recompile()
    assert pair.ours.code == pair.theirs.code
    assert _native.python_source(pair.ours.graph) is not None
