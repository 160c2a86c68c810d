"""Repeat the recorded trace of a module's call in Dynamo, instead of tracing an equal call."""

from __future__ import annotations

import copy
import dataclasses
import functools
import traceback
import types
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
from torch._dynamo import config as config
from torch._dynamo import pgo
from torch._dynamo import variables as variables
from torch._dynamo.exc import RestartAnalysis
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.side_effects import (
    AttributeMutationExisting,
    ValueMutationExisting,
    ValueMutationNew,
)
from torch._dynamo.source import ConstantSource as ConstantSource
from torch._dynamo.source import is_from_source as is_from_source
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables import builder as builder
from torch._dynamo.variables.base import VariableTracker as VariableTracker
from torch._dynamo.variables.builder import VariableBuilder as VariableBuilder
from torch._dynamo.variables.lazy import LazyVariableTracker as LazyVariableTracker
from torch._dynamo.variables.tensor import SymNodeVariable as SymNodeVariable
from torch._dynamo.variables.tensor import TensorVariable as TensorVariable
from torch._guards import ChainedSource, GuardsSet, TracingContext
from torch._guards import Guard as Guard
from torch._guards import Source as Source
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.symbolic_shapes import uninteresting_files

from fxpress._torch.symbols import SYMBOLIC as SYMBOLIC

# Description of a change -> the attributes of Dynamo's OutputGraph that the change affects. The
# trace of a repeatable call leaves them unchanged. No release of torch has all of them.
_LASTING = {
    "a name among the globals": ("installed_globals",),
    "a hook for the end of the trace": ("cleanup_hooks",),
    "the place of an attribute of a class": ("mro_source_cache", "guarded_mro_absent_keys"),
    "the signature of a function": ("signature_cache",),
    "a random number": ("random_calls",),
    "byte code before the graph": ("pregraph_bytecode",),
    "a finalizer of the graph": ("register_finalizer_fns",),
    "a number that is an input": ("unspec_variable_map",),
    "a leaf tensor": ("leaf_var_creation_order",),
    "a dict whose order matters": ("guard_on_key_order",),
    "the users of a source": ("source_to_user_stacks",),
    "an operator that is not compliant": ("non_compliant_ops", "compliant_custom_ops"),
    "an imported module": ("import_sources",),
    "state of a backward pass": ("backward_state",),
    "a class that is looked up": ("_fxpress_class_lookups",),
}
_NAMES = tuple((why, name) for why, names in _LASTING.items() for name in names)


def lasting_state(output: Any) -> tuple[int, ...]:
    """Return numbers that change when the trace of a call has effects that cannot be repeated."""
    own = vars(output)
    effects = output.side_effects
    shapes = output.shape_env
    tracer = output.current_tracer
    return (
        *[len(own.get(name, ())) for _, name in _NAMES],
        len(effects.tensor_hooks),
        len(effects.save_for_backward),
        len(tracer.bound_symbols),
        # An operator's cached result and its first result have different expressions for sizes.
        FakeTensorMode.cache_misses if tracer.bound_symbols else 0,
        len(shapes.guards),
        shapes._version_counter,
        id(tracer),
        output.should_exit,
    )


def lasting_change(before: tuple[int, ...], after: tuple[int, ...]) -> str:
    """Describe the first difference between two results of `lasting_state`."""
    for (why, _), old, new in zip(_NAMES, before, after, strict=False):
        if old != new:
            return why
    return "hooks, symbols, guards on shapes or cached results"


def surroundings(tx: Any) -> tuple[Any, ...]:
    """Return the state that a call's trace depends on, besides the call's module and arguments."""
    modes = tx.symbolic_torch_function_state
    streams = getattr(tx, "symbolic_stream_state", None)
    return (
        tuple(map(id, getattr(modes, "mode_stack", ()))),
        getattr(modes, "torch_function_subclass_enabled", None),
        getattr(modes, "torch_function_mode_enabled", None),
        len(getattr(streams, "cur_stream_stack", ())),
        tx.one_graph,
        getattr(tx, "error_on_graph_break", None),
        torch.is_inference_mode_enabled(),
        repr(fx_traceback.current_meta) if fx_traceback.current_meta else None,
        fx_traceback.has_preserved_node_meta(),
    )


