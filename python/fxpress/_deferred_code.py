"""Python code of GraphModules, generated when somebody asks for it.

The modules that fxpress makes are ordinary `torch.fx.GraphModule`s whose class has descriptors in
the places of the generated `forward`, `_code` and so on. The first access to any of them calls
`materialize`, which generates the code from the graph as it is then and leaves the class exactly as
`GraphModule.recompile` would have.
"""

from __future__ import annotations

import threading
from typing import Any

import torch.fx

from fxpress import _native, _torch_compat
from fxpress._errors import InternalError, UnsupportedError

_lock = threading.RLock()


def _holder(cls: type) -> type | None:
    """The class in the hierarchy whose code is still deferred."""
    return next((c for c in cls.__mro__ if _torch_compat.PENDING in vars(c)), None)


def _native_code(graph: torch.fx.Graph) -> _torch_compat.PythonCode | None:
    """The graph's source, or None when torch's own generator has to write it."""
    if _torch_compat.shows_meta_in_source() or _torch_compat.enriches_profiler_metadata():
        return None
    native = _native.python_source(graph)
    return None if native is None else _torch_compat.PythonCode(*native)


def _retire(holder: type) -> None:
    """Take the descriptors off the class, those that are still in their place."""
    for name, placeholder in _BODY.items():
        if vars(holder).get(name) is placeholder:
            type.__delattr__(holder, name)
    type.__delattr__(holder, _torch_compat.PENDING)


def _generate(holder: type, module: torch.fx.GraphModule) -> _torch_compat.PythonCode:
    code = _native_code(module._graph)
    if code is None:
        return _generate_with_torch(holder, module)
    forward = _torch_compat.forward_from_source(code.src, code.globals, module._graph)
    type.__setattr__(holder, "forward", forward)
    _retire(holder)
    type.__setattr__(holder, "_wrapped_call", _torch_compat.wrapped_call(holder))
    values = (code.src, code._lineno_map, code._prologue_start)
    state = dict(zip(_torch_compat.CODE_ATTRIBUTES, values, strict=True))
    _native.insert_after(module.__dict__, _torch_compat.GRAPH_SLOT, state)
    return code


def _generate_with_torch(holder: type, module: torch.fx.GraphModule) -> _torch_compat.PythonCode:
    """Generators of other classes, annotations: torch's `recompile` does all of it."""
    pending = vars(holder)[_torch_compat.PENDING]
    _retire(holder)
    try:
        code = torch.fx.GraphModule.recompile(module)
    except BaseException:
        for name, value in {**_BODY, _torch_compat.PENDING: pending}.items():
            type.__setattr__(holder, name, value)
        raise
    state = {k: module.__dict__[k] for k in _torch_compat.RECOMPILED_STATE if k in module.__dict__}
    _native.insert_after(module.__dict__, _torch_compat.GRAPH_SLOT, state)
    return code


def _materialize(cls: type) -> _torch_compat.PythonCode | None:
    with _lock:
        holder = _holder(cls)
        if holder is None:
            return None  # another thread was faster
        module = vars(holder)[_torch_compat.PENDING]()
        if module is None:
            raise RuntimeError(f"the module that {holder!r} was made for is gone")
        try:
            return _generate(holder, module)
        except AttributeError as error:
            # nn.Module would take an AttributeError for a missing attribute and hide the reason.
            raise RuntimeError(f"cannot generate the code of {holder.__name__}: {error}") from error


def materialize(cls: type) -> None:
    """Generate the code of the GraphModule that `cls` was made for, once.

    Stands in for the call of `torch.fx.GraphModule.recompile` in the constructor. Children are left
    alone: each has its own turn.
    """
    _materialize(cls)


def _recompile(self: torch.fx.GraphModule) -> Any:
    """`GraphModule.recompile` for a module whose code is still deferred.

    Children whose code is deferred too stay so: it will be generated from their graph as it is when
    it is needed.
    """
    code = _materialize(type(self))
    if code is None:
        return torch.fx.GraphModule.recompile(self)
    for child in self.children():
        if isinstance(child, torch.fx.GraphModule) and _holder(type(child)) is None:
            child.recompile()
    return code


# The namespace of a class whose code is deferred. `__reduce__` and `__reduce_package__` copy the
# instance's state before they generate code; `__prepare_scriptable__` is what torch.jit.script asks
# for before it walks through that state.
_BODY: dict[str, Any] = {
    "recompile": _recompile,
    **{
        name: _native.DeferredAttribute(name)
        for name in (
            "forward",
            "_wrapped_call",
            "__reduce__",
            "__reduce_package__",
            "__prepare_scriptable__",
            *_torch_compat.CODE_ATTRIBUTES,
        )
    },
}

_native.initialize(
    _torch_compat.native_symbols(
        deferred_body=_BODY,
        materialize=materialize,
        errors={"internal_error": InternalError, "unsupported_error": UnsupportedError},
    ),
    _torch_compat.NATIVE_NAMES,
)
