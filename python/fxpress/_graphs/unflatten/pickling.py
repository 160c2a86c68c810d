"""Copy and pickle unflattened modules.

Tensors, modules and users' attributes are pickled as usual, so an object that a pickle contains
twice stays one object. An example is a weight tied to a weight outside the program. Graphs, with
their operators and fake tensors, are pickled as bytes of torch's `GraphPickler`. All modules of a
pickle use one `GraphPickler`, because their graphs share fake tensors and symbols.
"""

from __future__ import annotations

import copy
import copyreg
import operator
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from fxpress._files.tensors.copies import sharing
from fxpress._torch import export as torch_export
from fxpress._torch import fx as torch_fx

_SEEN = "read modules"  # key in a deepcopy memo: ids of modules that _copy_shared_parameters read


def state_without(module: Any, *derived: str) -> dict[str, Any]:
    """Return a module's state without the attributes `derived`, which are computed again on use."""
    state = torch.nn.Module.__getstate__(module)
    return {name: value for name, value in state.items() if name not in derived}


def deep_copy(module: Any, memo: dict[int, Any]) -> Any:
    """Return `copy.deepcopy(module, memo)`."""
    kind: Any = type(module)
    result = kind.__new__(kind)
    memo[id(module)] = result
    _copy_shared_parameters(module, memo)
    state = module.__getstate__()
    shared = [
        state.get("range_constraints"),
        *(v for v in state.values() if isinstance(v, torch_fx.TreeSpec)),
    ]
    for entry in state.get("module_call_graph", ()):
        if entry.signature is not None:
            shared += [entry.signature.in_spec, entry.signature.out_spec]
    for value in shared:
        memo[id(value)] = value
    _set_dict(result, {name: copy.deepcopy(value, memo) for name, value in state.items()})
    _complete(result)
    return result


def _copy_shared_parameters(module: torch.nn.Module, memo: dict[Any, Any]) -> None:
    """Copy to `memo` the parameters that share storages, so that the copies share storages too."""
    seen = memo.setdefault(_SEEN, set())
    if id(module) in seen:
        return
    seen.update(map(id, module.modules()))
    values = [*module.parameters(), *module.buffers()]
    for value in (values[i] for positions in sharing(values) for i in positions):
        if type(value) is torch.nn.Parameter and id(value) not in memo:
            data = copy.deepcopy(value.data, memo)
            memo[id(value)] = torch.nn.Parameter(data, value.requires_grad)


def _set_dict(module: Any, attributes: dict[str, Any]) -> None:
    """Set the `__dict__` of a new module."""
    # The engine watches `__dict__`, but setattr of CPython >= 3.13 may store values elsewhere.
    object.__setattr__(module, "__dict__", attributes)


def _complete(module: Any) -> None:
    """Set the `owning_module` of a new module's graph."""
    if "graph" in module.__dict__:
        module.graph.owning_module = module


def shallow_copy(module: Any) -> Any:
    """Return `copy.copy(module)`, which shares the module's dicts, tensors and graphs."""
    kind: Any = type(module)
    result = kind.__new__(kind)
    _set_dict(result, state_without(module, *module._derived))
    return result


def restore(module: Any, state: dict[str, Any]) -> None:
    """Set the state of a module, as `module.__setstate__(state)`."""
    _set_dict(module, {**module.__dict__, **state})
    _complete(module)


class _Pickler(torch_export.GraphPickler):  # type: ignore[misc]
    """A GraphPickler that leaves real tensors and modules to its caller, in `outside`."""

    outside: list[Any]

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.fx.Graph):
            return _graph, super().reducer_override(torch_export.graph_carrier(obj))
        if isinstance(obj, torch.fx.GraphModule):
            return _graph_module, super().reducer_override(obj)
        is_tensor = isinstance(obj, torch.Tensor)
        if is_tensor and torch_fx.is_traceable_wrapper_subclass(obj) and torch_fx.holds_fake(obj):
            return _subclass, _parts(obj)
        if isinstance(obj, torch.nn.Module) or (is_tensor and not torch_fx.holds_fake(obj)):
            self.outside.append(obj)
            return _from_outside, (len(self.outside) - 1, self._unpickle_state)
        if isinstance(obj, torch_fx.TreeSpec) and obj.is_leaf():
            return _leaf_spec, ()  # torch deprecates the default constructor
        return super().reducer_override(obj)


def _parts(tensor: Any) -> tuple[Any, ...]:
    """Return the inner tensors of a tensor subclass, and its metadata."""
    names, context = tensor.__tensor_flatten__()
    inner = {name: getattr(tensor, name) for name in names}
    return type(tensor), inner, context, tuple(tensor.shape), tensor.stride(), tensor.requires_grad


def _subclass(kind: Any, inner: Any, context: Any, size: Any, stride: Any, grad: bool) -> Any:
    made = kind.__tensor_unflatten__(inner, context, torch.Size(size), stride)
    return made.requires_grad_() if grad else made


def _graph(unpickle: Any, args: tuple[Any, ...]) -> torch.fx.Graph:
    return unpickle(*args).graph


def _graph_module(unpickle: Any, args: tuple[Any, ...]) -> torch.fx.GraphModule:
    """Unpickle a GraphModule, and generate its code, which its new class does not have yet."""
    module: torch.fx.GraphModule = unpickle(*args)
    module.recompile()
    return module


def _leaf_spec() -> Any:
    return torch_fx.pytree.tree_structure(None, is_leaf=lambda _: True)


def _from_outside(index: int, state: Any) -> Any:
    return state.fake_mode.outside[index]


