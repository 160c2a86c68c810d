"""Record how Dynamo traces a program, so that two runs can be compared."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule
from torch.utils.hooks import RemovableHandle

import fxpress
from tests.support.captured import facts

# The guards that fxpress adds to torch's: on the methods that a call looks up, and on global hooks.
_LOOKED_UP = re.compile(r"\['(__call__|_call_impl|forward)'\]$")


def is_added(guard: tuple[Any, ...]) -> bool:
    name, _, kind, options = guard
    return (
        (kind == "DICT_NOT_CONTAINS" and options[0][1] in ("__call__", "_call_impl", "forward"))
        or (kind == "CLOSURE_MATCH" and _LOOKED_UP.search(name) is not None)
        or (kind == "NOT_NONE_MATCH" and name.endswith("torch_dot_nn_dot_modules_dot_module']"))
    )


def _without_numbers(text: str) -> str:
    text = re.sub(r"0x[0-9a-f]+|\d{9,}", "#", text)
    return re.sub(r"(__builtins_dict___|_c)\d+", r"\1#", text)


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), repr([round(v, 4) for v in value.detach().flatten().tolist()])
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (str, int, float, bool, type(None), type)):
        return value
    return type(value).__name__


@dataclass
class Observed:
    """The record of one run of a program."""

    graphs: list[Any] = field(default_factory=list)
    guards: list[Counter[tuple[Any, ...]]] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    error: type[BaseException] | None = None
    message: str = ""
    kind_of_break: str | None = None
    _ids: dict[str, str] = field(default_factory=dict)
    _storages: dict[int, int] = field(default_factory=dict)

    def graph(self, module: GraphModule) -> list[Any]:
        nodes: list[Any] = []
        for node in module.graph.nodes:
            stack = node.meta.get("nn_module_stack") or {}
            nodes.append(
                (
                    node.op,
                    getattr(node.target, "__name__", str(node.target)),
                    node.name,
                    str(node.args) + str(node.kwargs),
                    [(self._numbered(k), path, str(kind)) for k, (path, kind) in stack.items()],
                    [
                        str(entry[0]).split("_0x")[0]
                        for entry in node.meta.get("source_fn_stack", ())
                    ],
                    re.sub(r"(?<=<eval_with_key>\.)\d+", "#", node.meta.get("stack_trace") or ""),
                    self._value(node.meta.get("example_value")),
                )
            )
        for name, child in module.named_children():
            if isinstance(child, GraphModule):
                nodes.append((name, self.graph(child)))
        return nodes

    def _value(self, value: Any) -> Any:
        """Describe a value by its facts, and by the number of its storage."""
        if isinstance(value, (list, tuple)):
            return [self._value(each) for each in value]
        if isinstance(value, torch.nn.Module):
            return type(value)
        if type(value) is not FakeTensor or value.layout is not torch.strided:
            return facts(value)
        storage = value.untyped_storage()
        number = self._storages.setdefault(storage._cdata, len(self._storages))
        return facts(value), value._version, number, str(storage.nbytes())

    def _numbered(self, text: str) -> str:
        """Replace addresses by numbers, in order of first occurrence."""
        number = lambda found: self._ids.setdefault(found[0], f"#{len(self._ids)}")  # noqa: E731
        return re.sub(r"\d{9,}", number, text)

    def guard_set(self, guards: Any) -> Counter[tuple[Any, ...]]:
        found: Counter[tuple[Any, ...]] = Counter()
        for guard in guards:
            options: tuple[Any, ...] = ()
            if isinstance(guard.create_fn, functools.partial):
                options = tuple(
                    (key, _without_numbers(str(getattr(value, "name", value))))
                    for key, value in sorted(guard.create_fn.keywords.items())
                )
            key = _without_numbers(guard.name), str(guard.source), guard.create_fn_name(), options
            found[key] += 1
        return found


class Tracer:
    """Compiles and exports for a program, and records the results."""

    def __init__(self) -> None:
        self.seen = Observed()
        self._kept: list[Any] = []  # so that no address is used again

    def compile(self, function: Any, *, fullgraph: bool = True, **options: Any) -> Any:
        def backend(module: GraphModule, inputs: Any) -> Any:
            self.seen.graphs.append(self.seen.graph(self.keep(module)))
            return module.forward

        return torch._dynamo.optimize(
            backend,
            nopython=fullgraph,
            guard_export_fn=lambda guards: self.seen.guards.append(self.seen.guard_set(guards)),
            **options,
        )(function)

    def keep(self, made: Any) -> Any:
        """Keep a module alive, because its address identifies it in recorded graphs; return it."""
        self._kept.append(made)
        return made

    def call(self, m: Any, *args: Any, fullgraph: bool = True, **kwargs: Any) -> Any:
        def fn(*aa: Any, **kk: Any) -> Any:
            return m(*aa, **kk)

        self.keep(m)
        compiled = self.compile(fn, fullgraph=fullgraph)
        self.log(compiled(*args, **kwargs))
        return compiled

    def export(self, function: Any, *args: Any, **options: Any) -> None:
        """Export with the legacy function, which adds the called modules to the graph."""
        with torch._dynamo.config.patch(install_free_tensors_for_export=False):
            exported = torch._dynamo.export(function, **options)(*args)
        self.seen.graphs.append(self.seen.graph(self.keep(exported.graph_module)))
        self.seen.guards.append(self.seen.guard_set(exported.guards))

    def log(self, value: Any) -> None:
        self.seen.values.append(plain(value))

    def attempt(self, call: Callable[[], Any]) -> None:
        try:
            self.log(call())
        except Exception as error:  # only the type of the error is compared
            self.log([type(error).__name__, _kind_of_break(error)])


def _kind_of_break(error: BaseException) -> str | None:
    """Return Dynamo's name for a graph break, or the type of the error."""
    if isinstance(error, torch._dynamo.exc.InternalTorchDynamoError):
        return str(error).split(":")[0]
    return getattr(error, "gb_type", None)


