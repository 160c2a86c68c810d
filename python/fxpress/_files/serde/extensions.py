"""Register handlers that write and read the names of operators of other kinds than torch's."""

from __future__ import annotations

from typing import Any

from fxpress._files.serde.operators import schema_of
from fxpress._torch import serde as compat


def register_extension(op_type: type[Any], extension_handler: type[Any]) -> None:
    """Make a handler write and read the operators of a type, in fxpress and in torch.

    Args:
        op_type: the type of the operators, from a module outside of torch and builtins.
        extension_handler: a subclass of `ExtensionHandler` with a namespace of its own.

    Raises:
        AssertionError: the type or the namespace is registered already, `op_type` is no type or
            comes from torch or builtins, or `extension_handler` is no `ExtensionHandler`.
        TypeError: `extension_handler` is no class.

    Stands in for `torch._export.serde.serialize.register_extension`.

    Example:
        >>> from fxpress.serialize import ExtensionHandler, register_extension
        >>> class Kernel:
        ...     __module__ = "mine"
        >>> class Handler(ExtensionHandler):
        ...     namespace = classmethod(lambda cls: "mine")
        ...     to_op_name = classmethod(lambda cls, operator: operator.name)
        ...     from_op_name = classmethod(lambda cls, name: Kernel())
        >>> register_extension(Kernel, Handler)
        >>> register_extension(Kernel, Handler)
        Traceback (most recent call last):
            ...
        AssertionError: <class 'mine.Kernel'> is already registered.
    """
    if not issubclass(extension_handler, compat.ExtensionHandler):
        raise AssertionError(f"Expected ExtensionHandler, got {extension_handler}.")
    if op_type in compat.EXTENSIONS:
        raise AssertionError(f"{op_type} is already registered.")
    if not isinstance(op_type, type):
        raise AssertionError(f"op_type must be a type, got {type(op_type).__name__}")
    if op_type.__module__.startswith(("torch", "builtins")):
        raise AssertionError(
            f"op_type module {op_type.__module__} should not start with 'torch' or 'builtins'"
        )
    namespace = extension_handler.namespace()
    if namespace in compat.EXTENSION_NAMESPACES:
        raise AssertionError(f"namespace {namespace!r} is already registered")
    compat.EXTENSIONS[op_type] = extension_handler
    compat.EXTENSION_NAMESPACES[namespace] = extension_handler


def _registered_extension_types() -> tuple[type[Any], ...]:
    """Return the types of operators that have a registered handler.

    Stands in for `torch._export.serde.serialize._registered_extension_types`.
    """
    return tuple(compat.EXTENSIONS)


def _get_schema_from_target(target: Any) -> Any:
    """Return the schema of an overload or of a registered extension's operator.

    Stands in for `torch._export.serde.serialize._get_schema_from_target`.

    Raises:
        RuntimeError: `target` is neither.
    """
    schema = schema_of(target)
    if schema is None:
        raise RuntimeError(f"Cannot find schema for {type(target)}")
    return schema
