"""Instantiate templates for clean calls within a full trace.

A call is clean if nothing wrote to its inputs before, and its results have separate storages. torch
runs the first clean call with each key, and fxpress records a template of this call. Later clean
calls with this key instantiate the template. torch runs every call that is not clean.

If torch runs a call, its result may be a view of a tensor that the call created. The result of an
instance is never a view. If the program writes to a view later, functionalization computes the view
again. So a call is not instantiated if it returns a view to which the program writes later. torch's
run of the program before the trace (the first pass) finds these calls.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from fxpress._base.replacement import Replacement
from fxpress._graphs.decompose import template as kinds
from fxpress._graphs.decompose.keys import Call, fields_of
from fxpress._graphs.decompose.reading import TemplateBuilder, TraceContext, nodes_after
from fxpress._graphs.decompose.template import Output, Template, TemplateNode, TensorSpec
from fxpress._graphs.decompose.values import Facts, Storage, UnsafeError, Value, facts_of, size_of
from fxpress._graphs.trace.inputs import add_counts, counted_since
from fxpress._torch import decompose as compat


class _TracedTensor(NamedTuple):
    """A tensor of the trace."""

    outer: Any  # the FunctionalTensor
    inner: Any  # the fake tensor in `outer`
    value: Value


class CallMemo:
    """Runs the calls of one full trace, and of torch's run before the trace.

    Attributes:
        instantiated: how many calls of the trace were instantiated.
    """

    def __init__(self) -> None:
        self._nodes: set[Node] = set()
        self._tracer: Any = None
        # For the first pass: call -> [(FunctionalTensor, fake tensor)] of results that are views.
        self._views: dict[Node, list[tuple[Any, Any]]] = {}
        self._unchanged: set[Node] = set()  # calls whose views the first pass did not write to
        self.instantiated = 0

    def watch(self, graph: Graph) -> None:
        """Set the graph that is traced next. Calls of torch's operators are instantiated only."""
        self._nodes = {
            node
            for node in graph.nodes
            if isinstance(node.target, compat.OpOverload) and compat.is_of_torch(node.target)
        }

    def run(self, original: Any, interpreter: Any, node: Node) -> Any:
        """Run a node by `original`, which is torch's `Interpreter.run_node`, or instantiate it."""
        if node not in self._nodes:
            return original(interpreter, node)
        # The tracer counts calls of torch functions, but must not count the calls by fxpress.
        with compat.DisableTorchFunction():
            self._enter_pass(compat.tracer())
            try:
                is_done, found = self._repeat(interpreter.env, node)
            except UnsafeError:
                is_done, found = False, None
        if is_done:
            return found
        if found is None:
            result = original(interpreter, node)
        else:
            result = self._run(original, interpreter, node, *found)
        if self._tracer is None:
            views = views_in(result)
            if not any(map(compat.was_written, views)):
                self._views[node] = [(view, compat.inner(view)) for view in views]
        return result

    def _repeat(self, env: dict[Node, Any], node: Node) -> tuple[bool, Any]:
        """Return (True, the result of an instantiated call), or (False, what `_run` gets).

        (False, None): torch runs the call, and nothing is recorded.
        """
        raise NotImplementedError

    def _run(self, original: Any, interpreter: Any, node: Node, call: Any, key: Any) -> Any:
        """Let torch run a call, and record it."""
        raise NotImplementedError

    def _forget(self) -> None:
        """Forget the recorded calls, because another trace begins."""
        raise NotImplementedError

    def _enter_pass(self, tracer: Any) -> None:
        if tracer is not self._tracer:  # None in torch's run before the trace
            self._unchanged = {n for n, views in self._views.items() if not _are_changed(views)}
            self._tracer = tracer
            self._forget()
            self._views = {}
            self.instantiated = 0

    def _may_instantiate(self, node: Node) -> bool:
        """Return whether a clean call may be instantiated: no view in its results is written to."""
        if self._tracer is None:
            self._views[node] = []
            return True  # the recorded calls of the first pass have no views
        return node in self._unchanged