def is_plain_trace(tx: Any) -> bool:
    """Return whether calls can be repeated at this point (in an except block, they cannot)."""
    return (
        tx.output.current_tracer.parent is None
        and tx.distributed_state is None  # sizes on other ranks make numbers dynamic
        and not any(getattr(torch.compiler.config, name, "") for name in _BY_SOURCE)
        and getattr(config, "_dynamic_shapes_spec", None) is None
        and not len(tx.exn_vt_stack)
        and torch._C._functorch.peek_interpreter_stack() is None
        and not getattr(config, "trace_autograd_ops", False)
        and not config.use_graph_deduplication
        and not config.track_nodes_for_deduplication
    )


# Settings of torch.compiler that list names of sources.
_BY_SOURCE = ("dynamic_sources", "unbacked_sources", "static_sources")


class SeenSize(NamedTuple):
    """A number, or a tensor's sizes, which Dynamo compares with the values in earlier traces."""

    tx: Any
    name: str  # the name of the source of the number or tensor
    given: Any
    merged: Any  # `given`, merged with the sizes from earlier traces

    def merged_by_another(self, name: str) -> Any:
        """Return the result of merging `given` with earlier sizes of another source, `name`."""
        code = pgo.CodeId.make(self.tx.f_code, self.tx.closure)
        known = pgo.get_code_state()[code].automatic_dynamic.get(name)
        if known is None or not config.automatic_dynamic_shapes:
            return self.given
        merged = copy.copy(known)
        merged |= self.given
        return merged

    def note(self, name: str) -> None:
        """Make Dynamo record `given` for another source, `name`."""
        builder.process_automatic_dynamic(self.tx, name, self.given)


def process_sizes(note: Callable[[SeenSize], None]) -> Any:
    """Return a wrapper of Dynamo's `process_automatic_dynamic` that also calls `note`."""
    process = builder.process_automatic_dynamic

    def process_and_note(tx: Any, name: str, given: Any, **options: Any) -> Any:
        merged = process(tx, name, copy.copy(given), **options)
        note(SeenSize(tx, name, given, copy.copy(merged)))
        return merged

    return process_and_note


_TRACES = "_fxpress_traces_all"


class _Restart(RestartAnalysis):  # type: ignore[misc]
    """The exception that makes Dynamo trace a frame again, without repeating calls."""


def restart_without_reuse(output: Any, reason: str) -> NoReturn:
    """Make Dynamo trace a frame again from its start, now without repeating calls."""
    log = output.root_tx.speculation_log
    log.clear()  # its entries do not fit the next attempt
    vars(log)[_TRACES] = True
    raise _Restart(restart_reason=reason)


def traces_all(tx: Any) -> bool:
    """Return whether `restart_without_reuse` has restarted this trace."""
    return _TRACES in vars(tx.speculation_log)


def symbols_of(value: Any) -> list[Any]:
    """Return the symbolic sizes of a tensor, or a symbolic number itself."""
    sizes = [value]
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        sizes = [*value.shape, *value.stride(), value.storage_offset(), storage.nbytes()]
    return [size for size in sizes if isinstance(size, SYMBOLIC)]


def copy_symbol(size: Any) -> Any:
    """Return an equal symbolic number that the cache of fake tensors distinguishes from `size`."""
    return type(size)(copy.copy(size.node))


def items_of(container: Any) -> tuple[VariableTracker, ...]:
    """Return the variables in a container: for a dict, its keys and values in turn."""
    if isinstance(container, variables.ConstDictVariable):
        return tuple(each for key, value in container.items.items() for each in (key.vt, value))
    return tuple(container.items)


