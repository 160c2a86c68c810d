"""Describe and record a traced call of a module, so that equal calls can repeat it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fxpress._graphs.tracking.reuse import structure
from fxpress._torch import reuse as compat
from fxpress._torch.reuse import Translator, VariableTracker, variables

if TYPE_CHECKING:
    from fxpress._graphs.tracking.reuse.journal import Journal


class Call:
    """A call that is about to be traced or repeated. `key` describes everything that it can read.

    Raises:
        NotReusable: the call cannot be described.
    """

    def __init__(
        self,
        variable: Any,
        tx: Translator,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
        journal: Journal,
    ) -> None:
        self.variable = variable
        self.tx = tx
        self.module = variable.value
        self.source = variable.source
        self.path = variable.get_nn_module_stack_source()
        self.journal = journal
        if id(self.module) in journal.known:  # Dynamo may treat this module unlike a new one
            raise structure.NotReusable("an earlier call has read the module")
        if journal.has_open_generator():
            raise structure.NotReusable("the program has an open generator")
        self.mutations = journal.mutations
        self.once = len(journal.once)
        self.arguments = structure.CallArguments(args, kwargs, journal.effects)
        self.structure = structure.ModuleStructure(self.module)
        self.key = (
            type(variable),
            self.structure.key,
            tuple(self.structure.names),
            self.arguments.key,
            compat.surroundings(tx),
        )
        known = journal.effects.id_to_variable
        # Numbers of objects for which Dynamo already has a variable, from another call or path.
        self.tracked = tuple(
            number for number, each in enumerate(self.structure.objects) if id(each) in known
        )
        # Whether Dynamo has read each object before: if so, it adds other guards for the object.
        self.met = [each in known for each in self.structure.others]
        self.state = compat.global_state()
        self.site = compat.CallSite(tx)
        self.depth = len(tx.nn_module_stack)


class Correspondence:
    """Maps sources, nodes, names and stack traces of a recorded call to the ones of a new call."""

    def __init__(self, old: Call, new: Call) -> None:
        self._sites = old.site, new.site
        self._is_same_site = old.site.is_same(new.site)
        self.sources: dict[Any, Any] = {old.path: new.path, old.source: new.source}
        if hasattr(old.source, "base"):
            self.sources[old.source.base] = new.source.base
        self.nodes: dict[torch.fx.Node, torch.fx.Node] = {}
        self._names: dict[str, str] = {}

    def source(self, old: Any) -> Any:
        """Return the new call's source for a source in the recorded call."""
        return compat.map_source(old, self.sources)

    def node(self, old: torch.fx.Node) -> torch.fx.Node:
        """Return the new call's node for a recorded node; return nodes of other calls unchanged."""
        return self.nodes.get(old, old)

    def add_node(self, old: torch.fx.Node, new: torch.fx.Node) -> None:
        """Map a recorded node and its first name to a node of the new call and its first name."""
        self.nodes[old] = new
        self._names[_first_name(old)] = _first_name(new)

    def functions(self, stack: Any) -> list[tuple[str, Any]]:
        """Return the new call's `source_fn_stack` for the stack of a recorded node."""
        return [(self._names.get(name, name), kind) for name, kind in stack]

    def trace(self, text: str) -> str:
        """Return the stack trace of a recorded node, with the frames of the new call site."""
        if self._is_same_site:
            return text
        old, new = self._sites
        return new.text() + text.removeprefix(old.text())

    def stack(self, frames: Any) -> Any:
        """Return the frames of a recorded guard, with the frames of the new call site."""
        if self._is_same_site:
            return frames
        old, new = self._sites
        return type(frames)([*new.stack, *frames[len(old.stack) :]])


def _first_name(node: torch.fx.Node) -> str:
    """Return a node's first name; `source_fn_stack` keeps this name when the node is renamed."""
    stack = node.meta.get("source_fn_stack")
    return str(stack[-1][0]) if stack else node.name


class Position(NamedTuple):
    """The lengths of the lists of the journal and of the OutputGraph at one moment."""

    events: int
    entered: int
    built: int
    reads: int
    sizes: int
    guards: int
    codes: int
    generators: int


class Recording:
    """A traced call: the slices of the journal's lists that it added, and its result."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.result: VariableTracker | None = None
        self.reason = ""  # why no call can repeat this one; empty if no reason is known
        journal = call.journal
        output = journal.output
        self._before = compat.lasting_state(output)
        self._versions = [_version(each) for each in call.arguments.tensors]
        self.start = self._position()
        self.end = self.start
        self._results: list[tuple[Any, Any]] = []
        self._containers: list[tuple[Any, tuple[VariableTracker, ...]]] = []
        self.template: Any = None  # built when another call has an equal key

    def _position(self) -> Position:
        journal = self.call.journal
        output = journal.output
        return Position(
            len(journal.events),
            len(journal.entered),
            len(journal.built),
            len(journal.reads),
            len(journal.sizes),
            len(output.guards.inner),
            len(output.traced_code),
            len(getattr(output, "local_generators", ())),
        )

    def finish(self, result: VariableTracker) -> None:
        """Record the end of the call, and set `reason` if no call can repeat it."""
        call = self.call
        self.end = self._position()
        self.result = result
        self._note_result(result)
        call.journal.note_known(self.start.built)
        after = compat.lasting_state(call.journal.output)
        if after != self._before:
            change = compat.lasting_change(self._before, after)
            self.reason = f"the earlier call changed Dynamo's state: {change}"
        elif call.journal.once[call.once :]:
            self.reason = f"the earlier call depends on {call.journal.once[call.once]}"
        elif call.journal.mutations != call.mutations:
            self.reason = "the earlier call changes an object that outlives it"
        elif not call.state.check():
            self.reason = "the earlier call changes torch's global state"
        elif not call.arguments.unchanged():
            self.reason = "the earlier call changes a container among its arguments"
        elif self._versions != [_version(each) for each in call.arguments.tensors]:
            self.reason = "the earlier call changes an argument in place"

    def _note_result(self, variable: Any) -> None:
        """Record the current state of the result's lists and tensors, to detect later changes."""
        if isinstance(variable, compat.LazyVariableTracker):
            variable = variable.unwrap()
        kind = type(variable)  # not `isinstance`, which realizes lazy variables
        if kind is compat.TensorVariable:
            self._results.append((variable, _version(variable)))
        elif kind in (variables.TupleVariable, variables.ListVariable):
            items = compat.items_of(variable)
            self._containers.append((variable, items))
            for each in items:
                self._note_result(each)

    def check(self) -> None:
        """Raise NotReusable if the call cannot be repeated."""
        if any(_version(each) != version for each, version in self._results) or any(
            compat.items_of(each) != items for each, items in self._containers
        ):
            self.reason = "the program changed the result of the earlier call"
        if self.reason:
            raise structure.NotReusable(self.reason)


def _version(variable: Any) -> Any:
    """Return a value that changes when a variable's tensor is written to; None for a number."""
    example = variable.as_proxy().node.meta.get("example_value")
    if not hasattr(example, "_version"):
        return None
    return example._version, structure.tensor_facts(example)