class Memo(CallMemo):
    """The templates of one full trace, and of torch's run before the trace."""

    def __init__(self, fakes: compat.Fakes) -> None:
        super().__init__()
        self._fakes = fakes
        self._forget()

    def _forget(self) -> None:
        self._templates: dict[Any, Template | None] = {}
        self._functions: dict[Any, Any] = {}
        self._tensors: dict[int, _TracedTensor] = {}
        self._storages: dict[int, Storage] = {}

    def _repeat(self, env: dict[Node, Any], node: Node) -> tuple[bool, Any]:
        call, key = self._call_and_key(env, node)
        template = self._templates.get(key)
        if template is not None and self._may_instantiate(node):
            return True, self._instantiate(node, template, call, self._functions[key])
        return False, None if key in self._templates else (call, key)

    def _call_and_key(self, env: dict[Node, Any], node: Node) -> tuple[Call, Any]:
        fields = fields_of(node.meta, annotated=True)
        call = Call(node, {used: self._value(env[used]) for used in node.all_input_nodes})
        return call, call.key(fields)

    def _value(self, value: Any) -> Any:
        if type(value) in (tuple, list):
            return type(value)([self._value(item) for item in value])
        if not isinstance(value, torch.Tensor):
            return value
        if type(value) is not compat.FunctionalTensor or compat.was_written(value):
            raise UnsafeError("an input of a call was written to, or is not a FunctionalTensor")
        known = self._tensors.get(id(value))
        inner = compat.inner(value)
        if known is None or known.inner is not inner:
            facts = facts_of(inner, None, value.requires_grad)
            torch_storage = inner.untyped_storage()
            storage = self._storages.setdefault(
                torch_storage._cdata, Storage(size_of(torch_storage.nbytes(), None), torch_storage)
            )
            known = _TracedTensor(value, inner, Value(id(value), facts, storage))
            self._tensors[id(value)] = known
        return known.value

    def _run(self, original: Any, interpreter: Any, node: Node, call: Call, key: Any) -> Any:
        tracer = self._tracer
        inputs = [self._tensors[value.node] for value in call.values]
        last = None if tracer is None else tracer.graph._root.prev
        counts = {} if tracer is None else dict(tracer.torch_fn_counts)
        names = None if tracer is None else compat.Candidates(tracer)
        result = run_noting_names(names, original, interpreter, node)
        function = None if tracer is None else tracer.torch_fn_metadata
        self._templates[key] = None
        with contextlib.suppress(UnsafeError), compat.DisableTorchFunction():
            if not any(compat.was_changed(each.outer, each.inner) for each in inputs):
                context = TraceContext(tracer, self._fakes.mode, getattr(names, "of", str))
                template = self._template(context, node, call, inputs, last, result)
                calls = () if tracer is None else counted_since(tracer.torch_fn_counts, counts)
                is_own = compat.have_own_storages(result, [each.outer for each in inputs])
                # In the first pass, it is not known yet whether the program writes to a view later.
                is_known = tracer is not None or not views_in(result)
                if is_own and is_known and _is_clean(template, len(call.storages)):
                    self._templates[key] = template._replace(calls=tuple(calls))
                    self._functions[key] = function
        return result

    def _template(
        self,
        context: TraceContext,
        node: Node,
        call: Call,
        tensors: list[_TracedTensor],
        last: Any,
        result: Any,
    ) -> Template:
        tracer = self._tracer
        inputs: list[Any] = []
        added: list[Node] = []
        if tracer is not None:
            for tensor in tensors:
                found, constant = compat.node_of(tensor.inner, tracer)
                if found is None or constant is not None:
                    raise UnsafeError("an input of a call is a constant")
                inputs.append((tensor.inner, found))
            added = nodes_after(last, tracer.graph)
        else:
            inputs = [(tensor.inner, object()) for tensor in tensors]
        wrapped = {v: t.outer for v, t in zip(call.values, tensors, strict=True)}
        meta = {field: node.meta[field] for field in fields_of(node.meta, annotated=True)}
        builder = TemplateBuilder(context, node.target, inputs, [], wrapped, meta, call)
        return builder.build(added, result)

    def _instantiate(self, node: Node, template: Template, call: Call, function: Any) -> Any:
        """Instantiate a template in the trace, and return the call's results."""
        storages = [*call.storages, *[Storage(nbytes) for nbytes in template.fresh]]
        with compat.without_dispatch():
            made = self._write(node, template, call, storages)
        result = self._result(template.result, storages, made)
        if self._tracer is not None:
            self.instantiated += 1
            self._tracer.torch_fn_metadata = function
            add_counts(self._tracer, template.calls)
        return result

    def _write(
        self, call_node: Node, template: Template, call: Call, storages: list[Storage]
    ) -> list[Node]:
        made: list[Node] = []
        if not template.nodes:
            return made
        tracer = self._tracer
        inputs = [self._node_of(value) for value in call.values]

        def argument(recorded: Node) -> Node:
            number = template.numbers[recorded]
            return inputs[-1 - number] if number < 0 else made[number]

        source = compat.source_in_trace(call_node)
        for entry in template.nodes:
            assert entry.original is not None
            args = torch.fx.node.map_arg(entry.original.args, argument)
            kwargs = torch.fx.node.map_arg(entry.original.kwargs, argument)
            node = tracer.graph.create_node(
                "call_function", entry.target, args, kwargs, entry.candidate
            )
            node.meta = self._meta(entry, call_node, source, storages)
            if compat.EAGER_INPUTS in node.meta:
                compat.set_eager_inputs(node)
            made.append(node)
        return made

    def _node_of(self, value: Value) -> Node:
        node: Node = compat.node_of(self._tensors[value.node].inner, self._tracer)[0]
        return node

    def _meta(
        self, entry: TemplateNode, node: Node, source: Any, storages: list[Storage]
    ) -> dict[str, Any]:
        return {
            key: self._made(entry.value, storages)
            if how is kinds.VALUE
            else meta_of_instance(key, how, item, node, source)
            for key, how, item in entry.meta
        }

    def _made(self, value: Any, storages: list[Storage]) -> Any:
        """Return a new value for a node, from the value's description in the template."""
        if type(value) is TensorSpec:
            return self._tensor(value.facts, storages[value.storage], value.is_whole)
        if type(value) in (tuple, list):
            return type(value)([self._made(item, storages) for item in value])
        return value

    def _tensor(self, facts: Facts, storage: Storage, is_whole: bool) -> Any:
        if storage.made is None and not is_whole:
            storage.made = self._fakes.storage(storage.nbytes, None)
        made = self._fakes.tensor(*facts[:5], storage.made, facts.requires_grad)
        if storage.made is None:
            storage.made = made.untyped_storage()
        return made

    def _result(self, result: Any, storages: list[Storage], made: list[Node]) -> Any:
        """Return the results of an instantiated call; map their tensors to nodes in the tracer."""
        if type(result) is Output:
            with compat.without_dispatch():
                inner = self._tensor(result.facts, storages[result.storage], True)
            if self._tracer is not None:
                compat.set_node(inner, made[result.value], self._tracer)
            return compat.functional(inner, None)
        if type(result) in (tuple, list):
            return type(result)([self._result(item, storages, made) for item in result])
        return result


