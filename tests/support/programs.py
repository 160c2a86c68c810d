"""Strict equality of two exported programs of one module: one made by torch, one by us."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram, export
from torch.fx import Graph, GraphModule, Node
from torch.fx.traceback import NodeSource

import fxpress
from tests.support.captured import outcome
from tests.support.compare import by_name, lookup_table, same_value

SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_COUNTED = re.compile(r"<eval_with_key>\.\d+|[^ ]*fx_generated_\w+\.py")


@dataclass
class Side:
    """Numbers of objects in one program: an object gets the number of its first position."""

    numbers: dict[str, dict[Any, int]] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)  # keeps objects alive: ids stay unique
    first_seq_nr: int | None = None

    def number(self, kind: str, key: Any, value: Any = None) -> int:
        self.kept.append(value)
        return self.numbers.setdefault(kind, {}).setdefault(key, len(self.numbers[kind]))

    # ---- values ---------------------------------------------------------------------------------

    def tensor(self, value: torch.Tensor) -> Any:
        facts: dict[str, Any] = {
            "type": type(value),
            "number": self.number("tensors", id(value), value),
            "shape": [str(n) for n in value.shape],
            "dtype": value.dtype,
            "device": value.device,
            "layout": value.layout,
            "requires_grad": value.requires_grad,
            "is_leaf": value.is_leaf,
            "grad_fn": type(value.grad_fn).__name__,
            "names": getattr(value, "names", None),
            "version": None if value.is_inference() else value._version,
            "is_inference": value.is_inference(),
            "is_view": value._is_view(),
            "keys": str(torch._C._dispatch_keys(value)),
            "attributes": [
                (k, v if isinstance(v, (int, str, type(None))) else type(v))
                for k, v in vars(value).items()
            ],
        }
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor(value)
        plain = type(value) in (FakeTensor, torch.Tensor) and not wrapped
        if value.layout is torch.strided and plain:
            storage = value.untyped_storage()
            facts |= {
                "stride": [str(n) for n in value.stride()],
                "offset": str(value.storage_offset()),
                "bits": (value.is_conj(), value.is_neg()),
                "storage": self.number("storages", storage._cdata, value),
                "bytes": str(storage.nbytes()),
            }
        if isinstance(value, FakeTensor):
            facts |= {
                "mode": self.number("modes", id(value.fake_mode), value.fake_mode),
                "fake device": value.fake_device,
                "pytype": value.pytype,
            }
        return facts

    def described(self, value: Any) -> Any:
        """Return a description of a value; == compares descriptions."""
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, SYMBOLS):
            node = value.node
            env = self.number("shape environments", id(node.shape_env), node.shape_env)
            return type(value).__name__, str(node._expr), str(node.expr), str(node.hint), env
        if isinstance(value, NodeSource):
            said = {k: v for k, v in value.to_dict().items() if k not in ("graph_id", "from_node")}
            graph = self.number("graphs", value.graph_id)
            return "source", said, graph, self.described(value.from_node)
        if isinstance(value, Mapping):
            return type(value), [(self.described(k), self.described(v)) for k, v in value.items()]
        if isinstance(value, (list, tuple)):
            return type(value), [self.described(item) for item in value]
        if isinstance(value, str):
            return _COUNTED.sub(lambda m: f"<file {self.number('files', m[0])}>", value)
        if isinstance(value, Node):
            return "%", value.name
        if isinstance(value, torch._ops.OpOverload):  # torch copies operators in meta
            known = getattr(value.overloadpacket, value._overloadname)
            return "operator", str(value), known is value, type(value)
        if isinstance(value, torch._ops.HigherOrderOperator):
            return "operator", value.name(), type(value)
        if isinstance(value, (GraphModule, Graph)):
            return type(value).__name__, "a graph"
        if type(value).__eq__ is object.__eq__ and not callable(value):
            return type(value)
        if isinstance(value, float) and value != value:
            return "nan"
        return value

    def meta(self, node: Node) -> list[Any]:
        result: list[Any] = []
        for key, value in node.meta.items():
            if key == "seq_nr":
                self.first_seq_nr = value if self.first_seq_nr is None else self.first_seq_nr
                result.append((key, value - self.first_seq_nr))
            else:
                result.append((key, self.described(value)))
        return result


def _difference(ours: Any, theirs: Any, at: str = "") -> str:
    """Return the first difference between two descriptions."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if list(ours) != list(theirs):
            return f"{at}: {list(ours)} != {list(theirs)}"
        pairs = [(f"{at}.{k}", ours[k], theirs[k]) for k in ours]
    elif isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)):
        if len(ours) != len(theirs):
            return f"{at}: {ours} != {theirs}"
        pairs = [(f"{at}[{i}]", a, b) for i, (a, b) in enumerate(zip(ours, theirs, strict=True))]
    else:
        return f"{at}: {ours!r} != {theirs!r}"
    return next((_difference(a, b, place) for place, a, b in pairs if a != b), f"{at}: equal parts")


