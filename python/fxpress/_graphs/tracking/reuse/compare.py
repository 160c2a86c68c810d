"""Check that the trace of a call adds to a graph exactly what a template would have added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxpress import _native
from fxpress._graphs.tracking.reuse.recording import Correspondence, Recording
from fxpress._graphs.tracking.reuse.structure import NotReusable, tensor_facts
from fxpress._graphs.tracking.reuse.template import Step, Template, template_of
from fxpress._torch.reuse import guard_arguments, guard_kind


def difference(old: Template, recording: Recording) -> str | None:
    """Return how a traced call differs from what the template `old` would have added, or None."""
    try:
        new = template_of(recording)
    except NotReusable as reason:
        return f"tracing did more: {reason}"
    return _Comparison(old, new).run()


_MapSource = Callable[[Any], Any]  # a source of a recorded call -> the new call's source


def _same_source(source: Any) -> Any:
    return source


class _Comparison:
    """Compares the template of a recorded call with the template of a new, traced call."""

    def __init__(self, old: Template, new: Template) -> None:
        self.old, self.new = old, new
        self.same = Correspondence(old.call, new.call)
        self.same.nodes.update(zip(old.arguments, new.arguments, strict=True))
        self.paths: dict[str, str] = {}  # path of a module in the old call -> path in the new one

    def run(self) -> str | None:
        old, new = self.old, self.new
        mapped = self.same.source
        for subject, expected, traced in (
            ("called modules", _entered(old, mapped), _entered(new, _same_source)),
            ("tracked modules", _built(old, mapped), _built(new, _same_source)),
            ("traced code objects", old.codes, new.codes),
            ("recorded sizes", _sizes(old, mapped), _sizes(new, _same_source)),
            ("number of steps", len(old.steps), len(new.steps)),
        ):
            if expected != traced:
                return f"the {subject}: {expected} expected, {traced} traced"
        self.paths.update(zip(_paths(old), _paths(new), strict=True))
        for old_step, new_step in zip(old.steps, new.steps, strict=True):
            found = self._step(old_step, new_step)
            if found is not None:
                return found
        return self._guards()

    def _step(self, old: Step, new: Step) -> str | None:
        node = new.node
        if old.kind == "node" == new.kind:
            self.same.add_node(old.node, node)
            for field in ("op", "target"):
                expected, traced = getattr(old.node, field), getattr(node, field)
                if expected != traced:
                    return f"{node}: the {field} is {traced}, not {expected}"
            for field in ("args", "kwargs"):
                expected = torch.fx.map_arg(getattr(old.node, field), self.same.node)
                if repr(expected) != repr(getattr(node, field)):
                    return f"{node}: the {field} are {getattr(node, field)}, not {expected}"
            if _facts(old.fake) != _facts(new.fake):
                return f"{node}: the value is {new.fake}, not {old.fake}"
        elif old.kind == "input" == new.kind:
            self.same.nodes[old.node] = node
            expected = self.same.source(old.source)
            if old.number != new.number or expected != new.source:
                return f"{node}: the input is {new.source.name}, not {expected.name}"
        elif self.same.node(old.node) is not node:
            return f"{node}: the trace renames this node, not {self.same.node(old.node)}"
        if (old.kind, old.candidate) != (new.kind, new.candidate) and old.kind != "input":
            return f"{node}: made from {new.kind} {new.candidate}, not {old.kind} {old.candidate}"
        if node in self.new.arguments:  # created before the call
            return None
        return self._meta(old.node, node)

    def _meta(self, old: torch.fx.Node, new: torch.fx.Node) -> str | None:
        expected, traced = (
            list(node.meta.get("nn_module_stack", {}).values())[depth:]
            for node, depth in ((old, self.old.call.depth), (new, self.new.call.depth))
        )
        if [(self.paths.get(path, path), kind) for path, kind in expected] != traced:
            return f"{new}: nn_module_stack is {traced}, not {expected}"
        functions = self.same.functions(old.meta.get("source_fn_stack", []))
        if functions != (traced_functions := new.meta.get("source_fn_stack", [])):
            return f"{new}: source_fn_stack is {traced_functions}, not {functions}"
        expected_trace = self.same.trace(old.meta.get("stack_trace", ""))
        traced_trace = new.meta.get("stack_trace", "")
        if expected_trace != traced_trace:
            return f"{new}: the stack trace is {traced_trace!r}, not {expected_trace!r}"
        return None

    def _guards(self) -> str | None:
        expected = [_guard(guard, self.same.source) for guard in self.old.guards]
        traced = [_guard(guard, _same_source) for guard in self.new.guards]
        for one, other in zip(expected, traced, strict=False):
            if one != other:
                return f"the guards: {one} expected, {other} traced"
        if len(expected) != len(traced):
            return f"the guards: {len(expected)} expected, {len(traced)} traced"
        return None


def _entered(template: Template, map_source: _MapSource) -> list[Any]:
    return [
        (
            template.numbers.get(id(module), module),
            _native.path_without_tables(map_source(source).name),
        )
        for _, source, module in template.entered
    ]


def _built(template: Template, map_source: _MapSource) -> list[Any]:
    return [(template.numbers[id(module)], map_source(source)) for module, source in template.built]


def _sizes(template: Template, map_source: _MapSource) -> list[Any]:
    return [(map_source(source).name, size.given, size.merged) for size, source in template.sizes]


def _guard(guard: Any, map_source: _MapSource) -> Any:
    arguments = [
        map_source(each).name if hasattr(each, "guard_source") else each
        for each in guard_arguments(guard)
    ]
    return map_source(guard.originating_source).name, guard_kind(guard).__name__, arguments


def _paths(template: Template) -> list[str]:
    return [_native.path_without_tables(source.name) for _, source, _ in template.entered]


def _facts(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tensor_facts(value)
    if isinstance(value, (tuple, list)):
        return [_facts(each) for each in value]
    return repr(value)