def meta_of_instance(key: str, how: str, item: Any, node: Node, source: Any) -> Any:
    """Return an item of the meta of an instance's node, except its value.

    `how` and `item` are from the template. `node` is the call, and `source` its provenance record.
    """
    if how is kinds.COPIED or how is kinds.STACK:
        return copy.copy(node.meta[key])
    if how is kinds.COPIED_LITERAL:
        return copy.copy(item)
    if how is kinds.SOURCE:
        return [source]
    return compat.next_sequence_number() if how is kinds.SEQUENCE else item


def views_in(result: Any) -> list[Any]:
    """Return the tensors in a result that functionalization treats as views."""
    return [
        tensor
        for tensor in compat.pytree.tree_leaves(result)
        if type(tensor) is compat.FunctionalTensor and not compat.is_base(tensor)
    ]


def _are_changed(views: list[tuple[Any, Any]]) -> bool:
    """Return whether the program wrote to one of the tensors in `views` or to its base."""
    return any(compat.was_written(t) or compat.was_changed(t, fake) for t, fake in views)


def run_noting_names(
    names: compat.Candidates | None, original: Any, interpreter: Any, node: Node
) -> Any:
    """Run a call by `original`; record the names that torch proposes for new nodes in `names`."""
    if names is None:
        return original(interpreter, node)
    names.note()
    try:
        return original(interpreter, node)
    finally:
        names.stop()


def _is_clean(template: Template, inputs: int) -> bool:
    """Return whether each result fills a new storage. Inputs have the first `inputs` storages."""
    outputs = [o for o in compat.pytree.tree_leaves(template.result, _is_output) if _is_output(o)]
    storages = [output.storage for output in outputs]
    return (
        len(set(storages)) == len(storages)
        and all(storage >= inputs for storage in storages)
        and all(o.facts.offset == 0 and not o.facts.wrapper_requires_grad for o in outputs)
        and not template.is_symbolic
        and not any(how is kinds.COUNTED for node in template.nodes for _, how, _ in node.meta)
    )


def _is_output(value: Any) -> bool:
    return type(value) is Output


class _Active(threading.local):
    memo: CallMemo | None = None


_active = _Active()


def _run_node(original: Any, interpreter: Any, node: Node) -> Any:
    memo = _active.memo
    if memo is None:
        return original(interpreter, node)
    return memo.run(original, interpreter, node)


_replaced_run_node = Replacement(*compat.RUN_NODE, _run_node)


@contextlib.contextmanager
def use_memo(memo: CallMemo) -> Iterator[None]:
    """Let torch's traces in this thread use `memo` within the block."""
    outer, _active.memo = _active.memo, memo
    try:
        with _replaced_run_node.block():
            yield
    finally:
        _active.memo = outer
