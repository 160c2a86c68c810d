"""Repeat a recorded call for an equal call, by instantiating the template of the recorded call."""

from __future__ import annotations

import functools
from typing import Any

import torch

from fxpress._graphs.tracking.reuse.recording import Call, Correspondence
from fxpress._graphs.tracking.reuse.structure import storage_id
from fxpress._graphs.tracking.reuse.template import Step, Template
from fxpress._graphs.tracking.stack import enter_module
from fxpress._torch import reuse as compat
from fxpress._torch import reuse_inputs
from fxpress._torch.aten import share_gradient_edge


def instantiate(template: Template, call: Call) -> compat.VariableTracker:
    """Repeat a recorded call for `call`, and return the variable of its result."""
    return _Instance(template, call).run()


class _Instance:
    """One instance of a template. "Old" objects are from the recorded call, not from `call`."""

    def __init__(self, template: Template, call: Call) -> None:
        self.template = template
        self.call = call
        self.tx: Any = call.tx
        self.output = call.journal.output
        self.tracer = self.output.current_tracer
        self.same = Correspondence(template.call, call)
        # Ids of old objects (in `inputs`: old nodes) -> the new objects that replace them.
        self.variables: dict[int, Any] = {}
        self.inputs: dict[torch.fx.Node, Any] = {}
        self.fakes: dict[int, torch.Tensor] = {}
        self.storages: dict[int, Any] = {}  # id of a storage -> a new tensor with the new storage
        self.symbols: dict[int, Any] = {}  # id of a SymNode -> the new number

    def run(self) -> compat.VariableTracker:
        for old, new in zip(self.template.arguments, self.call.arguments.tensors, strict=True):
            self._map_node(old, new.as_proxy().node)
        self._enter_modules()
        with compat.separate_guards(self.output) as fresh:
            for step in self.template.steps:
                _STEPS[step.kind](self, step)
        self._add_guards(fresh.found)
        self.output.traced_code.extend(self.template.codes)
        return self.template.result(self)

    def _map_node(self, old: torch.fx.Node, new: torch.fx.Node) -> None:
        """Map an old node to a new node. Also map the symbols and the storage of the old value."""
        self.same.nodes[old] = new
        before, after = old.meta.get("example_value"), new.meta.get("example_value")
        for size, same in zip(compat.symbols_of(before), compat.symbols_of(after), strict=True):
            self.symbols.setdefault(id(size.node), same)
        if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
            self.fakes[id(before)] = after
            self.storages.setdefault(storage_id(before), after)

    def _enter_modules(self) -> None:
        """Count and record the calls of modules inside this call, as a trace would."""
        objects, numbers = self.call.structure.objects, self.template.numbers
        journal = self.call.journal
        self.outside = dict(self.tx.nn_module_stack)
        # Key in an old nn_module_stack -> (key, entry) in the new one.
        self.keys: dict[str, tuple[str, tuple[str, type]]] = {}
        for key, source, module in self.template.entered:
            number = numbers.get(id(module))
            # A module without a number is outside of the called module; both calls use it.
            same = module if number is None else objects[number]
            path = self.same.source(source)
            new_key, entry = enter_module(str(id(same)), path, self.tx, same)
            self.keys[key] = new_key, entry
            journal.entered.append((new_key, path, same))
        for module, source in self.template.built:
            same = objects[numbers[id(module)]]
            journal.note_instantiated(same, self.same.source(source))
        for number, name in self.template.reads:
            journal.reads.append((id(objects[number]), name))
        for size, source in self.template.sizes:
            size.note(self.same.source(source).name)

    def _stack(self, old: dict[str, Any]) -> dict[str, Any]:
        """Convert the `nn_module_stack` of an old node to the stack of the new node."""
        inner = list(old)[self.template.call.depth :]
        return self.outside | dict(self.keys[key] for key in inner)

    def _add_input(self, step: Step) -> None:
        tensor = self.call.structure.objects[step.number]
        source = self.same.source(step.source)
        journal = self.call.journal
        fake = None if step.fake is None else reuse_inputs.copy_parameter(step.fake, tensor)
        old = step.node
        if fake is not None and old.op == "get_attr":
            new_input = reuse_inputs.Input(step.variable, step.tensor, tensor, fake, source)
            make_node = functools.partial(self._make_attribute, old)
            variable = reuse_inputs.add_attribute(self.tx, new_input, make_node)
        else:
            journal.stack_trace = self.same.trace(old.meta["stack_trace"])
            if fake is None:
                variable = compat.VariableBuilder(self.tx, source)(tensor)
            else:
                new_input = reuse_inputs.Input(step.variable, step.tensor, tensor, fake, source)
                variable = reuse_inputs.add_placeholder(self.tx, new_input)
            journal.stack_trace = None
            meta = variable.as_proxy().node.meta
            meta["nn_module_stack"] = self._stack(old.meta["nn_module_stack"])
            for key in old.meta:  # sets the order of the items
                meta[key] = meta.pop(key)
        self.inputs[old] = variable
        self._map_node(old, variable.as_proxy().node)

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
        """Fill a node's meta from the old node's; `values` has items that the caller computed."""
        for key, value in old.meta.items():  # keeps the order
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

    def _value(self, old: Any) -> Any:
        if isinstance(old, torch.Tensor):
            return self._tensor(old)
        if isinstance(old, (tuple, list)) and not isinstance(old, torch.Size):
            values = [self._value(each) for each in old]
            return old._make(values) if hasattr(old, "_make") else type(old)(values)
        return self._symbol(old)

    def _symbol(self, old: Any) -> Any:
        if not isinstance(old, compat.SYMBOLIC):
            return old
        found = self.symbols.get(id(old.node))
        if found is None:
            found = self.symbols[id(old.node)] = compat.copy_symbol(old)
        return found

    def _tensor(self, old: torch.Tensor) -> torch.Tensor:
        found = self.fakes.get(id(old))
        if found is None:
            found = self.fakes[id(old)] = self._copy(old)
        return found

    def _copy(self, old: Any) -> torch.Tensor:
        """Copy a fake tensor; copies share a storage if the old tensors share one."""
        key = storage_id(old)
        made = reuse_inputs.copy_fake(old, self.storages.get(key), self._symbol)
        self.storages.setdefault(key, made)
        if old.requires_grad:
            share_gradient_edge(made, old)
        return made

    def _add_guards(self, fresh: dict[Any, list[Any]]) -> None:
        guards = self.output.guards
        for guard, key in self.template.fresh_guards:
            found = fresh.get((self.same.source(key[0]), key[1])) if key else None
            made = found.pop(0) if found else compat.repeat_guard(guard, self.same.sources)
            made.user_stack = self.same.stack(guard.user_stack)
            guards.add(made, collect_debug_stack=guard.stack is not None)
            self.call.journal.note_guard(made)

    def variable(self, step: Step, old: Any) -> compat.VariableTracker:
        """Return the variable of the result of `step`; `old` is the recorded call's variable."""
        if step.kind == "input":
            known: compat.VariableTracker = self.inputs[step.node]
            return known
        found = self.variables.get(id(old))
        if found is None:
            proxy = torch.fx.Proxy(self.same.nodes[step.node], self.tracer)
            if isinstance(old, compat.SymNodeVariable):
                found = compat.SymNodeVariable(proxy, proxy.node.meta["example_value"])
            else:
                found = compat.copy_variable(old, proxy=proxy)
                found._is_name_set = step.node in self.template.renamed
            self.tracer.record_proxyable_vt(found)
            self.variables[id(old)] = found
        return found

    def container(self, old: Any, items: list[compat.VariableTracker]) -> compat.VariableTracker:
        """Return the variable of a tuple or list; `old` is the recorded call's variable."""
        found = self.variables.get(id(old))
        if found is None:
            found = self.variables[id(old)] = compat.copy_variable(old, items=items)
        return found


_STEPS = {"input": _Instance._add_input, "node": _Instance._add_node, "name": _Instance._rename}