def is_changed(variable: VariableTracker) -> bool:
    """Return whether the traced program changed a container that existed before the trace."""
    kind = variable.mutation_type
    return isinstance(kind, ValueMutationExisting) and kind.is_modified


def outlives_call(variable: VariableTracker) -> bool:
    """Return whether an object existed before the trace, so that its changes outlive the trace."""
    return isinstance(variable.mutation_type, (ValueMutationExisting, AttributeMutationExisting))


def changed_objects(effects: Any) -> list[VariableTracker]:
    """Return the variables of objects that outlive the trace and were changed in it."""
    stored = [each for each in effects.store_attr_mutations if outlives_call(each)]
    return stored + list(filter(is_changed, effects.id_to_variable.values()))


def within(objects: list[VariableTracker], effects: Any) -> dict[int, VariableTracker]:
    """Return the variables that `objects` contain, at any depth, by id of the variable."""
    found: dict[int, VariableTracker] = {}
    VariableTracker.visit(lambda each: found.update({id(each): each}), objects, None, effects)
    return found


def copy_variable(variable: Any, **changed: Any) -> Any:
    """Return a copy of the traced call's `variable`, for the new object of a repeated call."""
    kind = variable.mutation_type
    if isinstance(kind, ValueMutationNew):
        kind = ValueMutationNew()
    elif kind is not None:
        kind = type(kind)(kind.cls_source) if hasattr(kind, "cls_source") else type(kind)()
    return variable.clone(**changed, mutation_type=kind)


Translator = InstructionTranslatorBase
global_state = torch._C._dynamo.guards.GlobalStateGuard


def input_variable(output: Any, node: torch.fx.Node) -> tuple[torch.Tensor, Any] | None:
    """Return (tensor, its variable) for an input of a graph; None if the input has no variable."""
    given = node.meta.get("grapharg")
    tensor = output.nn_modules.get(node.target) if given is None else given.example
    known = output.side_effects.id_to_variable.get(id(tensor))
    if not isinstance(tensor, torch.Tensor) or known is None or known.source is None:
        return None
    return tensor, known


def is_generator(variable: VariableTracker) -> bool:
    """Return whether a variable is a generator that was created while tracing."""
    # isinstance() would realize a lazy variable, which adds guards.
    return issubclass(type(variable), variables.LocalGeneratorObjectVariable)


def is_exhausted(generator: Any) -> bool:
    """Return whether a generator that was created while tracing is exhausted."""
    for name in ("_frame_state_finished", "_is_generator_exhausted"):  # depends on the release
        if hasattr(generator, name):
            return bool(getattr(generator, name)())
    return False


class CallSite:
    """The location of a call: Dynamo's translators, innermost first, with their instructions."""

    def __init__(self, tx: Any) -> None:
        self._frames: list[tuple[Any, Any, int]] = []
        while tx is not None:
            self._frames.append((tx, tx.current_instruction, tx.lineno))
            tx = getattr(tx, "parent", None)
        self.stack: Any = TracingContext.extract_stack()
        self._text: str | None = None

    def is_same(self, other: CallSite) -> bool:
        """Return whether this and `other` are the same location in the program."""
        return len(self._frames) == len(other._frames) and all(
            mine[0].f_code is its[0].f_code
            and mine[2] == its[2]
            and mine[1].positions == its[1].positions
            for mine, its in zip(self._frames, other._frames, strict=True)
        )

    def text(self) -> str:
        """Return the stack trace that Dynamo gives a node at this location."""
        if self._text is None:
            hidden = uninteresting_files()
            summaries = []
            for tx, instruction, line in reversed(self._frames):
                if tx.is_co_filename_from_nn_modules():
                    continue
                now = tx.current_instruction, tx.lineno
                tx.current_instruction, tx.lineno = instruction, line
                try:
                    summary = tx.frame_summary()
                finally:
                    tx.current_instruction, tx.lineno = now
                if summary.filename not in hidden:
                    summaries.append(summary)
            self._text = "".join(traceback.StackSummary.from_list(summaries).format())
        return self._text