Program = Callable[[Tracer], None]


@contextmanager
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    before = RemovableHandle.next_id
    RemovableHandle.next_id = 1_000_000  # hooks are named in guards by their numbers
    try:
        yield
    finally:
        RemovableHandle.next_id = before
        torch._dynamo.reset()


def observed(program: Program) -> Observed:
    tracer = Tracer()
    with _fresh():
        try:
            program(tracer)
        except Exception as error:
            tracer.seen.error, tracer.seen.message = type(error), str(error)
            tracer.seen.kind_of_break = _kind_of_break(error)
    return tracer.seen


def observed_with_ours(program: Program) -> Observed:
    with fxpress.installed():
        return observed(program)


def _difference(mine: Observed, theirs: Observed) -> str:
    """Return the first difference of two runs; "" if there is none."""
    if mine.error is not theirs.error:
        return f"{mine.message}\n\ntorch: {theirs.message}"
    for name in ("kind_of_break", "graphs", "values"):
        a, b = getattr(mine, name), getattr(theirs, name)
        if a != b:
            return f"{name}\n{a}\n\ntorch: {b}"
    if len(mine.guards) != len(theirs.guards):
        return f"{len(mine.guards)} sets of guards, torch: {len(theirs.guards)}"
    for mine_set, other in zip(mine.guards, theirs.guards, strict=True):
        if lacking := other - mine_set:
            return f"without {lacking}"
        if more := [guard for guard in mine_set - other if not is_added(guard)]:
            return f"more: {more}"
    return ""


def assert_same_traces(program: Program, *, afterwards: bool = False) -> Observed:
    """Assert that fxpress traces a program as torch does; return fxpress's record.

    `afterwards`: torch then traces the program once more, with the same result. This is also done
    after a difference, because even with torch, the first run may have other guards than the next.
    """
    theirs = observed(program)
    ours = observed_with_ours(program)
    if afterwards or _difference(ours, theirs):
        before, theirs = theirs, observed(program)
        for first, other in zip(before.guards, theirs.guards, strict=True):
            left = [guard for guard in other - first if is_added(guard)]
            assert not left, f"torch afterwards: {left}"
        before.guards = theirs.guards
        assert not (found := _difference(before, theirs)), f"torch before: {found}"
    assert not (found := _difference(ours, theirs)), f"ours: {found}"
    return ours
