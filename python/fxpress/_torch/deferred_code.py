"""Generate the Python code of a GraphModule when the code is first read.

The modules that fxpress creates are ordinary `torch.fx.GraphModule`s whose class has descriptors in
place of the generated `forward`, `_code` and so on. The first access to a descriptor calls
`materialize`, which generates the code from the current graph and leaves the class exactly as
`GraphModule.recompile` would have. In the blocks of `deferring`, torch's own modules get such
classes too: torch's passes recompile a module after each step, and most of the code is never read.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import keyword
import threading
import types
import weakref
from dataclasses import fields
from typing import Any

import torch.fx
from torch.fx import Graph

from fxpress import _native
from fxpress._base.replacement import Replacement, replace_lock_in_children
from fxpress._torch import fx as torch_fx

_lock = threading.RLock()
replace_lock_in_children(globals(), "_lock")


def _holder(cls: type) -> type | None:
    """Return the first class in the MRO of `cls` that has deferred code, or None."""
    return next((c for c in cls.__mro__ if torch_fx.PENDING in vars(c)), None)


@functools.cache
def _writes_as_torch() -> bool:
    """Return whether the native generator and the installed torch generate equal sample code."""
    return all(
        map(_is_written_as_torch, (torch_fx.sample_graph(), torch_fx.sample_graph_with_trees()))
    )


def _is_written_as_torch(graph: Graph) -> bool:
    native = _native.python_source(graph)
    if native is None:
        return False
    *parts, _, _ = native
    try:
        code = torch_fx.PythonCode(*parts)
    except TypeError:  # in this torch, PythonCode has other fields
        return False
    return bool(code.src == graph.python_code("self").src)


def _generated(graph: torch.fx.Graph) -> tuple[torch_fx.PythonCode, Any, dict[str, Any]]:
    """Return a graph's code, its `forward`, and the entries for the `__dict__` of its module."""
    native = None
    if _writes_as_torch() and not (
        torch_fx.shows_meta_in_source() or torch_fx.enriches_profiler_metadata()
    ):
        native = _native.python_source(graph)
    if native is None:
        # The native generator does not support the CodeGen or the annotations of the graph.
        return torch_fx.recompile_separately(graph)
    *parts, shape, names = native
    code = torch_fx.PythonCode(*parts)
    forward = _compiled(code, shape, names, graph)
    values = (code.src, code._lineno_map, code._prologue_start)
    state = dict(zip(torch_fx.CODE_ATTRIBUTES, values, strict=True))
    return code, forward, {**torch_fx.tree_specs(graph), **state}


# The sources of equal layers differ only in the names of locals. Compiling a source is most of the
# cost of a first call, so later sources get a copy of the first code object with other local names.
# `_codes`: source without names -> (code object, the index in `names` of each `co_varnames` entry).
_codes: collections.OrderedDict[bytes, tuple[types.CodeType, list[int]]] = collections.OrderedDict()
_MAX_CODES = 256
# compile() refuses these names for locals, but a code object with such names would run.
_RESERVED = frozenset((*keyword.kwlist, "__debug__"))


def _compiled(
    code: torch_fx.PythonCode, shape: bytes | None, names: tuple[str, ...], graph: Graph
) -> Any:
    """Return the function of `code`. The caller must hold `_lock`."""
    if shape is None or not _RESERVED.isdisjoint(names):
        return torch_fx.forward_from_source(code.src, code.globals, graph)
    known = _codes.get(shape)
    if known is None:
        forward = torch_fx.forward_from_source(code.src, code.globals, graph)
        number = {name: i for i, name in enumerate(names)}
        order = [number.get(name, -1) for name in forward.__code__.co_varnames]
        if -1 in order:
            return forward  # the code has a local that is not in `names`
        _codes[shape] = forward.__code__, order
        if len(_codes) > _MAX_CODES:
            _codes.popitem(last=False)
        return forward
    _codes.move_to_end(shape)
    pattern, order = known
    own = tuple([names[i] for i in order])
    return torch_fx.forward_from_code(pattern, own, code.src, code.globals, graph)


def _publish(
    holder: type, module: torch.fx.GraphModule, forward: Any, state: dict[str, Any]
) -> None:
    """Set the attributes that `recompile` sets; other threads never find one of them missing."""
    _native.insert_after(module.__dict__, torch_fx.GRAPH_SLOT, state)
    values = {"_wrapped_call": torch_fx.wrapped_call(holder), "forward": forward}
    for name, placeholder in BODY.items():
        if vars(holder).get(name) is not placeholder:
            continue  # other code has replaced the placeholder
        if name in values:
            type.__setattr__(holder, name, values[name])
        else:
            type.__delattr__(holder, name)
    type.__delattr__(holder, torch_fx.PENDING)