def dump(value: Any) -> tuple[bytes, list[Any]]:
    """Return the pickle of a value with graphs, and the objects that the pickle leaves out."""
    outside: list[Any] = []
    kind: Any = type(_Pickler.__name__, (_Pickler,), {"outside": outside})
    return kind.dumps(value, torch_export.PICKLE_ALL), outside


def load(data: bytes, outside: list[Any]) -> Any:
    """Return a copy of the value passed to `dump`; its fake tensors belong to a new fake mode."""
    shape_env = torch_export.ShapeEnv()
    mode: Any = torch_export.FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
    mode.outside = outside  # `_from_outside` receives only the mode
    try:
        return torch_export.GraphPickler.loads(data, mode)
    finally:
        del mode.outside


class _OpenPickles(threading.local):
    """Stores, for pickles that this thread writes: id of a module -> the module's `_Graphs`."""

    def __init__(self) -> None:
        # Weak references suffice: the pickler keeps each `_Graphs` until the pickle is complete.
        self.graphs: weakref.WeakValueDictionary[int, _Graphs] = weakref.WeakValueDictionary()


_open_pickles = _OpenPickles()

# Types of objects that ordinary pickles cannot contain.
_GRAPH_TYPES: tuple[type, ...] = (
    *(torch.fx.Graph, torch.fx.GraphModule),
    *(torch_fx.FakeTensor, torch_fx.OpOverload, torch.SymInt),
)


class _GraphsItem:
    """Replaces one of the `values` of a `_Graphs` in the pickled state of a module."""

    def __init__(self, graphs: _Graphs, index: int) -> None:
        self.graphs = graphs
        self.index = index

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.getitem, (self.graphs, self.index)


class _ChildTable:
    """Stands for a `_modules` dict that has GraphModules. Several modules may share the dict."""

    def __init__(self, graphs: _Graphs, table: dict[str, Any]) -> None:
        self.graphs = graphs
        self.table = table

    def __reduce__(self) -> tuple[Any, ...]:
        items = [(name, self.graphs.pickled_child(child)) for name, child in self.table.items()]
        return dict, (), None, None, iter(items)


class _Graphs:
    """Stores the attributes with graphs of all modules in a tree. It is unpickled as a list."""

    def __init__(self, top: torch.nn.Module) -> None:
        # Values of `items` and `tables` refer to this object. Weak references avoid a cycle.
        self.values: list[Any] = []
        self.index: dict[int, int] = {}  # id of a value -> its index in `values`
        self.items: weakref.WeakValueDictionary[int, _GraphsItem] = weakref.WeakValueDictionary()
        self.tables: weakref.WeakValueDictionary[int, _ChildTable] = weakref.WeakValueDictionary()
        for module in _below(top):
            for value in _with_graphs(module, module.__getstate__()).values():
                self._add(value)
            for child in module._modules.values():
                if isinstance(child, torch.fx.GraphModule):
                    self._add(child)
            _open_pickles.graphs[id(module)] = self

    def _add(self, value: Any) -> None:
        if id(value) not in self.index:
            self.index[id(value)] = len(self.values)
            self.values.append(value)

    def _item(self, value: Any) -> _GraphsItem:
        index = self.index[id(value)]
        item = self.items.get(index)
        if item is None:
            item = self.items[index] = _GraphsItem(self, index)
        return item

    def pickled_child(self, child: Any) -> Any:
        """Return the object to pickle for a child: if it is a GraphModule, a `_GraphsItem`."""
        return self._item(child) if isinstance(child, torch.fx.GraphModule) else child

    def state_of(self, module: Any) -> dict[str, Any]:
        """Return the state to pickle for a module: `_GraphsItem`s replace values in `values`."""
        state: dict[str, Any] = module.__getstate__()
        for name, value in _with_graphs(module, state).items():
            state[name] = self._item(value)
        children = module._modules
        held = [self.pickled_child(child) for child in children.values()]
        if any(isinstance(child, _GraphsItem) for child in held):
            table = self.tables.get(id(children))
            if table is None:
                table = self.tables[id(children)] = _ChildTable(self, children)
            state["_modules"] = table
        return state

    def __reduce__(self) -> tuple[Any, ...]:
        return load, dump(self.values)


def _with_graphs(module: Any, state: dict[str, Any]) -> dict[str, Any]:
    names = module._with_graphs
    return {n: v for n, v in state.items() if n in names or isinstance(v, _GRAPH_TYPES)}


def _below(top: torch.nn.Module) -> Iterator[Any]:
    """Yield each unflattened module among `top` and the modules below `top`, once."""
    seen: set[int] = set()
    pending: list[Any] = [top]
    while pending:
        module = pending.pop()
        if id(module) in seen or not isinstance(module, torch.nn.Module):
            continue
        seen.add(id(module))
        if hasattr(type(module), "_with_graphs"):
            yield module
        if not isinstance(module, torch.fx.GraphModule):
            pending += [*module._modules.values(), *module.__dict__.get("_call_modules", ())]


def reduce(module: Any) -> tuple[Any, ...]:
    """Return the value of `module.__reduce_ex__()`. All modules of a pickle share one `_Graphs`."""
    graphs = _open_pickles.graphs.get(id(module))
    try:
        state = None if graphs is None else graphs.state_of(module)
    except KeyError:
        state = None  # a stale id, or the module was changed
    if state is None:
        state = _Graphs(module).state_of(module)
    return copyreg.__newobj__, (type(module),), state  # type: ignore[attr-defined]
