"""Maintain Dynamo's `nn_module_stack`: the modules that a traced operation is in."""

from __future__ import annotations

from torch.nn import Module

from fxpress import _native
from fxpress._graphs.tracking.reuse.journal import open_journal
from fxpress._torch.tracking import Source, Translator


def enter_module(
    key: str, source: Source, tx: Translator, module: Module
) -> tuple[str, tuple[str, type]]:
    """Count a call of a module; return its key and entry for `nn_module_stack`."""
    path = _native.path_without_tables(source.name)
    calls = tx.num_calls.get(path, 0)
    tx.num_calls[path] = calls + 1
    return f"{key}@{calls}" if calls else key, (path, module.__class__)


class record_nn_module_stack:  # noqa: N801
    """A context manager that adds a module to the ``nn_module_stack`` of traced operations.

    The calls of each path are numbered from 0, and ``@n`` is appended to the key of call n > 0. A
    call that raises an exception is counted too.

    Stands in for ``torch._dynamo.variables.nn_module.record_nn_module_stack``.

    Args:
        module_key: a key of the module, which is the same for all paths to the module.
        source: where the traced program finds the module. The source's name, without ``_modules``,
            is the path.
        tx: the translator, whose ``nn_module_stack`` and ``num_calls`` change.
        mod: the module. Its class at the start of the block is recorded.

    Example:
        >>> with fxpress.installed():
        ...     strict = torch.export.export(model, (x,), strict=True)
        >>> linear = torch.ops.aten.linear.default
        >>> node, *_ = strict.graph.find_nodes(op="call_function", target=linear)
        >>> [path for path, _ in node.meta["nn_module_stack"].values()]
        ['', '0', '0.qkv']
    """

    __slots__ = ("_key", "_module", "_source", "_translator")

    def __init__(self, module_key: str, source: Source, tx: Translator, mod: Module) -> None:
        self._key = module_key
        self._source = source
        self._translator = tx
        self._module = mod

    def __enter__(self) -> None:
        translator = self._translator
        self._key, entry = enter_module(self._key, self._source, translator, self._module)
        translator.nn_module_stack[self._key] = entry
        journal = open_journal(translator)
        if journal is not None:
            journal.entered.append((self._key, self._source, self._module))

    def __exit__(self, *error: object) -> None:
        del self._translator.nn_module_stack[self._key]


class StackSource:
    """A mixin for variables of modules; it stores the source whose name is in `nn_module_stack`."""

    source: Source | None  # for guards: L['self']._modules['a']
    nn_module_stack_source: Source | None  # as last read by the program: L['self'].a

    def get_nn_module_stack_source(self) -> Source:
        source = self.nn_module_stack_source or self.source
        if not source:
            raise AssertionError("a module without a source does not have an nn_module_stack")
        return source

    def set_nn_module_stack_source(self, source: Source) -> None:
        self.nn_module_stack_source = source
