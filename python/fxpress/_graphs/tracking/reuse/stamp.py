"""Repeat what a recorded call did, for a call that is like it."""

from __future__ import annotations

import functools
from typing import Any

import torch

from fxpress._graphs.tracking.reuse.recording import Call
from fxpress._graphs.tracking.reuse.structure import storage_id
from fxpress._graphs.tracking.reuse.template import Step, Template
from fxpress._graphs.tracking.stack import enter_module
from fxpress._torch.aten import share_gradient_edge
from fxpress._torch.reuse import (
    SymNodeVariable,
    VariableBuilder,
    VariableTracker,
    copy_container,
    copy_number,
    copy_tensor,
    map_source,
    note_proxyable,
    repeat_guard,
    separate_guards,
)
from fxpress._torch.reuse_inputs import (
    Input,
    add_attribute,
    add_placeholder,
    copy_fake,
    copy_parameter,
)


class Correspondence:
    """Sources, nodes, names and places of a call, by those of a recorded call."""

    def __init__(self, old: Call, new: Call) -> None:
        self._sites = old.site, new.site
        self._is_same_place = old.site.is_same(new.site)
        self.sources: dict[Any, Any] = {old.path: new.path, old.source: new.source}
        if hasattr(old.source, "base"):
            self.sources[old.source.base] = new.source.base
        self.nodes: dict[torch.fx.Node, torch.fx.Node] = {}
        self._names: dict[str, str] = {}

    def source(self, old: Any) -> Any:
        """Return where the call finds what the recorded one found at a source."""
        return map_source(old, self.sources)

    def node(self, old: torch.fx.Node) -> torch.fx.Node:
        """Return the node in place of another one; a node of neither call stands for itself."""
        return self.nodes.get(old, old)

    def add_node(self, old: torch.fx.Node, new: torch.fx.Node) -> None:
        """Note that a node stands in place of another one, both with the names they were made with.

        A node that is new has no meta yet, and its name.
        """
        self.nodes[old] = new
        self._names[_made_name(old)] = _made_name(new)

    def functions(self, stack: Any) -> list[tuple[str, Any]]:
        """Return the stack of functions in place of another one."""
        return [(self._names.get(name, name), kind) for name, kind in stack]

    def trace(self, text: str) -> str:
        """Return the stack trace in place of another one: it begins at the place of the call."""
        if self._is_same_place:
            return text
        old, new = self._sites
        return new.text() + text.removeprefix(old.text())


def _made_name(node: torch.fx.Node) -> str:
    stack = node.meta.get("source_fn_stack")
    return str(stack[-1][0]) if stack else node.name


def stamp(template: Template, call: Call) -> VariableTracker:
    """Do for a call what was done for a recorded one; return the variable of its result."""
    return _Stamp(template, call).run()