def assert_equal(ours: Any, theirs: Any, at: str) -> None:
    assert ours == theirs, _difference(ours, theirs, at)


# ---- graphs -------------------------------------------------------------------------------------


def assert_same_node(ours: Node, theirs: Node, mine: Side, other: Side) -> None:
    at = f"node {theirs.name}"
    assert ours.name == theirs.name, at
    assert ours.op == theirs.op, at
    assert ours.target == theirs.target, at
    assert type(ours.target) is type(theirs.target), at
    for part in ("args", "kwargs"):
        a, b = (by_name(getattr(n, part), n.graph) for n in (ours, theirs))
        assert same_value(a, b), f"{at}: {part}: {a} != {b}"
    assert ours.type == theirs.type, at
    assert list(ours.meta) == list(theirs.meta), f"{at}: {list(ours.meta)} != {list(theirs.meta)}"
    assert type(ours.meta) is type(theirs.meta), at
    assert_equal(mine.meta(ours), other.meta(theirs), f"{at}: meta")
    assert [u.name for u in ours.users] == [u.name for u in theirs.users], f"{at}: users"
    inputs = [[i.name for i in n.all_input_nodes] for n in (ours, theirs)]
    assert inputs[0] == inputs[1], f"{at}: inputs"
    assert ours._erased == theirs._erased, at
    assert list(vars(ours)) == list(vars(theirs)), at


def assert_same_graph(ours: Graph, theirs: Graph, mine: Side, other: Side) -> None:
    assert [n.name for n in ours.nodes] == [n.name for n in theirs.nodes]
    for a, b in zip(ours.nodes, theirs.nodes, strict=True):
        assert_same_node(a, b, mine, other)
    spaces = ours._graph_namespace, theirs._graph_namespace
    assert spaces[0]._used_names == spaces[1]._used_names
    assert list(spaces[0]._base_count.items()) == list(spaces[1]._base_count.items())
    named = [[(n.name, v) for n, v in s._obj_to_name.items()] for s in spaces]
    assert named[0] == named[1]
    tables = [{k: set(v) for k, v in lookup_table(g).items()} for g in (ours, theirs)]
    assert tables[0] == tables[1]
    assert list(vars(ours)) == list(vars(theirs))
    assert type(ours._codegen) is type(theirs._codegen)
    assert (ours.owning_module is None) == (theirs.owning_module is None)
    assert ours._tracer_cls == theirs._tracer_cls
    ours.lint()


