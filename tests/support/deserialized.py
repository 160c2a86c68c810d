"""Reading programs with torch and with fxpress side by side."""

from __future__ import annotations

import logging
from typing import Any

import sympy
import torch
from torch._export.serde import serialize as torch_serialize
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule

from fxpress.serialize import SerializedArtifact, deserialize, serialize
from tests.support.compare import lookup_table
from tests.support.unflatten_compare import assert_same_node, described


def fake_tensors(program: ExportedProgram) -> list[FakeTensor]:
    values = [
        node.meta.get("val")
        for module in program.graph_module.modules()
        if isinstance(module, GraphModule)
        for node in module.graph.nodes
    ]
    leaves, _ = torch.utils._pytree.tree_flatten(values)
    return [leaf for leaf in leaves if isinstance(leaf, FakeTensor)]


def fake_mode(program: ExportedProgram) -> Any:
    (mode,) = {id(t.fake_mode): t.fake_mode for t in fake_tensors(program)}.values()
    return mode


def facts_of_environment(program: ExportedProgram, symbols: set[Any]) -> dict[str, Any]:
    """The facts in the shape environment of a program about some symbols."""
    mode = fake_mode(program)
    env = mode.shape_env

    def texts(table: Any) -> list[tuple[str, str]]:
        return sorted(
            (sympy.srepr(key), str(value))
            for key, value in table.items()
            if key.free_symbols <= symbols
        )

    return {
        "ranges": texts(env.var_to_range),
        "hints": texts(env.backed_var_to_val),
        "replacements": texts(env.replacements),
        "stacks": sorted(str(symbol) for symbol in env.var_to_stack if symbol in symbols),
        "guards": [str(guard.expr) for guard in env.guards],
        "asserts": [
            (str(symbol), [str(a.expr) for a in asserts])
            for symbol, asserts in env.deferred_runtime_asserts.items()
        ],
        "counters": (env.unbacked_symint_counter, env.unbacked_symfloat_counter),
        "static": env.settings.assume_static_by_default,
        "mode": (mode.allow_fallback_kernels, mode.allow_non_fake_inputs, mode.allow_meta),
    }


def with_the_storage_of(ours: Any, theirs: Any) -> Any:
    """Return torch's value with our storage offset and layout, which torch does not keep."""
    if isinstance(ours, (tuple, list)):
        assert len(ours) == len(theirs)
        return type(theirs)(map(with_the_storage_of, ours, theirs))
    if not isinstance(ours, FakeTensor) or not isinstance(theirs, FakeTensor):
        return theirs
    is_strided = ours.layout is torch.strided
    if is_strided and str(ours.storage_offset()) == str(theirs.storage_offset()):
        return theirs
    assert str(theirs.storage_offset()) == "0"
    for fact in ("shape", "dtype", "device", "requires_grad"):
        assert str(getattr(ours, fact)) == str(getattr(theirs, fact))
    assert not is_strided or str(ours.stride()) == str(theirs.stride())
    return ours


def is_offset(path: Any) -> bool:
    return bool(path) and getattr(path[-1], "name", None) == "storage_offset"


def restore_storage(ours: Graph, theirs: Graph) -> None:
    """Give torch's graph the bindings and storage offsets of ours, so that the graphs can be
    compared."""
    offsets: dict[Any, Any] = {}
    for mine, other in zip(ours.nodes, theirs.nodes, strict=True):
        if "val" in mine.meta and "val" in other.meta:
            other.meta["val"] = with_the_storage_of(mine.meta["val"], other.meta["val"])
        bindings = mine.meta.get("unbacked_bindings", {})
        expected = other.meta.get("unbacked_bindings", {})
        wanted = {s: path for s, path in expected.items() if s not in offsets}
        offsets |= {s: path for s, path in bindings.items() if is_offset(path)}
        known = {s: path for s, path in bindings.items() if s not in offsets or s in expected}
        assert described(known) == described(wanted)
        other.meta.pop("unbacked_bindings", None)
        if bindings:
            other.meta["unbacked_bindings"] = bindings