class _Stamp:
    def __init__(self, template: Template, call: Call) -> None:
        self.template = template
        self.call = call
        self.tx: Any = call.tx
        self.output = call.journal.output
        self.tracer = self.output.current_tracer
        self.same = Correspondence(template.call, call)
        self.variables: dict[int, Any] = {}
        self.inputs: dict[torch.fx.Node, Any] = {}
        self.fakes: dict[int, torch.Tensor] = {}
        self.storages: dict[int, Any] = {}

    def run(self) -> VariableTracker:
        for old, new in zip(self.template.arguments, self.call.arguments.tensors, strict=True):
            self._know(old, new.as_proxy().node)
        self._enter_modules()
        with separate_guards(self.output) as fresh:
            for step in self.template.steps:
                _STEPS[step.kind](self, step)
        self._add_guards(fresh.found)
        self.output.traced_code.extend(self.template.codes)
        return self.template.result(self)

    def _know(self, old: torch.fx.Node, new: torch.fx.Node) -> None:
        self.same.nodes[old] = new
        before, after = old.meta.get("example_value"), new.meta.get("example_value")
        if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
            self.fakes[id(before)] = after
            self.storages.setdefault(storage_id(before), after)

    # The modules

    def _enter_modules(self) -> None:
        """Count the calls of modules as tracing counts them, and learn their keys."""
        objects, numbers = self.call.structure.objects, self.template.numbers
        journal = self.call.journal
        self.outside = dict(self.tx.nn_module_stack)
        self.keys: dict[str, tuple[str, tuple[str, type]]] = {}
        for key, source, module in self.template.entered:
            number = numbers.get(id(module))
            same = module if number is None else objects[number]  # one module, found by both calls
            path = self.same.source(source)
            made = enter_module(str(id(same)), path, self.tx, same)
            self.keys[key] = made
            journal.entered.append((made[0], path, same))
        for module, source in self.template.built:
            same = objects[numbers[id(module)]]
            journal.note_stamped(same, self.same.source(source))
        for number, name in self.template.reads:
            journal.reads.append((id(objects[number]), name))

    def _stack(self, old: dict[str, Any]) -> dict[str, Any]:
        inner = list(old)[self.template.call.depth :]
        return self.outside | dict(self.keys[key] for key in inner)

    # The steps

    def _add_input(self, step: Step) -> None:
        tensor = self.call.structure.objects[step.number]
        source = self.same.source(step.source)
        journal = self.call.journal
        fake = None if step.fake is None else copy_parameter(step.fake, tensor)
        old = step.node
        if fake is not None and old.op == "get_attr":
            given = Input(step.variable, step.tensor, tensor, fake, source)
            make_node = functools.partial(self._make_attribute, old)
            variable = add_attribute(self.tx, given, make_node)
        else:
            journal.place = self.same.trace(old.meta["stack_trace"])
            if fake is None:
                variable = VariableBuilder(self.tx, source)(tensor)
            else:
                given = Input(step.variable, step.tensor, tensor, fake, source)
                variable = add_placeholder(self.tx, given)
            journal.place = None
            variable.as_proxy().node.meta["nn_module_stack"] = self._stack(
                old.meta["nn_module_stack"]
            )
        self.inputs[old] = variable
        self._know(old, variable.as_proxy().node)

    def _make_attribute(
        self, old: torch.fx.Node, name: str, values: dict[str, Any]
    ) -> torch.fx.Node:
        node: torch.fx.Node = self.tracer.create_node("get_attr", name, (), {})
        node.meta.clear()
        self._fill_meta(node, old, values)
        return node

    def _add_node(self, step: Step) -> None:
        old = step.node
        args = torch.fx.map_arg(old.args, self.same.node)
        kwargs = torch.fx.map_arg(old.kwargs, self.same.node)
        node = self.tracer.create_node(old.op, old.target, args, kwargs, step.candidate)
        node.meta.clear()
        self.same.add_node(old, node)
        self._fill_meta(node, old, {})

    def _rename(self, step: Step) -> None:
        node = self.same.node(step.node)
        node._rename(step.candidate)
        for each in self.call.arguments.tensors:
            if each.as_proxy().node is node:
                each._is_name_set = True

    def _fill_meta(self, node: torch.fx.Node, old: torch.fx.Node, values: dict[str, Any]) -> None:
        """Give a node the meta in place of that of another one; `values` has what is known."""
        for key, value in old.meta.items():  # in this order
            node.meta[key] = values[key] if key in values else self._meta(key, value)

    def _meta(self, key: str, old: Any) -> Any:
        if key == "nn_module_stack":
            return self._stack(old)
        if key == "source_fn_stack":
            return self.same.functions(old)
        if key == "stack_trace":
            return self.same.trace(old)
        if key == "example_value":
            return self._value(old)
        return old

    # Values

    def _value(self, old: Any) -> Any:
        if isinstance(old, torch.Tensor):
            return self._tensor(old)
        if type(old) in (tuple, list):
            return type(old)(self._value(each) for each in old)
        return old

    def _tensor(self, old: torch.Tensor) -> torch.Tensor:
        found = self.fakes.get(id(old))
        if found is None:
            found = self.fakes[id(old)] = self._copy(old)
        return found

    def _copy(self, old: Any) -> torch.Tensor:
        """Return a new fake tensor like another one; those that share a storage share a new one."""
        key = storage_id(old)
        made = copy_fake(old, self.storages.get(key))
        self.storages.setdefault(key, made)
        if old.requires_grad:
            share_gradient_edge(made, old)
        return made

    # What remains

    def _add_guards(self, fresh: dict[Any, list[Any]]) -> None:
        guards = self.output.guards
        for guard, key in self.template.fresh_guards:
            made = fresh.get((self.same.source(key[0]), key[1])) if key else None
            guards.add(
                made.pop(0) if made else repeat_guard(guard, self.same.sources),
                collect_debug_stack=False,
            )

    def variable(self, step: Step, old: Any) -> VariableTracker:
        """Return the variable of a result: a new one for a node, the known one for an input."""
        if step.kind == "input":
            known: VariableTracker = self.inputs[step.node]
            return known
        found = self.variables.get(id(old))
        if found is None:
            proxy = torch.fx.Proxy(self.same.nodes[step.node], self.tracer)
            if isinstance(old, SymNodeVariable):
                found = copy_number(old, proxy)
            else:
                found = copy_tensor(old, proxy)
                found._is_name_set = step.node in self.template.renamed
            note_proxyable(self.tracer, found)
            self.variables[id(old)] = found
        return found

    def container(self, old: Any, items: list[VariableTracker]) -> VariableTracker:
        """Return the variable of a tuple or a list with other items."""
        found = self.variables.get(id(old))
        if found is None:
            found = self.variables[id(old)] = copy_container(old, items)
        return found


_STEPS = {"input": _Stamp._add_input, "node": _Stamp._add_node, "name": _Stamp._rename}
