"""Record, in order, what Dynamo adds to a graph and what it reads during calls of modules."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fxpress._graphs.tracking.reuse.report import begin
from fxpress._torch import reuse as compat
from fxpress._torch.reuse import Guard, SeenSize, Source, VariableTracker, builder, guard_key

KEY = "_fxpress_journal"  # the attribute of an OutputGraph in which its Journal is stored


def open_journal(tx: Any) -> Any:
    """Return the Journal of a translator's OutputGraph while a call is recorded, else None."""
    found = getattr(getattr(tx, "output", None), KEY, None)
    return found if found is not None and found.depth else None


def note_once(tx: Any, what: str) -> None:
    """Record that the current call depends on `what`, such as an id, so no call can repeat it."""
    journal = open_journal(tx)
    if journal is not None:
        journal.once.append(what)


_TENSORS = (torch.nn.Parameter, torch.Tensor)  # `shape` of a subclass may run user code
_NOTHING: dict[str, Any] = {}


class Census:
    """Counts modules by shape, to find modules whose shape no other module has.

    The shape of a module consists of its class, the sizes of its tensors and the shapes of its
    children. Calls of two modules are equal only if the modules' shapes are equal. A module's shape
    is computed once, even if several modules contain the module.
    """

    def __init__(self) -> None:
        self._shapes: dict[int, int] = {}  # id of a module -> number of its shape
        self._numbers: dict[Any, int] = {}  # shape -> number
        self._counts: collections.Counter[int] = collections.Counter()  # number -> modules

    def is_single(self, module: torch.nn.Module) -> bool:
        """Return whether no other counted module has the shape of `module`.

        A module that was not counted before is counted now, with all modules in it. The result is
        then False, because other uncounted modules may be equal. The first module of a trace is an
        exception, because its call can seldom be repeated.
        """
        is_first = not self._shapes
        if id(module) not in self._shapes:
            self._add(module)
            if not is_first:
                return False
        return self._counts[self._shapes[id(module)]] == 1

    def _add(self, root: torch.nn.Module) -> None:
        found: dict[int, torch.nn.Module] = {}
        pending = [root]
        while pending:
            module = pending.pop()
            if id(module) not in found and id(module) not in self._shapes:
                found[id(module)] = module
                pending.extend(_children(module))
        for key, module in reversed(found.items()):  # children first
            shape = (
                type(module),
                tuple(_sizes(module)),
                tuple(self._shapes.get(id(child), -1) for child in _children(module)),
            )
            number = self._shapes[key] = self._numbers.setdefault(shape, len(self._numbers))
            self._counts[number] += 1


