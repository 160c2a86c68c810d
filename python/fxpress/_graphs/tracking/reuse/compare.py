"""Compare the instance of a template with a trace of the same call."""

from __future__ import annotations

from typing import Any

import torch

from fxpress import _native
from fxpress._graphs.tracking.reuse.recording import Correspondence, Recording
from fxpress._graphs.tracking.reuse.structure import NotReusable, tensor_facts
from fxpress._graphs.tracking.reuse.template import Step, Template, template_of
from fxpress._torch.reuse import guard_arguments, guard_kind


def difference(old: Template, recording: Recording) -> str | None:
    """Return how a traced call differs from the instance of a template; None for no difference."""
    try:
        new = template_of(recording)
    except NotReusable as reason:
        return f"tracing did more: {reason}"
    return _Comparison(old, new).run()


class _Comparison:
    def __init__(self, old: Template, new: Template) -> None:
        self.old, self.new = old, new
        self.same = Correspondence(old.call, new.call)
        self.same.nodes.update(zip(old.arguments, new.arguments, strict=True))
        self.paths: dict[str, str] = {}

    def run(self) -> str | None:
        old, new = self.old, self.new
        for what, mine, its in (
            ("modules that are called", self._entered(old, True), self._entered(new, False)),
            ("modules that are checked", self._built(old, True), self._built(new, False)),
            ("code that is traced", old.codes, new.codes),
            ("sizes that are kept", self._sizes(old, True), self._sizes(new, False)),
            ("number of steps", len(old.steps), len(new.steps)),
        ):
            if mine != its:
                return f"the {what}: {mine} expected, {its} traced"
        self.paths.update(zip(_paths(old), _paths(new), strict=True))
        for mine, its in zip(old.steps, new.steps, strict=True):
            found = self._step(mine, its)
            if found is not None:
                return found
        return self._guards()

    def _entered(self, template: Template, maps: bool) -> list[Any]:
        return [
            (
                template.numbers.get(id(module), module),
                _native.path_without_tables(self._source(source, maps).name),
            )
            for _, source, module in template.entered
        ]

    def _built(self, template: Template, maps: bool) -> list[Any]:
        return [
            (template.numbers[id(module)], self._source(source, maps))
            for module, source in template.built
        ]

    def _sizes(self, template: Template, maps: bool) -> list[Any]:
        return [
            (self._source(source, maps).name, size.given, size.merged)
            for size, source in template.sizes
        ]

    def _source(self, source: Any, maps: bool) -> Any:
        return self.same.source(source) if maps else source

    def _step(self, old: Step, new: Step) -> str | None:
        mine, its = old.node, new.node
        if old.kind == "node" == new.kind:
            self.same.add_node(mine, its)
            for what in ("op", "target"):
                if getattr(mine, what) != getattr(its, what):
                    return f"{its}: the {what} is {getattr(its, what)}, not {getattr(mine, what)}"
            for what in ("args", "kwargs"):
                given = torch.fx.map_arg(getattr(mine, what), self.same.node)
                if repr(given) != repr(getattr(its, what)):
                    return f"{its}: the {what} are {getattr(its, what)}, not {given}"
            if _facts(old.fake) != _facts(new.fake):
                return f"{its}: the value is {new.fake}, not {old.fake}"
        elif old.kind == "input" == new.kind:
            self.same.nodes[mine] = its
            if old.number != new.number or self.same.source(old.source) != new.source:
                return f"{its}: the input is another"
        elif self.same.node(mine) is not its:
            return f"{its}: a node is named that should not be"
        if (old.kind, old.candidate) != (new.kind, new.candidate) and old.kind != "input":
            return f"{its}: made from {new.kind} {new.candidate}, not {old.kind} {old.candidate}"
        if its in self.new.arguments:  # created before the call
            return None
        return self._meta(mine, its)

    def _meta(self, mine: torch.fx.Node, its: torch.fx.Node) -> str | None:
        stacks = [
            [
                (path, kind)
                for path, kind in list(node.meta.get("nn_module_stack", {}).values())[depth:]
            ]
            for node, depth in ((mine, self.old.call.depth), (its, self.new.call.depth))
        ]
        if [(self.paths.get(path, path), kind) for path, kind in stacks[0]] != stacks[1]:
            return f"{its}: the stack of modules is {stacks[1]}, not {stacks[0]}"
        functions = self.same.functions(mine.meta.get("source_fn_stack", []))
        if functions != its.meta.get("source_fn_stack", []):
            return f"{its}: the stack of functions differs"
        expected = self.same.trace(mine.meta.get("stack_trace", ""))
        traced = its.meta.get("stack_trace", "")
        if expected != traced:
            return f"{its}: the stack trace is {traced!r}, not {expected!r}"
        return None

    def _guards(self) -> str | None:
        mine = [self._guard(guard, True) for guard in self.old.guards]
        its = [self._guard(guard, False) for guard in self.new.guards]
        for one, other in zip(mine, its, strict=False):
            if one != other:
                return f"the guards: {one} expected, {other} traced"
        if len(mine) != len(its):
            return f"the guards: {len(mine)} expected, {len(its)} traced"
        return None

    def _guard(self, guard: Any, maps: bool) -> Any:
        given = [
            self._source(each, maps).name if hasattr(each, "guard_source") else each
            for each in guard_arguments(guard)
        ]
        return self._source(guard.originating_source, maps).name, guard_kind(guard).__name__, given


def _paths(template: Template) -> list[str]:
    return [_native.path_without_tables(source.name) for _, source, _ in template.entered]


def _facts(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tensor_facts(value)
    if isinstance(value, (tuple, list)):
        return [_facts(each) for each in value]
    return repr(value)