def assert_same_read_graph(ours: Graph, theirs: Graph, at: str) -> None:
    assert [n.name for n in ours.nodes] == [n.name for n in theirs.nodes], at
    restore_storage(ours, theirs)
    for mine, other in zip(ours.nodes, theirs.nodes, strict=True):
        assert_same_node(mine, other, at)
    spaces = ours._graph_namespace, theirs._graph_namespace
    assert spaces[0]._used_names == spaces[1]._used_names, at
    assert spaces[0]._base_count == spaces[1]._base_count, at
    named = [[(n.name, v) for n, v in space._obj_to_name.items()] for space in spaces]
    assert named[0] == named[1], at
    tables = [{k: sorted(v) for k, v in lookup_table(graph).items()} for graph in (ours, theirs)]
    assert tables[0] == tables[1], at
    assert type(ours._codegen) is type(theirs._codegen), at
    assert len(ours.nodes) == len(theirs.nodes), at
    ours.lint()


def assert_same_fake_tensor(ours: FakeTensor, theirs: FakeTensor) -> None:
    assert list(vars(ours)) == list(vars(theirs))
    mine, other = ({k: v for k, v in vars(t).items() if k != "fake_mode"} for t in (ours, theirs))
    assert mine == other
    assert torch._C._dispatch_keys(ours) == torch._C._dispatch_keys(theirs)
    assert ours.is_leaf == theirs.is_leaf
    assert ours._is_view() == theirs._is_view()
    if ours.layout is torch.strided and str(ours.storage_offset()) == "0":
        sizes = [tensor.untyped_storage().nbytes() for tensor in (ours, theirs)]
        assert str(sizes[0]) == str(sizes[1])


def assert_same_program(ours: ExportedProgram, theirs: ExportedProgram) -> None:
    if fake_tensors(theirs):
        # Z-142: torch's environment does not have the symbols of storage offsets.
        symbols = set(fake_mode(theirs).shape_env.var_to_stack)
        mine, other = (facts_of_environment(program, symbols) for program in (ours, theirs))
        different = {k: (mine[k], other[k]) for k in mine if mine[k] != other[k]}
        assert not different, different
    pairs = zip(ours.graph_module.named_modules(), theirs.graph_module.named_modules(), strict=True)
    for (name, mine), (other_name, other) in pairs:
        assert name == other_name
        assert isinstance(mine, GraphModule) == isinstance(other, GraphModule)
        if not isinstance(mine, GraphModule):
            assert type(mine) is type(other)
            continue
        assert_same_read_graph(mine.graph, other.graph, name)
        assert mine.graph.owning_module is mine
        assert mine.meta == other.meta, name
        assert list(mine._modules) == list(other._modules), name
        assert mine.training == other.training, name
        assert mine.code == other.graph.python_code("self").src, name
    for mine, other in zip(fake_tensors(ours), fake_tensors(theirs), strict=True):
        assert_same_fake_tensor(mine, other)
    assert described(ours.graph_signature.__dict__) == described(theirs.graph_signature.__dict__)
    assert described(ours.module_call_graph) == described(theirs.module_call_graph)
    mine, other = (
        {sympy.srepr(k): v for k, v in program.range_constraints.items()}
        for program in (ours, theirs)
    )
    # Z-142: torch drops the ranges of symbols that are only used as storage offsets.
    assert {k: v for k, v in mine.items() if k in other} == other
    assert ours.verifiers == theirs.verifiers
    assert ours._guards_code == theirs._guards_code
    assert list(vars(ours)) == list(vars(theirs))
    for part in ("state_dict", "constants", "example_inputs"):
        assert described(getattr(ours, part)) == described(getattr(theirs, part)), part
    ours.validate()


def assert_reads_as_torch(artifact: SerializedArtifact) -> ExportedProgram | None:
    """Assert that fxpress reads torch's program, and return it. If torch fails, fxpress must refuse
    the artifact (None), or read a valid program that serializes to the same bytes."""
    logging.disable(logging.WARNING)  # one of torch's warnings lacks a value for its format
    try:
        theirs = torch_serialize.deserialize(artifact)
    except Exception:
        try:
            ours = deserialize(artifact, allow_pickle=True)
        except torch_serialize.SerializeError:
            return None
        ours.validate()
        assert serialize(ours).exported_program == artifact.exported_program
        return ours
    finally:
        logging.disable(logging.NOTSET)
    ours = deserialize(artifact, allow_pickle=True)
    assert_same_program(ours, theirs)
    return ours
