"""Record the module that a traced operation belongs to."""

from __future__ import annotations

from types import TracebackType

from torch.nn import Module

from fxpress import _native
from fxpress._graphs.tracking.reuse.journal import open_journal
from fxpress._torch.tracking import Source, Translator


def enter_module(
    key: str, source: Source, tx: Translator, module: Module
) -> tuple[str, tuple[str, type]]:
    """Count a call of a module; return its key and entry in the stack of modules."""
    path = _native.path_without_tables(source.name)
    calls = tx.num_calls.get(path, 0)
    tx.num_calls[path] = calls + 1
    return f"{key}@{calls}" if calls else key, (path, module.__class__)


class record_nn_module_stack:  # noqa: N801
    """A context manager in which traced operations belong to a module.

    Calls by the same path are counted from 0, and ``@n`` is appended to the key of call n, except
    for the first. A call that raises counts too.

    Stands in for ``torch._dynamo.variables.nn_module.record_nn_module_stack``.

    Args:
        module_key: identifies the module on all paths.
        source: where the traced program finds it; its name, without the tables of modules, is the
            path.
        tx: the translator, whose ``nn_module_stack`` and ``num_calls`` change.
        mod: the module; its class at the start of the block is recorded.

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        del self._translator.nn_module_stack[self._key]


class StackSource:
    """A mixin of tracked modules with the path that users write."""

    source: Source | None  # where the traced program finds it, through the tables of a module
    nn_module_stack_source: Source | None  # the path that users write, of the latest access

    def get_nn_module_stack_source(self) -> Source:
        source = self.nn_module_stack_source or self.source
        if not source:
            raise AssertionError("a module without a source does not have an nn_module_stack")
        return source

    def set_nn_module_stack_source(self, source: Source) -> None:
        self.nn_module_stack_source = source