def assert_same_module(
    ours: GraphModule, theirs: GraphModule, mine: Side, other: Side, *, stale: bool | None = False
) -> None:
    """Assert equal graphs, code, attributes and classes, of modules and all their submodules.

    Args:
        stale: torch has not recompiled its module after its last edit of the graph; fxpress's has
            the code that torch's has after `recompile`. None: either is accepted.
    """
    is_stale = theirs.code != theirs.graph.python_code("self").src
    assert stale is None or stale == is_stale, "stale"
    if is_stale:
        theirs.recompile()
    parts = [list(m.named_modules(remove_duplicate=False)) for m in (ours, theirs)]
    assert [name for name, _ in parts[0]] == [name for name, _ in parts[1]]
    for (name, a), (_, b) in zip(*parts, strict=True):
        assert type(a).__name__ == type(b).__name__, name
        if not isinstance(b, GraphModule):
            assert type(a) is type(b), name
            continue
        assert isinstance(a, GraphModule), name
        assert a.code == b.code, name
        assert_same_graph(a.graph, b.graph, mine, other)
        assert a.graph.python_code("self").src == b.graph.python_code("self").src, name
        for attribute in ("_lineno_map", "_prologue_start", "training", "class_name"):
            values = [getattr(m, attribute, None) for m in (a, b)]
            assert values[0] == values[1], f"{name}: {attribute}"
        assert list(vars(a)) == list(vars(b)), f"{name}: {list(vars(a))} != {list(vars(b))}"
        assert type(a).__mro__[1:] == type(b).__mro__[1:], name
        assert set(vars(type(a))) == set(vars(type(b))), name
        kinds = [{k: type(v) for k, v in vars(type(m)).items()} for m in (a, b)]
        assert kinds[0] == kinds[1], name
        forwards = [type(m).forward for m in (a, b)]
        assert forwards[0].__code__.co_varnames == forwards[1].__code__.co_varnames, name
        assert forwards[0].__code__.co_code == forwards[1].__code__.co_code, name
        assert_equal(mine.described(a.meta), other.described(b.meta), f"{name}: meta")
        for table in ("_parameters", "_buffers"):
            assert list(vars(a)[table]) == list(vars(b)[table]), name
        assert a._non_persistent_buffers_set == b._non_persistent_buffers_set, name


# ---- programs -----------------------------------------------------------------------------------


def assert_same_values(ours: Any, theirs: Any, at: str) -> None:
    """Assert that types are equal, and that tensors are equal."""
    assert type(ours) is type(theirs), at
    if isinstance(theirs, torch.Tensor) and not isinstance(theirs, FakeTensor):
        assert ours.requires_grad == theirs.requires_grad, at
        if type(theirs) in (torch.Tensor, torch.nn.Parameter):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True, msg=at)


def assert_same_tables(ours: Mapping[str, Any], theirs: Mapping[str, Any], at: str) -> None:
    assert list(ours) == list(theirs), at
    for key, value in theirs.items():
        assert_same_values(ours[key], value, f"{at}: {key}")


def assert_same_program(
    ours: ExportedProgram, theirs: ExportedProgram, *, stale: bool | None = False
) -> None:
    """Assert that two programs are equal, except for counters of the process."""
    mine, other = Side(), Side()
    assert type(ours) is type(theirs)
    assert list(vars(ours)) == list(vars(theirs))
    assert_same_module(ours.graph_module, theirs.graph_module, mine, other, stale=stale)
    assert ours.graph_signature == theirs.graph_signature
    assert repr(ours.graph_signature) == repr(theirs.graph_signature)
    assert repr(ours.range_constraints) == repr(theirs.range_constraints)
    assert repr(ours.module_call_graph) == repr(theirs.module_call_graph)
    assert [c.fqn for c in ours.module_call_graph] == [c.fqn for c in theirs.module_call_graph]
    assert ours.verifiers == theirs.verifiers
    assert ours.dialect == theirs.dialect
    assert list(ours.state_dict) == list(theirs.state_dict)
    assert all(ours.state_dict[k] is v for k, v in theirs.state_dict.items()), "state is copied"
    assert_same_tables(ours.constants, theirs.constants, "constants")
    flat = [pytree.tree_flatten(p.example_inputs) for p in (ours, theirs)]
    assert flat[0][1] == flat[1][1]
    for a, b in zip(flat[0][0], flat[1][0], strict=True):
        assert_same_values(a, b, "example inputs")
    assert mine.described(str(ours)) == other.described(str(theirs))
    ours.validate()