def _materialize(cls: type) -> torch_fx.PythonCode | None:
    with _lock:
        holder = _holder(cls)
        if holder is None:
            return None  # another thread has generated the code
        module = vars(holder)[torch_fx.PENDING]()
        if module is None:
            raise RuntimeError(
                f"cannot generate the code of {holder.__name__}: its GraphModule was freed; "
                "keep the module while you use its class"
            )
        try:
            code, forward, state = _generated(module.graph)
        except AttributeError as error:
            # `nn.Module.__getattr__` would replace an AttributeError by one without this message.
            raise RuntimeError(f"cannot generate the code of {holder.__name__}: {error}") from error
        _publish(holder, module, forward, state)
        return code


def materialize(cls: type) -> None:
    """Generate the deferred code of the GraphModule of `cls`, but not the code of its children."""
    _materialize(cls)


def refresh(module: torch.fx.GraphModule) -> None:
    """Regenerate the code of a module and its submodules if their graphs were edited."""
    open_ = [module]
    while open_:
        each = open_.pop()
        if _holder(type(each)) is None:
            native = _native.python_source(each.graph) if _writes_as_torch() else None
            if native is None or native[0] != vars(each).get(torch_fx.CODE_ATTRIBUTES[0]):
                each.recompile()
                continue
        open_ += [child for child in each.children() if isinstance(child, torch.fx.GraphModule)]


def _recompile(self: torch.fx.GraphModule) -> Any:
    """Run `GraphModule.recompile`, but generate no deferred code of child modules."""
    if _recompilation.is_replaced_here():
        return torch.fx.GraphModule.recompile(self)
    if "forward" not in vars(type(self)) or vars(type(self))["forward"] is not BODY["forward"]:
        _materialize(type(self))
        return torch.fx.GraphModule.recompile(self)  # replaces a `forward` that a user has set
    code = _materialize(type(self))
    if code is None:
        return torch.fx.GraphModule.recompile(self)
    untouched = [self]
    while untouched:
        for child in untouched.pop().children():
            if isinstance(child, torch.fx.GraphModule):
                if _holder(type(child)) is None:
                    child.recompile()
                else:
                    untouched.append(child)
    return code


# The namespace of a class with deferred code. Generating code adds entries to the instance's
# `__dict__`, which must not happen while another thread iterates over this dict. So the methods
# below that iterate generate the code first; torch.jit.script calls `__prepare_scriptable__` first.
BODY: dict[str, Any] = {
    "recompile": _recompile,
    **{
        name: _native.DeferredAttribute(name)
        for name in (
            "forward",
            "_wrapped_call",
            "__deepcopy__",
            "__reduce__",
            "__reduce_package__",
            "__prepare_scriptable__",
            *torch_fx.CODE_ATTRIBUTES,
        )
    },
}


def _is_deferrable(module: torch.fx.GraphModule) -> bool:
    """Return whether `module` has a class that torch created for it, and a plain `Graph`."""
    cls = type(module)
    return (
        cls.__bases__ == (torch.fx.GraphModule,)
        and cls.__qualname__ == torch_fx.CLASS_QUALNAME
        and cls.__module__ == torch_fx.CLASS_MODULE
        and type(module.graph) is Graph
    )


class _DeferredPythonCode(torch_fx.PythonCode):  # type: ignore[misc]
    """The PythonCode that a deferred `recompile` returns; reading a field generates the code."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    @functools.cached_property
    def written(self) -> Any:
        return self.graph.python_code(root_module="self")


for _field in fields(torch_fx.PythonCode):
    _read = functools.partial(lambda name, self: getattr(self.written, name), _field.name)
    setattr(_DeferredPythonCode, _field.name, property(_read))


def _defer(original: Any, self: torch.fx.GraphModule) -> Any:
    """Run the part of `GraphModule.recompile` that does not depend on the code."""
    if not _is_deferrable(self):
        return original(self)
    for name, spec in torch_fx.tree_specs(self.graph).items():
        setattr(self, name, spec)
    cls = type(self)
    with _lock:
        for name in torch_fx.CODE_ATTRIBUTES:
            vars(self).pop(name, None)
        for name, placeholder in BODY.items():
            if name == "forward" or name not in vars(cls):
                type.__setattr__(cls, name, placeholder)
        type.__setattr__(cls, "__call__", torch_fx.CALL_WRAPPED)
        type.__setattr__(cls, torch_fx.PENDING, weakref.ref(self))
    self._recompile_submodules()
    return _DeferredPythonCode(self.graph)


_recompilation = Replacement(torch.fx.GraphModule, "recompile", _defer)


def deferring() -> contextlib.AbstractContextManager[None]:
    """Return a context manager in which this thread's `GraphModule.recompile` defers its code."""
    if torch_fx.enriches_profiler_metadata() or torch_fx.shows_meta_in_source():
        return contextlib.nullcontext()
    return _recompilation.block()