def map_source(source: Source, known: dict[Source, Source]) -> Source:
    """Return `source` with its inner sources replaced by `known`; add each result to `known`."""
    found = known.get(source)
    if found is None:
        found = source
        if isinstance(source, ChainedSource):
            changed = {}
            for field in dataclasses.fields(source):
                value = getattr(source, field.name)
                if isinstance(value, Source):
                    mapped = map_source(value, known)
                    if mapped is not value:
                        changed[field.name] = mapped
            if changed:
                found = dataclasses.replace(source, **changed)
        known[source] = found
    return found


def guard_kind(guard: Guard) -> Any:
    """Return the function that creates a guard, without its arguments."""
    function = guard.create_fn
    return function.func if isinstance(function, functools.partial) else function


def checks_identity(guard: Guard) -> bool:
    """Return whether a guard checks the identity of an object."""
    return guard_kind(guard) is GuardBuilder.ID_MATCH


def is_of_variable(guard: Guard) -> bool:
    """Return whether Dynamo creates this guard when it creates a variable for the source."""
    return guard.create_fn is GuardBuilder.TYPE_MATCH


_REPEATED = (bool, int, float, str, bytes, type(None), type, types.CodeType)


def _given(guard: Guard) -> tuple[Any, ...]:
    """Return the arguments of the function that creates a guard."""
    function = guard.create_fn
    if not isinstance(function, functools.partial):
        return ()
    return (*function.args, *function.keywords.values())


def is_repeatable(guard: Guard) -> bool:
    """Return whether a guard depends only on its source, and can be copied for another source."""
    function = guard.create_fn
    return isinstance(function, (functools.partial, types.FunctionType)) and all(
        isinstance(each, (*_REPEATED, Source)) for each in _given(guard)
    )


def guard_arguments(guard: Guard) -> list[Any]:
    """Return the comparable arguments of a guard's function: sources and plain values."""
    return [each for each in _given(guard) if isinstance(each, (*_REPEATED, Source))]


def guard_key(guard: Guard) -> tuple[Any, ...]:
    """Return a key of a guard; guards with equal keys check the same property of one source."""
    return guard.originating_source, guard_kind(guard), *guard_arguments(guard)


def repeat_guard(guard: Guard, known: dict[Source, Source]) -> Guard:
    """Return a copy of a guard, without its stack; `known` maps old sources to new ones."""
    function = guard.create_fn
    if isinstance(function, functools.partial):
        args = [map_source(x, known) if isinstance(x, Source) else x for x in function.args]
        kwargs = {
            key: map_source(x, known) if isinstance(x, Source) else x
            for key, x in function.keywords.items()
        }
        function = functools.partial(function.func, *args, **kwargs)
    made = Guard(map_source(guard.originating_source, known), function)
    for name in _GUARD_FLAGS:
        setattr(made, name, getattr(guard, name))
    return made


_GUARD_FLAGS = [
    field.name for field in dataclasses.fields(Guard) if field.name == "_force_dict_keys_match"
]


class _GuardsApart(GuardsSet):  # type: ignore[misc]
    """A set of guards that are not installed. Dynamo extracts a stack for each installed guard."""

    def add(self, guard: Guard, **options: Any) -> None:
        self.inner.add(guard)


class separate_guards:  # noqa: N801
    """A `with` block that collects new guards by source and type in `found`, and installs none."""

    def __init__(self, output: Any) -> None:
        self._context = output.tracing_context.guards_context
        self._guards = self._context.dynamo_guards
        self.found: dict[tuple[Source, Any], list[Guard]] = {}

    def __enter__(self) -> separate_guards:
        self._context.dynamo_guards = _GuardsApart()
        return self

    def __exit__(self, *exception: object) -> None:
        made, self._context.dynamo_guards = self._context.dynamo_guards, self._guards
        for guard in made:
            key = guard.originating_source, guard_kind(guard)
            self.found.setdefault(key, []).append(guard)