# ---- exports ------------------------------------------------------------------------------------


def exported_by_us(*args: Any, **options: Any) -> ExportedProgram:
    with fxpress.installed():
        return export(*args, **options)


def _without_addresses(error: Exception) -> Any:
    """Return the text of an error; omit addresses: torch may rebuild functions elsewhere."""
    return re.sub("0x[0-9a-f]+", "0x", Side().described(str(error)))


def assert_exports_as_torch(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Any = None,
    *,
    runs: bool = True,
    stale: bool | None = False,
    way: Callable[..., Any] = export,
    **options: Any,
) -> ExportedProgram | None:
    """Assert that both export equal programs, or fail in the same way; return fxpress's program.

    Args:
        runs: also run the programs, and compare the results.
        stale: torch's program has the code of an older graph.
        way: the function that exports.
    """

    def once() -> Any:
        torch.manual_seed(0)
        return way(model, args, kwargs, **options)

    theirs = outcome(once)
    with fxpress.installed():
        ours = outcome(once)
    assert_exported_as_torch(ours, theirs, stale=stale)
    if isinstance(theirs, Exception):
        return None
    if runs:
        assert_run_alike(ours, theirs, args, kwargs or {})
    return ours


def assert_exported_as_torch(
    ours: ExportedProgram | Exception,
    theirs: ExportedProgram | Exception,
    *,
    stale: bool | None = False,
) -> None:
    """Both are equal programs, or exceptions of one type with one text.

    `stale`: as for `assert_same_module`.
    """
    if isinstance(theirs, Exception):
        assert type(ours) is type(theirs), ours
        assert _without_addresses(ours) == _without_addresses(theirs)
        return
    if isinstance(ours, Exception):
        raise ours
    assert_same_program(ours, theirs, stale=stale)


def tensors_of(program: ExportedProgram) -> list[torch.Tensor]:
    values = (*program.state_dict.values(), *program.constants.values())
    return [t for t in values if type(t) in (torch.Tensor, torch.nn.Parameter)]


def assert_run_alike(
    ours: ExportedProgram, theirs: ExportedProgram, args: Any, kwargs: Mapping[str, Any]
) -> None:
    modules = [outcome(program.module) for program in (ours, theirs)]
    if isinstance(modules[1], Exception):
        assert type(modules[0]) is type(modules[1])
        return
    assert modules[0].code == modules[1].code
    results = []
    before = [(t, t.detach().clone()) for p in (ours, theirs) for t in tensors_of(p)]
    for module in modules:
        for tensor, value in before:
            tensor.data.copy_(value)
        given = copy.deepcopy((args, dict(kwargs)))
        torch.manual_seed(0)
        results.append(outcome(lambda m=module, g=given: m(*g[0], **g[1])))
    if isinstance(results[1], Exception):
        assert type(results[0]) is type(results[1])
        return
    leaves = [pytree.tree_flatten(result) for result in results]
    assert leaves[0][1] == leaves[1][1]
    for a, b in zip(leaves[0][0], leaves[1][0], strict=True):
        assert_same_values(a, b, "results")
        if not isinstance(b, torch.Tensor):
            assert a == b


def replaced_names() -> Iterator[tuple[Any, str, Any]]:
    """Each attribute of torch that a block replaces: owner, name and value."""
    from fxpress._graphs.trace import blocks
    from fxpress._torch import capture, deferred_code

    replacements = (
        *blocks._REPLACEMENTS,
        deferred_code._recompilation,
        capture._compilation,
    )
    for each in replacements:
        yield each._owner, each._name, vars(each._owner)[each._name]


def assert_nothing_replaced(before: list[tuple[Any, str, Any]]) -> None:
    after = list(replaced_names())
    changed = [b[1] for a, b in zip(before, after, strict=True) if a[2] is not b[2]]
    assert not changed