def _children(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    table = vars(module).get("_modules", _NOTHING)
    return (child for child in table.values() if isinstance(child, torch.nn.Module))


def _sizes(module: torch.nn.Module) -> Iterator[Any]:
    own = vars(module)
    for name in ("_parameters", "_buffers"):
        for value in own.get(name, _NOTHING).values():
            yield value.shape if type(value) in _TENSORS else type(value)


# The methods of an OutputGraph that a journal replaces.
_WATCHED = ("add_fqn_info_for_inlined_modules", "register_attr_or_module")


class Journal:
    """Lists what Dynamo has read, and what it has added to one OutputGraph. The lists only grow.

    Each call of a module corresponds to a slice of each list. Slices of nested calls overlap.
    """

    def __init__(self, output: Any) -> None:
        self.output = output
        self.graph = output.current_tracer.graph
        self.effects = output.side_effects
        # (node, proposed name, name) for a new node; (None, proposed name, name) if an existing
        # node is renamed.
        self.events: list[tuple[torch.fx.Node | None, str, str]] = []
        self.entered: list[tuple[str, Source, torch.nn.Module]] = []  # (key, path, called module)
        self.built: list[tuple[torch.nn.Module, Source]] = []  # modules that got variables
        self.reads: list[tuple[int, str]] = []  # (id of a module, name of an attribute)
        self.sizes: list[SeenSize] = []  # numbers and sizes that may become inputs of the graph
        self.once: list[str] = []  # see `note_once`
        # Variables of objects that outlive the trace and were changed, and the number of changes.
        self._changed = compat.changed_objects(self.effects)
        self.mutations = len(self._changed)
        # Objects that the changed objects contain (id of variable -> variable), and the generators
        # in these objects. `_reach` computes both again if `mutations` is not `_reached_at`.
        self._reached: dict[int, VariableTracker] = {}
        self._generators: list[VariableTracker] = []
        self._reached_at = 0
        self.known: set[int] = set()  # ids of modules that got variables in finished calls
        self.census = Census()
        self.report = begin()
        self.recordings: dict[Any, list[Any]] = {}  # key of a call -> its Recordings
        self.depth = 0  # how many nested calls are being recorded
        self.stack_trace: str | None = None  # for new nodes; None: Dynamo computes it
        self._undo: list[Callable[[], None]] = []
        self._instantiated: dict[int, tuple[torch.nn.Module, Source]] = {}
        # Keys of guards that instances added. Dynamo would add them again for each new variable.
        self._guarded: set[Any] = set()
        self._count_mutations()
        self._note_modules()
        self._note_guards()
        self._end_with_trace()

    def is_current(self, output: Any) -> bool:
        """Return whether Dynamo still writes to this journal's graph, and has not restarted."""
        return self.graph is output.current_tracer.graph and self.effects is output.side_effects

    def __enter__(self) -> Journal:
        self.depth += 1
        if self.depth == 1:
            self._record_events()
        return self

    def __exit__(self, *exception: object) -> None:
        self.depth -= 1
        if self.depth == 0:
            while self._undo:
                self._undo.pop()()

    def _count_mutations(self) -> None:
        check = self.effects.check_allowed_side_effect

        def check_allowed(item: VariableTracker) -> Any:
            if compat.outlives_call(item) or self._is_reached(item):
                self.mutations += 1
                self._changed.append(item)
            return check(item)

        vars(self.effects)["check_allowed_side_effect"] = check_allowed

    def _is_reached(self, item: VariableTracker) -> bool:
        """Return whether a changed object contains `item`, an object created while tracing."""
        self._reach()
        return id(item) in self._reached

    def _reach(self) -> None:
        if self._reached_at != self.mutations:
            self._reached_at = self.mutations
            self._reached = compat.within(self._changed, self.effects)
            self._generators = list(filter(compat.is_generator, self._reached.values()))

    def has_open_generator(self) -> bool:
        """Return whether a changed object contains a generator that is not exhausted."""
        self._reach()
        return not all(map(compat.is_exhausted, self._generators))

    def _note_modules(self) -> None:
        output, built, instantiated, once = self.output, self.built, self._instantiated, self.once
        register = output.register_attr_or_module
        add_module = output.add_fqn_info_for_inlined_modules

        def add_fqn_info(module: torch.nn.Module, source: Source) -> None:
            built.append((module, source))
            known = instantiated.get(id(module))
            if known is None:
                add_module(module, source)
            elif known[1] != source:
                # A trace registers a module only under its first path.
                compat.restart_without_reuse(
                    output, "a part of an instantiated module has another path"
                )

        def register_attr_or_module(target: Any, *names: Any, **options: Any) -> Any:
            if isinstance(options.get("source"), compat.ConstantSource):
                once.append("the result of a function that runs while tracing")
            return register(target, *names, **options)

        vars(output)["add_fqn_info_for_inlined_modules"] = add_fqn_info
        vars(output)["register_attr_or_module"] = register_attr_or_module

    def _note_guards(self) -> None:
        guards, guarded = self.output.guards, self._guarded
        add = guards.add

        def add_new(guard: Guard, **options: Any) -> None:
            if not guarded or not compat.is_of_variable(guard) or guard_key(guard) not in guarded:
                add(guard, **options)

        vars(guards)["add"] = add_new

    def note_guard(self, guard: Guard) -> None:
        """Record a guard of an instance, so that Dynamo does not add it again for a variable."""
        if compat.is_of_variable(guard):
            self._guarded.add(guard_key(guard))

    def _end_with_trace(self) -> None:
        """Make `OutputGraph.cleanup` free the journal, and restore the methods in `_WATCHED`."""
        output = self.output
        free = vars(output).pop("cleanup", output.cleanup)

        def cleanup() -> None:
            for name in (KEY, "cleanup", *_WATCHED):
                vars(output).pop(name, None)
            vars(self.effects).pop("check_allowed_side_effect", None)
            vars(output.guards).pop("add", None)
            vars(self).clear()
            free()

        vars(output)["cleanup"] = cleanup

    def note_known(self, start: int) -> None:
        """Record the modules that got variables since `start`, an index of `built`."""
        self.known.update(id(module) for module, _ in self.built[start:])

    def note_instantiated(self, module: torch.nn.Module, source: Source) -> None:
        """Record a module that an instance calls; Dynamo has built no variable for this module."""
        self.output.add_fqn_info_for_inlined_modules(module, source)
        self._instantiated[id(module)] = module, source

    def _record_events(self) -> None:
        tracer = self.output.current_tracer
        namespace = self.graph._graph_namespace
        make_name, make_node = namespace.create_name, tracer.create_node
        events = self.events

        def create_name(candidate: str, obj: object) -> str:
            name: str = make_name(candidate, obj)
            events.append((None, candidate, name))
            return name

        def create_node(*args: Any, **kwargs: Any) -> torch.fx.Node:
            before = len(events)
            node: torch.fx.Node = make_node(*args, **kwargs)
            if len(events) == before + 1:
                _, candidate, name = events[before]
                events[before] = (node, candidate, name)
            if self.stack_trace is not None:  # Dynamo then does not compute it
                node.meta["stack_trace"] = self.stack_trace
            return node

        self._replace(namespace, "create_name", create_name)
        self._replace(tracer, "create_node", create_node)
        name = "process_automatic_dynamic"
        self._undo.append(functools.partial(setattr, builder, name, getattr(builder, name)))
        setattr(builder, name, compat.process_sizes(self.sizes.append))

    def _replace(self, owner: Any, name: str, function: Any) -> None:
        vars(owner)[name] = function
        self._undo.append(lambda: vars(owner).pop(name, None))


def journal_of(output: Any) -> Journal:
    """Return the Journal of an OutputGraph; create it at the first use."""
    found: Journal | None = vars(output).get(KEY)
    if found is None or not found.is_current(output):
        found = vars(output)[KEY] = Journal(output)
    return found


def begin_once(output: Any) -> None:
    """Begin a report at the first call of a module, if the OutputGraph has no journal."""
    if KEY not in vars(output):
        begin()
        vars(output)[KEY] = None
